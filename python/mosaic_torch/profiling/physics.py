"""What pairs of kernels do to each other for reasons that can be named, one experiment each.

Every case is a pair on the rig, with one quantity swept; `python -m mosaic_torch.profiling.dataset --steps physics`
writes `physics.jsonl`. Experiments, and what hardware says of them:

- `blocks`: two spins of so many blocks of 1,024 threads. An SM holds two: up to 132 they run side by side.
- `waves`: a spin of so many blocks before one of 132: B's first block follows A's last (paper §4.1, observation 1).
- `hbm`: copies on half the SMs each, so many blocks an SM: they share the memory's bandwidth.
- `fp32`, `fp64`: chains of so many independent multiply-adds a thread, on the same SMs: free, then serialised.
- `l2`: reads past L1 over so many MiB each, on half the SMs each: a cliff where two working sets pass the L2.
- `l1`: pointer chases over so many KiB an SM each, on the same SMs: a cliff where two working sets pass the L1.
- `fdtd`: FDTD3d beside memThrash with so many percent of writes, on half the SMs each (paper, Figure 3).
- `priority`: a short spin that comes while a long one of many waves runs, at equal (0) and at high (1) priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import zoo
from .kernels import Kernel, measure_alone, zoo_kernels
from .observe import Observer
from .pairs import FULL, Lanes, Mode, measure
from .zoo import nvrtc, own

HALF = 64
EQUAL = FULL[0]
HALVES = Mode("separate", a_sms=HALF)
# A short kernel that finds the GPU full of a long one's first waves.
AMID = {
    0: Mode("full-equal", b_first=True, later=0.3),
    1: Mode("full-hp-running", a_high=True, b_first=True, later=0.3),
}


@dataclass(frozen=True)
class Case:
    """One pair of an experiment, at one value of what is swept."""

    experiment: str
    x: int
    unit: str
    a: zoo.Config
    b: zoo.Config
    mode: Mode = EQUAL


def _spin(blocks: int, cycles: int) -> zoo.Config:
    return zoo.make("spin", "compute", threads=1024, blocks=blocks, cycles=cycles)


def _reads(mib: int) -> zoo.Config:
    return zoo.make("memthrash", mib=mib, write_percent=0, accesses=400, threads=1024, blocks=HALF)


def cases() -> Iterator[Case]:
    """All of them."""
    for blocks in (66, 110, 132, 154, 198, 264):
        yield Case("blocks", blocks, "blocks", _spin(blocks, 200_000), _spin(blocks, 200_001))
    for blocks in (264, 330, 396, 528, 660, 792):
        yield Case("waves", blocks, "blocks", _spin(blocks, 100_000), _spin(132, 100_001))
    for per_sm in (1, 2, 4, 8):
        for threads in (128, 256, 512):
            copy = zoo.make("copy", mib=256, width=16, threads=threads, blocks=HALF * per_sm)
            yield Case("hbm", per_sm * threads, "threads an SM", copy, copy, HALVES)
    for dtype in ("fp32", "fp64"):
        for ilp in range(1, 9):
            chain = zoo.make("chain", "compute", dtype=dtype, ilp=ilp, threads=256, per_sm=1, iterations=16384)
            yield Case(dtype, ilp, "chains a thread", chain, chain)
    for mib in (*range(4, 24, 4), *range(24, 48, 2), *range(48, 80, 8)):
        yield Case("l2", mib, "MiB each", _reads(mib), _reads(mib), HALVES)
    for kib in (*range(16, 96, 16), *range(96, 144, 8), *range(144, 257, 16)):
        chase = zoo.make("pchase", "latency", kib=kib, cache="l1", steps=8192, threads=32, blocks=132)
        yield Case("l1", kib, "KiB each", chase, chase)
    fdtd = zoo.make("fdtd", radius=4, nx=256, ny=256, nz=256, x=32, y=8, depth=32)
    for percent in range(0, 101, 10):
        thrash = zoo.make("memthrash", mib=256, write_percent=percent, accesses=800, threads=1024, per_sm=1)
        yield Case("fdtd", percent, "% of writes", fdtd, thrash, HALVES)
    for high, mode in AMID.items():
        yield Case("priority", high, "high", _spin(132, 20_000), _spin(2640, 100_000), mode)


def run(
    observer: Observer, lanes: Lanes, cycles_per_ns: float, said: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Lines of `physics.jsonl`."""
    known: dict[str, Kernel] = {}
    for case in cases():
        for config in (case.a, case.b):
            if config.name not in known:
                (known[config.name],) = zoo_kernels(observer, [config], lambda _: None)
                measure_alone([known[config.name]], lanes.full(False, "a"))
        pair = (known[case.a.name], known[case.b.name])
        (line,) = measure(lanes.rig(case.mode, cycles_per_ns), case.mode, [pair], lanes.sms, lambda _: None)
        said(f"{case.experiment} {case.x}")
        yield {"experiment": case.experiment, "x": case.x, "unit": case.unit, **line}
    yield {"experiment": "disjoint", "x": HALF, "unit": "SMs", **disjoint(observer, lanes)}


def disjoint(observer: Observer, lanes: Lanes) -> dict[str, Any]:
    """Which SMs the blocks of two separated spins ran on, as they say themselves."""
    device = torch.device("cuda", observer.device)
    properties = torch.cuda.get_device_properties(observer.device)
    launches = []
    for lane in (lanes.part(HALF), lanes.part(HALF, rest=True)):
        params = {"threads": 1024, "blocks": 4 * lane.sms, "cycles": 50_000}
        plan = own.plan("spin", params, own.Target(device, lane.sms))
        kernel = nvrtc.Kernel("spin.cu", plan.kernel, observer.device, 10 * properties.major + properties.minor)
        launches.append((lane, plan, kernel.bound(plan.grid, plan.block, plan.shared_bytes, plan.values)))
    torch.cuda.synchronize()
    for lane, _, launch in launches:
        launch(lane.handle)
    torch.cuda.synchronize()
    # Of each block: cycles, SM, begin_ns, end_ns.
    columns = [plan.args[0].T.tolist() for _, plan, _ in launches]
    (a_seen, b_seen) = (set(sms) for _, sms, _, _ in columns)
    begins, ends = [min(begin) for _, _, begin, _ in columns], [max(end) for _, _, _, end in columns]
    return {
        "a_sms": launches[0][0].sms,
        "b_sms": launches[1][0].sms,
        "a_sms_seen": len(a_seen),
        "b_sms_seen": len(b_seen),
        "shared_sms": len(a_seen & b_seen),
        "overlap_ns": max(0, min(ends) - max(begins)),
    }
