"""Two kernels released together, and each of them alone: the durations of both, from one run.

Three streams: a gate holds the other two back until the host has enqueued everything, makes the fills that the kernels
count on, and opens both. There they meet (`Meeting`), and their kernels start, one a moment after the other. Where the
other comes later still, its stream has a delay to pass. A pair whose first kernel came second is `noisy`.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MosaicError
from .spread import Spread
from .timeline import Span, Timeline
from .zoo import nvrtc

# At the start of a pair, for each of its rounds: what the host, while it is traced, needs to enqueue one.
HEAD_START_NS = 400_000
# How much longer the second stays at a meeting. On an H200 lane `b`'s next kernel starts 1.2 us after a meeting and
# lane `a`'s 2.6 us: the second has to be gone before the first kernel starts, and may not pass it.
A_FIRST_NS, B_FIRST_NS = 2_000, 500
# Launches of each kernel in a round: of the first, and of the second.
FIRST_ROUND, SECOND_ROUND = 4, 2


class Lane:
    """A stream, and the SMs that its kernels may use."""

    def __init__(self, lib: Any, device: int, handle: int, sms: int) -> None:
        self.lib, self.handle, self.sms = lib, handle, sms
        self.stream = torch.cuda.ExternalStream(handle, device=device)

    def fill(self, kept: int) -> None:
        """What a kept kernel counts on."""
        self.lib.kept_fill(kept, self.handle)

    def launch(self, kept: int) -> None:
        """Launches a kept kernel once more."""
        self.lib.kept_launch(kept, self.handle)

    def fill_and_launch(self, kept: int) -> None:
        """Both, one after the other."""
        self.fill(kept)
        self.launch(kept)

    def refuses(self, kept: int) -> str:
        """Launches it once: the driver's words where it refuses, such as a cooperative launch of too many blocks."""
        try:
            self.fill_and_launch(kept)
        except MosaicError as e:
            torch.cuda.synchronize()  # raises where it is not this launch that is at fault, but a dead context
            return str(e)
        return ""

    def run(self, call: Callable[[], Any]) -> None:
        """Calls it on the stream, and waits for the GPU."""
        with torch.cuda.stream(self.stream):
            call()
        self.stream.synchronize()

    def sleep(self, ns: float, cycles_per_ns: float) -> None:
        """Holds the stream back, by one thread of one block that spins."""
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(max(1, int(ns * cycles_per_ns)))


class Meeting:
    """Where two streams wait for each other right before their kernels.

    Of two streams with work behind one event, either may go on up to 7 us before the other one does. So both run a
    thread that spins until the other's is there, and the second's stays a moment longer. Neither may be there when a
    kernel starts: one thread is enough to make two blocks of a kernel with one for each SM share an SM.
    """

    def __init__(self, device: int) -> None:
        gpu = torch.cuda.get_device_properties(device)
        self._flags = torch.zeros(2, dtype=torch.int32, device=torch.device("cuda", device))
        here, go = (ctypes.c_void_p(self._flags.data_ptr() + at) for at in (0, 4))

        def bound(name: str, *args: Any) -> nvrtc.Launch:
            kernel = nvrtc.Kernel("meet.cu", name, device, 10 * gpu.major + gpu.minor)
            return kernel.bound((1, 1, 1), (1, 1, 1), 0, args)

        self._first = bound("meet_first", here, go)
        stays_ns = {False: A_FIRST_NS, True: B_FIRST_NS}
        self._second = {k: bound("meet_second", here, go, ctypes.c_uint(ns)) for k, ns in stays_ns.items()}

    def clear(self, stream: torch.cuda.Stream) -> None:
        """Makes ready for the next one."""
        with torch.cuda.stream(stream):
            self._flags.zero_()

    def enqueue(self, a: Lane, b: Lane, b_first: bool) -> None:
        """Each lane's next work starts when both have come here."""
        first, second = (b, a) if b_first else (a, b)
        self._first(first.handle)
        self._second[b_first](second.handle)


class Delay:
    """Holds a stream back without an SM: by copies to the host.

    A kernel that waits would need room on an SM, and an SM with the same division into L1 and shared memory as the
    kernel that runs there: beside a kernel on all SMs it would start when that one ends, and so what is behind it.
    """

    # Of one copy: few of the L2's.
    MOST_BYTES = 2 << 20
    # What a copy takes beside its bytes; and from when on one is nearer to what is wanted than none.
    START_NS, LEAST_NS = 3_000, 7_000

    def __init__(self) -> None:
        self._here = torch.zeros(self.MOST_BYTES, dtype=torch.uint8, device="cuda")
        self._host = torch.empty(self.MOST_BYTES, dtype=torch.uint8, pin_memory=True)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(20):
            self._copy(self.MOST_BYTES)
        begin.record()
        for _ in range(10):
            self._copy(self.MOST_BYTES)
        end.record()
        end.synchronize()
        self._bytes_per_ns = 10 * self.MOST_BYTES / (begin.elapsed_time(end) * 1e6)

    def hold(self, stream: torch.cuda.Stream, ns: float) -> None:
        """For about so long; not at all where a copy takes longer than that."""
        left = int((ns - self.START_NS) * self._bytes_per_ns) if ns >= self.LEAST_NS else 0
        with torch.cuda.stream(stream):
            while left > 0:
                self._copy(min(left, self.MOST_BYTES))
                left -= self.MOST_BYTES

    def _copy(self, count: int) -> None:
        self._host[:count].copy_(self._here[:count], non_blocking=True)


@dataclass(frozen=True)
class Order:
    """Who comes first, and about how much later the other is released."""

    b_first: bool = False
    later_ns: float = 0.0


