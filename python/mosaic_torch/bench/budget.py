"""Wall-clock budget of one command, and its progress lines."""

import sys
import time


class Budget:
    """Counts from its making. ``max_seconds`` None: no limit."""

    # Kept back for the last replies, the workers' ends and the files.
    RESERVE_S = 8.0

    def __init__(self, max_seconds=None, clock=time.monotonic):
        self._clock = clock
        self._begin = clock()
        self.max_seconds = max_seconds

    def spent(self):
        return self._clock() - self._begin

    def left(self):
        """Seconds that may still be planned; infinite without a limit."""
        if self.max_seconds is None:
            return float("inf")
        return self.max_seconds - self.spent() - self.RESERVE_S

    def fits(self, seconds):
        return seconds <= self.left()

    def timeout(self, expected_s):
        """How long to wait for something that should take ``expected_s``."""
        return min(4 * expected_s + 30.0, max(5.0, self.left() + self.RESERVE_S / 2))


class Progress:
    """One line a step: time spent, a bar, what was done."""

    WIDTH = 20

    def __init__(self, budget, out=None):
        self._budget = budget
        self._out = out or sys.stdout
        self.total = 0
        self.done = 0
        self._said_at = float("-inf")

    def say(self, text):
        limit = "" if self._budget.max_seconds is None else f"/{self._budget.max_seconds:.0f}"
        print(f"[{self._budget.spent():6.1f}{limit} s] {text}", file=self._out, flush=True)

    def begin(self, total):
        """So many steps are ahead."""
        self.total, self.done = total, 0

    def advance(self, text, steps=1):
        """As `step`, for steps of milliseconds: a line a second, and one at the end."""
        self.done += steps - 1
        now = self._budget.spent()
        if now - self._said_at >= 1.0 or self.done + 1 >= self.total:
            self._said_at = now
            self.step(text)
        else:
            self.done += 1

    def step(self, text):
        self.done += 1
        filled = self.WIDTH * min(self.done, self.total) // max(1, self.total)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        self.say(f"[{bar}] {self.done}/{self.total} {text}")
