"""The program that Nsight Compute runs: launches what a plan names, and writes a line for each chosen launch.

`python -m mosaic_torch.profiling.counted PLAN LINES`: the plan is a JSON object, `{"zoo": {configuration: [KernelId,
occurrence]}, "workloads": {workload: [[KernelId, occurrence, key], ...]}}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..api import configure, runtime
from . import zoo
from .observe import Launch, Observer


def calls(plan: dict[str, Any], device: int) -> Iterator[tuple[Callable[[], Any], dict[tuple[str, int], str]]]:
    """Each call of the plan, with the keys of its chosen launches."""
    for name, (kernel_id, occurrence) in plan.get("zoo", {}).items():
        prepared = zoo.build(zoo.config(name), device)
        yield prepared.launch, {(kernel_id, occurrence): f"zoo:{name}"}
    from ..bench import workloads

    for name, launches in plan.get("workloads", {}).items():
        job = workloads.build(name, torch.device("cuda", device))
        yield job.call, {(kernel_id, occurrence): key for kernel_id, occurrence, key in launches}


def main(arguments: list[str]) -> int:
    """Runs the plan."""
    plan, lines = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    configure(policy="none")
    torch.backends.cuda.matmul.allow_tf32 = True
    observer = Observer(runtime, torch.cuda.current_device())
    with lines.open("w") as out:
        for call, keys in calls(plan, observer.device):
            for _ in range(3):
                observer.run(call)
            for launch in observer.observe(call, profile=keys):
                if launch.profiled:
                    out.write(json.dumps(_line(launch, keys)) + "\n")
            out.flush()
    return 0


def _line(launch: Launch, keys: dict[tuple[str, int], str]) -> dict[str, Any]:
    return {
        "key": keys[launch.kernel_id, launch.occurrence],
        "symbol": launch.symbol,
        "grid": launch.grid,
        "block": launch.block,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
