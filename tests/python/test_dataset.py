"""What a data set does with kernels that do not end, or that are not what they were."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from mosaic_torch.bench.budget import Budget, Progress
from mosaic_torch.profiling import dataset, files, kernels, patience
from mosaic_torch.profiling.kernels import Kernel
from mosaic_torch.profiling.observe import Launch
from mosaic_torch.profiling.spread import Spread


class Marks:
    """Stands for CUDA events: those of the streams in `stuck` never come."""

    def __init__(self, stuck=()):
        self.stuck, self.asked = stuck, []

    def __call__(self):
        mark = SimpleNamespace(stream=None)
        mark.record = lambda stream: setattr(mark, "stream", stream)
        mark.query = lambda: self.asked.append(mark.stream) or mark.stream not in self.stuck
        return mark


def test_no_more_is_enqueued_than_can_be_waited_for(monkeypatch):
    """Fault: the host blocks in a launch, before it can notice that nothing ends any more."""
    marks = Marks()
    monkeypatch.setattr(patience.torch.cuda, "Event", marks)
    waiting = patience.Patience(lambda keys: None)
    for stream in range(patience.AHEAD + 2):
        waiting.enqueued(stream, "k")
    assert marks.asked == [0, 1]
    waiting.all_ended()
    assert marks.asked == list(range(patience.AHEAD + 2))


def a_data_set(out):
    """Without a GPU."""
    data = object.__new__(dataset.DataSet)
    data.out, data.progress, data.sms, data.kernels = out, Progress(Budget()), 132, []
    data.patience = patience.Patience(data._leave_out)
    data.observer, data.clocks = SimpleNamespace(device=0), SimpleNamespace(seen={})
    lane = {"a": SimpleNamespace(sms=132)} | {sms: SimpleNamespace(sms=sms) for sms in dataset.ALONE_SMS}
    data.lanes = SimpleNamespace(full=lambda high, name: lane[name], part=lane.__getitem__)
    return data


def stuck(out):
    """What a process does."""
    patience.torch.cuda.Event = Marks(stuck=[7])
    patience.LIMIT_S = 0.01
    data = a_data_set(Path(out))
    data.patience.enqueued(3, "fine")
    data.patience.enqueued(7, "one", "other")
    data.patience.all_ended()


def test_a_kernel_that_never_ends_is_named_and_measured_no_more(tmp_path):
    """Fault: one pair that waits for ever ends a run without a word, and the next run in the same way."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); import test_dataset; test_dataset.stuck(sys.argv[2])"
    run = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "mosaic: one beside other did not end within" in done.stderr
        assert f"one and other left out from now on ({tmp_path / 'left-out.txt'})" in done.stdout
    assert a_data_set(tmp_path).left_out() == {"one", "other"}


def test_a_kernel_that_never_ends_is_left_also_where_nothing_can_be_written(tmp_path):
    """Fault: the error on the way out waits for the GPU, and so for ever."""
    (tmp_path / "file").write_text("")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import test_dataset; test_dataset.stuck(sys.argv[2])"
    run = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / "file")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mosaic: one beside other did not end within" in done.stderr
    assert "Traceback" not in done.stderr


def kernel(key, **isolated_ns):
    """`sms8=…`: its time on so many SMs."""
    isolated = {int(sms.removeprefix("sms")): Spread(ns, ns, ns, 7) for sms, ns in isolated_ns.items()}
    return Kernel(key, Launch("kernel", "0" * 16, 0, kept=0), ["f"], False, isolated)


def test_a_kept_launch_that_does_something_else_than_in_its_workload_is_in_no_pair(tmp_path, monkeypatch, capsys):
    """Fault: pairs of a kernel that ends at once, since the memory that told it what to do is another's by now."""
    again_ns = {"w:same": 50_000, "w:less": 5_000, "w:more": 130_000, "w:short": 2_000, "w:fewest": 50_000, "w:out": 1}

    def measure_alone(measured, lane, patience):
        for one in measured:
            if (one.key, lane.sms) != ("w:fewest", 8):
                one.isolated[lane.sms] = Spread(again_ns[one.key], 1, 1, 7)
        return []

    monkeypatch.setattr(kernels, "measure_alone", measure_alone)
    data = a_data_set(tmp_path)
    data._leave_out(["w:out", "zoo:out"])
    data.kernels = [kernel(key, sms8=900_000, sms132=60_000) for key in again_ns if key != "w:short"]
    data.kernels += [kernel("w:short", sms132=4_000), kernel("zoo:a", sms8=7, sms132=7), kernel("zoo:b", sms132=7)]
    data.kernels.append(kernel("zoo:out", sms8=7, sms132=7))
    fit = data.launchable()
    assert [one.key for one in fit] == ["w:same", "w:short", "zoo:a"]
    assert fit[0].isolated[132].median_ns == 50_000
    said = capsys.readouterr().out
    assert "w:less takes part in no pair: launched again it takes 5000 ns, not 60000" in said
    assert "w:more takes part in no pair" in said


def test_a_trial_leaves_the_other_kernels_of_the_file_as_they_were(tmp_path, monkeypatch):
    """Fault: a run with `--every 12` throws away what the whole run has measured."""
    monkeypatch.setattr(files, "provenance", lambda *_: {})
    data = a_data_set(tmp_path)
    data.kernels = [kernel("zoo:a", sms132=1), kernel("zoo:b", sms132=2)]
    data._write_zoo()
    data.kernels = [kernel("zoo:b", sms132=3), kernel("zoo:c", sms132=4), kernel("w:a", sms132=5)]
    data._write_zoo()
    written = {line["key"]: line["isolated"][0]["median_ns"] for line in data.records("kernels.jsonl")}
    assert written == {"zoo:a": 1, "zoo:b": 3, "zoo:c": 4}
