"""The harness's processes: agents in one process and in several, their deaths, and MPS around them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bench_support

bench_support.package()

from mosaic_bench import cli, mps, overhead, profile_time, records, summary  # noqa: E402
from mosaic_bench.fleet import AgentError, AgentLost, Fleet  # noqa: E402

CONTROL = f"{Path(bench_support.__file__).resolve()}:make"


def is_running(pid):
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def gate(tmp_path, monkeypatch):
    monkeypatch.setenv(bench_support.GATE, str(tmp_path / "gate"))


@pytest.fixture
def fleet(gate):
    fleet = Fleet(device="cpu", control=CONTROL, tiny=True)
    yield fleet
    fleet.kill()


def ready(hp, be):
    hp.call("load", 120, names=["toy"])
    be.call("load", 120, names=["blip"])
    hp.call("register", 30, names=["toy"], role="hp")
    be.call("register", 30, names=["blip"], role="be")


@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_be_runs_beside_hp_and_ends_with_it(fleet, placement):
    """Guards against a segment whose BE never ran, ran ungated, or was not stopped."""
    if placement == "threads":
        hp, be = fleet.start(["hp", "be"])
        assert hp.call("ping", 120)["pid"] == be.call("ping", 120)["pid"]
    else:
        (hp,), (be,) = fleet.start(["hp"]), fleet.start(["be"])
        assert hp.call("ping", 120)["pid"] != be.call("ping", 120)["pid"]
    ready(hp, be)
    args = {"workload": "toy", "mode": "wrapped", "requests": 60, "load": "poisson0.5", "rate_hz": 200, "seed": 1}
    be_args = {"workload": "blip", "mode": "wrapped"}
    served, worked = fleet.colocated(be, be_args, hp, "hp", args, 60)
    assert len(served["end"]) == 60
    lo, hi = summary.window_ns(served)
    inside = [at for at in worked["done"] if lo < worked["base"] + at < hi]
    assert inside, "BE did not work while HP was loaded"
    assert worked["base"] < lo
    assert be.call("stats", 30)["counts"]["be_calls"] == len(worked["done"])
    stats = hp.call("stats", 30)
    assert (stats["counts"]["requests"], stats["open"]) == (60, 0)
    # The next segment starts from scratch.
    _, again = fleet.colocated(be, be_args, hp, "hp", args | {"requests": 5}, 60)
    assert again["base"] > hi


def test_a_failing_command_is_an_error_and_the_agent_goes_on(fleet):
    (hp,) = fleet.start(["hp"])
    with pytest.raises(AgentError, match="unknown workload 'nothing'"):
        hp.call("load", 120, names=["nothing"])
    with pytest.raises(AgentError, match="has not loaded 'toy'"):
        hp.call("hp", 30, workload="toy", mode="raw", requests=1)
    assert hp.call("ping", 30)["pid"] == hp.worker.process.pid


def test_hp_failing_beside_be_stops_be(fleet):
    """Guards against a BE that runs on, and an agent that is busy for good, after HP's segment failed."""
    hp, be = fleet.start(["hp", "be"])
    ready(hp, be)
    with pytest.raises(AgentError, match="unknown mode"):
        fleet.colocated(
            be, {"workload": "blip", "mode": "raw"}, hp, "hp", {"workload": "toy", "mode": "x", "requests": 1}, 30
        )
    assert fleet.block.get("be_running") == 0
    assert be.call("ping", 30)["pid"]


def test_be_failing_at_once_is_reported_not_waited_for(fleet):
    hp, be = fleet.start(["hp", "be"])
    ready(hp, be)
    hp_args = {"workload": "toy", "mode": "raw", "requests": 1}
    begin = time.monotonic()
    with pytest.raises(AgentError, match="has not loaded 'dlrm'"):
        fleet.colocated(be, {"workload": "dlrm", "mode": "raw"}, hp, "hp", hp_args, 30)
    assert time.monotonic() - begin < 15


