"""What pairs of kernels do to each other for reasons that can be named, one experiment each.

`python -m mosaic_torch.profiling.dataset --steps physics` writes `physics.jsonl`: these pairs on the rig, with one
quantity swept, and the spins of `placement`. Experiments, and what hardware says of them:

- `blocks`: two spins of so many blocks of 1,024 threads. An SM holds two: up to 132 they run side by side.
- `hbm-peak`: a copy with so many threads an SM on the whole GPU: alone it has all of the memory's bandwidth.
- `hbm`: copies with many loads in flight on so many SMs each: they share the memory's bandwidth.
- `hbm-latency`: copies with one load in flight, with so many threads an SM: they feel the memory's latency too.
- `fp32`, `fp64`: chains of so many independent multiply-adds a thread, on the same SMs: free, then serialised.
- `l2`: reads past L1 over so many MiB each, on half the SMs each: a cliff where two working sets pass the L2.
- `l1`: pointer chases over so many KiB an SM each, on the same SMs: a cliff where two working sets pass the L1.
- `fdtd`: FDTD3d beside memThrash with so many percent of writes, on 40 and 92 SMs, all within L2 (paper, Figure 3).

The two kernels of a pair have memory of their own, even where they are alike. Their parameters are for an H200; every
kernel runs from 30 us to a few ms, so that the few us by which B is later hardly count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MosaicError
from . import placement, zoo
from .kernels import measure_alone, zoo_kernels, zoo_key
from .observe import Observer
from .pairs import FULL, Lanes, Mode, measure
from .patience import Patience
from .zoo import Prepared
from .zoo.own import Plan

HALF = 64
EQUAL = FULL[0]
HALVES = Mode("separate", a_sms=HALF)
# As the paper's; memThrash, the longer one, is there from before FDTD3d's start until after its end.
FIGURE_3 = Mode("separate", a_sms=40, b_first=True, later=0.2)


@dataclass(frozen=True)
class Case:
    """One pair of an experiment, at one value of what is swept."""

    experiment: str
    x: int
    unit: str
    a: zoo.Config
    b: zoo.Config
    mode: Mode = EQUAL


def _twice(experiment: str, x: int, unit: str, config: zoo.Config, mode: Mode = EQUAL) -> Case:
    return Case(experiment, x, unit, config, config, mode)


def _copy(threads_per_sm: int, sms: int, **more: int) -> zoo.Config:
    per_sm = -(-threads_per_sm // 1024)
    return zoo.make("copy", mib=512, width=16, threads=threads_per_sm // per_sm, blocks=sms * per_sm, **more)


def pair_cases() -> Iterator[Case]:
    """Those on the rig."""
    for blocks in (66, 110, 131, 132, 133, 154, 198, 264):
        spin = zoo.make("spin", "compute", threads=1024, blocks=blocks, cycles=1_000_000)
        yield _twice("blocks", blocks, "blocks", spin)
    for threads in (1024, 1536, 2048):
        yield _twice("hbm-peak", threads, "threads an SM", _copy(threads, 132))
    # An SM alone draws what its own load and store unit moves: two copies on some 20 SMs each are about the peak.
    for sms in (4, 8, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, HALF):
        yield _twice("hbm", sms, "SMs of each", _copy(1024, sms, ahead=8), HALVES)
    # A thread has one load of 16 bytes in flight. At 0.7 us a load, 768 threads on 128 SMs are about the peak.
    for threads in (128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048):
        yield _twice("hbm-latency", threads, "threads an SM", _copy(threads, HALF), HALVES)
    # One warp a scheduler and kernel: with two, one FP32 chain each (4 cycles of latency) would be the limit already.
    for dtype in ("fp32", "fp64"):
        for ilp in range(1, 9):
            chain = zoo.make("chain", "compute", dtype=dtype, ilp=ilp, threads=128, per_sm=1, iterations=131_072)
            yield _twice(dtype, ilp, "chains a thread", chain)
    # So few threads that they wait for latency: two pairs of warps an SM draw less than half of either bandwidth, and
    # what is left to see is capacity. At least four passes over the set; 12 and more around the cliff.
    for mib in (4, 8, 12, *range(14, 66, 2), 72, 80, 96, 128, 160, 192):
        reads = zoo.make("memthrash", mib=mib, write_percent=0, accesses=12_800, threads=64, blocks=HALF)
        yield _twice("l2", mib, "MiB each", reads, HALVES)
    # Eight lanes: with 32, whose lines L1 looks up one after another, the two would contend for L1's throughput first.
    for kib in (*range(16, 80, 16), *range(80, 288, 8), *range(288, 545, 32)):
        chase = zoo.make("pchase", "latency", kib=kib, cache="l1", steps=32_768, threads=8, blocks=132)
        yield _twice("l1", kib, "KiB each", chase)
    # 17 and 8 MiB: together they fit even one of the L2's two partitions. Two blocks on each of 40 SMs.
    fdtd = zoo.make("fdtd", radius=4, nx=160, ny=128, nz=96, x=32, y=8, depth=96)
    for percent in range(0, 101, 10):
        thrash = zoo.make("memthrash", mib=8, write_percent=percent, accesses=1000, threads=1024, blocks=92)
        yield Case("fdtd", percent, "% of writes", fdtd, thrash, FIGURE_3)


def cases() -> Iterator[Case | placement.Case]:
    """All of them; those that take the least first."""
    yield from placement.cases()
    yield from pair_cases()


def run(
    observer: Observer,
    lanes: Lanes,
    cycles_per_ns: float,
    said: Callable[[str], None],
    patience: Patience,
    left_out: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Lines of `physics.jsonl`."""
    yield _gpu(observer)
    for case in cases():
        what = f"{case.experiment} {case.x}"
        if any(config and zoo_key(config) in left_out for config in (case.a, case.b)):
            said(f"{what} is left out: it did not end once")
            continue
        try:
            if isinstance(case, placement.Case):
                line = placement.record(observer, lanes, case)
            else:
                line = _record(observer, lanes, cycles_per_ns, case, patience)
        except MosaicError as e:
            said(f"{what} is left out: {e}")
            continue
        yield line
        said(what)


