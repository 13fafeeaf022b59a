"""The two inner loops. All instants are CLOCK_MONOTONIC nanoseconds, so that processes can be compared."""

import ctypes
import gc
import time

PR_SET_TIMERSLACK = 29


def precise_sleep():
    """Lets this thread's sleeps end on time: the default slack of 50 us would be counted as latency."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class PauseLog:
    """Garbage collections of this process, as (kind, begin, end): one possible cause of a stall."""

    def __init__(self):
        self.events = []
        self._begin = 0
        gc.callbacks.append(self._on_gc)

    def _on_gc(self, phase, info):
        now = time.monotonic_ns()
        if phase == "start":
            self._begin = now
        elif now - self._begin > 5_000_000:
            self.events.append((f"python gc, generation {info['generation']}", self._begin, now))


def run_hp(call, request, wait_done, offsets_ns, block, overload_ns=None):
    """Serves requests one at a time; each one's latency counts from its intended arrival.

    ``call()`` launches one request's work, ``request(arrived_at_s)`` makes its context (None: no role),
    ``wait_done()`` waits for the GPU. ``offsets_ns``: arrivals counted from now; or a number of requests: closed loop.
    Ends early, as overloaded, once a request starts ``overload_ns`` after its arrival. ``submit`` is when everything
    was launched, ``submit_cpu`` the CPU time that this took: they tell a slow host from a busy GPU.
    """
    _, put_completed = block.cell("hp_completed")
    _, put_inside = block.cell("hp_inside")
    stop, _ = block.cell("hp_stop")
    closed = isinstance(offsets_ns, int)
    count = offsets_ns if closed else len(offsets_ns)
    clock, cpu_clock = time.monotonic_ns, time.thread_time_ns
    arrivals, starts, submits, cpu, ends = [], [], [], [], []
    overloaded = False
    pending = None
    put_completed(0)
    base = clock()
    try:
        for index in range(count):
            if closed:
                start = arrival = clock()
            else:
                arrival = base + offsets_ns[index]
                wait = arrival - clock()
                if wait > 0:
                    time.sleep(wait * 1e-9)
                start = clock()
            if overload_ns is not None and start - arrival > overload_ns:
                overloaded = True
            if overloaded or stop():
                break
            put_inside(1)
            cpu_begin = cpu_clock()
            if request is None:
                call()
                submit, cpu_end = clock(), cpu_clock()
                wait_done()
                end = clock()
            else:
                current = pending or request(arrival * 1e-9)
                pending = None
                with current:
                    call()
                    submit, cpu_end = clock(), cpu_clock()
                    wait_done()
                    end = clock()
                    # A server knows its queue: a request that has arrived meanwhile is pending before this one ends.
                    if not closed and index + 1 < count and base + offsets_ns[index + 1] <= end:
                        pending = request((base + offsets_ns[index + 1]) * 1e-9)
                        pending.open()
            put_inside(0)
            arrivals.append(arrival - base)
            starts.append(start - base)
            submits.append(submit - base)
            cpu.append(cpu_end - cpu_begin)
            ends.append(end - base)
            put_completed(index + 1)
    finally:
        # One left open would hold every BE.
        if pending is not None:
            pending.close()
    marks = {"arrival": arrivals, "start": starts, "submit": submits, "end": ends}
    return {"base": base, **marks, "submit_cpu": cpu, "overloaded": overloaded}


def run_be(call, wait_done, block, seconds=None, at_least=1):
    """Iterates until told to stop (or for ``seconds``, and ``at_least`` so many); an iteration ends when the GPU is
    done with it."""
    stop, _ = block.cell("be_stop")
    _, put_running = block.cell("be_running")
    _, put_iterations = block.cell("be_iterations")
    _, put_last = block.cell("be_last_done_ns")
    clock = time.monotonic_ns
    done = []
    put_iterations(0)
    base = clock()
    deadline = None if seconds is None else base + round(seconds * 1e9)
    put_running(1)
    try:
        while not stop():
            if deadline is not None and len(done) >= at_least and clock() >= deadline:
                break
            call()
            wait_done()
            now = clock()
            done.append(now - base)
            put_iterations(len(done))
            put_last(now)
    finally:
        put_running(0)
    return {"base": base, "done": done}
