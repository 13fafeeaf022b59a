"""The kernel zoo: the paper's sixteen families of kernels (Table 8) and three of micro-benchmarks, ready to launch.

    from mosaic_torch.profiling import zoo

    for config in zoo.configs():
        kernel = zoo.build(config)
        kernel.check()
        kernel.launch(stream)

Listing needs neither torch nor a GPU; `build` needs both.
"""

from .prepared import Prepared, build
from .table import AIMS, Config, Family, configs, families, is_unseen, make

__all__ = [
    "AIMS",
    "Config",
    "Family",
    "Prepared",
    "build",
    "configs",
    "families",
    "is_unseen",
    "make",
]
