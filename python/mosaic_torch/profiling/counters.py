"""Counters of chosen launches, by Nsight Compute: the parent's side."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import MosaicError

PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute")


class CountersError(MosaicError):
    """No counters, and what to do about it; durations need none of this."""


def find_ncu() -> str:
    """Nsight Compute's command line."""
    if found := shutil.which("ncu"):
        return found
    installed = [PLACES[0], *sorted(map(str, Path(PLACES[1]).glob("*/ncu")), reverse=True)]
    for place in installed:
        if os.access(place, os.X_OK):
            return place
    raise CountersError(
        "ncu (Nsight Compute) was not found on PATH, in /usr/local/cuda/bin or in /opt/nvidia/nsight-compute: install "
        "it (it comes with the CUDA toolkit), or go on with durations alone (--no-counters)"
    )


def command(ncu: str, metrics: Sequence[str], table: Path, program: Sequence[str]) -> list[str]:
    """Caches are flushed before each pass, so that what is read from DRAM is what the launch touches."""
    options = ["--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"]
    names = ["--kernel-name-base", "mangled", "--print-kernel-base", "mangled"]
    output = ["--csv", "--page", "raw", "--metrics", ",".join(metrics), "--log-file", str(table)]
    return [ncu, *options, *names, *output, *program]


@functools.cache
def available(ncu: str, metrics: tuple[str, ...]) -> list[str]:
    """Those that this version has for this GPU: one unknown name, and ncu profiles nothing.

    Names of `launch__` are no counters, and are not in its list. Without a list all are asked for.
    """
    done = subprocess.run([ncu, "--query-metrics"], check=False, capture_output=True, text=True)
    listed = set(done.stdout.split())
    if done.returncode or metrics[0].partition(".")[0] not in listed:
        return list(metrics)
    known = [name for name in metrics if name.startswith("launch__") or name.partition(".")[0] in listed]
    if unknown := sorted(set(metrics) - set(known)):
        print(f"mosaic: this ncu has no {', '.join(unknown)}: left out", file=sys.stderr)
    return known


# A chosen launch as the hook saw it, and as Nsight Compute did.
Joined = tuple[dict[str, Any], dict[str, Any]]


# A word of ncu's for each launch, as soon as it has been profiled.
PROFILED = "==PROF== Profiling"
EVERY_S = 1.0


def count(
    lib: Any,
    program: Sequence[str],
    lines: Path,
    variables: dict[str, str],
    advanced: Callable[[int], None],
) -> list[Joined]:
    """Runs a program whose chosen launches are profiled, and joins them with Nsight Compute's.

    The program writes a line for each chosen launch to `lines`, in order; `variables` are for its environment;
    `advanced` hears of launches while they are profiled.
    """
    with tempfile.TemporaryDirectory(prefix="mosaic-ncu-") as folder:
        table = Path(folder) / "table.csv"
        ncu = find_ncu()
        run = command(ncu, available(ncu, tuple(lib.ncu_metrics())), table, [sys.executable, *program])
        # Under ncu there is no CUPTI for anybody else; the detour needs none.
        env = os.environ | {"MOSAIC_HOOK": "detour"} | variables
        status, words = _run(run, env, table, advanced)
        if not table.exists():
            raise CountersError(f"ncu wrote no table (exit status {status}): {words}")
        try:
            launches = lib.ncu_launches(str(table))
        except MosaicError as e:
            raise CountersError(f"{e}; the program's last words: {words}") from e
        if status:
            raise CountersError(f"exit status {status} under ncu: {words}")
    return joined([json.loads(line) for line in lines.read_text().splitlines()], launches)


def _run(run: Sequence[str], env: dict[str, str], table: Path, advanced: Callable[[int], None]) -> tuple[int, str]:
    """Its exit status and its last words."""
    said = 0
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(run, stdout=words, stderr=subprocess.STDOUT, env=env) as ncu,
    ):
        while ncu.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ncu.wait(EVERY_S)
            found = table.read_text(errors="replace").count(PROFILED) if table.exists() else 0
            if found > said:
                advanced(found - said)
                said = found
        words.seek(0)
        return ncu.returncode, _last(words.read())


def joined(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[Joined]:
    """Launch by launch in their order; what differs in grid or block is an error, since all that follows would be."""
    if len(ours) != len(theirs):
        raise CountersError(f"the hook marked {len(ours)} launches and ncu profiled {len(theirs)}, expected as many")
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if [our["grid"], our["block"]] != [their["grid"], their["block"]]:
            raise CountersError(
                f"launch {i}: the hook saw {our['symbol']} with grid {our['grid']} and block {our['block']}, ncu "
                f"{their['name']} with {their['grid']} and {their['block']}"
            )
    return list(zip(ours, theirs, strict=True))


def _last(text: str) -> str:
    words = [line for line in text.splitlines() if line.strip() and not line.startswith("==PROF==")]
    return " | ".join(words[-3:]) or "nothing"
