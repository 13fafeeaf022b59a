"""`mosaic profile SCRIPT [ARGUMENTS]`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from .. import api
from ..bench.budget import Budget, Progress
from ..errors import DeviceError, MosaicError
from . import files, profiler
from .profiler import NO_GPU, PARTITIONS, REQUESTS, SUFFIX, Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the profiles (default: this one)")
    parser.add_argument("--requests", type=number, default=REQUESTS, help="measured on each number of SMs")
    parser.add_argument("--partitions", type=_numbers, default=PARTITIONS, help="numbers of SMs; empty: none")
    parser.add_argument("--no-counters", action="store_true", help="durations alone, without Nsight Compute")
    parser.add_argument("script", help="a Python script that calls models under hp() or be(), or profile()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")


def run(options: argparse.Namespace) -> int:
    """Runs the script for the durations, and under Nsight Compute for the counters, that are missing; 1 if some are."""
    script = Path(options.script)
    if not script.is_file():
        raise MosaicError(f"found no file {script}, expected a Python script, as in `mosaic profile serve.py`")
    files.require_writable(options.out / ("any" + SUFFIX))
    if not torch.cuda.is_available():
        raise DeviceError(NO_GPU)
    session = Session(str(options.out), options.requests, options.partitions)
    program = ["-m", "mosaic_torch.profiling.script", str(script), *options.arguments]
    command = shlex.join(program)  # as the profile's first line has it
    done = subprocess.run([sys.executable, *program], env=os.environ | session.variable(), check=False)
    profiles = finished(options.out, command)
    failed = f"{script} failed (exit status {done.returncode}, see above)" if done.returncode else ""
    if not profiles:
        raise MosaicError(
            failed
            or f"{script} ended without a profile: it has to call a model that it gave to hp() or be() three times, or "
            "mosaic_torch.profile(model, inputs)"
        )
    if failed:
        print(f"mosaic: {failed}: what it had not called yet has no profile; run again to go on", file=sys.stderr)
    if not options.no_counters:
        profiler.try_counters(profiles, api.runtime.lib, lambda _: program, Progress(Budget()))
    lacking = profiler.missing(profiles)
    for line in lacking[:20]:
        print(line)
    if len(lacking) > 20:
        print(f"... and of {len(lacking) - 20} kernels more")
    return 1 if failed or (lacking and not options.no_counters) else 0


def number(text: str) -> int:
    """An option's, of at least 1."""
    found = int(text) if text.isascii() and text.isdigit() else 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 1")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({number(word) for word in text.split(",") if word}))


def finished(out: Path, command: str) -> list[Path]:
    """Profiles that this very command has written."""
    return [path for path in sorted(out.glob(f"*{SUFFIX}")) if files.read(path)[0].get("command", "").endswith(command)]
