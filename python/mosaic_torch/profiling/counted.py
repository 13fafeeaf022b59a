"""The program that Nsight Compute runs for the zoo: launches what a plan names, a line for each chosen launch.

`python -m mosaic_torch.profiling.counted PLAN LINES`: the plan is a JSON list of what `planned` gives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from ..api import configure, runtime
from . import zoo
from .jobs import use_tf32
from .kernels import WARM_UP, Kernel, zoo_key
from .observe import Launch, Observer


def planned(kernel: Kernel) -> dict[str, Any]:
    """Which configuration to build, and which of its launches to count."""
    config, launch = kernel.alive.config, kernel.launch
    return {"family": config.family, "params": config.params, "launch": [launch.kernel_id, launch.occurrence]}


def main(arguments: list[str]) -> int:
    """Runs the plan."""
    plan, lines = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    configure(policy="none")
    use_tf32()
    observer = Observer(runtime, torch.cuda.current_device())
    with lines.open("w") as out:
        for kernel in plan:
            config = zoo.make(kernel["family"], **kernel["params"])
            prepared = zoo.build(config, observer.device)
            for _ in range(WARM_UP):
                observer.run(prepared.launch)
            for launch in observer.observe(prepared.launch, profile=[tuple(kernel["launch"])]):
                if launch.profiled:
                    out.write(json.dumps(_line(launch, zoo_key(config))) + "\n")
            out.flush()
    return 0


def _line(launch: Launch, key: str) -> dict[str, Any]:
    return {"key": key, "symbol": launch.symbol, "grid": launch.grid, "block": launch.block}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
