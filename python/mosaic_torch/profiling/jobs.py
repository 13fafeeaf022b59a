"""The data set's workloads: those of the benchmarks, and the same compiled.

`python -m mosaic_torch.profiling.jobs NAME` profiles one; it is also the program that Nsight Compute runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..bench import workloads
from .profiler import profile

COMPILED = "-compiled"
# Their kernels take part in pairs. Generation has the decode step's kernels, in thousands of launches.
PAIRED = ("resnet50", "resnet50-fp16", "mobilenetv3", "bert-large", "bert-large-8x128", "dlrm", "llama-decode")
ALONE = ("llama-generate",)
# In the order of what they cost to compile.
COMPILED_NAMES = tuple(
    name + COMPILED for name in ("dlrm", "resnet50", "mobilenetv3", "bert-large", "llama-decode", "llama-generate")
)
NAMES = PAIRED + ALONE + COMPILED_NAMES


def build(name: str, device: int) -> Callable[[], Any]:
    """One request of it."""
    job = workloads.build(name.removesuffix(COMPILED), torch.device("cuda", device))
    if name.endswith(COMPILED):
        torch._dynamo.reset()
        job.model.compile()
    return job.call


def use_tf32() -> None:
    """As the paper's fp32 workloads run."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def main(name: str) -> int:
    """Profiles it."""
    use_tf32()
    profile(build(name, torch.cuda.current_device()), name=name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
