"""A kernel of the zoo, ready to be launched on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...errors import DeviceError, UsageError
from .table import Config, families

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Prepared:
    """Inputs in GPU memory and one launch of the configuration's kernel. Keep it until its launches are done.

    bytes_read, bytes_written: what the kernel's global loads and stores ask for, summed over threads, whether a cache
    has it or not (Nsight Compute: smsp__sass_data_bytes_mem_global_op_ld.sum, …_op_st.sum; atomics are neither).
    footprint_bytes: distinct bytes of global memory that it has to touch, each counted once.
    flops: operations on floating-point numbers; a fused multiply-add is two.
    kernel, grid, block (threads), shared_bytes (dynamic, per block), registers (per thread): of own kernels.
    None: not known analytically, or a library's choice.
    """

    config: Config
    device: int
    footprint_bytes: int
    bytes_read: int | None
    bytes_written: int | None
    flops: int | None
    kernel: str | None
    grid: Dim3 | None
    block: Dim3 | None
    shared_bytes: int | None
    registers: int | None
    _launch: Callable[[int | None], Any] = field(repr=False)
    _check: Callable[[], None] = field(repr=False)

    def launch(self, stream: int | None = None) -> None:
        """Launches once, and does not wait; on torch's current stream, or on the raw handle of another."""
        self._launch(stream)

    def check(self) -> None:
        """Launches on the current stream, and raises AssertionError where the kernel computes something else."""
        self._check()


def build(config: Config, device: int | str | None = None) -> Prepared:
    """Makes a configuration's inputs on a CUDA device and compiles its kernel (a cubin for this very device).

    Returns with the inputs in place, so that any stream may use them.
    """
    import torch

    from . import library, nvrtc, own

    family = families().get(config.family)
    if family is None:
        raise UsageError(f"found the family {config.family!r}, expected one of {', '.join(families())}")
    if not torch.cuda.is_available():
        raise DeviceError("torch finds no usable GPU: the zoo's kernels can be listed here, but not built")
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    index = torch.cuda.current_device() if where.index is None else where.index
    properties = torch.cuda.get_device_properties(index)
    target = own.Target(torch.device("cuda", index), properties.multi_processor_count)

    def stream_of(stream: int | None) -> int:
        return torch.cuda.current_stream(index).cuda_stream if stream is None else stream

    with torch.cuda.device(index):
        if family.kind == "cuda":
            plan = own.plan(config.family, config.params, target)
            kernel = nvrtc.Kernel(family.source, plan.kernel, index, 10 * properties.major + properties.minor)
            bound = kernel.bound(plan.grid, plan.block, plan.shared_bytes, plan.values)

            def launch(stream: int | None) -> None:
                bound(stream_of(stream))

            def check() -> None:
                with torch.cuda.device(index):
                    plan.check(lambda: launch(None))

            known = {
                "bytes_read": plan.bytes_read,
                "bytes_written": plan.bytes_written,
                "kernel": plan.kernel,
                "grid": plan.grid,
                "block": plan.block,
                "shared_bytes": plan.shared_bytes,
                "registers": kernel.registers,
            }
            footprint_bytes, flops = plan.footprint_bytes, plan.flops
        else:
            call = library.call(config.family, config.params, target)

            def launch(stream: int | None) -> Any:
                if stream is None:
                    return call.run()
                with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index)):
                    return call.run()

            def check() -> None:
                with torch.cuda.device(index):
                    call.check(call.run)

            known = dict.fromkeys(
                ("bytes_read", "bytes_written", "kernel", "grid", "block", "shared_bytes", "registers")
            )
            footprint_bytes, flops = call.footprint_bytes, call.flops
        torch.cuda.synchronize(index)
    return Prepared(config, index, footprint_bytes, flops=flops, _launch=launch, _check=check, **known)
