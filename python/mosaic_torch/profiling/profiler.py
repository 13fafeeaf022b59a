"""`mosaic_torch.profile`, and what a script does under `mosaic profile`."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..bench.budget import Budget, Progress
from ..errors import DeviceError, UsageError
from . import counters, files
from .clocks import Clocks
from .observe import Observer
from .pairs import Lanes
from .workload import WARM_UP, Workload, measure

# SMs of the partitions; 8 is the granularity of compute capability 9.0, and the driver rounds up where it is another.
PARTITIONS = (8, 16, 24, 32, 48, 64, 80, 96, 112)
REQUESTS = 10
# Launches of one run of Nsight Compute: an interrupted one loses no more.
COUNTED_AT_ONCE = 150
SUFFIX = ".profile.jsonl"
# What Nsight Compute adds to a kernel's record.
COUNTED = ("metrics", "grid_working_set_bytes", "block_working_set_bytes", "working_set_from")
VARIABLE = "MOSAIC_PROFILE"
NO_GPU = "torch finds no usable GPU: profiles are measured on one"


@dataclass(frozen=True)
class Session:
    """What `mosaic profile` tells the script's process, through the environment."""

    out: str
    requests: int = REQUESTS
    partitions: tuple[int, ...] = PARTITIONS
    # Under Nsight Compute: the launches to be profiled, by workload, and where to write a line for each.
    plan: dict[str, list[tuple[str, int, str]]] | None = None
    lines: str = ""

    @classmethod
    def current(cls) -> Session | None:
        """The one that this process is part of."""
        text = os.environ.get(VARIABLE)
        if text is None:
            return None
        fields = json.loads(text)
        return cls(**fields | {"partitions": tuple(fields["partitions"])})

    def variable(self) -> dict[str, str]:
        """For the environment of a process that is to be part of it."""
        return {VARIABLE: json.dumps(asdict(self))}


def profile(
    model: Callable[..., Any],
    inputs: Any = (),
    *,
    name: str | None = None,
    out: str | Path = ".",
    counters: bool = True,
) -> Path:
    """See `mosaic_torch.profile`."""
    from ..api import runtime

    session = Session.current() or Session(str(out))
    name = name or type(model).__name__
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"found the name {name!r}, expected one that a file can have")
    call = _call(model, inputs)
    if not torch.cuda.is_available():
        raise DeviceError(NO_GPU)
    if session.plan is not None:
        _count(session, runtime, name, call)
        return Path(session.lines)
    path = Path(session.out) / (name + SUFFIX)
    files.require_writable(path)
    if path.exists() and Session.current() and files.read(path)[0].get("command") == files.command():
        print(f"{path}: durations are there (remove it to measure again)")
        return path
    runtime.lib.configure({"policy": "none"})
    device = torch.cuda.current_device()
    observer = Observer(runtime, device)
    properties = torch.cuda.get_device_properties(device)
    lanes = Lanes(observer, properties.multi_processor_count)
    progress = Progress(Budget())
    progress.begin(1 + len(session.partitions))
    with Clocks(f"GPU-{properties.uuid}") as clocks:
        work = measure(observer, lanes, name, call, session.partitions, session.requests, progress.step)
    write(path, runtime, device, clocks, work)
    if counters and Session.current() is None:
        try_counters([path], runtime.lib, _pickled(model, inputs, name), progress)
    return path


def write(path: Path, runtime: Any, device: int, clocks: Clocks, work: Workload) -> None:
    """The durations; counters are added later."""
    head = {"workload": work.name, **files.provenance(runtime, device, clocks.seen)}
    files.write(path, "mosaic-workload", head, work.lines())
    print(f"{path}: {len(work.launches)} launches of {len(work.kernels)} kernels")


