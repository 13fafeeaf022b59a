"""Placeholder."""

from pathlib import Path

import torch

torch.ops.load_library(Path(__file__).parent / "libmosaic.so")
