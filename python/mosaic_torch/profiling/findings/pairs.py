"""What the experiments on pairs show: durations beside the other kernel, over durations alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .finding import EXPECTED, FOUND, Check, Finding, Line, Point, worst

TIMES, BOTH = "time over alone", "both"
# A cliff begins and ends where this part of its height is reached.
EDGE = 0.2


def findings(by_experiment: Mapping[str, Sequence[Line]], gpu: Line) -> list[Finding]:
    """Of all pairs."""
    return [
        _blocks(by_experiment["blocks"], gpu),
        *(_hbm(name, by_experiment[name], by_experiment["hbm-peak"]) for name in COPIES),
        _chains(by_experiment["fp32"], "FP32"),
        _chains(by_experiment["fp64"], "FP64"),
        _capacity("l2", "L2", by_experiment["l2"], gpu["l2_bytes"] / 2**20),
        # L1 and shared memory are one: what blocks may not have is L1's at least.
        _capacity("l1", "L1", by_experiment["l1"], gpu["shared_bytes_per_sm"] / 2**10),
        *_figure_3(by_experiment["fdtd"]),
    ]


def median(line: Line, what: str) -> float:
    """Of a duration, in nanoseconds."""
    return line[f"{what}_ns"]["median_ns"]


def ratio(line: Line, who: str) -> float:
    """How many times longer than alone."""
    return median(line, who) / median(line, f"{who}_alone")


def whole(line: Line) -> float:
    """From the first start to the last end, whether or not a kernel that waits has started."""
    return max(median(line, "a"), line["lead_ns"] + median(line, "b")) - min(0, line["lead_ns"])


def both(line: Line) -> float:
    """How many times longer than the longer one alone."""
    return whole(line) / max(median(line, "a_alone"), median(line, "b_alone"))


def _ratios(lines: Sequence[Line]) -> dict[str, list[Point]]:
    return {who.upper(): [(line["x"], ratio(line, who)) for line in lines] for who in "ab"}


def _blocks(lines: Sequence[Line], gpu: Line) -> Finding:
    room = gpu["x"] * (gpu["threads_per_sm"] // 1024)
    found = [(line["x"], both(line)) for line in lines]
    at = dict(found)
    return Finding(
        "blocks",
        "Two spins side by side",
        f"The GPU holds {room} blocks of 1,024 threads. Two spins of up to half as many run side by side; of two with "
        "more, some blocks wait.",
        "blocks of each",
        "both, over one alone",
        {FOUND: found, EXPECTED: [(line["x"], math.ceil(2 * line["x"] / room)) for line in lines]},
        [
            Check(f"two of {room // 2} blocks", at.get(room // 2, math.nan), 0.97, 1.03),
            Check(f"two of {room} blocks", at.get(room, math.nan), 1.97, 2.03),
        ],
    )


def _demand(line: Line, who: str, what: Sequence[str]) -> float:
    """A kernel's work in a nanosecond, alone."""
    return sum(line.get(f"{who}_{kind}", 0) for kind in what) / median(line, f"{who}_alone")


BYTES, FLOPS = ("bytes_read", "bytes_written"), ("flops",)


def shared(line: Line, peak: float, what: Sequence[str]) -> float:
    """The demands of both over the peak."""
    return (_demand(line, "a", what) + _demand(line, "b", what)) / peak


# The two experiments on memory: title, and what the copies of each wait for.
COPIES = {
    "hbm": (
        "Copies on half the SMs each",
        "A thread has eight loads in flight, so that bandwidth is what they wait for.",
    ),
    "hbm-latency": (
        "Copies that wait for each load",
        "A thread has one load in flight: latency, which rises with the load, slows them down before the peak too.",
    ),
}


def _hbm(name: str, lines: Sequence[Line], alone: Sequence[Line]) -> Finding:
    peak = max(_demand(line, "a", BYTES) for line in alone)
    at = sorted((shared(line, peak, BYTES), ratio(line, "a"), ratio(line, "b")) for line in lines)
    a, b = [(x, a) for x, a, _ in at], [(x, b) for x, _, b in at]
    expected = [(x, max(1.0, x)) for x, _, _ in at]
    title, why = COPIES[name]
    return Finding(
        name,
        title,
        "They share the memory's bandwidth: both take max(1, sum of demands / peak) times as long. A demand is a "
        f"copy's bytes over its time alone; the peak, {peak / 1000:.2f} TB/s, is that of a copy alone on all SMs. "
        + why,
        "sum of demands / peak",
        TIMES,
        {"A": a, "B": b, EXPECTED: expected},
        [
            Check("largest distance from the expected ratio", max(worst(a, expected), worst(b, expected)), 0, 0.15),
            Check("least demand of both over the peak", at[0][0], 0, 0.8),
            Check("largest demand of both over the peak", at[-1][0], 1.25),
        ],
    )


