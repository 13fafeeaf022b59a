"""Kernel traces of one job, as JSON lines: where they come from first, then a kernel a line."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ._runtime import Job, Runtime
from .errors import UsageError


class Recording:
    """The trace of what a job launches inside the `with` block."""

    def __init__(self, runtime: Runtime, job: Job, path: Path | None, workload: str) -> None:
        self._runtime, self._job, self._path, self._workload = runtime, job, path, workload
        self._text: str | None = None

    def __enter__(self) -> Recording:
        self._runtime.lib.record_start(self._job.id)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._runtime.cuda.synchronize(self._job.device)  # the times are read from events on the GPU
        self._text = with_provenance(self._runtime.lib.record_stop(), self._provenance())
        if self._path is not None and kind is None:
            # A trace is whole or not there.
            part = self._path.with_name(self._path.name + ".part")
            part.write_text(self._text)
            part.replace(self._path)

    @property
    def text(self) -> str:
        """The trace, once the block is left."""
        if self._text is None:
            raise UsageError("the recording has not ended: read it after its `with` block")
        return self._text

    def _provenance(self) -> dict[str, Any]:
        return {
            "format": "mosaic-trace",
            "version": 1,
            "workload": self._workload,
            "gpu": self._runtime.cuda.name(self._job.device),
            "driver": self._runtime.lib.doctor().get("driver") or "unknown",
            "cuda": torch.version.cuda or "none",
            "torch": torch.__version__,
            "command": shlex.join(["python", *sys.orig_argv[1:]]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def with_provenance(trace: str, head: dict[str, Any]) -> str:
    """The trace below a first line that says where it comes from, and how many kernels follow."""
    lines = trace.splitlines()
    return "\n".join([json.dumps({**head, "kernels": len(lines)}), *lines]) + "\n"
