"""Kernels that can be launched again, and what each takes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import MosaicError
from . import zoo
from .observe import Launch, Observer
from .patience import Patience
from .rig import Lane
from .spread import Spread
from .timeline import Timeline

WARM_UP, ROUNDS = 2, 7
ZOO = "zoo:"
# Kernels of one timeline: its records are read in one go.
BATCH = 100


@dataclass
class Kernel:
    """One unique kernel. `alive` is what its launches need in memory."""

    key: str
    launch: Launch
    families: list[str]
    unseen: bool
    isolated: dict[int, Spread] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    grid_working_set_bytes: int | None = None
    working_set_from: str | None = None
    alive: Any = None

    @property
    def is_zoo(self) -> bool:
        """Not of a workload."""
        return self.key.startswith(ZOO)

    @property
    def zoo_name(self) -> str:
        """Its configuration's."""
        return self.key.removeprefix(ZOO)

    @property
    def origin(self) -> str:
        """The workload that launches it; of the zoo, the kernel itself."""
        return self.key if self.is_zoo else self.key.partition(":")[0]

    @property
    def kept(self) -> int:
        """For `Lane`."""
        if self.launch.kept is None:
            raise MosaicError(f"{self.key} cannot be launched again: {self.launch.not_kept or 'it was not kept'}")
        return self.launch.kept

    def record(self) -> dict[str, Any]:
        """A line of `mosaic-kernels`."""
        launch = self.launch
        line: dict[str, Any] = {
            "key": self.key,
            "kernel_id": launch.kernel_id,
            "symbol": launch.symbol,
            "grid": launch.grid,
            "block": launch.block,
            "dynamic_smem_bytes": launch.dynamic_smem_bytes,
            "cluster": launch.cluster,
            "registers": launch.registers,
            "static_smem_bytes": launch.static_smem_bytes,
            "families": self.families,
            "unseen": self.unseen,
            "isolated": [{"sms": sms, **self.isolated[sms].as_dict()} for sms in sorted(self.isolated)],
        }
        if self.metrics:
            line["metrics"] = self.metrics
        if self.grid_working_set_bytes is not None:
            line |= {
                "grid_working_set_bytes": self.grid_working_set_bytes,
                "block_working_set_bytes": -(-self.grid_working_set_bytes // _blocks(launch)),
                "working_set_from": self.working_set_from,
            }
        return line


def _blocks(launch: Launch) -> int:
    x, y, z = launch.grid
    return x * y * z


def zoo_key(config: zoo.Config) -> str:
    """Of a zoo kernel in the files."""
    return ZOO + config.name


def longest(launches: Sequence[Launch], timeline: Timeline) -> Launch:
    """Of a call's launches, that of the kernel that took the longest."""
    places = [place for place, launch in enumerate(launches) if launch.is_kernel]
    spans = [span for span in timeline.spans if span.is_kernel]
    if not places or len(places) != len(spans):
        raise MosaicError(f"the hook saw {len(places)} kernels and CUPTI {len(spans)}, expected as many")
    place, _ = max(zip(places, spans, strict=True), key=lambda pair: pair[1].duration_ns)
    return launches[place]


def zoo_kernels(observer: Observer, configs: Sequence[zoo.Config], said: Callable[[str], None]) -> Iterator[Kernel]:
    """Builds each configuration, and keeps the launch that stands for it. One that fails is left out, and named."""
    for config in configs:
        try:
            kernel = _zoo_kernel(observer, config)
        except RuntimeError as e:  # ours, and torch's own
            torch.cuda.synchronize(observer.device)  # raises where the context is dead: so would all that follow
            said(f"{config.name} is left out: {e}")
            continue
        said(config.name)
        yield kernel


def _zoo_kernel(observer: Observer, config: zoo.Config) -> Kernel:
    prepared = zoo.build(config, observer.device)
    observer.run(prepared.launch)
    with Timeline() as timeline:
        observer.run(prepared.launch)
    launches = observer.observe(prepared.launch, keep=True)
    launch = longest(launches, timeline)
    if launch.kept is None:
        raise MosaicError(launch.not_kept)
    return Kernel(
        zoo_key(config),
        launch,
        [config.family],
        zoo.is_unseen(config.family),
        grid_working_set_bytes=prepared.footprint_bytes,
        working_set_from="arguments",
        alive=prepared,
    )


def refused(lane: Lane, kernels: Iterable[Kernel], patience: Patience) -> dict[str, str]:
    """Launches each once, by itself: the driver's words on those that it refuses, by their keys."""
    found = {}
    for kernel in kernels:
        if why := lane.refuses(kernel.kept):
            found[kernel.key] = why
        else:
            patience.enqueued(lane.stream, kernel.key)
            patience.all_ended()
    return found


def measure_alone(kernels: Sequence[Kernel], lane: Lane, patience: Patience) -> list[str]:
    """What each takes alone on the lane's SMs; names those that the driver refuses there, which get no time on it."""
    why = refused(lane, kernels, patience)
    each = WARM_UP + ROUNDS
    for at in range(0, len(kernels), BATCH):
        batch = [kernel for kernel in kernels[at : at + BATCH] if kernel.key not in why]
        with Timeline() as timeline:
            for kernel in batch:
                for _ in range(each):
                    lane.fill_and_launch(kernel.kept)
                patience.enqueued(lane.stream, kernel.key)
            patience.all_ended()
        spans = [span for span in timeline.spans if span.is_kernel]
        if len(spans) != len(batch) * each:
            raise MosaicError(f"found {len(spans)} kernels in the timeline, expected {len(batch) * each}")
        for i, kernel in enumerate(batch):
            samples = [span.duration_ns for span in spans[i * each + WARM_UP : (i + 1) * each]]
            kernel.isolated[lane.sms] = Spread.of(samples)
    return [f"{key}: {words}" for key, words in why.items()]
