"""Files of JSON lines: where they come from first, whole or not there. A name that ends in `.gz` is compressed."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..bench.records import source
from ..errors import MosaicError

VERSION = 1
GZ = ".gz"
# Of a data set's folder, beside pairs-*.jsonl.
KERNELS, REPEAT, WORKLOADS = "kernels.jsonl", "repeat.jsonl", "workloads"
PHYSICS, PHYSICS_KERNELS = "physics.jsonl", "physics-kernels.jsonl"
# Keys of kernels that never ended.
LEFT_OUT = "left-out.txt"


def command() -> str:
    """That of this process."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def provenance(runtime: Any, device: int, clocks: dict[str, list[int]]) -> dict[str, Any]:
    """What every file's first line says beside its format."""
    head = {
        "gpu": runtime.cuda.name(device),
        "sms": torch.cuda.get_device_properties(device).multi_processor_count,
        "driver": runtime.lib.doctor().get("driver") or "unknown",
        "cuda": torch.version.cuda or "none",
        "torch": torch.__version__,
        **clocks,
        "command": command(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    if found := source():
        head["source"] = found
    return head


def write(path: Path, format_name: str, head: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
    """Writes a file at once: another process sees the old one or the whole new one."""
    first = {"format": format_name, "version": VERSION} | head | {"records": len(lines)}
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in [first, *lines]) + "\n"
    # Without a time of its own: the same lines give the same bytes.
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == GZ else text.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(data)
        part.replace(path)
    except OSError as e:
        raise _unwritable(path, e) from e


def require_writable(path: Path) -> None:
    """Before anything is measured: that the file can be written at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.touch()
        part.unlink()
    except OSError as e:
        raise _unwritable(path.parent, e) from e


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line, and the others."""
    try:
        data = path.read_bytes()
        first, *lines = (gzip.decompress(data) if path.suffix == GZ else data).decode().splitlines()
        head, records = json.loads(first), [json.loads(line) for line in lines]
        if not isinstance(head, dict) or head.get("records") != len(records):
            raise ValueError(f"found {len(records)} records, not as many as its first line says")
    except (OSError, EOFError, ValueError, zlib.error) as e:
        raise MosaicError(
            f"{path} cannot be read: {e}; `mosaic profile --show {path}` says where. Remove it to measure again"
        ) from e
    return head, records


def _unwritable(path: Path, e: OSError) -> MosaicError:
    return MosaicError(f"{path} cannot be written: {e.strerror or e}; choose another folder with --out")
