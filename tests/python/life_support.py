"""What the programs of test_programs.py share: a GPU of the double, jobs on it, threads that are held.

The launches are those of a program that knows nothing of mosaic_torch, which is imported only where a job is made.
"""

import ctypes
import threading
import time

import double

HP, BE = 1, 2
# No bound lets best effort go before the program has looked.
HOLD = {"calibration_requests": 0, "stall_ms": 600_000, "max_wait_ms": 600_000}


class Gpu:
    """One device of the double, with its primary context current in the thread that makes this."""

    def __init__(self, device=0):
        self.device, self.context = device, ctypes.c_void_p()
        double.check(double.cuda.cuInit(0))
        double.check(double.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.enter()
        self._functions = {"k_5us": double.kernel("k_5us")}  # asking for one needs the context, launching does not

    def enter(self):
        """Makes the context current in this thread."""
        double.check(double.cuda.cuCtxSetCurrent(self.context))

    def launch(self, stream=None, name="k_5us", *, locked=False, through=None):
        """The driver's answer. `locked`: Python's lock is held, as in some launchers; torch releases it."""
        function = self._functions.get(name) or self._functions.setdefault(name, double.kernel(name))
        call = through or (double.locked if locked else double.cuda).cuLaunchKernel
        return call(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)


class Jobs:
    """Jobs of this process on a device, over the C interface of the package's own library."""

    def __init__(self, gpu, **settings):
        import mosaic_torch

        self.gpu, self.stats = gpu, mosaic_torch.stats
        self.lib = mosaic_torch.api.runtime.lib
        self.lib.configure({**HOLD, **settings})

    def job(self, name, role):
        return self.lib.job_register(name, role, self.gpu.device, 1.1, 0)

    def stream(self, job):
        stream = double.stream()
        double.stream_role(self.lib, stream, job)
        return stream

    def of(self, job):
        (found,) = [j for j in self.stats()["jobs"] if j["job"] == job]
        return found

    def launches(self, job):
        """Its kernels so far; each is counted before it comes to the gate."""
        return self.of(job)["kernels"]


def until(condition, what, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.001)


class Held(threading.Thread):
    """A best-effort thread that launches `count` kernels (None: for ever), and stands in the gate when this returns."""

    def __init__(self, jobs, job, *, locked=True, count=1, daemon=True, context=True):
        super().__init__(daemon=daemon)
        self._jobs, self._stream, self._locked, self._count = jobs, jobs.stream(job), locked, count
        self._context, self.answers = context, []
        before = jobs.launches(job)
        self.start()
        until(lambda: jobs.launches(job) > before, "a best-effort launch")
        assert self.holds(), f"it was not held: {self.answers}"

    def run(self):
        gpu = self._jobs.gpu
        if self._context:
            gpu.enter()
        while self._count is None or len(self.answers) < self._count:
            self.answers.append(gpu.launch(self._stream, locked=self._locked))
        print("worked", flush=True)

    def holds(self, seconds=0.1):
        """Whether it is still in the gate a while later."""
        self.join(seconds)
        return self.is_alive() and not self.answers

    def finish(self):
        self.join(20)
        assert not self.is_alive(), "it is held for ever"
        assert all(a == 0 for a in self.answers), self.answers
