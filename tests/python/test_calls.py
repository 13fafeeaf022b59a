"""What happens around a call: entered once, left once, in every way a call can end."""

import asyncio
import contextvars
import ctypes
import shutil
import signal
import subprocess
import threading
import time
import warnings

import pytest
import torch

from fakes import CALLER, Model, OnGpu, world
from mosaic_torch import api
from mosaic_torch._blocks import BestEffort, Request
from mosaic_torch._lib import BE, HP
from mosaic_torch.errors import MosaicError, UsageError


def hp(runtime, function, name=None):
    return runtime.wrap(function, HP, 1.1, name, None)


def be(runtime, function, name=None):
    return runtime.wrap(function, BE, 1.0, name, None)


def request(runtime, model=None, arrived_at_ns=0):
    return Request(runtime, runtime.only(HP, 1.1) if model is None else runtime.job_of(model, HP), arrived_at_ns)


def best_effort(runtime, model=None):
    return BestEffort(runtime, runtime.only(BE, 1.0) if model is None else runtime.job_of(model, BE))


C_OPS = """
#include <stdint.h>
static int64_t in, out;
int64_t enter(int64_t job, int64_t request, int64_t device) { return ++in; }
void leave(int64_t token, int ok) { ++out; }
int64_t entered(void) { return in; }
int64_t left(void) { return out; }
"""


@pytest.fixture(scope="module")
def c_ops(tmp_path_factory):
    """The two ops as C functions, as the real ones are: signal handlers run between them, never inside."""
    folder = tmp_path_factory.mktemp("ops")
    (folder / "ops.c").write_text(C_OPS)
    compiler = shutil.which("cc") or pytest.skip("NO C COMPILER: the Ctrl-C test needs one")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "ops.so", folder / "ops.c"], check=True)
    ops = ctypes.PyDLL(str(folder / "ops.so"))
    for name in ("enter", "entered", "left"):
        getattr(ops, name).restype = ctypes.c_int64
    return ops


class TestCall:
    def test_the_model_runs_on_its_own_stream_and_the_caller_gets_its_back(self, runtime, library):
        seen = []
        model = hp(runtime, lambda: seen.append(library.gpu.threads.stream))
        model()
        assert seen == [101]
        assert library.gpu.threads.stream == CALLER
        assert library.calls[-2:] == [("enter", 1, 0, 0), ("leave", 1, True)]

    def test_tensors_that_cross_are_marked_for_the_other_stream(self, runtime):
        """Unmarked, their memory is reused while the other stream still works on it: wrong results, rarely."""
        argument, keyword, result = OnGpu(), OnGpu(), OnGpu()
        model = hp(runtime, lambda x, y: {"out": result})
        model([argument], y=keyword)
        assert argument.marks == keyword.marks == [(0, 101)]
        assert result.marks == [(0, CALLER)]

    def test_nothing_is_marked_on_one_stream(self, runtime, library):
        """A nested call stays where it is; marking there would cost an event for each free."""
        inner, x = hp(runtime, lambda x: x, "inner"), OnGpu()
        library.gpu.threads.stream = 101  # as inside a section of the same job
        inner(x)
        assert x.marks == []

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_an_exception_ends_the_request_as_failed(self, runtime, library, error):
        """A request that stays open holds all best-effort work."""

        def fail():
            raise error("in forward")

        model = hp(runtime, fail)
        with pytest.raises(error, match="in forward"):
            model()
        assert library.calls[-1] == ("leave", 1, False)
        assert library.gpu.threads.stream == CALLER
        model = hp(runtime, lambda: 1, "next")
        assert model() == 1

    def test_a_failed_enter_is_said_and_leaves_nothing_open(self, runtime, library):
        model = hp(runtime, lambda: 1)
        library.jobs.clear()
        with pytest.raises(MosaicError, match="no job 1"):
            model()
        assert library.names() == []

    def test_a_failed_leave_is_said(self, runtime, library):
        model = hp(runtime, lambda: 1)
        library.fail_leave = True
        with pytest.raises(MosaicError, match="the driver said no"):
            model()

    def test_the_models_exception_wins_over_a_failed_leave(self, runtime, library):
        def fail():
            raise ValueError("the real reason")

        model = hp(runtime, fail)
        library.fail_leave = True
        with (
            pytest.warns(RuntimeWarning, match="the driver said no"),
            pytest.raises(ValueError, match="the real reason"),
        ):
            model()

    def test_a_capture_is_left_alone(self, runtime, library):
        """A stream change or an event inside torch.cuda.graph would break the user's graph."""
        model = hp(runtime, lambda: 1)
        runtime.cuda.capturing = True
        assert model() == 1
        with request(runtime, model):
            pass
        assert library.names() == ["open", "close"]

    def test_best_effort_inside_a_high_priority_request_is_refused(self, runtime):
        """It would be held until the request ends, which ends after it."""
        low = be(runtime, lambda: 1)
        high = hp(runtime, low.__call__)
        with pytest.raises(UsageError, match="would wait for itself"):
            high()
        with request(runtime, high):
            with pytest.raises(UsageError, match="would wait for itself"):
                low()
            with pytest.raises(UsageError, match="would wait for itself"), best_effort(runtime, low):
                pass
        assert low() == 1
        with best_effort(runtime, low):
            assert hp(runtime, lambda: 2, "other")() == 2

    def test_a_best_effort_forward_keeps_its_backward_off_the_shared_autograd_thread(self, runtime):
        """torch has one autograd thread per GPU: a BE backward held there would hold HP's backward too."""
        model = be(runtime, torch._C._is_multithreading_enabled)
        seen = []

        def work():
            with torch.no_grad():
                seen.append(model())
            seen.append(model())
            seen.append(torch._C._is_multithreading_enabled())
            hp(runtime, lambda: None)()
            seen.append(torch._C._is_multithreading_enabled())

        _in_thread(work)
        assert seen == [True, False, False, False]
        assert torch._C._is_multithreading_enabled()

    def test_threads_do_not_see_each_others_streams(self, runtime, library):
        inside, go = threading.Barrier(4, timeout=20), []

        def forward():
            inside.wait()
            go.append(library.gpu.threads.stream)

        model = hp(runtime, forward)
        threads = [threading.Thread(target=model) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert go == [101] * 4
        assert sorted(library.names()) == ["enter"] * 4 + ["leave"] * 4

    def test_ctrl_c_never_loses_an_entered_section(self, runtime, library, c_ops):
        """Ctrl-C may come at any instruction; a lost token would leave the thread on the job's stream for good."""
        low = be(runtime, lambda: sum(range(50)), "low")
        model = hp(runtime, lambda: sum(range(50)), "high")
        model()
        library.enter, library.leave = c_ops.enter, c_ops.leave
        ends, ctrl_c = time.monotonic() + 2.0, 0

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            while time.monotonic() < ends:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-4 * ((ctrl_c * 0.618) % 1))
                    while True:
                        model()
                except KeyboardInterrupt:
                    ctrl_c += 1
                    assert c_ops.entered() == c_ops.left()
                    low()  # an HP scope that was left behind would refuse it
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert ctrl_c > 100
        assert c_ops.entered() > ctrl_c


