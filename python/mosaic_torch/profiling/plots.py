"""What the experiments show, for people: `python -m mosaic_torch.profiling.plots` reads `physics.jsonl` of a folder.

It writes `physics.md` and a plot of each finding, `plots/*.svg`, there. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import MosaicError
from . import files
from .findings import EXPECTED, Check, Finding, findings

DEFAULT = Path("profiles") / "h200"
# The same data makes the same file: ids come from a salt. Text stays text.
STYLE = {"svg.hashsalt": "mosaic", "svg.fonttype": "none", "font.size": 9}


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as e:
        raise MosaicError("plots need matplotlib: pip install 'mosaic-torch[docs]'") from e
    return matplotlib


def plot(finding: Finding, path: Path) -> None:
    """One SVG."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for name, points in finding.series.items():
            style = {"linestyle": "--", "color": "0.5"} if name == EXPECTED else {"marker": "o", "markersize": 3}
            axes.plot(*zip(*points, strict=True), label=name, **style)
        axes.set(title=finding.title, xlabel=finding.x, ylabel=finding.y)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _range(check: Check) -> str:
    if check.low == check.high:
        return f"{check.low:g}"
    low, high = (f"{bound:.4g}" for bound in (check.low, check.high))
    if low == "-inf":
        return f"at most {high}"
    return f"at least {low}" if high == "inf" else f"{low} to {high}"


def _data(finding: Finding) -> list[str]:
    columns = [dict(points) for points in finding.series.values()]
    places = sorted(set().union(*columns))
    rows = [[f"{x:.4g}", *(f"{column[x]:.4g}" if x in column else "" for column in columns)] for x in places]
    return _table([finding.x, *finding.series], rows)


def section(finding: Finding) -> list[str]:
    """A finding's text, verdict, plot and data."""
    checks = [
        [check.what, f"{check.found:.4g}", _range(check), "yes" if check.holds else "**no**"]
        for check in finding.checks
    ]
    return [
        f"## {finding.title}",
        "",
        finding.text,
        "",
        *_table(["check", "found", "expected", "holds"], checks),
        "",
        f"![{finding.title}](plots/{finding.name}.svg)",
        "",
        f"{finding.y}:",
        "",
        *_data(finding),
        "",
    ]


def write(folder: Path) -> list[Finding]:
    """The text and the plots of a folder's experiments."""
    data = folder / files.PHYSICS
    if not data.exists():
        raise MosaicError(
            f"{data} is not there: measure it on a GPU with python -m mosaic_torch.profiling.dataset --steps physics"
        )
    head, lines = files.read(data)
    found = findings(lines)
    (folder / "plots").mkdir(exist_ok=True)
    for finding in found:
        plot(finding, folder / "plots" / f"{finding.name}.svg")
    held = sum(finding.holds for finding in found)
    text = [
        f"# Why kernels slow each other down: {head['gpu']}",
        "",
        f"Made from `{files.PHYSICS}` ({head['date']}) by `python -m mosaic_torch.profiling.plots`; what each "
        "experiment is, is said in [profiles/README.md](../README.md). A and B are the two kernels of a pair.",
        "",
        f"{held} of {len(found)} findings are as expected.",
        "",
        *(line for finding in found for line in section(finding)),
    ]
    (folder / "physics.md").write_text("\n".join(text).rstrip() + "\n")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Writes them, and says which findings are not as expected."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch.profiling.plots", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help=f"{DEFAULT} if not given")
    options = parser.parse_args(arguments)
    for finding in write(options.folder):
        for check in finding.checks:
            if not check.holds:
                print(f"{finding.name}: {check.what}: found {check.found:.4g}, expected {_range(check)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MosaicError as e:
        sys.exit(f"mosaic: {e}")
