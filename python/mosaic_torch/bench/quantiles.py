"""The few statistics that the records use."""

import math


def quantile(samples, q):
    """Sorted element floor(q n), the maximum at most: for 100 samples or fewer, p99 is the maximum."""
    if not samples:
        raise ValueError("no samples to take a quantile of")
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.floor(q * len(ordered)))]


def mean(samples):
    """Arithmetic mean."""
    if not samples:
        raise ValueError("no samples to take a mean of")
    return math.fsum(samples) / len(samples)


def iterations_in(begin_ns, done_ns, window):
    """How many iterations, fractions included, fell into ``window`` (from, to).

    Iteration i runs from the end of the one before (the first from ``begin_ns``) to ``done_ns[i]``; one that straddles
    an edge counts by the part of it that lies inside. A job with three iterations a second needs the fractions.
    """
    lo, hi = window
    total = 0.0
    start = begin_ns
    for end in done_ns:
        if end > start:
            total += max(0, min(end, hi) - max(start, lo)) / (end - start)
        elif lo <= end < hi:
            total += 1.0
        start = end
    return total