def _chains(lines: Sequence[Line], what: str) -> Finding:
    together = [(line["a_flops"] + line["b_flops"]) / whole(line) for line in lines]
    peak = max(*together, *(_demand(line, "a", FLOPS) for line in lines))
    found = _ratios(lines)
    pair = [(line["x"], both(line)) for line in lines]
    expected = [(line["x"], max(1.0, shared(line, peak, FLOPS))) for line in lines]
    return Finding(
        what.lower(),
        f"{what} chains on the same SMs",
        "One warp on each scheduler and kernel. Few independent multiply-adds leave issue slots for the other kernel; "
        "with more, the pair takes as long as one after the other. Expected: max(1, sum of demands / peak), the peak "
        f"being the highest rate seen, {peak / 1000:.1f} TFLOP/s. Where A is faster than B, the hardware serves the "
        "kernel that came first.",
        "chains a thread",
        TIMES,
        {**found, BOTH: pair, EXPECTED: expected},
        [
            Check("ratio at one chain", max(found["A"][0][1], found["B"][0][1]), 0.95, 1.05),
            Check("ratio at eight chains", min(found["A"][-1][1], found["B"][-1][1]), 1.9, 2.1),
            Check(
                "largest distance from the expected ratio",
                max(worst(found["A"], expected), worst(found["B"], expected)),
                0,
                0.15,
            ),
            Check("largest distance of both from the expected ratio", worst(pair, expected), 0, 0.15),
        ],
    )


@dataclass(frozen=True)
class Cliff:
    """Where a series leaves its first value, is farthest above it, and is back near it. NaN: not in the series."""

    start: float
    peak: float
    end: float
    inside: int  # points between start and end


def cliff(points: Sequence[Point]) -> Cliff:
    """By `EDGE`: the last point before the peak that is within that part of its height, the first after it."""
    base = points[0][1]
    top = max(range(len(points)), key=lambda i: points[i][1])
    low = base + EDGE * (points[top][1] - base)
    before = [i for i in range(top) if points[i][1] <= low]
    after = [i for i in range(top + 1, len(points)) if points[i][1] <= low]
    if not before or not after:
        start, end = ((points[i[j]][0] if i else math.nan) for i, j in ((before, -1), (after, 0)))
        return Cliff(start, points[top][0], end, 0)
    return Cliff(points[before[-1]][0], points[top][0], points[after[0]][0], after[0] - before[-1] - 1)


def _capacity(name: str, cache: str, lines: Sequence[Line], capacity: float) -> Finding:
    found = _ratios(lines)
    mean = [(x, (a + b) / 2) for (x, a), (_, b) in zip(found["A"], found["B"], strict=True)]
    edge = cliff(mean)
    unit = lines[0]["unit"]
    size = unit.split()[0]
    at = dict(mean)
    return Finding(
        name,
        f"Two working sets in {cache}",
        f"While both sets fit {cache}, they do not notice each other; where only one of them fits, each throws the "
        "other out; where not even one fits, there is nothing left to lose. The cliff starts at "
        f"{edge.start:g}, peaks at {edge.peak:g} and ends at {edge.end:g} {unit}.",
        unit,
        TIMES,
        found,
        [
            Check("ratio of the smallest sets", mean[0][1], 0.95, 1.1),
            Check("ratio at the peak", at[edge.peak], 1.3),
            Check(f"both sets at the start, over {capacity:.0f} {size}", 2 * edge.start / capacity, 0.3, 1.2),
            Check(f"one set at the end, over {capacity:.0f} {size}", edge.end / capacity, 0.4),
            Check("points between start and end", edge.inside, 4),
        ],
    )


def _figure_3(lines: Sequence[Line]) -> list[Finding]:
    slowdown = [(line["x"], ratio(line, "a")) for line in lines]
    # FDTD3d is there for a part of memThrash's time only, so its rate alone is what presses.
    rate = [(line["x"], _demand(line, "b", BYTES) / 1000) for line in lines]
    at = dict(slowdown)
    most = max(slowdown, key=lambda point: point[1])
    together = statistics.correlation([y for _, y in slowdown], [y for _, y in rate])
    x = "memThrash's writes, %"
    return [
        Finding(
            "fdtd",
            "FDTD3d beside memThrash (Figure 3)",
            f"On 40 and 92 SMs, both sets within L2. Reads alone: {at[0]:.2f} times; writes alone: {at[100]:.2f}; "
            f"most, {most[1]:.2f}, with {most[0]} % of writes. In the paper, on an H100, reads hurt more than writes.",
            x,
            "FDTD3d's time over alone",
            {"FDTD3d": slowdown},
            [
                Check("ratio beside reads alone", at[0], 1.05),
                Check("ratio beside reads, over that beside writes", at[0] / at[100], 1.05),
            ],
        ),
        Finding(
            "fdtd-bandwidth",
            "memThrash's bandwidth (Figure 3)",
            "In the paper it rises as FDTD3d's slowdown falls: bandwidth alone does not say what hurts.",
            x,
            "memThrash's bandwidth, TB/s",
            {"memThrash": rate},
            [Check("correlation with FDTD3d's slowdown", together, -1, 0)],
        ),
    ]