class TestRequest:
    def test_from_arrival_to_end(self, runtime, library):
        model = hp(runtime, lambda: library.gpu.threads.stream)
        r = request(runtime, model, arrived_at_ns=5)
        assert library.names() == []
        assert r.open() is r
        r.open()
        with r:
            assert library.gpu.threads.stream == 101
            assert model() == 101
        assert library.gpu.threads.stream == CALLER
        assert [c for c in library.calls if c[0] != "init"] == [
            ("open", 2, 5),
            ("enter", 1, 2, 0),
            ("enter", 1, 2, 0),
            ("leave", 2, True),
            ("leave", 1, True),
            ("close", 2),
        ]

    def test_an_exception_closes_it(self, runtime, library):
        with pytest.raises(ValueError, match="x"), request(runtime):
            raise ValueError("x")
        assert library.calls[-2:] == [("leave", 1, False), ("close", 2)]
        assert library.requests == {}

    def test_a_failed_enter_closes_it(self, runtime, library):
        r = request(runtime).open()
        library.jobs.clear()
        with pytest.raises(MosaicError, match="no job"), r:
            pass
        assert library.requests == {}

    def test_a_failed_leave_closes_it(self, runtime, library):
        library.fail_leave = True
        with pytest.raises(MosaicError, match="the driver said no"), request(runtime):
            pass
        assert library.requests == {}

    def test_it_can_be_given_up(self, runtime, library):
        r = request(runtime).open()
        r.close()
        r.close()
        assert library.requests == {}
        with pytest.raises(UsageError, match="has ended"), r:
            pass

    def test_one_that_is_forgotten_is_closed_and_said(self, runtime, library):
        """It would hold all best-effort work for as long as the process lives."""
        forgotten = [request(runtime).open()]
        assert len(library.requests) == 1
        with pytest.warns(ResourceWarning, match="never ended"):
            forgotten.clear()
        assert library.requests == {}

    def test_twice_at_once_is_refused(self, runtime, library):
        with request(runtime) as r:
            with pytest.raises(UsageError, match="already entered"), r:
                pass
            assert len(library.requests) == 1
        assert library.requests == {}

    def test_opened_in_one_thread_and_served_in_another(self, runtime, library):
        r = request(runtime).open()

        def serve():
            with r:
                pass

        _in_thread(serve)
        assert library.names() == ["open", "enter", "leave", "close"]

    def test_left_in_another_thread_is_refused(self, runtime, library):
        r = request(runtime)
        r.__enter__()
        errors = []

        def leave():
            try:
                r.__exit__(None, None, None)
            except UsageError as e:
                errors.append(str(e))

        _in_thread(leave)
        assert "in another thread" in errors[0]

    def test_calls_in_copied_contexts_join_it(self, runtime, library):
        """`asyncio.to_thread` inside a request: the call is part of it, on the other thread."""
        model = hp(runtime, lambda: 1)
        with request(runtime, model):
            context = contextvars.copy_context()
            _in_thread(lambda: context.run(model))
            _in_thread(model)
        assert [c[2] for c in library.calls if c[0] == "enter"] == [2, 2, 0]

    def test_a_call_after_the_end_is_a_request_of_its_own(self, runtime, library):
        model = hp(runtime, lambda: 1)
        with request(runtime, model):
            context = contextvars.copy_context()
        context.run(model)
        assert library.calls[-2] == ("enter", 1, 0, 0)

    def test_two_tasks_of_one_thread_inside_blocks_are_refused(self, runtime, library):
        """A thread has one current stream: the first task would go on with the second's."""
        errors = []

        async def serve(turn):
            try:
                with request(runtime):
                    await asyncio.sleep(0)
            except UsageError as e:
                errors.append(str(e))

        async def both():
            await asyncio.gather(serve(1), serve(2))

        asyncio.run(both())
        assert len(errors) == 1
        assert "must not await" in errors[0]
        assert library.requests == {}
        assert library.gpu.threads.stream == CALLER
        with request(runtime):
            pass

    def test_which_job_is_meant(self, runtime, library):
        with request(runtime) as r:
            assert "'anonymous hp'" in repr(r)
        one = hp(runtime, lambda: 1, "one")
        assert "'one'" in repr(request(runtime))
        hp(runtime, lambda: 1, "gone")
        two = hp(runtime, lambda: 1, "two")
        with pytest.raises(UsageError, match=r"2 HP jobs \('one', 'two'\): say which"):
            request(runtime)
        runtime.unwrap(two)
        assert "'one'" in repr(request(runtime, one))
        assert one() == 1

    @pytest.mark.parametrize("wrong", [time.time(), -1e9, "now", float("nan"), time.monotonic() + 3600])
    def test_another_clock_is_noticed(self, wrong):
        """time.time() for an arrival would put the request decades into the future."""
        with pytest.raises(UsageError, match=r"expected seconds of time\.monotonic"):
            api._arrival_ns(wrong)

    def test_arrival_is_in_nanoseconds(self):
        now = time.monotonic()
        assert abs(api._arrival_ns(now) - now * 1e9) < 1000
        assert api._arrival_ns(None) == 0


