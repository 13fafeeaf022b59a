"""The check that has to come before anything imports torch."""

from __future__ import annotations

import importlib

from .errors import MissingTorchError

OLDEST = (2, 10)


def require_torch(name: str = "torch") -> None:
    """Raises one clear error where torch is missing or too old for the extension's stable ABI."""
    try:
        torch = importlib.import_module(name)
    except ImportError as e:
        raise MissingTorchError(f"mosaic_torch needs PyTorch, which cannot be imported ({e}): pip install torch") from e
    found = str(getattr(torch, "__version__", "unknown"))
    try:
        version = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    except ValueError:
        return  # a source build's own name: the library's load decides
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise MissingTorchError(f"found torch {found}, expected {wanted} or newer: pip install -U torch")
