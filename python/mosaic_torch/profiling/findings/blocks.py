"""What the experiments on placement show: when and where blocks began, as they say themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .finding import EXPECTED, FOUND, Check, Finding, Line, Point

# The GPU's global timer may tick no more than once a microsecond.
TICK_NS = 2_000
# From a block's end to the begin of one that waited for its place.
SOON_NS = 10_000
SMALL = 256
# Blocks of so many threads that fit where one of 1,024 ended.
ROOM = 1024 // SMALL


@dataclass(frozen=True)
class Block:
    """One block of a spin."""

    sm: int
    begin_ns: int
    end_ns: int


def blocks(line: Line, who: str) -> list[Block]:
    """Of a kernel, in the order of their indices."""
    columns = line[f"{who}_blocks"]
    return [Block(*row) for row in zip(columns["sm"], columns["begin_ns"], columns["end_ns"], strict=True)]


def findings(by_experiment: Mapping[str, Sequence[Line]], gpu: Line) -> list[Finding]:
    """Of all experiments on placement."""
    return [
        _waves(by_experiment["waves"], gpu),
        _room("room", "equal priority", by_experiment["room"], gpu),
        _room("room-high", "B at high priority", by_experiment["room-high"], gpu),
        _limits(by_experiment["limits"], gpu),
        _carveout(by_experiment["carveout"], by_experiment["carveout-alike"]),
        _release(by_experiment["release"]),
        _packing(by_experiment["release"], gpu),
        _priority(by_experiment["priority"], gpu),
        _disjoint(by_experiment["disjoint"]),
    ]


def _wave(gpu: Line, threads: int) -> int:
    """Blocks that the GPU holds."""
    return gpu["x"] * (gpu["threads_per_sm"] // threads)


def _waves(lines: Sequence[Line], gpu: Line) -> Finding:
    wave = _wave(gpu, 1024)
    first, last, expected, waits = [], [], [], []
    for line in lines:
        a, b = blocks(line, "a"), blocks(line, "b")
        length = statistics.median(block.end_ns - block.begin_ns for block in a)
        b_first, a_last = min(block.begin_ns for block in b), max(block.begin_ns for block in a)
        waves = line["x"] / wave
        first.append((waves, b_first / length))
        last.append((waves, a_last / length))
        expected.append((waves, float(math.floor(waves))))
        waits.append(b_first - a_last)
    return Finding(
        "waves",
        "B after A's waves",
        "At equal priority all blocks of A are placed before the first of B: it begins when A's last whole wave ends "
        "(§4.1, observation 1).",
        "waves of A",
        "begin, in times of a block of A",
        {"A's last block": last, "B's first block": first, EXPECTED: expected},
        [
            Check("B's first begin after A's last, ns", min(waits), -TICK_NS),
            Check(
                "largest distance of B's first begin from that expected",
                max(abs(y - due) for (_, y), (_, due) in zip(first, expected, strict=True)),
                0,
                0.1,
            ),
        ],
    )


def beside(line: Line) -> int:
    """Blocks of B that began on an SM while a block of A ran there."""
    until: dict[int, int] = {}
    for block in blocks(line, "a"):
        until[block.sm] = max(until.get(block.sm, 0), block.end_ns)
    return sum(block.begin_ns < until.get(block.sm, 0) for block in blocks(line, "b"))


def by_most_room(small: int, occupied: int, sms: int, left: int, empty: int) -> float:
    """How many of B's blocks come beside A: first the empty SMs fill up to the room that A's SMs have left."""
    level = (sms - occupied) * (empty - left)
    return max(0, small - level) * occupied / sms


def _room(name: str, how: str, lines: Sequence[Line], gpu: Line) -> Finding:
    empty = gpu["threads_per_sm"] // SMALL
    left = (gpu["threads_per_sm"] - 1024) // SMALL
    found, expected, occupied = [], [], []
    for line in lines:
        occupied.append(len({block.sm for block in blocks(line, "a")}) / len(blocks(line, "a")))
        found.append((line["x"], float(beside(line))))
        expected.append((line["x"], by_most_room(line["x"], len(blocks(line, "a")), gpu["x"], left, empty)))
    return Finding(
        name,
        f"Where there is most room ({how})",
        f"A has one block on each of half the SMs. There {left} blocks of B fit, on the others {empty}. Each goes "
        "where there is room for most (§4.1, observation 2).",
        "blocks of B",
        "of these beside A",
        {FOUND: found, EXPECTED: expected},
        [
            Check("least SMs of A over its blocks", min(occupied), 1.0),
            Check(
                "largest distance from the expected, over B's blocks",
                max(abs(y - due) / x for (x, y), (_, due) in zip(found, expected, strict=True)),
                0,
                0.05,
            ),
        ],
    )


def at_once(placed: Sequence[Block]) -> int:
    """The most blocks that one SM held at a time."""
    most = 0
    for sm in {block.sm for block in placed}:
        # An end counts before a begin of the same tick.
        here = [block for block in placed if block.sm == sm]
        events = sorted([(block.begin_ns, 1) for block in here] + [(block.end_ns, -1) for block in here])
        held = 0
        for _, change in events:
            held += change
            most = max(most, held)
    return most


def _limits(lines: Sequence[Line], gpu: Line) -> Finding:
    found = [(line["x"], float(at_once(blocks(line, "a")))) for line in lines]
    # A block takes 1 KiB of shared memory more than it asks for.
    shared = [gpu["shared_bytes_per_sm"] // (1024 * (line["x"] + 1)) for line in lines]
    expected = [(x, float(min(gpu["threads_per_sm"] // SMALL, n))) for (x, _), n in zip(found, shared, strict=True)]
    return Finding(
        "limits",
        "Blocks on an SM",
        f"Blocks of {SMALL} threads: threads limit them, then shared memory (§4.1, observation 2).",
        "shared memory of a block, KiB",
        "blocks on an SM at a time",
        {FOUND: found, EXPECTED: expected},
        [Check("cases that differ", sum(y != due for (_, y), (_, due) in zip(found, expected, strict=True)), 0, 0)],
    )


def _carveout(lines: Sequence[Line], alike: Sequence[Line]) -> Finding:
    def share(lines: Sequence[Line]) -> list[Point]:
        return [(line["x"], beside(line) / len(blocks(line, "b"))) for line in lines]

    apart, same = share(lines), share(alike)
    return Finding(
        "carveout",
        "Unlike needs of shared memory",
        "A has one small block on each SM, and B's blocks would fit beside it. An SM's shared memory is cut out of L1 "
        "for the kernel that runs there: where B needs more, its blocks wait (§4.1, observation 2).",
        "shared memory of a block of B, KiB",
        "part of B's blocks that began beside A",
        {"A without shared memory": apart, "A with as much": same},
        [
            Check("least part where A has as much", min(y for _, y in same), 0.95),
            Check("part where neither has any", apart[0][1], 0.95),
            Check("part at the largest need", apart[-1][1], 0, 0.05),
        ],
    )


def waits(line: Line) -> list[float]:
    """From the last end of a block of A on the same SM to the begin of each block of B; NaN: before any."""
    ends: dict[int, list[int]] = {}
    for block in blocks(line, "a"):
        ends.setdefault(block.sm, []).append(block.end_ns)
    found = []
    for block in blocks(line, "b"):
        before = [block.begin_ns - end for end in ends.get(block.sm, []) if end <= block.begin_ns + TICK_NS]
        found.append(min(before, default=math.nan))
    return found


def _release(lines: Sequence[Line]) -> Finding:
    line = max(lines, key=lambda line: line["x"])
    ends = sorted(block.end_ns for block in blocks(line, "a"))
    begins = sorted(block.begin_ns for block in blocks(line, "b"))
    followed = [wait for wait in waits(line) if -TICK_NS <= wait <= SOON_NS]
    return Finding(
        "release",
        "B follows as A's blocks end",
        f"A's blocks fill the GPU and end one after another, {line['x']} cycles apart. Each end makes room for four "
        "of B's blocks, which begin there at once (§4.1, observation 3). Expected: the end that makes room.",
        "B's blocks in the order of time",
        "since A's first begin, us",
        {
            "B's block begins": [(i, begin / 1000) for i, begin in enumerate(begins)],
            EXPECTED: [(i, ends[i // ROOM] / 1000) for i in range(len(begins))],
        },
        [
            Check("B's first begin after A's first end, ns", begins[0] - ends[0], -TICK_NS, SOON_NS),
            Check(f"part of B's blocks within {SOON_NS} ns of an end there", len(followed) / len(begins), 0.95),
        ],
    )


def _packing(lines: Sequence[Line], gpu: Line) -> Finding:
    used = [(line["x"], float(len({block.sm for block in blocks(line, "b")}))) for line in lines]
    tight = math.ceil(len(blocks(lines[-1], "b")) / ROOM)
    return Finding(
        "release-packing",
        "SMs of B after a gradual release",
        f"On an empty GPU B's {gpu['x']} blocks have an SM each. Where A's blocks end one after another, four of B's "
        "fill each gap (§4.1, observation 3).",
        "cycles between the ends of A's blocks",
        "SMs that B ran on",
        {FOUND: used},
        [Check("SMs at the slowest release", used[-1][1], tight, 1.2 * tight)],
    )


def _priority(lines: Sequence[Line], gpu: Line) -> Finding:
    placed, preempted = [], []
    for line in lines:
        a, b = blocks(line, "a"), blocks(line, "b")
        first = min(block.begin_ns for block in b)
        placed.append((line["x"], sum(block.begin_ns < first for block in a) / len(a)))
        preempted.append(first - min(block.end_ns for block in a))
    wave = _wave(gpu, 1024) / len(blocks(lines[0], "a"))
    at = dict(placed)
    return Finding(
        "priority",
        "B amid A's waves",
        "At equal priority B waits for all of A's blocks. At high priority its blocks are the next to be placed; those "
        "that run are not interrupted. (The paper leaves priorities open, §7.1.)",
        "B at high priority",
        "part of A's blocks that began before B",
        {FOUND: placed, EXPECTED: [(0, 1.0), (1, wave)]},
        [
            Check("part at equal priority", at[0], 0.99),
            Check("part at high priority", at[1], 0.9 * wave, 1.25 * wave),
            Check("least of B's first begin after A's first end, ns", min(preempted), -TICK_NS),
        ],
    )


def _disjoint(lines: Sequence[Line]) -> Finding:
    seen = {who: [(line["x"], {block.sm for block in blocks(line, who)}) for line in lines] for who in "ab"}
    shared = [(x, float(len(a & b))) for (x, a), (_, b) in zip(seen["a"], seen["b"], strict=True)]
    overlaps = []
    for line in lines:
        a, b = blocks(line, "a"), blocks(line, "b")
        begin = max(min(block.begin_ns for block in placed) for placed in (a, b))
        overlaps.append(min(max(block.end_ns for block in placed) for placed in (a, b)) - begin)
    given = [line[f"{who}_sms"] for who in "ab" for line in lines]
    used = [len(sms) for who in "ab" for _, sms in seen[who]]
    return Finding(
        "disjoint",
        "Partitions are apart",
        "Two spins at a time, on a partition and on the rest: no SM sees blocks of both, each spin sees all its own.",
        "SMs asked for A",
        "SMs",
        {
            "A": [(x, float(len(sms))) for x, sms in seen["a"]],
            "B": [(x, float(len(sms))) for x, sms in seen["b"]],
            "both": shared,
        },
        [
            Check("most SMs with blocks of both", max(y for _, y in shared), 0, 0),
            Check("partitions that were not used whole", sum(n != m for n, m in zip(given, used, strict=True)), 0, 0),
            Check("least time at which both ran, ns", min(overlaps), 1),
        ],
    )
