"""Roles of whole processes, and the start-up hook that `mosaic run` relies on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mosaic_torch
from mosaic_torch import process
from mosaic_torch._lib import BE, HP
from mosaic_torch._torch import require_torch
from mosaic_torch.errors import HookError, MissingTorchError, UsageError

STARTUP = Path(mosaic_torch.__file__).parent / "_startup"


class TestRoleOfEnvironment:
    @pytest.mark.parametrize("environ", [{}, {"MOSAIC_ROLE": " "}, {"MOSAIC_SLO": "1.2"}])
    def test_none(self, environ):
        assert process.role_of_environment(environ) is None

    def test_whole(self):
        environ = {"MOSAIC_ROLE": "HP", "MOSAIC_SLO": "1.25", "MOSAIC_NAME": "server"}
        assert process.role_of_environment(environ) == (HP, "server", 1.25)

    def test_defaults(self):
        role, name, slo = process.role_of_environment({"MOSAIC_ROLE": "be"})
        assert (role, slo) == (BE, 1.1)
        assert 0 < len(name) <= 63

    @pytest.mark.parametrize(
        ("environ", "says"),
        [
            ({"MOSAIC_ROLE": "best"}, "found MOSAIC_ROLE=best, expected hp or be"),
            ({"MOSAIC_ROLE": "hp", "MOSAIC_SLO": "10%"}, "found MOSAIC_SLO=10%"),
            ({"MOSAIC_ROLE": "hp", "MOSAIC_SLO": "0.9"}, "found MOSAIC_SLO=0.9"),
            ({"MOSAIC_ROLE": "hp", "MOSAIC_SLO": "inf"}, "found MOSAIC_SLO=inf, expected a ratio from 1.0 to 1000"),
            ({"MOSAIC_ROLE": "hp", "MOSAIC_SLO": "1001"}, "found MOSAIC_SLO=1001"),
        ],
    )
    def test_wrong_values_are_named(self, environ, says):
        """A typing error must not let a best-effort program run without its role."""
        with pytest.raises(UsageError, match=re.escape(says)):
            process.role_of_environment(environ)


class TestStart:
    @pytest.fixture
    def hooks(self, monkeypatch):
        """Nothing of these tests stays registered for this process's own exit and forks."""
        registered = []
        monkeypatch.setattr(process.atexit, "register", registered.append)
        monkeypatch.setattr(process.os, "register_at_fork", lambda **hooks: registered.extend(hooks.values()))
        return registered

    def test_the_role_is_applied(self, runtime, library, hooks, monkeypatch):
        monkeypatch.setenv("MOSAIC_ROLE", "be")
        monkeypatch.setenv("MOSAIC_NAME", "training")
        process.start(runtime)
        assert library.calls == [("init",), ("process_role", BE, "training", 1.1)]
        assert hooks == [runtime.shutdown, runtime.after_fork_in_child]

    def test_without_a_role_the_hook_is_put_in_force(self, runtime, library, hooks, monkeypatch):
        monkeypatch.delenv("MOSAIC_ROLE", raising=False)
        process.start(runtime)
        assert library.calls == [("init",)]

    def test_a_failed_hook_does_not_fail_the_import(self, runtime, library, hooks, monkeypatch, recwarn):
        monkeypatch.delenv("MOSAIC_ROLE", raising=False)
        library.hook_error = HookError("no driver")
        process.start(runtime)
        assert not recwarn.list

    def test_a_role_without_its_hook_is_said(self, runtime, library, hooks, monkeypatch):
        """The program goes on unheld beside an HP model: its user has to know."""
        monkeypatch.setenv("MOSAIC_ROLE", "be")
        library.hook_error = HookError("unknown first bytes")
        with pytest.warns(RuntimeWarning, match="WITHOUT its role: unknown first bytes"):
            process.start(runtime)

    def test_a_role_on_a_machine_without_a_gpu_is_nothing_to_say(self, runtime, library, hooks, monkeypatch, recwarn):
        monkeypatch.setenv("MOSAIC_ROLE", "be")
        library.hook_error = HookError("no driver")
        runtime.cuda.why = "no GPU"
        process.start(runtime)
        assert not recwarn.list


def test_after_a_fork_the_child_has_no_jobs(runtime, library):
    model = runtime.wrap(lambda: 1, HP, 1.1, None, None)
    runtime.after_fork_in_child()
    with pytest.raises(mosaic_torch.MosaicError, match="use the spawn start method"):
        model()
    assert runtime.jobs(HP) == []
    library.calls.clear()
    runtime.ready()
    assert library.calls == [("init",)]


