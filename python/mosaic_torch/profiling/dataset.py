"""Measures the data set of this GPU: `python -m mosaic_torch.profiling.dataset`.

What is measured is written file by file; run again, it goes on with what is missing. Kernels that take part in pairs
have to be made again in every run.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..api import configure, runtime
from ..bench.budget import Budget, Progress
from ..bench.device import record_folder
from ..errors import DeviceError, MosaicError, UsageError
from . import counted, counters, files, jobs, kernels, pairs, physics, profiler, zoo
from .clocks import Clocks
from .command import number
from .files import KERNELS, LEFT_OUT, PHYSICS, PHYSICS_KERNELS, REPEAT, WORKLOADS
from .kernels import Kernel
from .observe import Observer
from .patience import Patience
from .rig import Lane
from .spread import Spread
from .workload import APART_NS, alike, measure

# SMs that kernels are measured on alone: multiples of the granularity of compute capability 9.0, and the splits' rests.
ALONE_SMS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112)
# What is refused on the fewest SMs (cooperative launches that do not fit) takes part in no pair.
FEWEST_SMS = ALONE_SMS[0]
# Kernels of one run of Nsight Compute: an interrupted one loses no more.
COUNTED_AT_ONCE = 60
# Pairs that are measured again by a later run.
REPEATED = 300
# torch.cuda._sleep counts cycles of the SM's clock.
CYCLES_PER_NS = 1.9

WORKLOAD_SUFFIX = ".jsonl" + files.GZ
STEPS = ("physics", "zoo", "workloads", "pair", "repeat", "count", "compiled")


class DataSet:
    """One folder, and what is needed to fill it."""

    def __init__(self, out: Path, budget: Budget, pairs_part: float, seed: int) -> None:
        self.out, self.budget, self.pairs_part, self.seed = out, budget, pairs_part, seed
        self.progress = Progress(budget)
        self.observer = Observer(runtime, torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.observer.device)
        self.sms = properties.multi_processor_count
        self.clocks = Clocks(f"GPU-{properties.uuid}")
        self.lanes = pairs.Lanes(self.observer, self.sms)
        # Those that can be launched again.
        self.kernels: list[Kernel] = []
        self.patience = Patience(self._leave_out)
        self.paired = False

    def write(self, name: str, format_name: str, lines: Sequence[dict[str, Any]], workload: str = "") -> None:
        head = files.provenance(runtime, self.observer.device, self.clocks.seen)
        files.write(self.out / name, format_name, ({"workload": workload} if workload else {}) | head, lines)
        self.progress.say(f"{self.out / name}: {len(lines)} records")

    def records(self, name: str) -> list[dict[str, Any]]:
        """Of a file, if it is there."""
        path = self.out / name
        return files.read(path)[1] if path.exists() else []

    def left_out(self) -> set[str]:
        """Kernels that once did not end, and those beside which they did not: none is measured again."""
        path = self.out / LEFT_OUT
        return set(path.read_text().split()) if path.exists() else set()

    def _leave_out(self, keys: Sequence[str]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / LEFT_OUT).write_text("".join(f"{key}\n" for key in sorted(self.left_out() | set(keys))))
        self.progress.say(f"{' and '.join(keys)} left out from now on ({self.out / LEFT_OUT}): run again")

    def enough(self, seconds: float, what: str) -> bool:
        """Whether there is time for it; if not, it is left for the next run."""
        if self.budget.fits(seconds):
            return True
        self.progress.say(f"{what} left for the next run: too little time")
        return False

    @contextmanager
    def going_on(self, what: str) -> Iterator[None]:
        """What fails in it is said, and left out."""
        try:
            yield
        except (MosaicError, RuntimeError) as e:
            torch.cuda.synchronize()  # raises where the context is dead: so would all that follows
            self.progress.say(f"{what} left out: {e}")

    def zoo(self, configs: Sequence[zoo.Config]) -> None:
        """Makes the zoo's kernels, and measures each alone, on the whole GPU and on partitions."""
        left_out = self.left_out()
        configs = [config for config in configs if kernels.zoo_key(config) not in left_out]
        self.progress.begin(len(configs))
        made = list(kernels.zoo_kernels(self.observer, configs, self.progress.advance))
        known = {line["key"]: line for line in self.records(KERNELS)}
        for kernel in made:
            if line := known.get(kernel.key):
                kernel.isolated = {time.pop("sms"): Spread(**time) for time in line["isolated"]}
                kernel.metrics = line.get("metrics", {})
        self.kernels += made
        lanes = [self.lanes.full(False, "a"), *map(self.lanes.part, ALONE_SMS)]
        self.progress.begin(len(lanes))
        for lane in lanes:
            new = [kernel for kernel in made if lane.sms not in kernel.isolated]
            with self.clocks:
                self._alone(new, lane)
            if new:
                self._write_zoo()
            self.progress.step(f"alone on {lane.sms} SMs")

    def _alone(self, measured: Sequence[Kernel], lane: Lane) -> None:
        for refused in kernels.measure_alone(measured, lane, self.patience):
            self.progress.say(f"not on {lane.sms} SMs: {refused}")

    def _write_zoo(self) -> None:
        made = {kernel.key: kernel.record() for kernel in self.kernels if kernel.is_zoo and kernel.isolated}
        known = {line["key"]: line for line in self.records(KERNELS)}  # a trial makes only some of them
        self.write(KERNELS, "mosaic-kernels", list((known | made).values()))

    def workloads(self, names: Sequence[str], keep: bool) -> None:
        """Measures one request of each; `keep`: their kernels take part in pairs."""
        self.progress.begin(len(names))
        for name in names:
            path = _workload_file(name)
            there = (self.out / path).exists()
            if there and not keep:
                self.progress.advance(name)
                continue
            if not self.enough(60 if not there else 15, path):
                continue
            with self.going_on(name):
                self._workload(name, path, keep)
            gc.collect()
            torch.cuda.empty_cache()
            self.progress.step(name)

    def _workload(self, name: str, path: str, keep: bool) -> None:
        there = (self.out / path).exists()
        partitions = () if there else profiler.PARTITIONS
        call, said = jobs.build(name, self.observer.device), self.progress.say
        with self.clocks:
            work = measure(self.observer, self.lanes, name, call, partitions, profiler.REQUESTS, said, keep=keep)
        if not there:
            self.write(path, "mosaic-workload", work.lines(), name)
        if keep:
            for kernel in work.kernels:
                kernel.alive = call  # its inputs and weights
            self._keep(work.kernels, path)

    def _keep(self, found: Sequence[Kernel], path: str) -> None:
        named = {line["key"] for line in self.records(path) if "key" in line}
        for kernel in found:
            if kernel.key not in named:
                self.progress.say(f"{kernel.key} takes part in no pair: {path} has it not")
            elif kernel.launch.kept is None:
                self.progress.say(f"{kernel.key} takes part in no pair: {kernel.launch.not_kept}")
            else:
                self.kernels.append(kernel)

    def launchable(self) -> list[Kernel]:
        """Those that the fewest SMs can run, and that take again what they took in their workload."""
        left_out, fewest = self.left_out(), self.lanes.part(FEWEST_SMS)
        fit = [kernel for kernel in self.kernels if kernel.key not in left_out]
        ours = [kernel for kernel in fit if not kernel.is_zoo]
        there = {kernel.key: kernel.isolated.pop(self.sms).median_ns for kernel in ours}
        for kernel in ours:
            kernel.isolated.pop(fewest.sms, None)
        for lane in (self.lanes.full(False, "a"), fewest):
            self._alone(ours, lane)
        return [k for k in fit if {self.sms, fewest.sms} <= k.isolated.keys() and self._same(k, there.get(k.key))]

    def _same(self, kernel: Kernel, there_ns: int | None) -> bool:
        """Whether a kept launch does what it did: its memory, and what other launches left there, may be another's."""
        again_ns = kernel.isolated[self.sms].median_ns
        if there_ns is None or abs(again_ns - there_ns) <= APART_NS or 0.5 <= again_ns / there_ns <= 2:
            return True
        self.progress.say(f"{kernel.key} takes part in no pair: launched again it takes {again_ns} ns, not {there_ns}")
        return False

    def pair(self) -> None:
        """Pairs in every mode; the three of the whole GPU measure the same pairs."""
        plan = [(mode, round(count * self.pairs_part)) for mode, count in pairs.modes()]
        plan = [(i, mode, count) for i, (mode, count) in enumerate(plan) if not (self.out / _pair_file(mode)).exists()]
        self.progress.begin(sum(count for _, _, count in plan))
        fit = self.launchable() if plan else []
        self.paired = bool(plan)
        for i, mode, count in plan:
            if not self.enough(0.02 * count, _pair_file(mode)):
                continue
            seed = self.seed if mode in pairs.FULL else self.seed + i
            with self.going_on(_pair_file(mode)):
                if lines := self._measured(mode, pairs.choose(fit, self.sms, count, seed)):
                    self.write(_pair_file(mode), "mosaic-pairs", lines)

    def _measured(self, mode: pairs.Mode, chosen: Sequence[tuple[Kernel, Kernel]]) -> list[dict[str, Any]]:
        rig = self.lanes.rig(mode, CYCLES_PER_NS)
        said = functools.partial(self.progress.advance, mode.title)
        with self.clocks:
            return list(pairs.measure(rig, mode, chosen, self.sms, said, self.progress.say, self.patience))

    def repeat(self) -> None:
        """Measures some of the pairs again, which an earlier run has measured."""
        if (self.out / REPEAT).exists():
            return
        if self.paired:
            self.progress.say(f"{REPEAT} left for the next run: this one has measured pairs itself")
            return
        lines = [line | {"of": mode} for mode, _ in pairs.modes() for line in self.records(_pair_file(mode))]
        known = {kernel.key: kernel for kernel in self.launchable()}
        lines = [line for line in lines if line["a"] in known and line["b"] in known]
        again = random.Random(self.seed).sample(lines, min(REPEATED, len(lines)))
        self.progress.begin(len(again))
        found = []
        for mode, _ in pairs.modes():
            chosen = [(known[line["a"]], known[line["b"]]) for line in again if line["of"] == mode]
            found += self._measured(mode, chosen) if chosen else []
        if found:
            self.write(REPEAT, "mosaic-pairs", found)

    def count_zoo(self) -> None:
        """Counters of every zoo kernel that has none yet."""
        self._count([kernel for kernel in self.kernels if kernel.is_zoo and not kernel.metrics], self._write_zoo)

    def count_physics(self) -> None:
        """The kernels of the experiments: what each takes alone, and its counters."""
        if (self.out / PHYSICS_KERNELS).exists():
            return
        configs = {config.name: config for case in physics.pair_cases() for config in (case.a, case.b)}
        self.progress.begin(len(configs))
        made = list(kernels.zoo_kernels(self.observer, list(configs.values()), self.progress.advance))
        with self.clocks:
            self._alone(made, self.lanes.full(False, "a"))

        def write() -> None:
            lines = [kernel.record() for kernel in made if kernel.isolated]
            self.write(PHYSICS_KERNELS, "mosaic-kernels", lines)

        self._count(made, write)

    def _count(self, missing: Sequence[Kernel], write: Callable[[], None]) -> None:
        """Counters of kernels of the zoo, so many at a time."""
        self.progress.begin(len(missing))
        for at in range(0, len(missing), COUNTED_AT_ONCE):
            batch = {kernel.key: kernel for kernel in missing[at : at + COUNTED_AT_ONCE]}
            if not self.enough(40, f"counters of {len(missing) - at} kernels"):
                return
            with tempfile.TemporaryDirectory(prefix="mosaic-plan-") as folder, self.clocks:
                paths = [Path(folder) / name for name in ("plan.json", "lines.jsonl")]
                paths[0].write_text(json.dumps([counted.planned(kernel) for kernel in batch.values()]))
                program = ["-m", "mosaic_torch.profiling.counted", *map(str, paths)]
                with self.going_on(f"counters of {len(batch)} kernels"):
                    said = functools.partial(self.progress.advance, "counters")
                    for ours, theirs in counters.count(runtime.lib, program, paths[1], {}, said):
                        batch[ours["key"]].metrics = theirs["metrics"]
            write()

    def count_workloads(self) -> None:
        """Counters of the workloads' kernels. One that another workload has too is counted once."""
        for name in jobs.NAMES:
            path = self.out / _workload_file(name)
            if not path.exists():
                continue
            head, lines = files.read(path)
            if borrow(lines, self._counted()):
                files.write(path, "mosaic-workload", head, lines)
            missing = len(profiler.plan_of(lines))
            if missing and self.enough(30 + 0.3 * missing, f"counters of {missing} kernels of {name}"):
                program = ["-m", "mosaic_torch.profiling.jobs", name]
                with self.going_on(f"counters of {name}"):
                    profiler.add_counters([path], runtime.lib, lambda _, program=program: program, self.progress)

    def _counted(self) -> list[dict[str, Any]]:
        """Kernels of workloads that have counters."""
        found = [self.records(_workload_file(name)) for name in jobs.NAMES]
        return [line for lines in found for line in lines if "metrics" in line]

    def physics(self) -> None:
        """The experiments whose outcome has a reason."""
        if (self.out / PHYSICS).exists():
            return
        self.progress.begin(sum(1 for _ in physics.cases()))
        with self.going_on(PHYSICS):
            with self.clocks:
                said, left_out = self.progress.advance, self.left_out()
                run = physics.run(self.observer, self.lanes, CYCLES_PER_NS, said, self.patience, left_out)
                lines = list(run)
            self.write(PHYSICS, "mosaic-physics", lines)


