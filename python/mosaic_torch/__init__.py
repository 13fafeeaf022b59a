"""Share one GPU between a latency-critical (HP) model and best-effort (BE) work, within a p99 bound.

    import mosaic_torch

    server = mosaic_torch.hp(model, slo=1.1)     # its p99 stays within 1.1x of running alone
    trainer = mosaic_torch.be(other)             # runs in what is left of the GPU

Importing it puts the hook on the launch path in force; `python -m mosaic_torch doctor` says whether it is.
"""

from __future__ import annotations

from ._torch import require_torch

require_torch()

from . import process as _process  # noqa: E402
from .api import be, best_effort, configure, doctor, hp, profile, record, request, stats, unwrap  # noqa: E402
from .api import runtime as _runtime  # noqa: E402
from .errors import (  # noqa: E402
    DeviceError,
    HookError,
    MissingTorchError,
    MosaicError,
    UsageError,
)

__all__ = [
    "DeviceError",
    "HookError",
    "MissingTorchError",
    "MosaicError",
    "UsageError",
    "be",
    "best_effort",
    "configure",
    "doctor",
    "hp",
    "profile",
    "record",
    "request",
    "stats",
    "unwrap",
]

_process.start(_runtime)


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up only when asked for: it reads files
        from ._doctor import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
