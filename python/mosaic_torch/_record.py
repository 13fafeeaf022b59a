"""Kernel traces of one job, as JSON lines: where they come from first, then a kernel a line."""

from __future__ import annotations

import json
import os
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
        trace = self._runtime.lib.record_stop()
        self._text = with_provenance(trace, self._provenance())
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
        launch_path = self._runtime.lib.doctor()
        return {
            "format": "mosaic-trace",
            "version": 1,
            "workload": self._workload,
            "driver": launch_path.get("driver"),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "gpu": torch.cuda.get_device_name(self._job.device) if torch.cuda.is_available() else None,
            "command": " ".join([os.path.basename(sys.executable), *sys.argv]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def with_provenance(trace: str, known: dict[str, Any]) -> str:
    """The trace with `known` put into its first line, under what that line says itself."""
    lines = trace.splitlines()
    first = json.loads(lines[0]) if lines else {}
    if "kernel_id" in first:
        first = {}
    else:
        lines = lines[1:]
    head = {k: v for k, v in {**known, **first}.items() if v is not None}
    return "\n".join([json.dumps(head), *lines]) + "\n"
