"""A handful of durations in four numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

# A spread is noise if it is large for the duration and more than the clock and the launch explain.
NOISY_RATIO, NOISY_NS = 0.1, 2000


@dataclass(frozen=True)
class Spread:
    """Median, first and last decile of `n` durations, in nanoseconds."""

    median_ns: int
    p10_ns: int
    p90_ns: int
    n: int

    @classmethod
    def of(cls, samples: Sequence[int]) -> Spread:
        """Deciles by the nearest rank: of few samples they are the least and the most."""
        if not samples:
            raise ValueError("no samples to take a median of")
        ordered = sorted(samples)
        last = len(ordered) - 1
        low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
        return cls(round(statistics.median(ordered)), low, high, len(ordered))

    @property
    def noisy(self) -> bool:
        """The rule of profiles/README.md."""
        width = self.p90_ns - self.p10_ns
        return width > NOISY_RATIO * self.median_ns and width > NOISY_NS

    def as_dict(self) -> dict[str, int]:
        """As the files hold it."""
        return asdict(self)
