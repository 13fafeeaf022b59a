"""Runs a script under `mosaic profile`: each model that it puts under a role is profiled at a call of it."""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mosaic_torch

from ..errors import MosaicError, UsageError
from .profiler import profile

# The call that is profiled: the first ones build plans and load modules.
AT_CALL = 3


# Each has a file.
_named: set[str] = set()


def instead(model: Any, slo: float = 1.1, *, name: str | None = None, device: Any = None) -> Any:
    """Stands for `hp` and `be`: same result, no role."""
    del slo, device
    if not callable(model):
        raise UsageError(f"found {model!r}, expected a module or another callable")
    name = name or type(model).__name__
    if name in _named:
        raise UsageError(f"found two models named {name}, expected a name for each: hp(model, name=...)")
    _named.add(name)
    calls = 0

    def profiled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == AT_CALL:
            profile(functools.partial(original, *args, **kwargs), name=name)
        return original(*args, **kwargs)

    if not isinstance(model, torch.nn.Module):
        return functools.partial(profiled, model)
    model.forward = functools.partial(profiled, model.forward)
    return model


class NoBlock:
    """Stands for `request` and `best_effort`: there is no job that they could be of."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        del arguments, named

    def open(self) -> NoBlock:
        """As a request's."""
        return self

    def close(self) -> None:
        """As a request's."""

    def __enter__(self) -> NoBlock:
        return self

    def __exit__(self, *what: object) -> None:
        """Lets what was raised through."""


def main(arguments: list[str]) -> None:
    """`python -m mosaic_torch.profiling.script SCRIPT [ARGUMENTS]`."""
    script = arguments[0]
    mosaic_torch.hp = mosaic_torch.be = instead
    mosaic_torch.request = mosaic_torch.best_effort = NoBlock
    sys.argv = arguments
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MosaicError as e:
        sys.exit(f"mosaic: {e}")
