"""A stand-in for the control layer: roles, a gate between requests and iterations, and its own calls on record.

Loaded by path in the workers. The gate is a word in a file that all processes map: HP's number of open requests.
"""

import contextlib
import ctypes
import mmap
import os
import struct
import time

PATH = "MOSAIC_BENCH_TEST_GATE"


def make():
    return GateControl()


class GateControl:
    name = "gate"

    def __init__(self):
        fd = os.open(os.environ[PATH], os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 64)
        self._words = memoryview(mmap.mmap(fd, 64)).cast("q")
        os.close(fd)
        self.policy = "idle-only"
        self.requests = 0
        self.pending = 0

    def hp(self, fn, *, slo, name, device):
        return fn

    def be(self, fn, *, name, device):
        def gated(*args):
            while self.policy == "idle-only" and self._words[0] > 0:
                time.sleep(0.0002)
            return fn(*args)

        return gated

    def request(self, job, arrived_at_s):
        return _Request(self)

    def best_effort(self, job):
        return contextlib.nullcontext()

    def configure(self, policy):
        self.policy = policy

    def stats(self):
        job = {"name": "toy", "kernels_seen": self.requests, "pending": self.pending}
        return {"jobs": [job], "events": [], "open": self._words[0], "policy": self.policy}

    def unwrap(self, job):
        pass

    def facts(self):
        return {"mosaic_torch": "stand-in"}

    def add(self, delta):
        self._words[0] += delta


class _Request:
    def __init__(self, control):
        self._control = control
        self._open = False

    def open(self):
        self._open = True
        self._control.pending += 1
        self._control.add(1)

    def __enter__(self):
        if not self._open:
            self._control.add(1)
        self._control.requests += 1

    def __exit__(self, *_):
        self._control.add(-1)
        return False


def crash():
    """For a stand-in that dies: a real segmentation fault."""
    return ctypes.string_at(struct.unpack("P", b"\0" * 8)[0])
