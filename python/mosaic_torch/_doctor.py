"""`doctor`: what is in force, proved by one kernel, and what to do about what is wrong."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ._lib import HP, PATH
from ._runtime import Runtime, Wrapped
from .errors import MosaicError

_MPS_DAEMONS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def report(runtime: Runtime) -> dict[str, Any]:
    """Everything that there is to say, as plain data; `problems` is empty when all is well."""
    problems: list[dict[str, str]] = []
    found: dict[str, Any] = {
        "mosaic_torch": version(),
        "python": platform.python_version(),
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda},
        "library": {"path": str(PATH), "loaded": False},
        "gpus": [],
        "mps": mps(),
        "role": os.environ.get("MOSAIC_ROLE") or None,
        "launch_path": None,
        "probe": None,
        "problems": problems,
    }
    no_gpu = runtime.cuda.problem()
    if no_gpu is None:
        found["gpus"] = [_gpu(i) for i in range(runtime.cuda.device_count())]
    else:
        problems.append({"what": no_gpu, "do": "without a GPU only `mosaic demo` works"})
    try:
        lib = runtime.lib
        found["library"]["loaded"] = True
        found["launch_path"] = path = lib.doctor()
        problems += path.get("problems", [])
    except MosaicError as e:
        problems.append({"what": str(e), "do": "mend what it names, then run this again"})
    else:
        if no_gpu is None:
            found["probe"] = probe(runtime, problems)
    return found


def probe(runtime: Runtime, problems: list[dict[str, str]]) -> dict[str, Any]:
    """Launches one torch kernel as an HP job and counts what the hook saw of it."""
    expected, seen = 1, 0
    try:
        device = runtime.cuda.current_device()
        cell = torch.zeros(1, device=torch.device("cuda", device))
        job = runtime.register(HP, "doctor", device, 1.1, 0)
        try:
            call = Wrapped(runtime, job, lambda: cell.add_(1), None)
            call()  # what torch does once (loading the kernel's module) is done before the count
            before = _kernels(runtime, job.id)
            call()
            seen = _kernels(runtime, job.id) - before
        finally:
            job.release()
    except RuntimeError as e:
        problems.append({"what": f"the probe failed: {e}", "do": "do not rely on mosaic here until it passes"})
        return {"kernels_expected": expected, "kernels_seen": seen, "error": str(e)}
    if seen != expected:
        what = f"the hook saw {seen} kernels where torch launched {expected}: best-effort work is not held"
        problems.append({"what": what, "do": "do not rely on mosaic here; report it with the versions above"})
    return {"kernels_expected": expected, "kernels_seen": seen, "error": None}


def _kernels(runtime: Runtime, job: int) -> int:
    return sum(j["kernels"] for j in runtime.lib.stats()["jobs"] if j["job"] == job)


def mps() -> dict[str, Any]:
    """Whether this process's CUDA would go through an MPS server."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    names = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:  # it ended, or is not ours to see
            continue
        # The kernel keeps 15 bytes of a name.
        names += [daemon for daemon in _MPS_DAEMONS if name == daemon[:15]]
    return {
        "pipe_directory": str(pipe),
        "control_pipe": (pipe / "control").exists(),
        "daemon_running": bool(names),
        "active_thread_percentage": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    }


def text(found: dict[str, Any]) -> str:
    """The report for people."""
    torch_is, library = found["torch"], found["library"]
    lines = [
        f"mosaic_torch  {found['mosaic_torch']}, Python {found['python']}",
        f"torch         {torch_is['version']}, CUDA {torch_is['cuda'] or 'none'}",
        f"library       {library['path']} ({'loaded' if library['loaded'] else 'not loaded'})",
    ]
    lines += [f"GPU {g['index']}         {g['name']}, {g['sms']} SMs, {g['memory_gib']} GiB" for g in found["gpus"]]
    mps_is = found["mps"]
    running = "daemon running" if mps_is["daemon_running"] else "not running"
    lines.append(f"MPS           {running}, pipe {mps_is['pipe_directory']}")
    lines.append(f"role          {found['role'] or 'none for the whole process'}")
    path = found["launch_path"]
    lines += _tree("launch path", path and {k: v for k, v in path.items() if k != "problems"})
    if found["probe"] is not None:
        lines.append(
            f"probe         {found['probe']['kernels_seen']} of {found['probe']['kernels_expected']} kernel seen"
        )
    for problem in found["problems"]:
        lines += [f"PROBLEM       {problem['what']}", f"              what to do: {problem['do']}"]
    if not found["problems"]:
        lines.append("all is well")
    return "\n".join(lines)


def _tree(name: str, value: Any, depth: int = 0) -> list[str]:
    pad = "  " * depth
    if isinstance(value, dict):
        rows = [f"{pad}{name}:"]
        for key, inner in value.items():
            rows += _tree(str(key), inner, depth + 1)
        return rows
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return [f"{pad}{name}:", *(row for i, v in enumerate(value) for row in _tree(str(i), v, depth + 1))]
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "none"
    return [] if value is None else [f"{pad}{name + ':':<28} {value}"]


def _gpu(index: int) -> dict[str, Any]:
    of = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": of.name,
        "compute_capability": f"{of.major}.{of.minor}",
        "sms": of.multi_processor_count,
        "memory_gib": round(of.total_memory / 2**30, 1),
    }


def version() -> str:
    """The installed package's version."""
    try:
        return metadata.version("mosaic-torch")
    except metadata.PackageNotFoundError:
        return "not installed (run from its source tree)"
