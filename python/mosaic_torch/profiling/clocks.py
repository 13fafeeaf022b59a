"""Which clocks the GPU ran at, asked of nvidia-smi while something is measured."""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType

FIELDS = {"sm_clock_mhz": "clocks.sm", "memory_clock_mhz": "clocks.mem"}
EVERY_MS = 200


class Clocks:
    """Samples while its `with` block lasts. Without nvidia-smi there are no samples, and the fields are left out."""

    def __init__(self, device_uuid: str) -> None:
        self._uuid = device_uuid
        self._smi: subprocess.Popen[str] | None = None
        self.seen: dict[str, list[int]] = {}

    def __enter__(self) -> Clocks:
        if smi := shutil.which("nvidia-smi"):
            query = [f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits", f"-lms={EVERY_MS}"]
            self._smi = subprocess.Popen(
                [smi, f"--id={self._uuid}", *query], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._smi is not None:
            self._smi.terminate()
            self.seen = clocks_of(self._smi.communicate()[0])


def clocks_of(text: str) -> dict[str, list[int]]:
    """Lowest and highest of each column; lines that hold no numbers are left out."""
    rows = []
    for line in text.splitlines():
        cells = line.split(",")
        if len(cells) == len(FIELDS) and all(cell.strip().isdigit() for cell in cells):
            rows.append([int(cell) for cell in cells])
    return {name: [min(column), max(column)] for name, column in zip(FIELDS, zip(*rows, strict=True), strict=False)}
