"""Where and when blocks are placed, as they themselves say: spins, launched one right after another.

A line of `physics.jsonl` holds the SM, the begin and the end of every block. The second spin comes while the first
blocks of the first one run. Experiments (paper §4.1), and what hardware says of them:

- `waves`: B after an A of so many blocks, of which an SM holds two: B waits until A's last block is placed.
- `room`, `room-high`: so many small blocks of B beside an A on half the SMs: first where most room is left; at equal
  priority, and B at high priority.
- `limits`: one spin whose blocks have so much shared memory: how many of them an SM holds.
- `carveout`, `carveout-alike`: B's blocks have so much shared memory, and A's have none, or as much: an SM's division
  into L1 and shared memory stays as it is while a block runs there.
- `release`: A fills the GPU, and each of its blocks runs so many cycles longer than the one before: B's blocks follow.
- `priority`: a short B comes while an A of five waves runs, at equal (0) and at high (1) priority.
- `disjoint`: A on a partition of so many SMs, B on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import zoo
from .observe import Observer
from .pairs import SPLITS, Lanes
from .rig import Lane
from .zoo import nvrtc, own

KIB = 1 << 10
# 0.2 ms: the host launches the second spin within some 20 us of the first.
CYCLES = 400_000


def _equal(lanes: Lanes) -> tuple[Lane, Lane]:
    return lanes.full(False, "a"), lanes.full(False, "b")


def _b_high(lanes: Lanes) -> tuple[Lane, Lane]:
    return lanes.full(False, "a"), lanes.full(True, "b")


def _split(sms: int) -> Callable[[Lanes], tuple[Lane, Lane]]:
    return lambda lanes: (lanes.part(sms), lanes.part(sms, rest=True))


@dataclass(frozen=True)
class Case:
    """One or two spins, at one value of what is swept."""

    experiment: str
    x: int
    unit: str
    a: zoo.Config
    b: zoo.Config | None = None
    lanes: Callable[[Lanes], tuple[Lane, Lane]] = _equal


def _spin(threads: int, blocks: int, cycles: int = CYCLES, **more: int) -> zoo.Config:
    return zoo.make("spin", "compute", threads=threads, blocks=blocks, cycles=cycles, **more)


def cases() -> Iterator[Case]:
    """All of them, for 132 SMs, of which each holds 2,048 threads."""
    for blocks in (264, 330, 396, 528, 660, 792):
        yield Case("waves", blocks, "blocks", _spin(1024, blocks), _spin(1024, 132))
    # Empty SMs hold eight blocks of B, the others four: up to 264 none is beside A, 792 are all that fit. Each count
    # brings SMs of equal room to an equal level, so that ties do not matter.
    for experiment, lanes in (("room", _equal), ("room-high", _b_high)):
        for blocks in (66, 132, 198, 264, 396, 528, 660, 792):
            yield Case(experiment, blocks, "blocks", _spin(1024, 66), _spin(256, blocks), lanes)
    # 228 KiB an SM, of which every block takes one more than it asks for: the numbers end a step of the staircase.
    for kib in (0, 27, 31, 37, 44, 45, 56, 75, 76, 113, 114, 227):
        yield Case("limits", kib, "KiB a block", _spin(256, 1056, CYCLES // 4, ballast=kib * KIB))
    for kib in (0, 7, 15, 31, 63, 99, 131, 163, 195, 227):
        b = _spin(256, 132, ballast=kib * KIB)
        yield Case("carveout", kib, "KiB a block of B", _spin(256, 132), b)
        if 2 * (kib + 1) <= 228:
            yield Case("carveout-alike", kib, "KiB a block", b, b)
    for step in (0, 500, 1000, 2000, 4000):
        yield Case("release", step, "cycles a block", _spin(1024, 264, CYCLES // 2, step=step), _spin(256, 132))
    for high, lanes in enumerate((_equal, _b_high)):
        yield Case("priority", high, "high", _spin(1024, 1320, CYCLES // 2), _spin(1024, 132, CYCLES // 10), lanes)
    for sms in SPLITS:
        yield Case("disjoint", sms, "SMs", _spin(1024, 4 * sms), _spin(1024, 4 * (132 - sms)), _split(sms))


def record(observer: Observer, lanes: Lanes, case: Case) -> dict[str, Any]:
    """The line of a case."""
    spins = [(lane, config) for lane, config in zip(case.lanes(lanes), (case.a, case.b), strict=True) if config]
    line: dict[str, Any] = {"experiment": case.experiment, "x": case.x, "unit": case.unit}
    for name, (lane, _), blocks in zip("ab", spins, _blocks(observer.device, spins), strict=False):
        line |= {f"{name}_sms": lane.sms, f"{name}_blocks": blocks}
    return line


def _blocks(device: int, spins: Sequence[tuple[Lane, zoo.Config]]) -> list[dict[str, list[int]]]:
    """Of each spin's blocks: the SM, begin and end. Times count from the first begin."""
    properties = torch.cuda.get_device_properties(device)
    launches = []
    for lane, config in spins:
        plan = own.plan("spin", config.params, own.Target(torch.device("cuda", device), lane.sms))
        kernel = nvrtc.Kernel("spin.cu", plan.kernel, device, 10 * properties.major + properties.minor)
        launches.append((lane, plan, kernel.bound(plan.grid, plan.block, plan.shared_bytes, plan.values)))
    # A first launch loads the kernel, which may wait for the GPU. Backwards: A finds the SMs as it left them itself.
    for lane, _, launch in reversed(launches):
        launch(lane.handle)
        torch.cuda.synchronize(device)
    for lane, _, launch in launches:
        launch(lane.handle)
    torch.cuda.synchronize(device)
    # A row is: cycles, SM, begin_ns, end_ns.
    columns = [plan.args[0].T.tolist()[1:] for _, plan, _ in launches]
    zero = min(min(begin) for _, begin, _ in columns)
    return [
        {"sm": sm, "begin_ns": [t - zero for t in begin], "end_ns": [t - zero for t in end]}
        for sm, begin, end in columns
    ]
