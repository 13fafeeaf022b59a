"""Waiting for the GPU, but not for ever: a kernel that waits for what never comes ends only with its process."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable

import torch

# Of what is measured in one go, nothing takes as long as this.
LIMIT_S = 10.0
# So much may be enqueued beyond what has ended: the GPU is never out of work, and no full queue holds the host.
AHEAD = 3
POLL_S = 50e-6


class Patience:
    """Follows what is enqueued. Where it does not end, `stuck` hears the kernels' keys, and the process is left."""

    def __init__(self, stuck: Callable[[tuple[str, ...]], None]) -> None:
        self._stuck = stuck
        self._going: deque[tuple[tuple[str, ...], torch.cuda.Event]] = deque()

    def enqueued(self, stream: torch.cuda.Stream, *keys: str) -> None:
        """These kernels end where the stream is now."""
        mark = torch.cuda.Event()
        mark.record(stream)
        self._going.append((keys, mark))
        while len(self._going) > AHEAD:
            self._wait()

    def all_ended(self) -> None:
        """Waits for the rest."""
        while self._going:
            self._wait()

    def _wait(self) -> None:
        keys, mark = self._going.popleft()
        deadline = time.monotonic() + LIMIT_S
        while not mark.query():
            if time.monotonic() > deadline:
                try:
                    what = f"mosaic: {' beside '.join(keys)} did not end within {LIMIT_S:.0f} s: stopped here"
                    print(what, file=sys.stderr, flush=True)
                    self._stuck(keys)
                    sys.stdout.flush()
                finally:
                    # Whatever else is asked of the GPU, this process's own orderly end included, would wait too.
                    os._exit(1)
            time.sleep(POLL_S)