def test_a_killed_process_is_noticed_with_its_status(fleet):
    (hp,) = fleet.start(["hp"])
    hp.call("load", 120, names=["toy"])
    hp.send("hp", workload="toy", mode="raw", requests=10**9)
    eventually(lambda: fleet.block.get("hp_completed") > 0)
    os.kill(hp.worker.process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(AgentLost, match="status -9"):
        hp.finish(60)
    assert time.monotonic() - begin < 10


def test_an_agent_that_does_not_answer_is_given_up_and_killed(fleet):
    (hp,) = fleet.start(["hp"])
    hp.call("load", 120, names=["toy"])
    hp.send("hp", workload="toy", mode="raw", requests=10**9)
    with pytest.raises(AgentLost, match="did not answer 'hp' within 1 s"):
        hp.finish(1)
    pid = hp.worker.process.pid
    fleet.kill_workers()
    assert not is_running(pid)


def test_workers_end_with_their_coordinator(tmp_path, gate):
    """Guards against processes that keep a GPU busy after the harness was killed."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(bench_support.__file__).parent)!r})
import bench_support
bench_support.package()
from mosaic_bench.fleet import Fleet
fleet = Fleet(device="cpu", control={CONTROL!r}, tiny=True)
(hp,) = fleet.start(["hp"])
hp.call("load", 120, names=["toy"])
hp.send("hp", workload="toy", mode="raw", requests=10**9)
print(hp.worker.process.pid, fleet.folder, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as coordinator:
        pid, folder = coordinator.stdout.readline().split()
        assert is_running(int(pid))
        coordinator.kill()
    eventually(lambda: not is_running(int(pid)))
    for path in sorted(Path(folder).iterdir()):
        path.unlink()
    Path(folder).rmdir()


def test_a_process_without_the_hook_has_not_imported_mosaic_torch(fleet):
    """Guards against comparing the hook with itself."""
    (off,) = fleet.start(["off"], control="off")
    assert off.call("facts", 120)["mosaic_torch"] == "not imported"


def test_tiny_workloads_run_on_a_cpu(fleet):
    """Guards against a workload that fails only on the GPU machine, where time is short."""
    pytest.importorskip("torchvision", reason="the image workloads need torchvision")
    pytest.importorskip("transformers", reason="the language workloads need transformers")
    from mosaic_bench.workloads import WORKLOADS

    (hp,) = fleet.start(["hp"])
    for name in WORKLOADS:
        built = hp.call("load", 240, names=[name])["built"]
        assert built[name]
        itself = hp.topic("identity", "reference", 240, workload=name, deterministic=False)
        assert itself["elements"] > 0
        assert itself["mismatched"] == 0, f"{name} does not repeat itself"


# MPS


FAKE_MPS = """#!/bin/sh
# A daemon that answers, writes its pid, and ends on "quit".
if [ "$1" = -d ]; then
    [ -e "$0.broken" ] && { echo "no GPU here" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1; }
    setsid sleep 600 & echo $! > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
    echo $! > "$0.pid"
    exit 0
fi
read command
echo "$command" >> "$0.commands"
[ "$command" = quit ] && kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")"
exit 0
"""


@pytest.fixture
def fake_mps(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / mps.CONTROL
    path.write_text(FAKE_MPS)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


def test_the_mps_daemon_is_private_and_stopped_also_after_a_failure(fake_mps):
    """Guards against a daemon that outlives its run and turns every later process into its client."""
    folders = []

    def fail():
        with mps.daemon() as env:
            folders.extend(env.values())
            assert all(Path(folder).is_dir() for folder in folders)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not is_running(int(Path(f"{fake_mps}.pid").read_text()))
    assert Path(f"{fake_mps}.commands").read_text().split() == ["get_server_list", "quit"]
    assert not any(Path(folder).exists() for folder in folders)


def test_an_mps_daemon_that_does_not_start_is_named_with_its_log(fake_mps):
    Path(f"{fake_mps}.broken").touch()
    with pytest.raises(mps.MpsError, match=r"(?s)status 1.*no GPU here"), mps.daemon():
        pass


def test_without_mps_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mps.MpsError, match="not on PATH"), mps.daemon():
        pass


# Whole commands


def command(topic, out, *more):
    return [topic, "--device", "cpu", "--tiny", "--control", CONTROL, "--out", str(out), *more]


def bound_command(out, *more):
    small = ["--hp", "toy", "--be", "blip", "--requests", "30", "--closed-requests", "20", "--be-idle-seconds", "0.2"]
    return command("bound", out, *small, *more)


def record_rows(out, topic):
    (path,) = Path(out).glob(f"*-{topic}.csv")
    return records.read_csv(path)


def test_bound_in_every_placement(gate, fake_mps, tmp_path, capsys):
    """The whole path: plan, processes, segments, records, table; and the record made again from the raw file."""
    out = tmp_path / "out"
    assert cli.main(bound_command(out, "--seeds", "2")) == 0
    rows = record_rows(out, "bound")
    for placement in ("threads", "processes", "mps"):
        for load in ("closed", "poisson0.5"):
            for seed, variants in ((0, {"idle-only", "streams", "priority"}), (1, {"idle-only"})):
                case = f"hp=toy be=blip load={load} placement={placement} seed={seed}"
                metrics = {"hp_p50_ratio", "hp_mean_ratio", "hp_p99_ratio", "be_fraction", "requests"}
                for variant in variants:
                    found = {r.metric: r for r in rows if (r.case, r.variant) == (case, variant)}
                    assert metrics <= set(found), (case, variant)
                    assert found["requests"].value <= (20 if load == "closed" else 30)
                assert {r.variant for r in rows if r.case == case} == variants
    assert not is_running(int(Path(f"{fake_mps}.pid").read_text()))
    (text,) = out.glob("*-bound.txt")
    for word in ("command: ", "date: ", "torch: ", "mosaic_torch: stand-in", "workload toy: "):
        assert word in text.read_text()
    (raw,) = out.glob("*.raw.jsonl.gz")
    again = tmp_path / "again.csv"
    assert cli.main(["report", str(raw), "--csv", str(again)]) == 0
    as_written = {(r.key, records.format_value(r.value)) for r in records.read_csv(again)}
    assert as_written == {(r.key, records.format_value(r.value)) for r in rows}
    assert "idle-only" in capsys.readouterr().out


def test_a_run_out_of_time_stops_cleanly_and_names_what_is_missing(gate, tmp_path, capsys):
    begin = time.monotonic()
    many = ["--placements", "threads", "--requests", "200000", "--closed-requests", "200", "--max-seconds", "60"]
    assert cli.main(bound_command(tmp_path / "out", *many)) == 0
    assert time.monotonic() - begin < 60
    said = capsys.readouterr().out
    assert "not covered: threads idle-only be=blip load=poisson0.5 seed=0" in said
    assert {r.variant for r in record_rows(tmp_path / "out", "bound")} >= {"isolated", "idle-only"}


def test_a_be_that_dies_costs_one_segment(gate, tmp_path, monkeypatch, capsys):
    """Guards against one crash taking the rest of the table with it."""
    monkeypatch.setenv(bench_support.DIE_ONCE, str(tmp_path / "died"))
    order = ["--variants", "isolated,idle-only,priority,streams"]
    once = ["--placements", "processes", "--seeds", "1", "--loads", "closed", "--chunks", "1", *order]
    assert cli.main(bound_command(tmp_path / "out", *once)) == 1
    assert (tmp_path / "died").exists()
    said = capsys.readouterr().out
    assert "failed: processes: agent be was lost" in said
    assert "status -9" in said
    measured = {r.variant for r in record_rows(tmp_path / "out", "bound") if r.metric == "be_fraction"}
    assert measured == {"idle-only", "streams"}


def test_an_interrupt_keeps_the_record_and_leaves_no_process(gate, tmp_path):
    out = tmp_path / "out"
    endless = bound_command(out, "--placements", "threads", "--closed-requests", "100", "--requests", "10000000")
    script = f"""
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {str(Path(bench_support.__file__).parent)!r})
import bench_support
bench_support.package()
from mosaic_bench import cli
sys.exit(cli.main({endless!r}))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout:
            if "service time" in line:
                break
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
        assert children
        bench.send_signal(signal.SIGINT)
        said = bench.stdout.read()
        assert bench.wait(60) == 130
    assert "interrupted" in said
    assert not any(is_running(int(pid)) for pid in children)
    assert record_rows(out, "bound")


