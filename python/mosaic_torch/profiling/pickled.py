"""The program that Nsight Compute runs for `mosaic_torch.profile`: the pickled call, once."""

from __future__ import annotations

import sys

import torch

from .profiler import profile


def main(path: str) -> int:
    """Loads and calls."""
    saved = torch.load(path, weights_only=False)  # our own file, of a moment ago
    profile(saved["model"], saved["inputs"], name=saved["name"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
