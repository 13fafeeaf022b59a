"""What the wheel says of itself, and its command."""

import os
import shutil
import subprocess
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
tomllib = pytest.importorskip("tomllib")


def test_tag_serves_every_python():
    """Fault: a wheel tied to one CPython version although nothing in it is."""
    wheel = distribution("mosaic-torch").read_text("WHEEL")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert f"Tag: py3-none-{platform}" in wheel.splitlines()
    assert "Root-Is-Purelib: false" in wheel.splitlines()


def test_version_is_the_crates():
    """Fault: two version numbers that drift apart."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert distribution("mosaic-torch").version == manifest["package"]["version"]


def test_licences_are_shipped():
    """Fault: a binary with PyTorch's header code in it and without its licence."""
    names = {Path(str(file)).as_posix() for file in distribution("mosaic-torch").files or []}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("third_party/torch/LICENSE") for name in names)


def test_kernel_sources_are_shipped(installed):
    """Fault: kernels that are compiled at run time, and whose sources stayed behind."""
    sources = {path.name for path in (ROOT / "python/mosaic_torch/profiling/zoo").glob("*.cu*")}
    assert "common.cuh" in sources
    assert {path.name for path in (installed / "profiling/zoo").glob("*.cu*")} == sources


def test_command_runs_without_torch(tmp_path):
    """Fault: the command needs torch, CUDA or Python: it is a program of its own."""
    command = Path(sysconfig.get_path("scripts")) / "mosaic"
    assert command.exists()
    libraries = subprocess.run(["readelf", "-d", command], capture_output=True, text=True, check=True).stdout
    assert "torch" not in libraries
    alone = shutil.copy2(command, tmp_path / "mosaic")
    path = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run([alone, "--help"], env=path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
