"""Which pairs of kernels are measured in which mode, and the measuring."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MosaicError
from .kernels import Kernel, refused
from .observe import Observer
from .patience import Patience
from .rig import Delay, Lane, Meeting, Order, Rig, read
from .timeline import Timeline

ROUNDS = 7
# Pairs of one timeline.
BATCH = 50
# Where the later kernel comes, as a part of the earlier one's time alone.
LATER = 0.4
# Durations of most pairs are within this ratio: of others the longer one hardly notices.
NEAR = 10.0


@dataclass(frozen=True)
class Mode:
    """How a pair shares the GPU. `a_sms`, `b_sms`: 0 for all; priorities: True for the highest."""

    name: str
    a_sms: int = 0
    b_sms: int = 0
    a_high: bool = False
    b_first: bool = False
    later: float = 0.0

    @property
    def title(self) -> str:
        """Names the mode and its split."""
        return self.name + f"-a{self.a_sms}" * (self.a_sms > 0) + f"-b{self.b_sms}" * (self.b_sms > 0)

    def order(self, a: Kernel, b: Kernel, sms: int) -> Order:
        """Who comes first in this mode, and when the other comes."""
        first = b if self.b_first else a
        alone = first.isolated[sms].median_ns
        return Order(self.b_first, self.later * alone)


FULL = (
    Mode("full-equal"),
    Mode("full-hp-running", a_high=True, b_first=True, later=LATER),
    Mode("full-hp-arriving", a_high=True, later=LATER),
)
# Stream priorities; the driver takes what is beyond its range for the end of it.
LOWEST, HIGHEST = 0, -5
SPLITS = (16, 32, 48, 64, 96)
CONFINED = (8, 16, 32, 64, 96)


def choose(kernels: Sequence[Kernel], sms: int, count: int, seed: int) -> list[tuple[Kernel, Kernel]]:
    """Ordered pairs, none twice: four fifths of about the same length, the others of any.

    None is of one zoo kernel, or of one workload: what shares memory in one request never runs at once there.
    """
    rng = random.Random(seed)
    chosen: dict[tuple[str, str], tuple[Kernel, Kernel]] = {}
    most = len(kernels) ** 2 - sum(n**2 for n in Counter(kernel.origin for kernel in kernels).values())
    while len(chosen) < min(count, most):
        a, b = rng.choice(kernels), rng.choice(kernels)
        if a.origin == b.origin:
            continue
        ratio = a.isolated[sms].median_ns / b.isolated[sms].median_ns
        if 1 / NEAR < ratio < NEAR or rng.random() < 0.05 or count > most // 4:
            chosen.setdefault((a.key, b.key), (a, b))
    return list(chosen.values())


def measure(
    rig: Rig,
    mode: Mode,
    pairs: Sequence[tuple[Kernel, Kernel]],
    sms: int,
    advanced: Callable[[int], None],
    said: Callable[[str], None],
    patience: Patience,
) -> Iterator[dict[str, Any]]:
    """Lines of `mosaic-pairs`, in the order of the pairs.

    Left out are pairs of which the driver refuses one on its lane, and those that cannot be told apart in a timeline.
    """
    refused_a = refused(rig.a, {a.key: a for a, _ in pairs}.values(), patience)
    refused_b = refused(rig.b, {b.key: b for _, b in pairs}.values(), patience)
    for at in range(0, len(pairs), BATCH):
        chosen = pairs[at : at + BATCH]
        batch = [(a, b) for a, b in chosen if a.key not in refused_a and b.key not in refused_b]
        with Timeline() as timeline:
            rig.identify()
            for a, b in batch:
                rig.enqueue(a.kept, b.kept, mode.order(a, b, sms), ROUNDS)
                patience.enqueued(rig.gate.stream, a.key, b.key)
            patience.all_ended()
        try:
            found = read(timeline, ROUNDS, len(batch), mode.b_first)
        except MosaicError as e:
            said(f"{len(batch)} pairs are left out: {e}")
            found = []
        for (a, b), together in zip(batch[: len(found)], found, strict=True):
            yield {
                "a": a.key,
                "b": b.key,
                "mode": mode.name,
                "a_sms": rig.a.sms,
                "b_sms": rig.b.sms,
                **together.record(mode.order(a, b, sms)),
            }
        advanced(len(chosen))


class Lanes:
    """Streams of every kind that the modes need, made once."""

    def __init__(self, observer: Observer, sms: int) -> None:
        self._observer, self.sms = observer, sms
        self._parts: dict[int, dict[str, int]] = {}
        self._lanes: dict[tuple[int, bool, bool, str], Lane] = {}

    @functools.cached_property
    def _between(self) -> tuple[Meeting, Delay]:
        return Meeting(self._observer.device), Delay()

    def full(self, high: bool, name: str) -> Lane:
        """On the whole GPU. Lanes of different names are different streams."""
        return self._lane(0, False, high, name)

    def part(self, sms: int, rest: bool = False) -> Lane:
        """On a partition of at least `sms` SMs, or on what is left beside it."""
        return self._lane(sms, rest, False, "")

    def _lane(self, sms: int, rest: bool, high: bool, name: str) -> Lane:
        known = self._lanes.get((sms, rest, high, name))
        if known is None:
            known = self._lanes[sms, rest, high, name] = self._make(sms, rest, HIGHEST if high else LOWEST)
        return known

    def _make(self, sms: int, rest: bool, priority: int) -> Lane:
        lib, device = self._observer.lib, self._observer.device
        if sms == 0:
            return Lane(lib, device, lib.stream_create(device, priority), self.sms)
        part = self._parts.get(sms)
        if part is None:
            part = self._parts[sms] = lib.partition(device, sms)
        handle = lib.partition_stream(part["partition"], rest, priority)
        return Lane(lib, device, handle, part["rest_sms"] if rest else part["sms"])

    def rig(self, mode: Mode, cycles_per_ns: float) -> Rig:
        """The lanes of a mode."""
        gate = self.full(True, "gate")
        if mode.name == "separate":
            part = mode.a_sms or mode.b_sms
            a, b = self.part(part), self.part(part, rest=True)
            return Rig(*((a, b) if mode.a_sms else (b, a)), gate, cycles_per_ns, *self._between)
        a = self.full(mode.a_high, "a")
        b = self.part(mode.b_sms) if mode.name == "confined" else self.full(False, "b")
        return Rig(a, b, gate, cycles_per_ns, *self._between)


def modes() -> list[tuple[Mode, int]]:
    """All modes, with the number of pairs that the data set has of each."""
    separate = [Mode("separate", a_sms=k) for k in SPLITS] + [Mode("separate", b_sms=k) for k in SPLITS]
    confined = [Mode("confined", b_sms=k, a_high=True) for k in CONFINED]
    return [
        *((mode, 2100) for mode in FULL),
        *((mode, 320) for mode in separate),
        *((mode, 320) for mode in confined),
    ]
