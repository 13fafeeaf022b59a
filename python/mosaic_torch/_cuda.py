"""The little that the package asks torch about CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_fake_mode: Callable[[], Any] = functools.partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)


def _raw_stream(device: int) -> int:
    raise AssertionError(f"torch was built without CUDA, yet a job runs on device {device}")


class Cuda:
    """Torch's view of the GPU; tests bring their own."""

    # The raw handle of the calling thread's current stream on a device.
    raw_stream: Callable[[int], int] = staticmethod(getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream))

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], Any] = {}

    def problem(self) -> str | None:
        """Why this process cannot use a GPU through torch, with what to do; None if it can."""
        if torch.version.hip is not None:
            return f"torch {torch.__version__} is a ROCm build: mosaic_torch needs one for CUDA"
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is CPU-only: install a CUDA build (pip install torch)"
        if not torch.cuda.is_available():
            return "torch finds no usable GPU: is there one, is its driver new enough, is CUDA_VISIBLE_DEVICES empty?"
        return None

    def init(self) -> None:
        torch.cuda.init()

    def device_count(self) -> int:
        return torch.cuda.device_count()

    def current_device(self) -> int:
        return torch.cuda.current_device()

    def synchronize(self, device: int) -> None:
        torch.cuda.synchronize(device)

    def name(self, device: int) -> str:
        return torch.cuda.get_device_name(device)

    def stream(self, device: int, raw: int) -> Any:
        """The stream of a raw handle, for `record_stream`. One object each: making one costs 2 µs."""
        key = (device, raw)
        found = self._streams.get(key)
        if found is None:
            if len(self._streams) >= 1024:  # someone makes streams without end
                self._streams.clear()
            found = self._streams[key] = torch.cuda.ExternalStream(raw, device=device)
        return found

    @staticmethod
    def passive() -> bool:
        """Whether nothing that is called now is launched: a graph capture, a trace, fake tensors.

        A call is then left as it is: its kernels run later, by whoever launches the graph.
        """
        return (
            torch._C._cuda_isCurrentStreamCapturing()
            or torch._C._get_tracing_state() is not None
            or _fake_mode() is not None
        )
