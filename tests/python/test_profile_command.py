"""`mosaic profile SCRIPT` without a GPU: what it says, and what it makes of scripts."""

import argparse
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from mosaic_torch import api
from mosaic_torch.errors import MosaicError
from mosaic_torch.profiling import command, files, profiler

# As a script whose model has been profiled, into the folder of its first argument.
WRITES = """
import pathlib, sys
from mosaic_torch.profiling import files
files.write(pathlib.Path(sys.argv[1]) / 'm.profile.jsonl', 'mosaic-workload', {'command': files.command()}, [])
"""


def run_profile(*arguments):
    parser = argparse.ArgumentParser(prog="profile")
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in arguments]))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "found no file .*serve.py, expected a Python script"),
        ("print('hello')", "ended without a profile: it has to call"),
        ("import x_y_z", r"failed \(exit status 1, see above\)"),
    ],
)
def test_a_script_without_a_model_is_named(monkeypatch, tmp_path, script, says):
    """Fault: success, and no profile."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = tmp_path / "serve.py"
    if script is not None:
        path.write_text(script)
    with pytest.raises(MosaicError, match=says):
        run_profile("--out", tmp_path / "out", "--no-counters", path)


def test_a_script_finds_its_profile_and_no_role(monkeypatch, tmp_path):
    """Fault: arguments that a shell would quote hide a finished profile; a server's own blocks end its script."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = tmp_path / "serve.py"
    path.write_text(
        "import torch, mosaic_torch\n"
        "model = mosaic_torch.hp(torch.nn.Linear(1, 1), slo=1.2)\n"
        "with mosaic_torch.request(model, arrived_at=0.0).open(), mosaic_torch.best_effort():\n"
        "    model(torch.ones(1))\n" + WRITES
    )
    assert run_profile("--out", tmp_path, "--no-counters", path, tmp_path, "two words", "$x") == 0


def test_a_script_that_fails_half_way_is_no_success(monkeypatch, tmp_path, capsys):
    """Fault: a model that the script never came to is missing, and nothing says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = tmp_path / "serve.py"
    path.write_text(WRITES + "sys.exit(3)\n")
    assert run_profile("--out", tmp_path, "--no-counters", path, tmp_path) == 1
    assert "serve.py failed (exit status 3, see above)" in capsys.readouterr().err


def test_durations_that_are_there_are_not_measured_again(monkeypatch, tmp_path, capsys):
    """Fault: an interrupted command begins again, or takes another command's profile for its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(api.runtime.lib, "configure", measures := Mock(side_effect=MosaicError("it measures")))
    for name, value in profiler.Session(str(tmp_path)).variable().items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "m.profile.jsonl"
    files.write(path, "mosaic-workload", {"command": files.command()}, [])
    assert profiler.profile(torch.nn.Linear(1, 1), name="m") == path
    assert f"{path}: durations are there" in capsys.readouterr().out
    measures.assert_not_called()
    files.write(path, "mosaic-workload", {"command": "python other.py"}, [])
    with pytest.raises(MosaicError, match="it measures"):
        profiler.profile(torch.nn.Linear(1, 1), name="m")


def test_two_models_of_one_name_are_refused(tmp_path):
    """Fault: the second one's profile takes the place of the first one's."""
    path = tmp_path / "serve.py"
    path.write_text("import mosaic_torch, torch\nfor i in range(2): mosaic_torch.hp(torch.nn.Linear(1, 1))\n")
    run = [sys.executable, "-m", "mosaic_torch.profiling.script", str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    says = "mosaic: found two models named Linear, expected a name for each: hp(model, name=...)\n"
    assert (done.returncode, done.stderr) == (1, says)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--partitions", "8,x"], "found 'x', expected a number of at least 1"),
        (["--partitions=-8"], "found '-8'"),
        (["--requests", "0"], "found '0'"),
    ],
)
def test_numbers_that_are_none_are_named(capsys, option, says):
    """Fault: a traceback, or a profile of nothing."""
    with pytest.raises(SystemExit):
        run_profile(*option, "serve.py")
    assert says in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_the_script_is_not_run(tmp_path):
    """Fault: a server that starts, and is never profiled."""
    path = tmp_path / "serve.py"
    path.write_text("raise SystemExit('it ran')")
    run = [sys.executable, "-m", "mosaic_torch", "profile", "--out", str(tmp_path), str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "mosaic: torch finds no usable GPU: profiles are measured on one\n")
