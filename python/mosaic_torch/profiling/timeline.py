"""What ran on the GPU and when, from CUPTI's activity records, which torch's profiler collects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

# torch.cuda._sleep: what holds a stream back is no measurement.
SLEEP = "spin_kernel(long"


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, copy or fill on the GPU. `stream` is CUPTI's number of the stream."""

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
        return SLEEP in self.name


def spans_of(events: Iterable[Any]) -> list[Span]:
    """The GPU's part of a profile's events, in the order of their starts."""
    cuda = torch.autograd.DeviceType.CUDA
    spans = [
        Span(event.name(), event.device_resource_id(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == cuda and not event.is_user_annotation()
    ]
    return sorted(spans, key=lambda span: span.start_ns)


class Timeline:
    """Collects while its `with` block lasts; `spans` afterwards."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # Records of a finished run are of no use to the next.
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=False)

    def __enter__(self) -> Timeline:
        torch.cuda.synchronize()
        self._profile.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        torch.cuda.synchronize()
        self._profile.__exit__(kind, e, tb)
        self.spans = spans_of(self._profile.profiler.kineto_results.events())

    def by_stream(self) -> dict[int, list[Span]]:
        """Kernels of each stream in their order, without those that only hold it back."""
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            if span.is_kernel and not span.is_sleep:
                found.setdefault(span.stream, []).append(span)
        return found
