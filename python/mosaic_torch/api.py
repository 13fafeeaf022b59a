"""The public functions, over the one runtime of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ._blocks import BestEffort, Request
from ._lib import BE, HP, SharedLibrary
from ._record import Recording
from ._runtime import Runtime
from .errors import UsageError

Model = TypeVar("Model", bound=Callable[..., Any])

runtime = Runtime(SharedLibrary)


def hp(model: Model, slo: float = 1.1, *, name: str | None = None, device: Any = None) -> Model:
    """Makes a model high-priority: best-effort work gives way while it runs.

    `slo` is the p99 slowdown that is allowed, as a ratio of the isolated p99. Each call is one request; several
    calls are one inside `with request(model)`. A module is changed in place (its `forward`; `unwrap` undoes it) and
    returned, a callable is returned wrapped. Copies and pickles of a wrapped module are not wrapped.

    Modules run on the GPU of their parameters, other callables on `device` (default: the current one).
    """
    return runtime.wrap(model, HP, slo, name, device)


def be(model: Model, *, name: str | None = None, device: Any = None) -> Model:
    """Makes a model best-effort: its kernels run only where that keeps every HP model within its bound.

    Calls and results are as before, only later. A call with gradients enabled also keeps autograd's backward in the
    calling thread from then on (`torch.autograd.set_multithreading_enabled(False)`), so that a held best-effort
    backward does not block the autograd thread that an HP backward needs. Work around the model (an optimizer's
    step, a loss) is best-effort only inside `with best_effort()`.
    """
    return runtime.wrap(model, BE, 1.0, name, device)


def request(model: Any = None, *, arrived_at: float | None = None) -> Request:
    """One request of an HP model, for code that is more than one call of it.

    Use it as a context manager around the GPU work. `open()`, from any thread, says earlier that the request is
    pending. `arrived_at` is when it came, in seconds of `time.monotonic()`. Without a model: the process's only HP
    job; if there is none, an anonymous one with a bound of 1.1.
    """
    job = runtime.only(HP, 1.1) if model is None else runtime.job_of(model, HP)
    runtime.ready()
    return Request(runtime, job, _arrival_ns(arrived_at))


def best_effort(model: Any = None) -> BestEffort:
    """A context manager for best-effort GPU work that is no model call, a whole training step for example.

    Without a model: the process's only BE job; if there is none, an anonymous one.
    """
    job = runtime.only(BE, 1.0) if model is None else runtime.job_of(model, BE)
    runtime.ready()
    return BestEffort(runtime, job)


def unwrap(model: Any) -> Any:
    """Undoes `hp` or `be`, and returns the model, or the callable as it was."""
    return runtime.unwrap(model)


def stats() -> dict[str, Any]:
    """What happened so far: launches seen, held, admitted, escaped; waiting times; T_iso of each HP job."""
    return runtime.lib.stats()


def configure(**settings: Any) -> None:
    """Changes settings of this process, e.g. `configure(policy="idle-only", max_wait_ms=100)`."""
    runtime.lib.configure(settings)


def record(model: Any = None, path: str | Path | None = None, *, workload: str | None = None) -> Recording:
    """Records the kernel trace of a job while its `with` block lasts; written to `path` at its end if given."""
    job = runtime.only(HP, 1.1) if model is None else runtime.job_of(model, None)
    runtime.ready()
    return Recording(runtime, job, None if path is None else Path(path), workload or job.name)


def profile(
    model: Callable[..., Any],
    example_inputs: Any = (),
    *,
    name: str | None = None,
    out: str | Path = ".",
    counters: bool = True,
) -> Path:
    """Measures one request of a model alone on the GPU, and writes `OUT/NAME.profile.jsonl`; returns its path.

    Written are the launches of `model(*example_inputs)` in their order (a dict: `model(**example_inputs)`), what each
    takes on the whole GPU and on partitions of it, and Nsight Compute's counters of each unique kernel. The format is
    that of profiles/README.md. Nothing else may run on the GPU meanwhile.

    Nsight Compute starts a process of its own: the model and its inputs are pickled for it. Where they cannot be, or
    where it may not read counters, standard error says so and the profile has durations alone; `mosaic profile SCRIPT`
    needs no pickles.
    """
    from .profiling import profiler

    return profiler.profile(model, example_inputs, name=name, out=out, counters=counters)


def doctor() -> dict[str, Any]:
    """The report of `python -m mosaic_torch doctor --json`."""
    from . import _doctor

    return _doctor.report(runtime)


def _arrival_ns(arrived_at: float | None) -> int:
    if arrived_at is None:
        return 0
    now = time.monotonic()
    # A day old, or of the future: it is another clock's.
    if not (isinstance(arrived_at, (int, float)) and now - 86_400 < arrived_at <= now + 1.0):
        raise UsageError(
            f"found arrived_at={arrived_at!r}, expected seconds of time.monotonic(), which is now {now:.3f}"
        )
    return max(1, int(arrived_at * 1e9))
