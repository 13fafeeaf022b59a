"""What is told: the doctor, recordings, and the library's errors."""

import json
import re

import pytest
import torch

import mosaic_torch
from fakes import FakeLibrary
from mosaic_torch import _doctor, _lib
from mosaic_torch.__main__ import main
from mosaic_torch._lib import HP, SharedLibrary
from mosaic_torch._record import Recording, with_provenance
from mosaic_torch._runtime import Runtime
from mosaic_torch.errors import HookError, UsageError


@pytest.fixture(scope="module")
def real():
    return SharedLibrary()


built = pytest.mark.skipif(not _lib.PATH.exists(), reason="NOT BUILT: libmosaic.so is missing (pip install .)")


class TestDoctor:
    def test_a_missing_library_is_a_finding_not_a_crash(self):
        def load():
            raise HookError("libmosaic.so is missing")

        found = _doctor.report(Runtime(load))
        assert "libmosaic.so is missing" in [p["what"] for p in found["problems"]]
        assert found["library"]["loaded"] is False
        assert "libmosaic.so is missing" in _doctor.text(found)

    def test_problems_of_the_launch_path_are_the_reports(self, runtime, library):
        library.doctor = lambda: {"mechanism": None, "gpus": [], "problems": [{"what": "no detour", "do": "this"}]}
        runtime.cuda.why = "no GPU"
        found = _doctor.report(runtime)
        assert {"what": "no detour", "do": "this"} in found["problems"]
        text = _doctor.text(found)
        assert "no detour" in text
        assert "what to do: this" in text
        assert json.loads(json.dumps(found)) == found

    @pytest.fixture
    def one_cell(self, monkeypatch):
        """The probe's tensor, on the CPU."""
        zeros = torch.zeros
        monkeypatch.setattr(_doctor.torch, "zeros", lambda n, device: zeros(n))

    @pytest.mark.parametrize(("per_call", "fine"), [(1, True), (0, False), (2, False)])
    def test_the_probe_counts_one_kernel(self, runtime, library, one_cell, per_call, fine):
        """Naming a mechanism proves nothing: a hook that sees no launch must be a finding."""

        def stats():
            (job,) = library.jobs
            return {"jobs": [{"job": job, "kernels": per_call * library.names().count("enter")}]}

        library.stats = stats
        problems = []
        found = _doctor.probe(runtime, problems)
        assert found["kernels_seen"] == per_call
        assert (problems == []) is fine
        assert library.jobs == {}

    def test_a_probe_that_fails_is_a_finding(self, runtime, library, one_cell):
        library.stats = lambda: (_ for _ in ()).throw(RuntimeError("out of memory"))
        problems = []
        assert _doctor.probe(runtime, problems)["error"] == "out of memory"
        assert "out of memory" in problems[0]["what"]
        assert library.jobs == {}

    def test_mps_is_looked_for_where_the_environment_says(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        assert _doctor.mps()["control_pipe"] is False
        (tmp_path / "control").touch()
        assert _doctor.mps()["control_pipe"] is True

    @pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
    def test_the_command_fails_where_something_is_wrong(self, capsys):
        assert main(["doctor", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["torch"]["version"] == torch.__version__
        assert found["problems"]
        assert main(["doctor"]) == 1
        assert "PROBLEM" in capsys.readouterr().out


class TestRecording:
    @pytest.fixture
    def recording(self, runtime, library, monkeypatch, tmp_path):
        library.trace = '{"kernel_id": "1"}\n{"kernel_id": "2"}\n'
        library.doctor = lambda: {"driver": "580.1"}
        monkeypatch.setattr(runtime.cuda, "synchronize", lambda device: library.calls.append(("synchronize", device)))
        monkeypatch.setattr(runtime.cuda, "name", lambda device: "H200")
        model = runtime.wrap(lambda: 1, HP, 1.1, "resnet", None)
        return Recording(runtime, runtime.job_of(model, None), tmp_path / "trace.jsonl", "resnet50 batch 64")

    def test_the_file_says_where_it_comes_from(self, recording, library, tmp_path):
        with recording:
            pass
        head, *kernels = (tmp_path / "trace.jsonl").read_text().splitlines()
        head = json.loads(head)
        assert kernels == library.trace.splitlines()
        assert {k: head[k] for k in ("format", "version", "gpu", "driver", "workload", "kernels")} == {
            "format": "mosaic-trace",
            "version": 1,
            "gpu": "H200",
            "driver": "580.1",
            "workload": "resnet50 batch 64",
            "kernels": 2,
        }
        assert all(head[k] for k in ("cuda", "torch", "command", "date"))
        assert recording.text.splitlines()[1:] == kernels
        assert [p.name for p in tmp_path.iterdir()] == ["trace.jsonl"]

    def test_the_gpu_is_done_before_times_are_read(self, recording, library):
        with recording:
            pass
        assert library.calls[-1] == ("synchronize", 0)

    def test_a_failed_block_leaves_no_file(self, recording, tmp_path):
        """Half a trace would be replayed as if it were whole."""
        with pytest.raises(ValueError, match="x"), recording:
            raise ValueError("x")
        assert list(tmp_path.iterdir()) == []

    def test_it_is_read_after_its_end(self, recording):
        with recording, pytest.raises(UsageError, match="after its `with` block"):
            _ = recording.text

    def test_an_empty_trace_is_said_to_be_empty(self):
        assert json.loads(with_provenance("", {"workload": "x"})) == {"workload": "x", "kernels": 0}


class TestLibrary:
    def test_a_package_that_was_not_built_says_so(self, tmp_path):
        with pytest.raises(HookError, match=r"was not built; install it again"):
            SharedLibrary(tmp_path / "libmosaic.so")

    def test_a_foreign_file_is_named(self, tmp_path):
        (tmp_path / "libmosaic.so").write_bytes(b"not a library")
        with pytest.raises(HookError, match=re.escape(str(tmp_path / "libmosaic.so"))):
            SharedLibrary(tmp_path / "libmosaic.so")

    @built
    def test_errors_carry_the_librarys_text(self, real):
        with pytest.raises(mosaic_torch.MosaicError, match="unknown field `max_wait`"):
            real.configure({"max_wait": 5})
        with pytest.raises(mosaic_torch.MosaicError, match="no recording is going on"):
            real.record_stop()
        with pytest.raises(mosaic_torch.MosaicError, match="12345"):
            real.request_close(12345)

    @built
    def test_reports_have_the_keys_that_are_read_here(self, real):
        assert isinstance(real.stats()["jobs"], list)
        assert {"driver", "problems", "gpus", "mechanism"} <= real.doctor().keys()

    @built
    def test_the_ops_are_c_functions(self, real):
        """A Python frame between the op and its caller is a place where Ctrl-C could lose an entered section."""
        assert not hasattr(real.enter, "__code__")
        assert not hasattr(real.leave, "__code__")
        with pytest.raises(RuntimeError, match=r"names no open section|not of this thread"):
            real.leave(5, True)

    @built
    def test_the_double_has_every_call(self, real):
        """The double in these tests must not drift from the real one."""
        missing = [n for n in vars(_lib.Library) if not n.startswith("_") and not hasattr(FakeLibrary, n)]
        assert missing == []
        assert [n for n in vars(_lib.Library) if not n.startswith("_") and not hasattr(real, n)] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("use", ["hp", "be", "request", "best_effort", "record"])
def test_without_a_gpu_each_use_says_so(use):
    """Importing works everywhere; the first use has to say what is missing."""
    function = getattr(mosaic_torch, use)
    with pytest.raises(mosaic_torch.DeviceError, match=r"no usable GPU|CPU-only"):
        function(print) if use in ("hp", "be") else function()


def test_the_package_has_a_version_and_no_more_than_it_says():
    assert isinstance(mosaic_torch.__version__, str)
    with pytest.raises(AttributeError, match="no attribute 'hpp'"):
        _ = mosaic_torch.hpp
    assert all(hasattr(mosaic_torch, name) for name in mosaic_torch.__all__)
