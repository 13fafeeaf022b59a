"""The launches of a call, as the hook sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._lib import OBSERVED


@dataclass(frozen=True)
class Launch:
    """One launch. `occurrence` counts those of its KernelId in the call; `kept` is for `Observer.lib`."""

    kind: str
    kernel_id: str
    occurrence: int
    symbol: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    dynamic_smem_bytes: int = 0
    cluster: tuple[int, ...] = (0, 0, 0)
    registers: int = 0
    static_smem_bytes: int = 0
    kept: int | None = None
    not_kept: str = ""
    profiled: bool = False
    failed: str = ""

    @classmethod
    def of(cls, line: dict[str, Any]) -> Launch:
        """From a line of `mosaic_observe_stop`."""
        known = {name: line[name] for name in cls.__dataclass_fields__ if name in line}
        for name in ("grid", "block", "cluster"):
            if name in known:
                known[name] = tuple(known[name])
        return cls(**known)

    @property
    def is_kernel(self) -> bool:
        """Not a copy, a fill or a graph."""
        return self.kind == "kernel"


class Apart(TorchDispatchMode):
    """Gives each operator memory of its own, workspaces included, which later ones never get: kept launches need it.

    A gather whose indices were overwritten would read anywhere, and two kernels that count in the same workspace would
    wait for each other for ever. Compiled code makes its own memory, past operators.
    """

    def __init__(self, own_memory: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self._own_memory = own_memory
        self.held: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator."""
        with self._own_memory():
            found = func(*args, **(kwargs or {}))
        self.held.append(found)
        return found


class Observer:
    """Runs calls on a stream of its own, which is watched and never held."""

    def __init__(self, runtime: Any, device: int) -> None:
        runtime.ready()
        self.lib, self.device = runtime.lib, device
        self._job = self.lib.job_register("profile", OBSERVED, device, 1.0, 0)
        self.handle = self.lib.stream_create(device, 0)
        self.lib.stream_set_role(self.handle, self._job)
        self.stream = torch.cuda.ExternalStream(self.handle, device=device)
        # What kept launches read and write stays theirs as long as these live.
        self._memory: list[torch.cuda.MemPool] = []
        self._held: list[Any] = []

    def run(self, call: Callable[[], Any]) -> None:
        """Calls it on the stream, and waits for the GPU."""
        with torch.cuda.stream(self.stream):
            call()
        torch.cuda.synchronize(self.device)

    def observe(
        self, call: Callable[[], Any], *, keep: bool = False, profile: Iterable[tuple[str, int]] = ()
    ) -> list[Launch]:
        """The launches of one call. `profile`: (KernelId, occurrence) of those that Nsight Compute is to see."""
        with self._apart() if keep else nullcontext():
            self.lib.observe_start(self._job, {"keep": keep, "profile": [list(launch) for launch in profile]})
            try:
                self.run(call)
            finally:
                lines = self.lib.observe_stop()
        return [Launch.of(line) for line in lines]

    def _apart(self) -> Apart:
        apart = Apart(self._own_memory)
        self._held.append(apart.held)
        return apart

    @contextmanager
    def _own_memory(self) -> Iterator[None]:
        torch._C._cuda_clearCublasWorkspaces()  # cuBLAS gets a new one, from this pool
        self._memory.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(self._memory[-1], self.device):
            yield