class TestBestEffort:
    def test_backward_runs_in_the_entering_thread_inside_it_only(self, runtime, library):
        with best_effort(runtime):
            assert not torch._C._is_multithreading_enabled()
            assert library.gpu.threads.stream == 101
        assert torch._C._is_multithreading_enabled()
        assert library.names() == ["enter", "leave"]

    def test_blocks_nest_and_can_be_entered_again(self, runtime, library):
        block = best_effort(runtime)
        for _ in range(2):
            with block, best_effort(runtime):
                pass
        assert library.names() == ["enter", "enter", "leave", "leave"] * 2
        assert library.gpu.threads.stream == CALLER

    def test_one_that_was_not_entered_cannot_be_left(self, runtime, library):
        with pytest.raises(UsageError, match="left in another thread"):
            best_effort(runtime).__exit__(None, None, None)
        assert torch._C._is_multithreading_enabled()

    def test_an_exception_leaves_it(self, runtime, library):
        with pytest.raises(ValueError, match="x"), best_effort(runtime):
            raise ValueError("x")
        assert library.calls[-1][2] is False
        assert torch._C._is_multithreading_enabled()


def test_what_a_call_costs(capsys):
    """Guards the budget of 30 µs a call (a BERT forward of 8 ms must not slow by 1 %), with room for a slow machine."""
    runtime, _ = world()
    model = Model()
    model.forward = lambda a, mask=None, labels=None: {"logits": a, "hidden": (a, a)}
    runtime.wrap(model, HP, 1.1, None, None)
    a = OnGpu()
    a.record_stream = lambda stream: None
    plain = model.forward.__wrapped__
    best = {}
    for name, call in (("wrapped", model.forward), ("plain", plain)):
        rounds = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(100):
                call(a, mask=a, labels=None)
            rounds.append((time.perf_counter() - begin) / 100)
        best[name] = min(rounds) * 1e6
    cost = best["wrapped"] - best["plain"]
    with capsys.disabled():
        print(f" [{cost:.1f} us a call]", end="")
    assert cost < 60


def _in_thread(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t = threading.Thread(target=function)
        t.start()
        t.join(20)
    assert not t.is_alive()