class TestStartupHook:
    """With a torch and a mosaic_torch that only say when they are imported."""

    @pytest.fixture
    def path(self, tmp_path):
        for name in ("torch", "mosaic_torch"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(f"print('{name}')\n")
        return tmp_path

    def run(self, path, text, *arguments, **environ):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MOSAIC_", "PYTHON"))}
        return subprocess.run(
            [sys.executable, *arguments, "-c", text],
            env={**kept, "PYTHONPATH": os.pathsep.join([str(STARTUP), str(path)]), **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def test_the_role_comes_right_after_torch(self, path):
        out = self.run(path, "print('program'); import torch; print('goes on')", MOSAIC_ROLE="be")
        assert out.stdout.split("\n")[:4] == ["program", "torch", "mosaic_torch", "goes on"], out.stderr

    def test_looking_torch_up_is_not_importing_it(self, path):
        """transformers and others ask find_spec("torch") first; the role must still come with the import."""
        look = "from importlib.util import find_spec; assert find_spec('torch') and find_spec('torch'); "
        out = self.run(path, look + "print('looked'); import torch", MOSAIC_ROLE="be")
        assert out.stdout.split() == ["looked", "torch", "mosaic_torch"], out.stderr

    def test_a_program_without_torch_notices_nothing(self, path):
        out = self.run(path, "import json; print('fine')", MOSAIC_ROLE="be")
        assert (out.stdout, out.stderr, out.returncode) == ("fine\n", "", 0)

    def test_a_machine_without_torch_gets_its_own_error(self, tmp_path):
        out = self.run(tmp_path, "import torch", "-S", MOSAIC_ROLE="be", PYTHONSAFEPATH="1")
        with_hook = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; "
        hooked = self.run(tmp_path, with_hook + "import torch", MOSAIC_ROLE="be")
        last = "ModuleNotFoundError: No module named 'torch'"
        assert out.stderr.strip().endswith(last)
        assert hooked.stderr.strip().endswith(last)

    def test_without_a_role_torch_is_left_alone(self, path):
        out = self.run(path, "import torch, sys; assert 'mosaic_torch' not in sys.modules")
        assert (out.stdout, out.returncode) == ("torch\n", 0), out.stderr

    def test_the_users_own_sitecustomize_runs(self, path):
        """Ours hides it: coverage, debuggers and clusters' settings live there."""
        (path / "sitecustomize.py").write_text("import sys; sys.mine = __file__\n")
        out = self.run(path, "import sys, sitecustomize; print(sys.mine == sitecustomize.__file__)", MOSAIC_ROLE="be")
        assert out.stdout == "True\n", out.stderr

    def test_an_error_in_the_users_sitecustomize_is_reported_as_by_python(self, path):
        (path / "sitecustomize.py").write_text("raise ValueError('mine')\n")
        out = self.run(path, "import torch", MOSAIC_ROLE="be")
        assert "ValueError: mine" in out.stderr
        assert out.stdout.split() == ["torch", "mosaic_torch"]

    def test_a_package_that_cannot_be_imported_is_said(self, path):
        (path / "mosaic_torch" / "__init__.py").write_text("raise RuntimeError('broken')\n")
        out = self.run(path, "import torch; print('goes on')", MOSAIC_ROLE="be")
        assert out.stdout.split("\n")[:2] == ["torch", "goes on"]
        assert "WITHOUT its role: broken" in out.stderr

    def test_a_failing_torch_fails_as_without_us(self, path):
        (path / "torch" / "__init__.py").write_text("raise ImportError('no libcudart')\n")
        out = self.run(path, "import torch", MOSAIC_ROLE="be")
        assert out.returncode == 1
        assert out.stderr.strip().endswith("ImportError: no libcudart")


class TestRequireTorch:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)

        def make(text):
            (tmp_path / "some_torch.py").write_text(text)
            sys.modules.pop("some_torch", None)
            return "some_torch"

        yield make
        sys.modules.pop("some_torch", None)

    def test_missing(self):
        with pytest.raises(MissingTorchError, match="pip install torch"):
            require_torch("a_torch_that_is_not_there")

    @pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0"])
    def test_too_old(self, module, version):
        with pytest.raises(ImportError, match=re.escape(f"found torch {version}, expected 2.10 or newer")):
            require_torch(module(f"__version__ = '{version}'"))

    @pytest.mark.parametrize("version", ["2.10.0", "2.11.0+cu130", "2.15.0a0+git1234", "3.0", "mine"])
    def test_new_enough(self, module, version):
        require_torch(module(f"__version__ = '{version}'"))
