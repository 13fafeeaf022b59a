"""Records a workload's kernel trace: ``python -m mosaic_torch.bench.trace resnet50 --out resnet50.raw.jsonl``.

Alone on the GPU, nothing gated. Requests are sent four at a time without waiting, so that most kernels queue behind
others and are timed without launch latency; the first of each four has the host's launch times of an idle GPU.
``mosaic trace RAW --condense FILE`` makes one request of them.
"""

import argparse
import sys

import torch

import mosaic_torch

from . import workloads

WARM_UP = 10
BURST = 4


def main(argv=None):
    """Records, writes, says what was written."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("workload", choices=workloads.WORKLOADS)
    options.add_argument("--out", required=True)
    options.add_argument("--bursts", type=int, default=4, help=f"of {BURST} requests")
    options.add_argument("--weight-seed", type=int, default=0)
    options = options.parse_args(argv)
    mosaic_torch.configure(policy="none", calibration_requests=0)
    job = workloads.build(options.workload, torch.device("cuda"), seed=options.weight_seed)
    call = mosaic_torch.hp(job.call, name=options.workload)
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    with mosaic_torch.record(call, options.out, workload=options.workload):
        for _ in range(options.bursts):
            for _ in range(BURST):
                call()
            torch.cuda.synchronize()
    print(f"{options.out}: {options.bursts * BURST} requests of {options.workload}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
