"""Which segments a bound table needs, in which order, and which are left out when time is short."""

import dataclasses

from . import arrivals
from .variants import SLOWDOWN, VARIANTS

# What a segment costs beside its requests: commands, BE settling in, the last BE iteration.
SEGMENT_OVERHEAD_S = 0.6
# The rank of what is left out before anything else.
LAST = 1000


@dataclasses.dataclass(frozen=True)
class Segment:
    """One chunk of one variant of one case."""

    variant: str  # or "be-idle": BE alone while HP is registered and idle
    be: str | None
    load: str
    seed: int
    requests: int
    chunk: int
    chunks: int
    rank: int  # higher ranks are left out first
    seconds: float  # expected

    @property
    def group(self):
        """Chunks of one group are only meaningful together."""
        return (self.variant, self.be, self.load, self.seed)

    @property
    def title(self):
        be = f" be={self.be}" if self.be else ""
        part = f" part {self.chunk + 1}/{self.chunks}" if self.chunks > 1 else ""
        return f"{self.variant}{be} load={self.load} seed={self.seed}{part}"


def bound_plan(*, bes, loads, seeds, variants, placement, requests, chunks, hp_ms, be_idle_s=2.0, rival_chunks=None):
    """The segments in the order in which they run.

    ``requests`` maps a load's kind to a number. Seed 0 has every variant, further seeds only ``isolated`` and
    ``idle-only``. ``rival_chunks``: other policies run only so many of the chunks (a ratio is over the same chunks of
    its baseline). Within a seed and load, variants rotate chunk by chunk, so that drift meets all of them alike.
    """
    loads = sorted(loads, key=lambda load: load != arrivals.CLOSED)  # closed first: it gives the service time
    plan = [_be_idle(be, 0, be_idle_s) for be in bes]
    for seed in range(seeds):
        for load in loads:
            plan += _rotation(bes, load, seed, variants, placement, requests, chunks, hp_ms, rival_chunks)
    return plan + [_be_idle(be, 1, be_idle_s) for be in bes]


def _be_idle(be, chunk, seconds):
    return Segment("be-idle", be, "none", 0, 0, chunk, 2, 0, seconds + SEGMENT_OVERHEAD_S)


def _rotation(bes, load, seed, variants, placement, requests, chunks, hp_ms, rival_chunks):
    kind, fraction, _ = arrivals.parse(load)
    count = requests[kind]
    chunks = max(1, min(chunks, count))
    members = []
    for variant in variants:
        if seed > 0 and variant not in ("isolated", "idle-only"):
            continue
        if VARIANTS[variant].be_mode is None:
            members.append((variant, None))
        else:
            members += [(variant, be) for be in bes]
    out = []
    for chunk in range(chunks):
        for variant, be in members:
            if be and variant != "idle-only" and rival_chunks is not None and chunk >= rival_chunks:
                continue
            part = count * (chunk + 1) // chunks - count * chunk // chunks
            service = hp_ms / 1e3 * SLOWDOWN[placement].get(variant, 1.02)
            busy = service if fraction is None else max(service, hp_ms / 1e3 / fraction)
            seconds = part * busy + (SEGMENT_OVERHEAD_S if be else 0.05)
            rank = _rank(variant, kind, seed)
            out.append(Segment(variant, be, load, seed, count, chunk, chunks, rank, seconds))
    return out


def _rank(variant, kind, seed):
    if seed > 0:
        # A closed loop has no arrivals to draw: its further seeds are repetitions.
        return 2 + seed + (10 if kind == arrivals.CLOSED else 0)
    if variant in ("isolated", "idle-only"):
        return 0
    if variant in ("isolated-again", "no-op") and kind != arrivals.CLOSED:
        return LAST
    return 1 if kind == arrivals.CLOSED else 2


def fit(plan, seconds):
    """Leaves out whole groups, the highest rank and the latest first, until the rest fits; returns (kept, left out).

    Rank 0 always stays: it is cut by the clock, if at all.
    """
    total = sum(segment.seconds for segment in plan)
    out = set()
    order = {group: position for position, group in enumerate(dict.fromkeys(s.group for s in plan))}
    ranks = {segment.group: segment.rank for segment in plan}
    costs = dict.fromkeys(order, 0.0)
    for segment in plan:
        costs[segment.group] += segment.seconds
    for group in sorted(order, key=lambda g: (ranks[g], order[g]), reverse=True):
        if total <= seconds or ranks[group] == 0:
            break
        out.add(group)
        total -= costs[group]
    # A baseline whose candidates are all gone compares with nothing.
    kept_cases = {(s.load, s.seed) for s in plan if s.group not in out and s.variant != "isolated"}
    out |= {s.group for s in plan if s.variant == "isolated" and s.seed > 0 and (s.load, s.seed) not in kept_cases}
    # And candidates without their baseline are no comparison.
    gone = {(s.load, s.seed) for s in plan if s.variant == "isolated" and s.group in out}
    out |= {s.group for s in plan if s.variant != "be-idle" and (s.load, s.seed) in gone}
    return [s for s in plan if s.group not in out], [s for s in plan if s.group in out]
