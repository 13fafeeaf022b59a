"""Jobs, and what happens around each of their calls.

A call of a wrapped model: `enter` puts the thread on a stream of the job's role, which first waits for the caller's
stream; the model runs; `leave` makes the caller's stream wait for the job's and ends the request. What is read here
once a call is kept flat on purpose: the budget is 30 µs.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from . import _tensors
from ._cuda import Cuda
from ._lib import BE, HP, ROLE_NAMES, Library
from .errors import DeviceError, MosaicError, UsageError

if TYPE_CHECKING:
    from ._blocks import Request

_SWITCH_INTERVAL_S = 100e-6
_NAME_BYTES = 63  # the ledger's name field, less its terminator
_SPANS_DEVICES = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel"}
_GENERATORS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

FORKED = "this process was forked after the job was made, and CUDA does not survive a fork: use the spawn start method"


class Job:
    """One registered job: a role, a bound, a device."""

    __slots__ = ("__weakref__", "device", "devices", "id", "ids", "name", "release", "role", "slo")

    def __init__(self, id: int, name: str, role: int, device: int, slo: float) -> None:
        self.id, self.name, self.role, self.device, self.slo = id, name, role, device, slo
        self.ids, self.devices = (id,), (device,)
        self.release: Callable[[], Any] = lambda: None

    @property
    def job(self) -> Job:
        """Itself: what code belongs to is a job, or a request of one."""
        return self

    @property
    def open_id(self) -> int:
        """No request that was opened by hand."""
        return 0

    def __repr__(self) -> str:
        return f"<{ROLE_NAMES[self.role]} job {self.name!r} on cuda:{self.device}>"


# What the running code belongs to. Copied into tasks and `asyncio.to_thread`, so that their calls join the request.
scope: ContextVar[Job | Request | None] = ContextVar("mosaic_torch.scope", default=None)


class Wrapped:
    """Stands in for a model's `forward`, or for a callable; calls of it are calls of the job."""

    def __init__(self, runtime: Runtime, job: Job, function: Callable[..., Any], module: torch.nn.Module | None):
        # Like functools.update_wrapper, but of anything: signatures and names stay readable through `__wrapped__`.
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            value = getattr(function, name, None)
            if value is not None:
                setattr(self, name, value)
        self.__wrapped__ = function
        self._call = _compilable(function)
        self._run = runtime.run
        self._job = job
        self._module = module
        self._had_forward = module is not None and "forward" in module.__dict__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._job, self._call, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is not wrapped: a copied module gets the forward of its own class back, a callable itself.
        if self._module is not None and _is_own_forward(self._module, self.__wrapped__):
            return getattr, (self._module, "forward")
        return _itself, (self.__wrapped__,)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__!r} as {self._job!r}>"


