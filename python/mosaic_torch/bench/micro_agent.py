"""Agent side of ``micro``: the loop in C, on a plain stream, an HP stream, or a BE stream."""

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry mosaic_bench_empty() { ret; }
"""
# Fewer than the driver's queue holds, so that no launch waits for the GPU.
BURST = 300
LAUNCH_REFUSED = 1  # CUDA_ERROR_INVALID_VALUE


def setup(agent):
    """Compiles the loop and loads an empty kernel into the primary context."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("no C compiler found (cc, gcc, clang): the loop of the micro-benchmark is compiled when run")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/loop.so"
        source = Path(__file__).with_name("launch_loop.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        loop = ctypes.CDLL(library).launch_loop
    loop.restype = ctypes.c_double
    loop.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)]
    agent.shared.device.synchronize()
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
    _check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"mosaic_bench_empty"), "cuModuleGetFunction")
    launch = ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p)
    agent.micro = (loop, launch, function)


def _check(result, what):
    if result != 0:
        raise RuntimeError(f"{what} failed with CUDA error {result}")


def measure(agent, where, refused, bursts):
    """Mean ns a launch of each of ``bursts`` bursts, what begins and ends the section included."""
    import torch

    loop, launch, function = agent.micro
    control = agent.shared.control
    result = ctypes.c_int()
    blocks, expected = (0, LAUNCH_REFUSED) if refused else (1, 0)

    def burst():
        stream = torch.cuda.current_stream().cuda_stream
        loop(launch, function, stream, blocks, BURST, ctypes.byref(result))

    def section():
        if where == "plain":
            burst()
        elif where == "hp":
            with control.request(agent.wrapped["toy"], time.monotonic()):
                burst()
        elif where == "be-idle":
            with control.best_effort(agent.wrapped["blip"]):
                burst()
        else:
            raise ValueError(f"unknown place {where!r}")

    costs = []
    for _ in range(bursts):
        agent.shared.device.synchronize()
        begin = time.perf_counter_ns()
        section()
        costs.append((time.perf_counter_ns() - begin) / BURST)
        if result.value != expected:
            raise RuntimeError(f"a launch returned CUDA error {result.value}, expected {expected}")
    return costs
