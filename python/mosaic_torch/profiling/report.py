"""What a data set holds, and how well it repeats: `python -m mosaic_torch.profiling.report FOLDER`.

Prints it, and with `--record FOLDER` writes the records `dataset`, `repeatability` and `physics`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..bench.records import Record, Row, provenance
from ..errors import MosaicError
from . import files
from .files import KERNELS, PHYSICS, REPEAT, WORKLOADS
from .findings import EXPECTED, findings

# A pair repeats if each of its four medians does: within so much of the first one, or of so many nanoseconds where the
# kernel is short.
RATIO, SHORT_NS, SHORT_WITHIN_NS = 0.03, 20_000, 1_000
TIMES = ("a_alone_ns", "b_alone_ns", "a_ns", "b_ns")
# Names of the modes in records.
MODES = {
    "full-equal": "pairs_full_equal",
    "full-hp-running": "pairs_full_hp_high_running",
    "full-hp-arriving": "pairs_full_hp_high_arriving",
    "separate": "pairs_separate",
    "confined": "pairs_confined",
}


def rows(folder: Path) -> list[Row]:
    """The record `dataset`."""
    zoo = _lines(folder / KERNELS)
    works = {path.name.split(".")[0]: _lines(path) for path in sorted((folder / WORKLOADS).glob("*.jsonl*"))}
    pairs = [line for path in sorted(folder.glob("pairs-*.jsonl")) for line in _lines(path)]
    kernels = {line["key"]: line for lines in works.values() for line in lines if "key" in line}
    found = [
        ("zoo_kernels", len(zoo), "count", len(zoo)),
        ("zoo_kernels_with_counters", sum("metrics" in line for line in zoo), "count", len(zoo)),
        ("workload_kernels", len(kernels), "count", len(works)),
        ("workload_kernels_with_counters", sum("metrics" in line for line in kernels.values()), "count", len(kernels)),
        *((metric, sum(line["mode"] == mode for line in pairs), "count", len(pairs)) for mode, metric in MODES.items()),
        ("noisy_fraction", _part(line["noisy"] for line in pairs), "fraction", len(pairs)),
    ]
    joined = {name: joins(lines) for name, lines in works.items()}
    every = [launch for launches in joined.values() for launch in launches]
    out = [Row("dataset", folder.name, "all", metric, value, unit, n) for metric, value, unit, n in found]
    out.append(Row("dataset", folder.name, "all", "joined_fraction", _part(every), "fraction", len(every)))
    return out + [
        Row("dataset", folder.name, name, "joined_fraction", _part(launches), "fraction", len(launches))
        for name, launches in joined.items()
    ]


def joins(lines: Sequence[dict[str, Any]]) -> list[bool]:
    """Of each launch of a workload: whether its kernel has counters."""
    kernels = [line for line in lines if "key" in line]
    return ["metrics" in kernels[line["kernel"]] for line in lines[len(kernels) :]]


def repeats(folder: Path) -> list[Row]:
    """The record `repeatability`: of pairs that two runs have measured."""
    first = {_pair(line): line for path in sorted(folder.glob("pairs-*.jsonl")) for line in _lines(path)}
    again = [(first[_pair(line)], line) for line in _lines(folder / REPEAT) if _pair(line) in first]
    clean = [(one, other) for one, other in again if not one["noisy"]]
    out = []
    for variant, chosen in (("all", again), ("not noisy", clean)):
        out += _distribution(variant, chosen)
        for mode in MODES:
            out += _distribution(f"{variant}, {mode}", [both for both in chosen if both[1]["mode"] == mode])
    return [Row("repeatability", folder.name, *row) for row in out]


def physics(folder: Path) -> list[Row]:
    """The record `physics`: every point of every finding, and whether it is as expected."""
    lines = _lines(folder / PHYSICS)
    out = []
    for finding in findings(lines) if lines else ():
        out.append(Row("physics", finding.name, "all checks", "holds", finding.holds, "bool", len(finding.checks)))
        out += [
            Row("physics", finding.name, f"{name} at {x:g}", "ratio", y, finding.y, 1)
            for name, points in finding.series.items()
            if name != EXPECTED
            for x, y in points
        ]
    return out


def _distribution(
    variant: str, chosen: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> list[tuple[str, str, float, str, int]]:
    if not chosen:
        return []
    n = len(chosen)
    within = _part(repeated(one, other) for one, other in chosen)
    # Of the medians of kernels that are not short: the worst of each pair.
    worst = sorted(
        max((off(one[t], other[t]) for t in TIMES if one[t]["median_ns"] >= SHORT_NS), default=0.0)
        for one, other in chosen
    )
    return [
        (variant, "pairs", n, "count", n),
        (variant, "within_3pct_fraction", within, "fraction", n),
        *((variant, f"off_p{p}", worst[min(n - 1, n * p // 100)], "ratio", n) for p in (50, 75, 90, 95, 99)),
    ]


def repeated(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the second measurement is the first one's."""
    for time in TIMES:
        first_ns, second_ns = one[time]["median_ns"], other[time]["median_ns"]
        within_ns = RATIO * first_ns if first_ns >= SHORT_NS else SHORT_WITHIN_NS
        if abs(second_ns - first_ns) > within_ns:
            return False
    return True


def off(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far the second median is from the first."""
    return abs(other["median_ns"] / one["median_ns"] - 1)


def unjoined(folder: Path) -> list[str]:
    """Kernels without counters, by name."""
    paths = [folder / KERNELS, *sorted((folder / WORKLOADS).glob("*.jsonl*"))]
    lines = [line for path in paths for line in _lines(path)]
    return [f"{line['key']} ({line['symbol']})" for line in lines if "key" in line and "metrics" not in line]


def _pair(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("a", "b", "mode", "a_sms", "b_sms"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return files.read(path)[1] if path.exists() else []


def _part(found: Iterable[bool]) -> float:
    listed = list(found)
    return sum(listed) / len(listed) if listed else 0.0


def main(arguments: list[str] | None = None) -> int:
    """Prints it."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch.profiling.report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=Path, help="folder of the records, as benches/record/<gpu>")
    options = parser.parse_args(arguments)
    if not (options.folder / KERNELS).exists():
        raise MosaicError(f"{options.folder} has no {KERNELS}: give the folder of a data set, as profiles/h200")
    head = files.read(options.folder / KERNELS)[0]
    facts = {name: head[name] for name in ("gpu", "driver", "cuda", "torch", "sm_clock_mhz") if name in head}
    for topic, of in (("physics", physics), ("repeatability", repeats), ("dataset", rows)):
        found = of(options.folder)
        text = "\n".join(
            f"{row.case:16} {row.variant:30} {row.metric:30} {row.value:12.6g} {row.unit:9} {row.n}" for row in found
        )
        if topic == "dataset":
            text += "".join(f"\nno counters: {name}" for name in unjoined(options.folder))
        print(text)
        if options.record and found:
            record = Record(options.record, topic)
            record.write_rows(found)
            command = f"python -m mosaic_torch.profiling.report {options.folder} --record {options.record}"
            record.write_text(f"{provenance(command, facts)}\n\n{text}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MosaicError as e:
        sys.exit(f"mosaic: {e}")