def test_the_plan_is_printed_without_a_gpu(capsys):
    assert cli.main(["bound", "--plan", "--placements", "threads", "--max-seconds", "150"]) == 0
    said = capsys.readouterr().out
    assert "idle-only be=bert-large load=poisson0.5 seed=0" in said
    assert "left out: streams be=dlrm load=poisson0.5 seed=0" in said


def test_some_topics_in_one_command(capsys):
    assert cli.main(["all", "--plan", "--topics", "overhead,micro"]) == 0
    said = capsys.readouterr().out.split()
    assert [word for word in said if word.endswith(":")] == ["micro:", "overhead:"]


def test_a_model_that_is_not_profiled_is_a_failure_with_its_reason():
    """Fault: the time of a command that has failed, in a record."""
    with pytest.raises(RuntimeError, match=r"no profile \(exit status 1\): mosaic: torch finds no"):
        profile_time.measure("nothing", "(torch.nn.Linear(1, 1), torch.randn(1, 1))", 120)


def test_a_raw_file_that_is_none_is_refused_by_name(tmp_path, capsys):
    (tmp_path / "x").write_text("not gzip")
    assert cli.main(["report", str(tmp_path / "x")]) == 2
    assert f"{tmp_path / 'x'}: " in capsys.readouterr().err


