"""Builds the native parts with cargo and puts them into the wheel.

- ``mosaic_torch/libmosaic.so``: the PyTorch extension, with the hook in it;
- ``mosaic_torch/libmosaic_engine.so`` and ``include/mosaic.h``: the same hook for programs outside Python;
- the command ``mosaic``.

The wheel is ``py3-none-<platform>``: nothing uses Python's C API, and torch only through its stable ABI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "mosaic_torch"


class NativeBuild(BuildHookInterface):
    """The hook that hatchling calls."""

    def dependencies(self) -> list[str]:
        """Ask for the package cmake where the machine has none that works.

        Only running it tells: a `cmake` that pip put on PATH is a Python script, which does not find its package from
        inside an isolated build.
        """
        return [] if _runs("cmake", "--version") else ["cmake>=3.22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, then say which file goes where (``version`` is "standard" or "editable")."""
        root = Path(self.root)
        native = _build(root)
        files = {
            native / "libmosaic.so": "libmosaic.so",
            native / "libmosaic_engine.so": "libmosaic_engine.so",
            root / "cpp/include/mosaic.h": "include/mosaic.h",
        }
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["shared_scripts"][str(native / "mosaic")] = "mosaic"
        if version == "editable":
            # The package is imported from the source tree, so that is where its files have to be.
            for source, name in files.items():
                _replace(source, root / "python" / PACKAGE / name)
        else:
            for source, name in files.items():
                build_data["force_include"][str(source)] = f"{PACKAGE}/{name}"


def _build(root: Path) -> Path:
    """Run cargo and return the folder that holds the finished files."""
    if not _runs("cargo", "--version"):
        raise RuntimeError("cargo was not found: building mosaic_torch needs Rust 1.88 or newer on PATH")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or root / "target").resolve() / "wheel"
    finished = target / "finished"
    environment = _environment(root)

    def cargo(part: str, product: str, name: str, *arguments: str) -> None:
        # A target folder for each part: they are one crate under one file name, and cargo would build each over the
        # other anew, twice for one `pip install`, which asks for the metadata and then for the wheel.
        command = ["cargo", *arguments, "--release", "--locked", "--target-dir", str(target / part)]
        if subprocess.run(command, cwd=root, env=environment, check=False).returncode != 0:
            raise RuntimeError(f"`{' '.join(command)}` failed: its messages are above")
        _replace(target / part / "release" / product, finished / name)

    # `cargo rustc --crate-type`: only a cdylib on its own gets link-time optimisation.
    library = ("rustc", "--lib", "--crate-type", "cdylib")
    cargo("command", "mosaic", "mosaic", "build", "--bin", "mosaic")
    cargo("engine", "libmosaic.so", "libmosaic_engine.so", *library)
    cargo("extension", "libmosaic.so", "libmosaic.so", *library, "--features", "torch")
    return finished


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _environment(root: Path) -> dict[str, str]:
    """Make cargo's environment: equal sources give equal bytes, wherever they are built."""
    environment = dict(os.environ)
    cargo_home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    remap = [f"--remap-path-prefix={root}=/mosaic", f"--remap-path-prefix={cargo_home}=/cargo"]
    encoded = environment.get("CARGO_ENCODED_RUSTFLAGS")
    given = encoded.split("\x1f") if encoded else environment.get("RUSTFLAGS", "").split()
    environment["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join([*given, *remap])
    return environment


def _replace(source: Path, destination: Path) -> None:
    """Copy by renaming: a process that has the old file mapped keeps it whole."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f"{destination.name}.{os.getpid()}.new")
    shutil.copy2(source, temporary)
    temporary.replace(destination)