def _gpu(observer: Observer) -> dict[str, Any]:
    """What an SM and the GPU hold."""
    gpu = torch.cuda.get_device_properties(observer.device)
    return {
        "experiment": "gpu",
        "x": gpu.multi_processor_count,
        "unit": "SMs",
        "threads_per_sm": gpu.max_threads_per_multi_processor,
        "registers_per_sm": gpu.regs_per_multiprocessor,
        "shared_bytes_per_sm": gpu.shared_memory_per_multiprocessor,
        "l2_bytes": gpu.L2_cache_size,
    }


def _record(observer: Observer, lanes: Lanes, cycles_per_ns: float, case: Case, patience: Patience) -> dict[str, Any]:
    # Each is built by itself: two launches of one kernel would share its memory, and with it what the caches hold.
    said: list[str] = []
    made = list(zoo_kernels(observer, [case.a, case.b], said.append))
    if len(made) < 2:
        raise MosaicError("; ".join(said))
    a, b = made
    measure_alone(made, lanes.full(False, "a"), patience)
    said.clear()
    rig = lanes.rig(case.mode, cycles_per_ns)
    lines = list(measure(rig, case.mode, [(a, b)], lanes.sms, lambda _: None, said.append, patience))
    if not lines:
        raise MosaicError("; ".join(said) or "the driver refuses one of the two on its SMs")
    (line,) = lines
    head = {"experiment": case.experiment, "x": case.x, "unit": case.unit}
    return head | work("a", a.alive) | work("b", b.alive) | line


def work(name: str, kernel: Prepared | Plan) -> dict[str, int]:
    """What one launch asks for and computes."""
    asked = {"bytes_read": kernel.bytes_read, "bytes_written": kernel.bytes_written, "flops": kernel.flops}
    return {f"{name}_{what}": n for what, n in asked.items() if n}