def _compilable(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`; if it is torch's own code, with a frame around it, as torch.compile itself gives such models one.

    The compiler starts at a frame, and neither ours nor torch's own may be that: nn.Sequential would never be compiled.
    """
    from torch._dynamo import external_utils, trace_rules

    if not isinstance(function, (types.FunctionType, types.MethodType)):
        return function
    if hasattr(function, "_torchdynamo_orig_callable") or not trace_rules.check(function):  # compiled, or a user's
        return function
    inlined = external_utils.wrap_inline(function)
    inlined.__code__ = inlined.__code__.replace()  # the compiler's limit of graphs is for each code object
    return inlined


def _itself(value: Any) -> Any:
    return value


def _is_own_forward(module: torch.nn.Module, function: Any) -> bool:
    return getattr(function, "__self__", None) is module and getattr(function, "__name__", "") == "forward"


class Runtime:
    """The package's state: the shared object, torch's CUDA, and the jobs of this process."""

    def __init__(self, load: Callable[[], Library], cuda: Cuda | None = None) -> None:
        self.cuda = Cuda() if cuda is None else cuda
        self._load = load
        self._lib: Library | None = None
        self._ready = False
        self._lock = threading.RLock()
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self._anonymous: dict[int, Job] = {}
        self._hidden_from_dynamo = False

    # The shared object

    @property
    def lib(self) -> Library:
        """The shared object; a failed load is tried again, and raised again."""
        with self._lock:
            if self._lib is None:
                self._lib = self._load()
            return self._lib

    def ready(self) -> Library:
        """The shared object with the hook in force and CUDA usable, or the reason why not."""
        if self._ready:
            return self.lib
        problem = self.cuda.problem()
        if problem is not None:
            raise DeviceError(problem)
        lib = self.lib
        lib.init()
        self.cuda.init()
        self._ready = True
        return lib

    def shutdown(self) -> None:
        """At exit, before threads are unwound: opens the gate."""
        if self._lib is not None:
            self._lib.shutdown()

    def after_fork_in_child(self) -> None:
        """The parent's jobs are not ours; the hook is asked again at the first use."""
        self._lock = threading.RLock()  # the parent's may be held by a thread that is not here
        self._ready = False
        self._anonymous.clear()
        for job in list(self._jobs):
            job.id = -1
            job.ids = (-1,)
        self._jobs = weakref.WeakSet()

    # Jobs

    def jobs(self, role: int) -> list[Job]:
        with self._lock:
            return sorted((j for j in self._jobs if j.role == role), key=lambda j: j.id)

    def register(self, role: int, name: str, device: int, slo: float, fingerprint: int) -> Job:
        _check_name(name)
        lib = self.ready()
        job = Job(lib.job_register(name, role, device, slo, fingerprint), name, role, device, slo)
        release = weakref.finalize(job, _unregister, lib, job.id, os.getpid())
        release.atexit = False  # at exit there is shutdown(), while BE may still be in the gate
        job.release = release
        with self._lock:
            self._jobs.add(job)
            if len({j.role for j in self._jobs}) > 1:
                _share_interpreter()
        return job

    def only(self, role: int, slo: float) -> Job:
        """The process's only job of a role; without any, an anonymous one on the current device."""
        with self._lock:
            found = [j for j in self.jobs(role) if j not in self._anonymous.values()]
            if len(found) > 1:
                names = ", ".join(f"{j.name!r}" for j in found)
                raise UsageError(f"this process has {len(found)} {ROLE_NAMES[role].upper()} jobs ({names}): say which")
            if found:
                return found[0]
            if role not in self._anonymous:
                self.ready()
                device = self.cuda.current_device()
                self._anonymous[role] = self.register(role, f"anonymous {ROLE_NAMES[role]}", device, slo, 0)
            return self._anonymous[role]

    def job_of(self, model: Any, role: int | None) -> Job:
        """The job of something that was wrapped, in this role or (None) in any."""
        if isinstance(model, Job):
            job = model
        else:
            wrapped = wrapper_of(model)
            if wrapped is None:
                how = ROLE_NAMES.get(role or 0, "hp or mosaic_torch.be")
                raise UsageError(f"{_name_of(model)} is not wrapped: call mosaic_torch.{how} on it first")
            job = wrapped._job
        if role is not None and job.role != role:
            raise UsageError(f"{job!r} is given where a {ROLE_NAMES[role]} job is needed")
        return job

    def wrap(self, model: Any, role: int, slo: float, name: str | None, device: Any) -> Any:
        if not callable(model):
            raise UsageError(f"found {type(model).__name__}, expected an nn.Module or a callable")
        wrapped = wrapper_of(model)
        if wrapped is not None:
            raise UsageError(f"it is already wrapped as {wrapped._job!r}: mosaic_torch.unwrap() it first")
        if not (isinstance(slo, (int, float)) and 1.0 <= slo <= 1000.0):
            raise UsageError(f"found slo={slo!r}, expected a ratio from 1.0 to 1000 (1.1 allows 10 % of slowdown)")
        module = model if isinstance(model, torch.nn.Module) else None
        owner = module if module is not None else getattr(model, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            _refuse_spanning(owner)
            if wrapper_of(owner) is not None:
                raise UsageError(
                    f"its model is already wrapped as {wrapper_of(owner)._job!r}: "
                    f"use `with mosaic_torch.{'request' if role == HP else 'best_effort'}(model)` around the call"
                )
        function = model.forward if module is not None else model
        _refuse_suspending(function)
        self.ready()
        index = self._device_of(owner if isinstance(owner, torch.nn.Module) else None, device)
        label = self._default_name(model) if name is None else name
        job = self.register(role, label, index, float(slo), fingerprint(model))
        self._hide_from_dynamo()
        stand_in = Wrapped(self, job, function, module)
        if module is None:
            return stand_in
        module.__dict__["forward"] = stand_in  # past custom __setattr__, as OptimizedModule's
        return module

    def unwrap(self, model: Any) -> Any:
        wrapped = wrapper_of(model)
        if wrapped is None:
            raise UsageError(f"{_name_of(model)} is not wrapped")
        original, module = wrapped.__wrapped__, wrapped._module
        if module is not None:
            if wrapped._had_forward:
                module.__dict__["forward"] = original
            else:
                del module.__dict__["forward"]
            original = model
        with self._lock:
            self._jobs.discard(wrapped._job)
        wrapped._job.release()
        return original

    def _default_name(self, model: Any) -> str:
        base = _name_of(model).encode()[: _NAME_BYTES - 4].decode(errors="ignore")
        with self._lock:
            taken = {j.name for j in self._jobs}
        numbered = (f"{base}-{i}" for i in itertools.count(2))
        return next(n for n in itertools.chain((base,), numbered) if n not in taken)

    def _device_of(self, module: torch.nn.Module | None, device: Any) -> int:
        asked = None if device is None else self._device_index(device)
        found: set[int] = set()
        on_cpu = False
        for tensor in _tensors_of(module):
            if tensor.device.type == "cuda":
                found.add(tensor.device.index)
            else:
                on_cpu = True
        if len(found) > 1:
            listed = ", ".join(f"cuda:{i}" for i in sorted(found))
            raise DeviceError(
                f"the model's parameters are on {listed}: a job runs on one GPU; wrap its parts one by one"
            )
        if not found and on_cpu:
            raise DeviceError("the model's parameters are not on a GPU: move it there first (model.to('cuda'))")
        if not found:
            return self.cuda.current_device() if asked is None else asked
        (index,) = found
        if asked is not None and asked != index:
            raise DeviceError(f"found device=cuda:{asked}, but the model's parameters are on cuda:{index}")
        return index

    def _device_index(self, device: Any) -> int:
        try:
            parsed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        except (RuntimeError, TypeError) as e:
            raise UsageError(f"found device={device!r}, expected a CUDA device: {e}") from None
        if parsed.type != "cuda":
            raise UsageError(f"found device={device!r}, expected a CUDA device")
        index = self.cuda.current_device() if parsed.index is None else parsed.index
        if not 0 <= index < self.cuda.device_count():
            raise DeviceError(f"found device=cuda:{index}, but torch sees {self.cuda.device_count()} GPU(s)")
        return index

    def _hide_from_dynamo(self) -> None:
        """Makes torch.compile step over our frames, and compile the models that they call."""
        if self._hidden_from_dynamo:
            return
        from torch._dynamo.eval_frame import skip_code

        for function in (
            Wrapped.__call__,
            Runtime.run,
            _tensors.mark,
            _tensors._walk,
            _tensors._walk_tensor,
            _tensors._walk_other,
            Cuda.stream,
            Cuda.passive,
        ):
            skip_code(function.__code__)
        # Met in a frame that is being traced: a graph break here, as after torch.compiler.disable(recursive=False).
        Wrapped.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]
        Wrapped.__call__._torchdynamo_disable_msg = "mosaic_torch runs this call as a request"  # type: ignore[attr-defined]
        self._hidden_from_dynamo = True

    # Calls

    def run(self, job: Job, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `function` as one request of `job`, or as part of the request that is open around it."""
        if job.id < 0:
            raise MosaicError(FORKED)
        cuda, lib = self.cuda, self._lib
        if cuda.passive():
            return function(*args, **kwargs)
        around, inside, request = scope.get(), job, 0
        if around is not None:
            if around.job is job:
                request = around.open_id
                if request:
                    inside = around
            elif around.job.role == HP and job.role == BE:
                refuse_inside(around, job)
        if job.role == BE and torch.is_grad_enabled():
            # Backward then runs in this thread, not in the device's one autograd thread, where it would hold up HP's.
            torch.autograd.set_multithreading_enabled(False)
        device = job.device
        caller = cuda.raw_stream(device)
        tokens: list[int] = []
        # Ctrl-C can come after any call that stands in Python, and none may lose the section: so one C call enters and
        # keeps the token, and no other call stands between the end of the inner try and leave.
        try:
            scope.set(inside)
            try:
                tokens.extend(map(lib.enter, job.ids, (request,), job.devices))
                own = cuda.raw_stream(device)
                if own != caller:
                    stream = cuda.stream(device, own)
                    _tensors.mark(args, device, stream)
                    if kwargs:
                        _tensors.mark(kwargs, device, stream)
                result = function(*args, **kwargs)
            except BaseException as e:
                if not tokens:
                    _raise_refused(e)
                try:
                    lib.leave(tokens[0], False)
                except RuntimeError as late:
                    warnings.warn(f"mosaic_torch: {job!r} was not left cleanly: {late}", RuntimeWarning, stacklevel=3)
                raise
            try:
                lib.leave(tokens[0], True)
            except RuntimeError as e:
                raise MosaicError(str(e)) from None
        finally:
            scope.set(around)
        if own != caller:
            _tensors.mark(result, device, cuda.stream(device, caller))
        return result


def _share_interpreter() -> None:
    """HP and BE are threads of one interpreter: lets an HP thread have it soon.

    A thread that wakes up for a request waits for the interpreter's lock until the running thread's switch interval is
    over: by default 5 ms, most of a short request. Operators that give the lock up between do not help, since they take
    it again before the waiting thread is awake.
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))


def _raise_refused(e: BaseException) -> None:
    """An error of `enter` is ours; anything else that comes before a token exists goes on as it is."""
    if isinstance(e, RuntimeError) and not isinstance(e, MosaicError):
        raise MosaicError(str(e)) from None
    raise e


def refuse_inside(around: Job | Request, job: Job) -> None:
    """BE waits while an HP request is active: inside that very request it would wait for itself."""
    if isinstance(around, Job) or around.open_id:
        raise UsageError(f"{job!r} is called inside a request of {around.job!r}, which would wait for itself")


def wrapper_of(model: Any) -> Wrapped | None:
    """What `hp` or `be` put in place; also seen through torch.compile."""
    if isinstance(model, Wrapped):
        return model
    while isinstance(model, torch.nn.Module):
        found = model.__dict__.get("forward")
        if isinstance(found, Wrapped):
            return found
        model = model.__dict__.get("_modules", {}).get("_orig_mod")
    return None


def fingerprint(model: Any) -> int:
    """64 bits that are the same for the same workload in another process, so that it finds the same profile."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(model, torch.nn.Module):
        core = model.__dict__.get("_modules", {}).get("_orig_mod", model)
        digest.update(f"{type(core).__module__}.{type(core).__qualname__};{core.training}".encode())
        for name, tensor in (*core.named_parameters(), *core.named_buffers()):
            digest.update(f";{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
    else:
        digest.update(f"{getattr(model, '__module__', '')}.{_name_of(model)}".encode())
    return int.from_bytes(digest.digest(), "little") or 1  # 0 says "unknown"


def _name_of(model: Any) -> str:
    if isinstance(model, torch.nn.Module):
        return type(model.__dict__.get("_modules", {}).get("_orig_mod", model)).__name__
    return getattr(model, "__qualname__", None) or type(model).__name__


def _check_name(name: Any) -> None:
    # A lone surrogate is no text that the ledger can hold.
    encoded = name.encode(errors="replace") if isinstance(name, str) else b""
    if not 0 < len(encoded) <= _NAME_BYTES or b"\0" in encoded or encoded.decode() != name:
        raise UsageError(f"found name={name!r}, expected a text of 1 to {_NAME_BYTES} bytes")


def _tensors_of(module: torch.nn.Module | None) -> Iterator[torch.Tensor]:
    if module is not None:
        yield from module.parameters()
        yield from module.buffers()


def _refuse_spanning(module: torch.nn.Module) -> None:
    for kind in type(module).__mro__:
        if kind.__name__ in _SPANS_DEVICES and kind.__module__.startswith("torch."):
            raise UsageError(
                f"{kind.__name__} spans several GPUs, which have to be admitted together: not supported yet; "
                "wrap a model that runs on one GPU"
            )


def _refuse_suspending(function: Any) -> None:
    if any(is_kind(function) for is_kind in _GENERATORS):
        raise UsageError(
            f"{_name_of(function)} returns before its work is done (a coroutine or generator): "
            "wrap the function that does the GPU work, or use mosaic_torch.request()"
        )


def _unregister(lib: Library, job: int, pid: int) -> None:
    if pid != os.getpid():  # a forked child drops its copy of the parent's job
        return
    try:
        lib.job_unregister(job)
    except MosaicError as e:  # a finalizer has nobody to raise to
        warnings.warn(f"mosaic_torch: job {job} was not unregistered: {e}", RuntimeWarning, stacklevel=2)
