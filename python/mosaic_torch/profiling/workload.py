"""One request of a model: the launches in their order, and what each takes alone on every number of SMs."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import MosaicError
from .kernels import Kernel
from .observe import Launch, Observer
from .pairs import Lanes
from .rig import Lane
from .spread import Spread
from .timeline import Timeline

WARM_UP = 3
# Times of one KernelId that are further apart than this are different kernels to us: its arguments differ.
APART_RATIO, APART_NS = 1.25, 2000
# Requests that take longer are measured fewer times.
TIME_A_LANE_S = 2.0

# Nothing is fitted on these two models' kernels (the variants of one model are that model).
UNSEEN = ("mobilenetv3", "dlrm")


@dataclass
class Workload:
    """A profile without its counters."""

    name: str
    launches: list[Launch]
    start_offset_ns: list[int] = field(default_factory=list)
    durations: list[dict[int, Spread]] = field(default_factory=list)
    samples: list[dict[int, list[int]]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    kernel_of: list[int] = field(default_factory=list)
    unlike: dict[int, int] = field(default_factory=dict)

    def lines(self) -> list[dict[str, Any]]:
        """The records of a `mosaic-workload` file."""
        launches = [
            {
                "kernel": kernel,
                "start_offset_ns": offset,
                "durations": [[sms, s.median_ns, s.p10_ns, s.p90_ns] for sms, s in sorted(durations.items())],
            }
            for kernel, offset, durations in zip(self.kernel_of, self.start_offset_ns, self.durations, strict=True)
        ]
        return [*(kernel.record() for kernel in self.kernels), *launches]


def measure(
    observer: Observer,
    lanes: Lanes,
    name: str,
    call: Callable[[], Any],
    partitions: Sequence[int],
    requests: int,
    said: Callable[[str], None],
    *,
    keep: bool = False,
) -> Workload:
    """Runs the call alone, on the whole GPU and on each partition."""
    for _ in range(WARM_UP):
        observer.run(call)
    observed = observer.observe(call, keep=keep)
    if any(launch.kind == "graph" for launch in observed):
        raise MosaicError(
            f"{name} launches CUDA graphs, whose kernels cannot be told apart by launch: profile it without "
            'them (torch.compile without mode="reduce-overhead")'
        )
    launches = [launch for launch in observed if launch.is_kernel]
    if not launches:
        raise MosaicError(f"{name} launched no kernel: is it on the GPU?")
    work = Workload(name, launches, samples=[{} for _ in launches])
    whole = Lane(observer.lib, observer.device, observer.handle, lanes.sms)
    names = _lane(work, whole, call, requests, None)
    said(f"{name}: {len(launches)} kernels, {whole.sms} SMs")
    for sms in partitions:
        lane = lanes.part(sms)
        _lane(work, lane, call, requests, names)
        unlike = work.unlike.get(lane.sms)
        said(f"{name}: {lane.sms} SMs" + (f", {unlike} launches unlike" if unlike else ""))
    work.durations = [{sms: Spread.of(s) for sms, s in samples.items()} for samples in work.samples]
    classify(work, whole.sms)
    return work


def _lane(work: Workload, lane: Lane, call: Callable[[], Any], requests: int, names: list[str] | None) -> list[str]:
    """Adds the durations on one lane; the names of its kernels. `names`: those of the whole GPU, to be matched."""
    torch.cuda.empty_cache()  # each stream has memory of its own
    with Timeline() as timeline:  # the first call on a stream allocates; it also says how long one takes
        lane.run(call)
    busy_s = sum(span.duration_ns for span in timeline.spans) / 1e9
    requests = max(2, min(requests, int(TIME_A_LANE_S / max(busy_s, 1e-6))))
    with Timeline() as timeline:
        for _ in range(requests):
            lane.run(call)
    spans = [span for span in timeline.spans if span.is_kernel]
    each = len(spans) // requests
    rows = [spans[i * each : (i + 1) * each] for i in range(requests)]
    found = [span.name for span in rows[0]]
    if len(spans) % requests or any([span.name for span in row] != found for row in rows):
        raise MosaicError(
            f"{work.name} on {lane.sms} SMs: its requests launch different kernels ({len(spans)} in {requests} "
            "requests); profile it with inputs of one shape, after it has been warmed up"
        )
    if names is None:
        if each != len(work.launches):
            raise MosaicError(f"{work.name}: the hook saw {len(work.launches)} kernels and CUPTI {each}")
        firsts = [row[0].start_ns for row in rows]
        work.start_offset_ns = [
            round(statistics.median(row[at].start_ns - first for row, first in zip(rows, firsts, strict=True)))
            for at in range(each)
        ]
        places = [(at, at) for at in range(each)]
    else:
        # A library that counts SMs may choose other kernels here: theirs are no times of ours.
        places = list(_same(names, found))
        if len(places) < len(names):
            work.unlike[lane.sms] = len(names) - len(places)
    for ours, theirs in places:
        work.samples[ours][lane.sms] = [row[theirs].duration_ns for row in rows]
    return found


def _same(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    if ours == theirs:
        return [(at, at) for at in range(len(ours))]
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def classify(work: Workload, sms: int) -> None:
    """Finds the unique kernels: launches of one KernelId whose times are alike."""
    of_id: dict[str, list[int]] = {}
    for place, launch in enumerate(work.launches):
        of_id.setdefault(launch.kernel_id, []).append(place)
    work.kernel_of = [0] * len(work.launches)
    for kernel_id, places in of_id.items():
        for number, alike in enumerate(apart(places, lambda place: work.durations[place][sms].median_ns)):
            # The first is the one that counters are taken of.
            launch = work.launches[min(alike)]
            kernel = Kernel(f"{work.name}:{kernel_id}.{number}", launch, [work.name], is_unseen(work.name))
            for place in alike:
                work.kernel_of[place] = len(work.kernels)
                for lane_sms in work.samples[place]:
                    kernel.isolated.setdefault(lane_sms, work.durations[place][lane_sms])
            for lane_sms in kernel.isolated:
                pooled = [ns for place in alike for ns in work.samples[place].get(lane_sms, ())]
                kernel.isolated[lane_sms] = Spread.of(pooled)
            work.kernels.append(kernel)


def apart(places: Sequence[int], time_ns: Callable[[int], int]) -> list[list[int]]:
    """Groups of places whose times follow each other closely."""
    groups: list[list[int]] = []
    last = None
    for place in sorted(places, key=time_ns):
        now = time_ns(place)
        if last is None or not alike(last, now):
            groups.append([])
        groups[-1].append(place)
        last = now
    return groups


def alike(one_ns: int, other_ns: int) -> bool:
    """Whether two times alone may be of one kernel."""
    less, more = sorted((one_ns, other_ns))
    return more <= less * APART_RATIO or more - less <= APART_NS


def is_unseen(workload: str) -> bool:
    """Whether a workload is kept for testing."""
    return workload.lower().startswith(UNSEEN)
