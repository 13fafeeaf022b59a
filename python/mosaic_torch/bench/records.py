"""The record files: tidy CSV, its provenance beside it, and the raw segments behind both.

Everything is written after each segment: a run that is cut off leaves what it had.
"""

import csv
import datetime
import gzip
import io
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

COLUMNS = ("topic", "case", "variant", "metric", "value", "unit", "n")


class Row(NamedTuple):
    """One metric of one variant of one case."""

    topic: str
    case: str
    variant: str
    metric: str
    value: float
    unit: str
    n: int

    @property
    def key(self):
        return self[:4]


def format_value(value):
    """Enough digits to compare, none that mean nothing."""
    if isinstance(value, bool) or int(value) == value:
        return str(int(value))
    return f"{value:.6g}"


def merge(old, new):
    """``old`` with ``new`` rows put in the place of those with the same key; the others keep their place."""
    fresh = {row.key: row for row in new}
    out = [fresh.pop(row.key, row) for row in old]
    return out + list(fresh.values())


def read_csv(path):
    """The rows of a record."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = tuple(next(reader, ()))
        if header != COLUMNS:
            raise ValueError(f"{path}: found columns {','.join(header)}, expected {','.join(COLUMNS)}")
        return [Row(*line[:4], float(line[4]), line[5], int(line[6])) for line in reader]


def write_csv(path, rows):
    """Whole or not at all: a reader never sees half a record."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([*row[:4], format_value(row.value), row.unit, row.n])
    _replace(path, buffer.getvalue())


def _replace(path, text):
    path = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


class RawFile:
    """Raw segments, one JSON object a line. Each is a gzip member of its own, so that a cut-off file stays readable."""

    def __init__(self, path):
        self.path = Path(path)

    def append(self, item):
        line = json.dumps(item, separators=(",", ":")) + "\n"
        with open(self.path, "ab") as file:
            file.write(gzip.compress(line.encode(), 6))

    def read(self):
        """All whole segments."""
        items = []
        with gzip.open(self.path, "rt", encoding="utf-8") as file:
            try:
                for line in file:
                    items.append(json.loads(line))
            except (EOFError, ValueError):
                pass  # the last one was cut off
        return items


class Record:
    """The three files of one topic on one day: ``<date>-<topic>.csv``, ``.txt`` and ``.raw.jsonl.gz``."""

    def __init__(self, folder, topic, date=None):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{date or datetime.date.today().isoformat()}-{topic}"
        self.topic = topic
        self.csv_path = folder / f"{stem}.csv"
        self.text_path = folder / f"{stem}.txt"
        self.raw = RawFile(folder / f"{stem}.raw.jsonl.gz")
        # Several commands of one day share a file: each replaces its own rows only.
        self._before = read_csv(self.csv_path) if self.csv_path.exists() else []
        self._text_before = self.text_path.read_text(encoding="utf-8") if self.text_path.exists() else ""
        self.rows = []

    def write_rows(self, rows):
        """Replaces what this command has said so far."""
        self.rows = list(rows)
        write_csv(self.csv_path, merge(self._before, self.rows))

    def write_text(self, text):
        _replace(self.text_path, self._text_before + text.rstrip("\n") + "\n\n")


def provenance(command, facts):
    """The lines that say where figures come from."""
    lines = [
        f"command: {command}",
        f"date: {datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')}",
    ]
    if found := source():
        lines.append(f"source: {found}")
    lines.append(f"cpu: {_cpu()}, {os.cpu_count()} cores; {platform.platform()}")
    lines += [f"{key}: {value}" for key, value in sorted(facts.items())]
    return "\n".join(lines)


def source():
    """The commit that runs; empty where that is not known. Far from its repository, MOSAIC_SOURCE says it."""
    if said := os.environ.get("MOSAIC_SOURCE"):
        return said
    git = ["git", "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return described.stdout.strip()


def _cpu():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
