"""The shape of a finding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A record of `physics.jsonl`.
Line = Mapping[str, Any]
Point = tuple[float, float]
# The names of series that more than one finding has.
FOUND, EXPECTED = "found", "expected"


@dataclass(frozen=True)
class Check:
    """A number that was found, and the range in which it should lie."""

    what: str
    found: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def holds(self) -> bool:
        """A number that could not be found (NaN) does not."""
        return self.low <= self.found <= self.high


@dataclass(frozen=True)
class Finding:
    """One plot: `series` by their names, over the axes `x` and `y`. `name` is the plot's file."""

    name: str
    title: str
    text: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether the hardware does what it should."""
        return all(check.holds for check in self.checks)


def worst(found: Sequence[Point], expected: Sequence[Point]) -> float:
    """The largest relative distance of points from those expected at the same places."""
    return max(abs(y / due - 1) for (_, y), (_, due) in zip(found, expected, strict=True))