def _call(model: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    if not callable(model):
        raise UsageError(f"found {model!r}, expected a module or another callable")
    args, kwargs = (), {}
    if isinstance(inputs, dict):
        kwargs = inputs
    else:
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    # As a server calls it.
    inference = isinstance(model, torch.nn.Module) and not model.training

    def call() -> Any:
        with torch.no_grad() if inference else nullcontext():
            return model(*args, **kwargs)

    return call


# Workloads whose launches of the plan have been profiled.
_counted: set[str] = set()


def _count(session: Session, runtime: Any, name: str, call: Callable[[], Any]) -> None:
    """Under Nsight Compute: one call, whose launches of the plan are profiled."""
    assert session.plan is not None
    keys = {(kernel_id, occurrence): key for kernel_id, occurrence, key in session.plan.get(name, ())}
    if not keys:
        return
    runtime.lib.configure({"policy": "none"})
    observer = Observer(runtime, torch.cuda.current_device())
    for _ in range(WARM_UP):
        observer.run(call)
    with Path(session.lines).open("a") as lines:
        for launch in observer.observe(call, profile=keys):
            if launch.profiled:
                line = {"key": keys[launch.kernel_id, launch.occurrence], "symbol": launch.symbol}
                lines.write(json.dumps(line | {"grid": launch.grid, "block": launch.block}) + "\n")
    _counted.add(name)
    if _counted >= set(session.plan):
        raise SystemExit(0)  # a server would go on for ever


def _pickled(model: Callable[..., Any], inputs: Any, name: str) -> Callable[[Path], list[str]]:
    """A program that profiles the same call."""

    def program(folder: Path) -> list[str]:
        path = folder / "call.pt"
        try:
            torch.save({"model": model, "inputs": inputs, "name": name}, path)
        except Exception as e:
            raise counters.CountersError(
                f"{name} cannot be pickled for Nsight Compute's process ({e}): its profile has no counters; "
                "run `mosaic profile SCRIPT` with a script that makes the model"
            ) from e
        return ["-m", "mosaic_torch.profiling.pickled", str(path)]

    return program


def plan_of(lines: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """(KernelId, occurrence, key) of each kernel of a profile that has no counters yet, at its first launch."""
    unique = [line for line in lines if "key" in line]
    seen: dict[str, int] = {}
    first: dict[int, tuple[str, int, str]] = {}
    for line in lines[len(unique) :]:
        kernel = unique[line["kernel"]]
        kernel_id = kernel["kernel_id"]
        first.setdefault(line["kernel"], (kernel_id, seen.get(kernel_id, 0), kernel["key"]))
        seen[kernel_id] = seen.get(kernel_id, 0) + 1
    return [first[at] for at, kernel in enumerate(unique) if "metrics" not in kernel and at in first]


def try_counters(paths: list[Path], lib: Any, program: Callable[[Path], list[str]], progress: Progress) -> None:
    """Adds what is missing; why that is not possible is said, since durations are of use without."""
    try:
        add_counters(paths, lib, program, progress)
    except counters.CountersError as e:
        print(f"mosaic: {e}", file=sys.stderr)


def add_counters(paths: list[Path], lib: Any, program: Callable[[Path], list[str]], progress: Progress) -> None:
    """Adds what is missing, a part at a time; what an interrupted run has added stays."""
    contents = {path: files.read(path) for path in paths}
    kernels = {line["key"]: line for _, lines in contents.values() for line in lines if "key" in line}
    missing = [(head["workload"], launch) for head, lines in contents.values() for launch in plan_of(lines)]
    progress.begin(len(missing))
    for at in range(0, len(missing), COUNTED_AT_ONCE):
        plan: dict[str, list[tuple[str, int, str]]] = {}
        for workload, launch in missing[at : at + COUNTED_AT_ONCE]:
            plan.setdefault(workload, []).append(launch)
        with tempfile.TemporaryDirectory(prefix="mosaic-profile-") as folder:
            marked = Path(folder) / "lines.jsonl"
            session = Session(str(folder), plan=plan, lines=str(marked))
            said = functools.partial(progress.advance, "kernels have counters")
            found = counters.count(lib, program(Path(folder)), marked, session.variable(), said)
        for ours, theirs in found:
            kernels[ours["key"]] |= {"metrics": theirs["metrics"]} | working_set(theirs)
        for path, (head, lines) in contents.items():
            files.write(path, "mosaic-workload", head, lines)


def working_set(launch: dict[str, Any]) -> dict[str, Any]:
    """From what a launch reads with cold caches."""
    if "dram_read_bytes" not in launch["metrics"]:
        return {}
    x, y, z = launch["grid"]
    total = max(1, round(launch["metrics"]["dram_read_bytes"]))
    return {
        "grid_working_set_bytes": total,
        "block_working_set_bytes": -(-total // (x * y * z)),
        "working_set_from": "dram-reads",
    }


def missing(paths: list[Path]) -> list[str]:
    """What the profiles lack, a line each."""
    said = []
    for path in paths:
        kernels = [line for line in files.read(path)[1] if "key" in line]
        for kernel in kernels:
            if "metrics" not in kernel:
                said.append(f"{path}: no counters of {kernel['key']} ({kernel['symbol']})")
    return said
