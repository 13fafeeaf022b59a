"""What `physics.jsonl` shows: of each experiment its series, and what the hardware should show beside what it does."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import MosaicError
from ..files import PHYSICS
from . import blocks, pairs
from .finding import EXPECTED, Check, Finding, Line, Point

__all__ = ["EXPECTED", "Check", "Finding", "Line", "Point", "findings"]


def findings(lines: Sequence[Line]) -> list[Finding]:
    """Of a whole file, without its first line. Needs every experiment."""
    by_experiment: dict[str, list[Line]] = {}
    for line in lines:
        by_experiment.setdefault(line["experiment"], []).append(line)
    try:
        (gpu,) = by_experiment["gpu"]
        return [*blocks.findings(by_experiment, gpu), *pairs.findings(by_experiment, gpu)]
    except (LookupError, ValueError) as e:
        raise MosaicError(f"{PHYSICS} lacks a part of an experiment ({e!r}): remove it to measure again") from e