@dataclass
class Together:
    """What a pair did: samples of each round."""

    a_alone_ns: list[int]
    b_alone_ns: list[int]
    a_ns: list[int]
    b_ns: list[int]
    lead_ns: list[int]
    overlap_ns: list[int]

    def record(self, order: Order) -> dict[str, Any]:
        """The fields of a line of `mosaic-pairs`."""
        in_order = all((lead < 0) == order.b_first for lead in self.lead_ns)
        durations = {name: Spread.of(getattr(self, name)) for name in ("a_alone_ns", "b_alone_ns", "a_ns", "b_ns")}
        return {
            **{name: spread.as_dict() for name, spread in durations.items()},
            "lead_ns": round(statistics.median(self.lead_ns)),
            "overlap_ns": round(statistics.median(self.overlap_ns)),
            "noisy": not in_order or any(spread.noisy for spread in durations.values()),
        }


# A lane, and what is launched on it.
Work = tuple[Lane, int]


class Rig:
    """Lanes `a` and `b` behind a gate."""

    def __init__(self, a: Lane, b: Lane, gate: Lane, cycles_per_ns: float, meeting: Meeting, delay: Delay) -> None:
        self.a, self.b, self.gate, self._cycles_per_ns = a, b, gate, cycles_per_ns
        self._meeting, self._delay = meeting, delay
        self._open, self._a_done, self._b_done = (torch.cuda.Event() for _ in range(3))

    def identify(self) -> None:
        """Sleeps once on each lane, in the order gate, a, b: that is how a timeline's streams are told apart."""
        for lane in (self.gate, self.a, self.b):
            lane.sleep(1000, self._cycles_per_ns)
            lane.stream.synchronize()

    def enqueue(self, a: int, b: int, order: Order, rounds: int) -> None:
        """Rounds of: the first, the first, both, the first, the second. They end where the gate's stream is afterwards.

        What is measured, the second, third and last of them, comes right after the first kernel alone: caches hold what
        that one left, the same for all. A kernel can be twice as fast right after itself.
        """
        first, second = [(self.a, a), (self.b, b)][:: -1 if order.b_first else 1]
        self.gate.sleep(HEAD_START_NS * rounds, self._cycles_per_ns)
        for _ in range(rounds):
            self._release(first)
            self._release(first)
            self._release(first, second, order.later_ns)
            self._release(first)
            self._release(second)
        self._wait_for_both()

    def _release(self, first: Work, second: Work | None = None, later_ns: float = 0.0) -> None:
        gate, (lane, kept) = self.gate, first
        other = self.b if lane is self.a else self.a
        # One alone comes as the second: then the other lane's thread has long gone.
        b_first = (lane is self.b) == (second is not None)
        self._wait_for_both()
        for work in (first, second):
            if work:
                gate.fill(work[1])
        self._meeting.clear(gate.stream)
        self._open.record(gate.stream)
        for each in (lane, other):
            each.stream.wait_event(self._open)
        self._meeting.enqueue(self.a, self.b, b_first)
        lane.launch(kept)
        if second:
            self._delay.hold(other.stream, later_ns)
            other.launch(second[1])
        self._a_done.record(self.a.stream)
        self._b_done.record(self.b.stream)

    def _wait_for_both(self) -> None:
        """Nothing of the gate's runs beside a kernel that is measured: even one thread keeps a block off an SM."""
        self.gate.stream.wait_event(self._a_done)
        self.gate.stream.wait_event(self._b_done)


def read(timeline: Timeline, rounds: int, pairs: int, b_first: bool) -> list[Together]:
    """What `pairs` pairs did, in the order of their `enqueue`, after one `identify` at the start of the timeline."""
    sleeps = [span for span in timeline.spans if span.is_sleep]
    if len(sleeps) < 3 or len({span.stream for span in sleeps[:3]}) != 3:
        raise MosaicError(f"found {len(sleeps)} sleeps in the timeline, expected those of gate, a and b at its start")
    lanes = timeline.by_stream()
    a, b = (lanes.get(sleep.stream, []) for sleep in sleeps[1:3])
    launches = rounds * pairs
    expected = [FIRST_ROUND * launches, SECOND_ROUND * launches][:: -1 if b_first else 1]
    if [len(a), len(b)] != expected:
        raise MosaicError(
            f"found {len(a)} and {len(b)} kernels in the timeline, expected {expected[0]} and {expected[1]}"
        )
    return [_together(a, b, range(at, at + rounds), b_first) for at in range(0, launches, rounds)]


def _together(a: Sequence[Span], b: Sequence[Span], rounds: Iterable[int], b_first: bool) -> Together:
    found = Together([], [], [], [], [], [])
    first, second = (b, a) if b_first else (a, b)
    for i in rounds:
        _, first_alone, one, _ = first[FIRST_ROUND * i : FIRST_ROUND * (i + 1)]
        other, second_alone = second[SECOND_ROUND * i : SECOND_ROUND * (i + 1)]
        x, y = (other, one) if b_first else (one, other)
        a_alone, b_alone = (second_alone, first_alone) if b_first else (first_alone, second_alone)
        found.a_alone_ns.append(a_alone.duration_ns)
        found.b_alone_ns.append(b_alone.duration_ns)
        found.a_ns.append(x.duration_ns)
        found.b_ns.append(y.duration_ns)
        found.lead_ns.append(y.start_ns - x.start_ns)
        found.overlap_ns.append(max(0, min(x.end_ns, y.end_ns) - max(x.start_ns, y.start_ns)))
    return found
