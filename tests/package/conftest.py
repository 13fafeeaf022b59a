import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder of the installed package; not imported, so that no test here depends on the Python API."""
    spec = find_spec("mosaic_torch")
    assert spec is not None, "mosaic_torch is not installed: run `make install`"
    return Path(spec.origin).parent


@pytest.fixture
def compile_program(tmp_path):
    """Compile one source of this folder with every warning an error."""

    def build(
        source: str, *arguments: str, compiler: str = "c++", standard: str = "c++20", name: str = "program"
    ) -> Path:
        output = tmp_path / name
        warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
        language = {"cc": "c", "c++": "c++"}[compiler]
        path = Path(__file__).parent / source
        subprocess.run(
            [
                compiler,
                f"-std={standard}",
                *warnings,
                "-g",
                "-x",
                language,
                str(path),
                "-x",
                "none",
                *arguments,
                "-o",
                output,
            ],
            check=True,
        )
        return output

    return build


@pytest.fixture
def run_program():
    """Run a program and return its output; a failure shows it."""

    def run(*command, **environment: str) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run
