"""The device under test, as the loops see it: a stream to run on, and a marker to wait for."""

import contextlib


def open_device(text):
    """``cuda``, ``cuda:N`` or ``cpu``."""
    import torch

    device = torch.device(text)
    if device.type == "cpu":
        return CpuDevice(device)
    if not torch.cuda.is_available():
        raise RuntimeError(f"device {text!r} asked for, but torch finds no CUDA GPU; use --device cpu for a dry run")
    return CudaDevice(torch.device("cuda", device.index or 0))


class CudaDevice:
    """One GPU."""

    def __init__(self, device):
        import torch

        self._torch = torch
        self.torch_device = device
        torch.cuda.set_device(device)
        # The paper's fp32 jobs run their matrix products in TF32.
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True

    def thread_stream(self):
        """A plain stream of this thread's own: a caller that uses the legacy default stream would order all others."""
        self._torch.cuda.set_device(self.torch_device)
        return self._torch.cuda.stream(self._torch.cuda.Stream(self.torch_device))

    def marker(self):
        """An event, recorded on the current stream and waited for: the GPU's completion of what was launched."""
        event = self._torch.cuda.Event()
        stream = self._torch.cuda.current_stream

        def wait():
            event.record(stream())
            event.synchronize()

        return wait

    def synchronize(self):
        self._torch.cuda.synchronize(self.torch_device)

    def facts(self):
        import subprocess

        torch = self._torch
        facts = {
            "gpu": torch.cuda.get_device_name(self.torch_device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "memory_reserved_mib": torch.cuda.memory_reserved(self.torch_device) >> 20,
        }
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            facts["driver"] = subprocess.run(
                query, capture_output=True, text=True, timeout=20, check=False
            ).stdout.split("\n")[0]
        return facts


class CpuDevice:
    """No GPU: every call is complete when it returns. For dry runs of the harness."""

    def __init__(self, device):
        import torch

        torch.set_num_threads(1)
        self.torch_device = device

    def thread_stream(self):
        return contextlib.nullcontext()

    def marker(self):
        return lambda: None

    def synchronize(self):
        pass

    def facts(self):
        return {"gpu": "cpu"}


def record_folder(gpu):
    """``NVIDIA H200`` → ``h200``: the name of the folder under benches/record."""
    words = [word for word in gpu.lower().replace("/", " ").split() if word not in ("nvidia", "geforce", "graphics")]
    return "-".join(words) or "unknown"