def test_identity_topic(gate, tmp_path):
    assert cli.main(command("identity", tmp_path / "out")) == 0
    rows = record_rows(tmp_path / "out", "identity")
    assert {r.value for r in rows if r.metric == "mismatched_elements"} == {0}
    assert all(r.value > 0 for r in rows if r.metric == "other_role_iterations")


def test_mismatches_are_counted_by_their_bits():
    """Guards against a comparison that calls different things equal, or a NaN different from itself."""
    import torch
    from mosaic_bench.identity_agent import mismatched_elements

    a = torch.tensor([1.0, float("nan"), 0.0])
    assert mismatched_elements([a], [a.clone()]) == 0
    assert mismatched_elements([a], [torch.tensor([1.0, float("nan"), -0.0])]) == 1
    assert mismatched_elements([a.half()], [a.half() + 1]) == 2
    assert mismatched_elements([a], [a[:2]]) == 3


def test_overhead_topic(gate, tmp_path):
    assert cli.main(command("overhead", tmp_path / "out")) == 0
    rows = record_rows(tmp_path / "out", "overhead")
    assert {r.variant for r in rows if r.metric == "hp_p50_ratio"} == {
        "on",
        "off-control",
        "unregistered",
        "on, over before-import in its process",
        "on, over unregistered in its process",
        overhead.IN_TURN,
    }


def test_death_topic(gate, tmp_path):
    """Guards against a measurement that would call a BE resumed that was never held, or the reverse."""
    assert cli.main(command("death", tmp_path / "out")) == 0
    rows = record_rows(tmp_path / "out", "death")
    resumed = {r.case: r.value for r in rows if r.metric == "be_resume_ms"}
    expected = {"sigkill", "zombie"} | ({"pid-namespace"} if os.geteuid() == 0 else set())
    assert set(resumed) == expected
    assert all(0 < ms < 1000 for ms in resumed.values())
    assert {r.case for r in rows if r.metric == "hp_p99_ratio"} == {"be-held", "be-running"}
