"""Measures the data set of this GPU: `python -m mosaic_torch.profiling.dataset`.

What is measured is written file by file; run again, it goes on with the files that are missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..api import configure, runtime
from ..bench.budget import Budget, Progress
from ..bench.device import record_folder
from ..errors import DeviceError, MosaicError
from . import counters, files, kernels, pairs, physics, zoo
from .clocks import Clocks
from .kernels import Kernel
from .observe import Observer

# SMs that kernels are measured on alone: multiples of the granularity of compute capability 9.0, and the splits' rests.
ALONE_SMS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112)
# Kernels of one run of Nsight Compute: an interrupted one loses no more.
COUNTED_AT_ONCE = 60
# torch.cuda._sleep counts cycles of the SM's clock.
CYCLES_PER_NS = 1.9


class DataSet:
    """One folder, and what is needed to fill it."""

    def __init__(self, out: Path, budget: Budget, configs: Sequence[zoo.Config], pairs_part: float) -> None:
        self.out, self.budget, self.pairs_part = out, budget, pairs_part
        self.progress = Progress(budget)
        self.configs = configs
        self.observer = Observer(runtime, torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.observer.device)
        self.sms = properties.multi_processor_count
        self.clocks = Clocks(f"GPU-{properties.uuid}")
        self.lanes = pairs.Lanes(self.observer, self.sms)
        self.kernels: list[Kernel] = []

    def write(self, name: str, format_name: str, lines: Sequence[dict[str, Any]]) -> None:
        head = files.provenance(runtime, self.observer.device, self.clocks.seen)
        files.write(self.out / name, format_name, head, lines)
        self.progress.say(f"{self.out / name}: {len(lines)} records")

    def build(self) -> None:
        """Makes the kernels, and measures each alone, on the whole GPU and on partitions."""
        self.progress.begin(len(self.configs))
        with self.clocks:
            self.kernels = list(kernels.zoo_kernels(self.observer, self.configs, self.progress.advance))
            lanes = [self.lanes.full(False, "a"), *(self.lanes.part(sms) for sms in ALONE_SMS)]
            self.progress.begin(len(lanes))
            for lane in lanes:
                kernels.measure_alone(self.kernels, lane)
                self.progress.step(f"alone on {lane.sms} SMs")
        known = self.out / "kernels.jsonl"
        counted = {line["key"]: line for line in files.read(known)[1]} if known.exists() else {}
        for kernel in self.kernels:
            kernel.metrics = counted.get(kernel.key, {}).get("metrics", {})
        self.write("kernels.jsonl", "mosaic-kernels", [kernel.record() for kernel in self.kernels])

    def count(self) -> None:
        """Counters of every kernel that has none yet."""
        missing = [kernel for kernel in self.kernels if not kernel.metrics]
        self.progress.begin(len(missing))
        for at in range(0, len(missing), COUNTED_AT_ONCE):
            batch = {kernel.key: kernel for kernel in missing[at : at + COUNTED_AT_ONCE]}
            if not self.budget.fits(45):
                self.progress.say(f"counters of {len(missing) - at} kernels left for the next run: too little time")
                return
            plan = {
                "zoo": {
                    key.removeprefix("zoo:"): [kernel.launch.kernel_id, kernel.launch.occurrence]
                    for key, kernel in batch.items()
                }
            }
            with tempfile.TemporaryDirectory(prefix="mosaic-plan-") as folder, self.clocks:
                paths = [Path(folder) / name for name in ("plan.json", "lines.jsonl")]
                paths[0].write_text(json.dumps(plan))
                program = ["-m", "mosaic_torch.profiling.counted", *map(str, paths)]
                for ours, theirs in counters.count(runtime.lib, program, paths[1], {}):
                    batch[ours["key"]].metrics = theirs["metrics"]
                    self.progress.advance(ours["key"])
            self.write("kernels.jsonl", "mosaic-kernels", [kernel.record() for kernel in self.kernels])

    def pair(self, seed: int) -> None:
        """Pairs in every mode; the three of the whole GPU measure the same pairs."""
        plan = [(mode, round(count * self.pairs_part)) for mode, count in pairs.modes()]
        self.progress.begin(sum(count for _, count in plan))
        for i, (mode, count) in enumerate(plan):
            name = f"pairs-{mode.title}.jsonl"
            if (self.out / name).exists():
                self.progress.done += count
                continue
            if not self.budget.fits(0.02 * count):
                self.progress.say(f"{name} left for the next run: too little time")
                continue
            chosen = pairs.choose(self.kernels, self.sms, count, seed if mode in pairs.FULL else seed + i)
            rig = self.lanes.rig(mode, CYCLES_PER_NS)
            with self.clocks:
                said = functools.partial(self.progress.advance, mode.title)
                lines = list(pairs.measure(rig, mode, chosen, self.sms, said))
            self.write(name, "mosaic-pairs", lines)

    def physics(self) -> None:
        """The experiments whose outcome has a reason."""
        name = "physics.jsonl"
        if (self.out / name).exists():
            return
        self.progress.begin(sum(1 for _ in physics.cases()))
        with self.clocks:
            lines = list(physics.run(self.observer, self.lanes, CYCLES_PER_NS, self.progress.advance))
        self.write(name, "mosaic-physics", lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs the steps that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch.profiling.dataset", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder; profiles/<gpu> if not given")
    parser.add_argument("--steps", default="build,physics,pair,count", help="of build, physics, pair, count")
    parser.add_argument("--max-seconds", type=float, help="stop in time; run again to go on")
    parser.add_argument("--every", type=int, default=1, help="take only each n-th zoo configuration (a trial)")
    parser.add_argument("--pairs", type=float, default=1.0, help="take only this part of the pairs (a trial)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of pairs")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise DeviceError("torch finds no usable GPU: a data set is measured on one")
    configure(policy="none")
    torch.backends.cuda.matmul.allow_tf32 = True
    out = options.out or Path("profiles") / record_folder(torch.cuda.get_device_name())
    data = DataSet(out, Budget(options.max_seconds), zoo.configs()[:: options.every], options.pairs)
    if "physics" in options.steps:
        data.physics()
    if "build" in options.steps:
        data.build()
    if "pair" in options.steps:
        data.pair(options.seed)
    if "count" in options.steps:
        data.count()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MosaicError as e:
        sys.exit(f"mosaic: {e}")
