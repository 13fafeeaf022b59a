"""A stand-in for the control layer: roles, and a gate that holds BE's iterations while an HP request is open.

Loaded by path in the workers. The gate is a file lock: the kernel drops it when HP's process dies, however it dies.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "python" / "mosaic_torch" / "bench"
GATE = "MOSAIC_BENCH_TEST_GATE"
# A file's path: the first BE call under the policy "none" kills its process, once (the file says that it did).
DIE_ONCE = "MOSAIC_BENCH_TEST_DIE_ONCE"


def package():
    """The package under test, loaded as the workers load it: without mosaic_torch around it."""
    sys.path.insert(0, str(BENCH))
    try:
        from launch import load
    finally:
        sys.path.remove(str(BENCH))
    return load()


def make():
    return GateControl()


class GateControl:
    name = "gate"

    def __init__(self):
        path = os.environ[GATE]
        # Two descriptions of the file: HP and BE exclude each other also as threads of one process.
        self._hp, self._be = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
        self.policy = "idle-only"
        self.settings = {}
        self.open_requests = 0
        self.counts = {"requests": 0, "opened_ahead": 0, "held": 0, "be_calls": 0}

    def hp(self, fn, *, slo, name, device):
        return fn

    def be(self, fn, *, name, device):
        def gated(*args):
            self._maybe_die()
            held = False
            while self.policy == "idle-only" and not self._is_free():
                held = True
                time.sleep(0.0002)
            self.counts["held"] += held
            return fn(*args)

        return gated

    def _is_free(self):
        try:
            fcntl.flock(self._be, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._be, fcntl.LOCK_UN)
        return True

    def _maybe_die(self):
        self.counts["be_calls"] += 1
        path = os.environ.get(DIE_ONCE)
        if path and self.policy == "none" and not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def request(self, job, arrived_at_s):
        return _Request(self)

    def best_effort(self, job):
        return contextlib.nullcontext()

    def configure(self, policy=None, **settings):
        self.policy = policy or self.policy
        self.settings |= settings

    def stats(self):
        job = {"name": "toy", "kernels": self.counts["requests"], "hp": {"isolated": {"p50_ns": 1}}}
        return {"jobs": [job], "open": self.open_requests, "policy": self.policy, "counts": self.counts}

    def ledger(self):
        return []

    def unwrap(self, job):
        pass

    def facts(self):
        return {"mosaic_torch": "stand-in"}

    def add(self, delta):
        self.open_requests += delta
        if delta > 0 and self.open_requests == 1:
            fcntl.flock(self._hp, fcntl.LOCK_EX)
        if self.open_requests == 0:
            fcntl.flock(self._hp, fcntl.LOCK_UN)


class _Request:
    def __init__(self, control):
        self._control = control
        self._open = False

    def open(self):
        self._open = True
        self._control.counts["opened_ahead"] += 1
        self._control.add(1)

    def close(self):
        self._control.add(-1)

    def __enter__(self):
        if not self._open:
            self._control.add(1)
        self._control.counts["requests"] += 1

    def __exit__(self, *_):
        self._control.add(-1)
        return False
