"""What ran on the GPU and when, from CUPTI's activity records, which torch's profiler collects."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig

from ..errors import MosaicError

# torch.cuda._sleep and the rig's `meet.cu`: what holds a stream back is no measurement.
SLEEPS = ("spin_kernel(long", "meet_first", "meet_second")
# In what CUPTI says of an event beside its times.
CONTEXT = re.compile(r'"context": (\d+)')


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, copy or fill on the GPU. `stream` is made of CUPTI's numbers of the context and of its stream."""

    name: str
    stream: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """From the start of its first block to the end of its last."""
        return self.end_ns - self.start_ns

    @property
    def is_kernel(self) -> bool:
        """Not a copy, not a fill."""
        return not self.name.startswith(("Memcpy", "Memset"))

    @property
    def is_sleep(self) -> bool:
        """Holds a stream back."""
        return any(name in self.name for name in SLEEPS)


def spans_of(events: Iterable[Any]) -> list[Span]:
    """The GPU's part of a profile's events, in the order of their starts."""
    cuda = torch.autograd.DeviceType.CUDA
    spans = [
        Span(event.name(), _stream(event), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == cuda and not event.is_user_annotation()
    ]
    return sorted(spans, key=lambda span: span.start_ns)


def _stream(event: Any) -> int:
    """CUPTI numbers the streams of each context, and so of each green context, by themselves."""
    context = CONTEXT.search(event.metadata_json())
    return (int(context[1]) if context else 0) << 32 | event.device_resource_id()


def after_prelude(spans: Sequence[Span], launched: int) -> tuple[list[Span], int]:
    """What comes after the prelude, and how many of its records were lost.

    The prelude is the sleeps of one stream that come first. Two of them have to be left: one alone might be another's.
    """
    first = spans[0].stream if spans else None
    found = 0
    while found < min(launched, len(spans)) and spans[found].is_sleep and spans[found].stream == first:
        found += 1
    if found < 2:
        raise MosaicError(f"CUPTI lost the first records of a timeline: found {found} of its {launched} first kernels")
    return list(spans[found:]), launched - found


class Timeline:
    """Collects while its `with` block lasts; `spans` afterwards.

    CUPTI may give the first kernels of a collection times of another clock, and torch's profiler drops those without a
    word; each collection of a process may lose one more than the last (PyTorch issue 192021). So each begins with
    kernels that are there to be lost, more of them when some were.
    """

    SPARE = 32
    # Records that the last collection of this process has lost.
    _lost = 0

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # Records of a finished run are of no use to the next.
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA],
            experimental_config=_ExperimentalConfig(expose_kineto_event_metadata=True),
            acc_events=False,
        )

    def __enter__(self) -> Timeline:
        torch.cuda.synchronize()
        self._profile.__enter__()
        self._prelude = Timeline._lost + self.SPARE
        for _ in range(self._prelude):
            torch.cuda._sleep(1)
            torch.cuda.synchronize()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        torch.cuda.synchronize()
        # What seems to end after the collection is dropped too, and the clocks of the GPU and the host differ a little.
        time.sleep(0.001)
        self._profile.__exit__(kind, e, tb)
        if kind is None:
            spans = spans_of(self._profile.profiler.kineto_results.events())
            self.spans, Timeline._lost = after_prelude(spans, self._prelude)

    def by_stream(self) -> dict[int, list[Span]]:
        """Kernels of each stream in their order, without those that only hold it back."""
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            if span.is_kernel and not span.is_sleep:
                found.setdefault(span.stream, []).append(span)
        return found
