"""`with` blocks for GPU work that is no model call: `request()` for HP, `best_effort()` for BE."""

from __future__ import annotations

import threading
import warnings
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import torch

from ._lib import HP
from ._runtime import FORKED, Job, Runtime, refuse_inside, scope
from .errors import MosaicError, UsageError

# The innermost block, as the running task sees it and as its thread has it. They differ when two tasks of one
# thread are inside blocks at once; a thread has one current stream, so that cannot work and is refused.
_of_task: ContextVar[Block | None] = ContextVar("mosaic_torch.block", default=None)
_of_thread = threading.local()


class Block:
    """Puts the thread on a stream of the job's role for as long as the block lasts."""

    def __init__(self, runtime: Runtime, job: Job) -> None:
        self._runtime, self._job = runtime, job
        self._tokens: list[int] = []
        self._outer: Block | None = None
        self._thread: int | None = None
        self._of_task: Token[Block | None] | None = None
        self._scope: Token[Job | Request | None] | None = None

    @property
    def job(self) -> Job:
        """The job that the block belongs to."""
        return self._job

    @property
    def open_id(self) -> int:
        """The id of the request that it is inside, 0 for none."""
        return 0

    def _enter(self, inside: Job | Request) -> None:
        if self._job.id < 0:
            raise MosaicError(FORKED)
        outer = getattr(_of_thread, "top", None)
        if self._thread is not None:
            raise UsageError(f"this block of {self._job!r} is already entered: make another one")
        if outer is not None and outer is not _of_task.get():
            raise UsageError(
                f"another task of this thread is inside a block of {outer._job!r}: a block must not await; "
                "open() the request there and enter it around the GPU work only"
            )
        runtime = self._runtime
        if runtime.cuda.passive():
            # Nothing is launched now, so there is no stream to change.
            self._thread = threading.get_ident()
            return
        try:
            # One C call that enters and keeps the token: no Ctrl-C comes between the two and loses it.
            self._tokens.extend(map(runtime.lib.enter, self._job.ids, (self.open_id,), self._job.devices))
            self._outer, self._thread = outer, threading.get_ident()
            _of_thread.top = self
            self._of_task = _of_task.set(self)
            self._scope = scope.set(inside)
        except BaseException as e:
            self._undo(False)
            if isinstance(e, RuntimeError) and not isinstance(e, MosaicError):
                raise MosaicError(str(e)) from None
            raise

    def _exit(self, ok: bool) -> None:
        if self._thread != threading.get_ident():
            raise UsageError(f"this block of {self._job!r} is left in another thread than it was entered in")
        self._undo(ok)

    def _undo(self, ok: bool) -> None:
        of_scope, of_task = self._scope, self._of_task
        self._scope = self._of_task = self._thread = None
        try:
            self._leave(ok)
        finally:
            if of_task is not None:
                _of_task.reset(of_task)
            if of_scope is not None:
                scope.reset(of_scope)

    def _leave(self, ok: bool) -> None:
        """Gives the thread its stream back, once. Blocks left out of order: at the end of the last of them."""
        top = getattr(_of_thread, "top", None)
        while top is not None and top._thread is None:
            top = top._outer
        _of_thread.top = top
        tokens, self._tokens = self._tokens, []
        if tokens:
            try:
                self._runtime.lib.leave(tokens[0], ok)
            except RuntimeError as e:
                raise MosaicError(str(e)) from None


class Request(Block):
    """One HP unit of work. Pending from `open()`, at work inside `with`, ended by its exit or by `close()`."""

    def __init__(self, runtime: Runtime, job: Job, arrived_at_ns: int) -> None:
        super().__init__(runtime, job)
        self._lock = threading.Lock()
        self._arrived_at_ns = arrived_at_ns
        self._id: int | None = None
        self._closed = False

    def open(self) -> Request:
        """Says that the request is there, from any thread: BE is held from now on. Once is enough."""
        with self._lock:
            if self._closed:
                raise UsageError(f"this request of {self._job!r} has ended: make another one")
            if self._job.id < 0:
                raise MosaicError(FORKED)
            if self._id is None:
                self._id = self._runtime.lib.request_open(self._job.id, self._arrived_at_ns)
        return self

    def close(self) -> None:
        """Ends the request once the GPU is done with it. Needed only where no `with` block does it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._id is not None:
                self._runtime.lib.request_close(self._id)

    @property
    def open_id(self) -> int:
        """The request's id while it is open, else 0."""
        return 0 if self._closed else self._id or 0

    def __enter__(self) -> Request:
        try:
            self.open()
            self._enter(self)
        except BaseException:
            if self._thread is None:
                self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._exit(kind is None)
        finally:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_id", None) is not None and not self._closed:
            warnings.warn(f"a request of {self._job!r} was opened and never ended", ResourceWarning, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        state = "ended" if self._closed else "new" if self._id is None else "open"
        return f"<{state} request of {self._job!r}>"


class BestEffort(Block):
    """Best-effort work. Autograd's backward runs in the entering thread inside it."""

    _autograd: Any = None

    def __enter__(self) -> BestEffort:
        around = scope.get()
        if around is not None and around.job.role == HP:
            refuse_inside(around, self._job)
        self._enter(self._job)
        try:
            self._autograd = torch.autograd.set_multithreading_enabled(False)
        except BaseException:
            self._exit(False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._autograd is not None:
            torch.autograd.set_multithreading_enabled(self._autograd.prev)
        self._exit(kind is None)

    def __repr__(self) -> str:
        return f"<best-effort block of {self._job!r}>"