def _workload_file(name: str) -> str:
    return f"{WORKLOADS}/{name}{WORKLOAD_SUFFIX}"


def _pair_file(mode: pairs.Mode) -> str:
    return f"pairs-{mode.title}.jsonl"


def borrow(lines: Sequence[dict[str, Any]], counted: Sequence[dict[str, Any]]) -> int:
    """Gives kernels the counters of one of the same KernelId that takes about as long alone; how many it gave."""
    known: dict[str, list[dict[str, Any]]] = {}
    for line in counted:
        known.setdefault(line["kernel_id"], []).append(line)
    given = 0
    for line in lines:
        if "key" not in line or "metrics" in line:
            continue
        for other in known.get(line["kernel_id"], ()):
            if alike(_alone_ns(line), _alone_ns(other)):
                line |= {name: other[name] for name in profiler.COUNTED if name in other}
                given += 1
                break
    return given


def _alone_ns(kernel: dict[str, Any]) -> int:
    """On the most SMs."""
    return max(kernel["isolated"], key=lambda time: time["sms"])["median_ns"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the steps that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch.profiling.dataset", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder; profiles/<gpu> if not given")
    parser.add_argument("--steps", default=",".join(STEPS), help="of %(default)s")
    parser.add_argument("--max-seconds", type=float, help="stop in time; run again to go on")
    parser.add_argument("--every", type=number, default=1, help="take only each n-th zoo configuration (a trial)")
    parser.add_argument("--pairs", type=float, default=1.0, help="take only this part of the pairs (a trial)")
    parser.add_argument("--workloads", default=",".join(jobs.NAMES), help="of %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of pairs")
    options = parser.parse_args(arguments)
    steps = _chosen("step", options.steps, STEPS)
    names = _chosen("workload", options.workloads, jobs.NAMES)
    # With fewer connections than streams, one lane's kernels could wait for another's in the same queue.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not torch.cuda.is_available():
        raise DeviceError("torch finds no usable GPU: a data set is measured on one")
    configure(policy="none")
    jobs.use_tf32()
    out = options.out or Path("profiles") / record_folder(torch.cuda.get_device_name())
    files.require_writable(out / KERNELS)
    data = DataSet(out, Budget(options.max_seconds), options.pairs, options.seed)
    pairing = not {"pair", "repeat"}.isdisjoint(steps)
    if "physics" in steps:
        data.physics()
    if not {"zoo", "pair", "repeat", "count"}.isdisjoint(steps):
        data.zoo(zoo.configs()[:: options.every])
    if "workloads" in steps or pairing:
        data.workloads([name for name in jobs.PAIRED if name in names], keep=pairing)
    if "pair" in steps:
        data.pair()
    if "repeat" in steps:
        data.repeat()
    if "workloads" in steps:
        data.workloads([name for name in jobs.ALONE if name in names], keep=False)
    if "compiled" in steps:
        data.workloads([name for name in jobs.COMPILED_NAMES if name in names], keep=False)
    if "count" in steps:
        data.count_zoo()
        data.count_workloads()
        data.count_physics()
    return 0


def _chosen(what: str, text: str, known: Sequence[str]) -> list[str]:
    chosen = [word for word in text.split(",") if word]
    if not chosen:
        raise UsageError(f"found no {what}, expected some of {', '.join(known)}")
    for word in chosen:
        if word not in known:
            raise UsageError(f"found the {what} {word!r}, expected some of {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MosaicError as e:
        sys.exit(f"mosaic: {e}")
