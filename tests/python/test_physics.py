"""The experiments on physics, what is found in their data, and the data itself."""

import builtins
import dataclasses
import itertools
import math
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import ideal_gpu
from mosaic_torch.errors import MosaicError
from mosaic_torch.profiling import files, physics, placement, plots
from mosaic_torch.profiling.findings import Check, Finding, findings
from mosaic_torch.profiling.findings import blocks as of_blocks
from mosaic_torch.profiling.findings import pairs as of_pairs

RECORDED = Path(__file__).parents[2] / "profiles" / "h200" / "physics.jsonl"
HEAD = {"gpu": "NVIDIA H200", "sms": 132, "date": "2026-01-01"}


@pytest.fixture(scope="session")
def ideal():
    return ideal_gpu.lines()


@pytest.fixture(scope="session")
def recorded():
    if not RECORDED.exists():
        pytest.skip(
            f"NO DATA: {RECORDED} is not there; on a GPU: python -m mosaic_torch.profiling.dataset --steps physics"
        )
    return {finding.name: finding for finding in findings(files.read(RECORDED)[1])}


# The experiments


def test_cases_are_distinct_and_fit_an_sm():
    """Fault: a point measured twice, or two kernels that are meant to share SMs and cannot."""
    cases = list(physics.cases())
    assert max(Counter((case.experiment, case.x) for case in cases).values()) == 1
    for case in cases:
        if case.experiment in ("fp32", "fp64", "l1"):
            params = case.a.params
            assert params.get("blocks", 132 * params.get("per_sm", 0)) == 132, "one block on each SM"
            assert case.mode.name == "full-equal"
    for case in cases:
        for config in (case.a, case.b):
            if config and config.family == "spin":
                assert config.params["threads"] in (256, 1024)
                assert config.params.get("ballast", 0) <= 227 * 1024


def test_sweeps_cover_what_they_look_for():
    """Fault: a cliff between two points, or beyond the last."""
    at = {}
    for case in physics.cases():
        at.setdefault(case.experiment, []).append(case.x)
    assert {131, 132, 133, 264} <= set(at["blocks"])
    assert at["fdtd"] == list(range(0, 101, 10))
    assert min(at["l2"]) * 2 < 25 < 60 < max(at["l2"]) / 2
    assert min(at["l1"]) * 2 < 228 / 2 < 256 < max(at["l1"]) / 2
    for name, apart, first, last in (("l2", 2, 12, 64), ("l1", 8, 80, 288)):
        cliff = [x for x in at[name] if first <= x <= last]
        assert {y - x for x, y in itertools.pairwise(cliff)} == {apart}


def test_working_sets_of_figure_3_fit_one_partition_of_the_l2(ideal):
    """Fault: an experiment on L2 that runs from HBM."""
    (case,) = (case for case in physics.cases() if (case.experiment, case.x) == ("fdtd", 50))
    p = case.a.params
    halo = 2 * p["radius"]
    read = math.prod(p[n] + halo for n in ("nx", "ny", "nz"))
    written = math.prod(p[n] for n in ("nx", "ny", "nz"))
    assert 4 * (read + written) + (case.b.params["mib"] << 20) < 30 << 20


def test_kernels_of_a_pair_have_memory_of_their_own(monkeypatch):
    """Fault: two launches of one kernel, which share what the caches hold: half the working set, half the traffic."""
    built, measured = [], []

    def build(observer, configs, said):
        for config in configs:
            built.append(config)
            alive = SimpleNamespace(bytes_read=3, bytes_written=0, flops=None)
            yield SimpleNamespace(key=f"zoo:{config.name}", alive=alive)

    def measure(rig, mode, pairs, sms, advanced, said, patience):
        measured.extend(pairs)
        yield {"a_ns": 1}

    monkeypatch.setattr(physics, "zoo_kernels", build)
    monkeypatch.setattr(physics, "measure_alone", lambda kernels, lane, patience: None)
    monkeypatch.setattr(physics, "measure", measure)
    lanes = SimpleNamespace(full=lambda high, name: None, rig=lambda mode, cycles: None, sms=132)
    case = next(case for case in physics.cases() if case.experiment == "l2")
    line = physics._record(None, lanes, 1.9, case, None)
    assert len(built) == 2
    ((a, b),) = measured
    assert a is not b
    assert line == {"experiment": "l2", "x": 4, "unit": "MiB each", "a_bytes_read": 3, "b_bytes_read": 3, "a_ns": 1}


def test_spins_come_in_their_order_and_are_read_by_columns(monkeypatch):
    """Fault: B ahead of A, blocks of a trial launch, or begins read as ends."""
    launched = []

    class Spin:
        def __init__(self, source, name, device, sm):
            assert (source, name, device, sm) == ("spin.cu", "spin", 0, 90)

        def bound(self, grid, block, shared_bytes, values):
            def launch(stream):
                launched.append((stream, grid[0], shared_bytes))
                out = next(out for out in outs if len(out) == grid[0] and out.data_ptr() == values[0].value)
                for i in range(grid[0]):
                    out[i] = ideal_gpu.torch.tensor([9, i, 1000 * len(launched) + i, 5000 + 1000 * len(launched) + i])

            return launch

    outs = []

    def plan(family, params, target):
        found = own_plan(family, params, placement.own.Target(ideal_gpu.torch.device("cpu"), target.sms))
        outs.append(found.args[0])
        return found

    own_plan = placement.own.plan
    monkeypatch.setattr(placement.own, "plan", plan)
    monkeypatch.setattr(placement.nvrtc, "Kernel", Spin)
    monkeypatch.setattr(ideal_gpu.torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9, minor=0))
    monkeypatch.setattr(ideal_gpu.torch.cuda, "synchronize", lambda _: None)
    lane = SimpleNamespace
    case = placement.Case(
        "x", 3, "blocks", placement._spin(256, 2, ballast=1024), placement._spin(1024, 1),
        lambda lanes: (lane(handle=7, sms=40), lane(handle=8, sms=92)),
    )  # fmt: skip
    line = placement.record(SimpleNamespace(device=0), None, case)
    assert launched == [(8, 1, 0), (7, 2, 1024), (7, 2, 1024), (8, 1, 0)]
    assert line == {
        "experiment": "x",
        "x": 3,
        "unit": "blocks",
        "a_sms": 40,
        "a_blocks": {"sm": [0, 1], "begin_ns": [0, 1], "end_ns": [5000, 5001]},
        "b_sms": 92,
        "b_blocks": {"sm": [0], "begin_ns": [1000], "end_ns": [6000]},
    }


# What is found


def test_an_ideal_gpu_does_what_is_expected(ideal):
    """Fault: an expectation that the cases themselves cannot meet."""
    found = findings(ideal)
    assert {f.name: [c for c in f.checks if not c.holds] for f in found if not f.holds} == {}
    assert {case.experiment for case in physics.cases()} | {"gpu"} == {line["experiment"] for line in ideal}
    assert len({f.name for f in found}) == len(found) == 18


def times(a, b, lead=0, alone=100, **more):
    spreads = {"a_alone": alone, "b_alone": alone, "a": a, "b": b}
    return {f"{name}_ns": {"median_ns": ns} for name, ns in spreads.items()} | {"lead_ns": lead} | more


def test_a_kernel_that_waits_counts_whether_or_not_it_has_started():
    """Fault: two kernels one after the other taken for two side by side, by their durations."""
    assert of_pairs.both(times(100, 200, lead=0)) == 2
    assert of_pairs.both(times(100, 100, lead=100)) == 2
    assert of_pairs.both(times(100, 100, lead=-100)) == 2
    assert of_pairs.both(times(100, 98, lead=2)) == 1


def test_a_cliff_has_a_start_a_peak_and_an_end():
    """Fault: an edge on the wrong side of the peak, or one that is made up where the sweep is too short."""
    rise = [(1, 1.0), (2, 1.1), (3, 1.5), (4, 2.0), (5, 1.6), (6, 1.1), (7, 1.0)]
    assert of_pairs.cliff(rise) == of_pairs.Cliff(2, 4, 6, 3)
    cut = of_pairs.cliff(rise[:5])
    assert (cut.start, cut.peak, cut.inside) == (2, 4, 0)
    assert math.isnan(cut.end)
    assert not Check("end", cut.end).holds


def a_block(sm, begin, end):
    return of_blocks.Block(sm, begin, end)


def columns(*rows):
    return {"sm": [r[0] for r in rows], "begin_ns": [r[1] for r in rows], "end_ns": [r[2] for r in rows]}


def test_blocks_beside_one_another_are_on_one_sm_at_one_time():
    """Fault: a block that follows another there counted as beside it."""
    line = {
        "a_blocks": columns((0, 0, 100), (1, 0, 100)),
        "b_blocks": columns((0, 50, 200), (1, 100, 200), (2, 50, 200)),
    }
    assert of_blocks.beside(line) == 1


def test_most_blocks_at_once():
    """Fault: a block counted with the one that takes its place."""
    assert of_blocks.at_once([a_block(0, 0, 10), a_block(0, 0, 20), a_block(0, 10, 30), a_block(1, 0, 9)]) == 2


def test_waits_are_from_an_end_on_the_same_sm():
    """Fault: an end on another SM, or a later one, taken for what made room."""
    line = {
        "a_blocks": columns((0, 0, 10_000), (0, 0, 90_000), (1, 0, 40_000)),
        "b_blocks": columns((0, 10_500, 0), (1, 60_000, 0), (1, 20_000, 0)),
    }
    first, second, none = of_blocks.waits(line)
    assert (first, second) == (500, 20_000)
    assert math.isnan(none)


@pytest.mark.parametrize(("small", "expected"), [(66, 0), (264, 0), (396, 66), (792, 264)])
def test_most_room_fills_empty_sms_first(small, expected):
    """Fault: blocks dealt out evenly."""
    assert of_blocks.by_most_room(small, 66, 132, 4, 8) == expected


def changed(line, **fields):
    return {**line, **fields}


def late(line, by):
    """B's blocks so much later."""
    b = line["b_blocks"]
    moved = {name: [t + by for t in b[name]] for name in ("begin_ns", "end_ns")}
    return changed(line, b_blocks=b | moved)


def on(line, sms):
    """B's blocks on these SMs, in turn."""
    b = line["b_blocks"]
    return changed(line, b_blocks=b | {"sm": [sms[i % len(sms)] for i in range(len(b["sm"]))]})


def slower(line, factor):
    return changed(line, **{f"{who}_ns": {"median_ns": line[f"{who}_ns"]["median_ns"] * factor} for who in "ab"})


WRONG = {
    "waves": lambda line: late(line, -200_000),
    "room": lambda line: on(line, range(132)),
    "room-high": lambda line: on(line, range(132)),
    "limits": lambda line: changed(line, a_blocks=line["a_blocks"] | {"sm": [0] * len(line["a_blocks"]["sm"])}),
    "carveout": lambda line: on(late(line, -5000), range(132)),
    "carveout-alike": lambda line: late(line, 400_000),
    "release": lambda line: late(line, 50_000),
    "priority": lambda line: late(line, 150_000),
    "disjoint": lambda line: on(line, range(132)),
    "blocks": lambda line: slower(line, 1.1),
    "hbm": lambda line: slower(line, 1.3),
    "hbm-latency": lambda line: slower(line, 1.3),
    "fp32": lambda line: slower(line, 1.2),
    "fp64": lambda line: slower(line, 1.2),
    "l2": lambda line: changed(line, a_ns=line["a_alone_ns"], b_ns=line["b_alone_ns"]),
    "l1": lambda line: changed(line, a_ns=line["a_alone_ns"], b_ns=line["b_alone_ns"]),
    "fdtd": lambda line: changed(line, a_ns={"median_ns": line["a_alone_ns"]["median_ns"] * (1 + line["x"] / 100)}),
}
SHOWN_BY = {"carveout-alike": "carveout"}


@pytest.mark.parametrize("experiment", WRONG)
def test_hardware_that_does_otherwise_is_seen(ideal, experiment):
    """Fault: a verdict that any data passes."""
    other = [WRONG[experiment](line) if line["experiment"] == experiment else line for line in ideal]
    broken = {f.name for f in findings(other) if not f.holds}
    name = SHOWN_BY.get(experiment, experiment)
    assert name in broken
    assert all(b.startswith(name) for b in broken), "and nothing else is"


def test_a_bandwidth_that_falls_with_the_slowdown_is_seen(ideal):
    """Fault: Figure 3's second half taken for granted."""
    other = [
        changed(line, b_alone_ns={"median_ns": 1000 + line["x"]}) if line["experiment"] == "fdtd" else line
        for line in ideal
    ]
    assert {f.name for f in findings(other) if not f.holds} == {"fdtd-bandwidth"}


# What is written


@pytest.fixture(scope="session")
def written(ideal, tmp_path_factory):
    pytest.importorskip("matplotlib", reason="NO MATPLOTLIB HERE: pip install matplotlib")
    folder = tmp_path_factory.mktemp("h200")
    files.write(folder / "physics.jsonl", "mosaic-physics", HEAD, ideal)
    return folder, plots.write(folder)


def test_every_finding_is_plotted_with_its_data(written):
    """Fault: a plot that lacks a series, or a text that lacks a number."""
    folder, found = written
    text = (folder / "physics.md").read_text()
    assert f"{len(found)} of {len(found)} findings are as expected" in text
    for finding in found:
        assert f"## {finding.title}\n" in text
        assert f"(plots/{finding.name}.svg)" in text
        drawn = "".join(ET.parse(folder / "plots" / f"{finding.name}.svg").getroot().itertext())
        assert all(label in drawn for label in (finding.title, finding.x, finding.y, *finding.series))
    assert {path.stem for path in (folder / "plots").iterdir()} == {finding.name for finding in found}
    assert "| blocks of each | found | expected |\n| --- | --- | --- |\n| 66 | 1.004 | 1 |\n" in text
    assert "| two of 264 blocks | 2.004 | 1.97 to 2.03 | yes |" in text


def test_the_same_data_makes_the_same_files(written):
    """Fault: a date or a random id, and with it a change of every plot at every run."""
    folder, _ = written
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    plots.write(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_what_is_not_as_expected_is_said(written, tmp_path, ideal, capsys):
    """Fault: a failed check that reads like the others."""
    other = [WRONG["hbm"](line) if line["experiment"] == "hbm" else line for line in ideal]
    files.write(tmp_path / "physics.jsonl", "mosaic-physics", HEAD, other)
    assert plots.main([str(tmp_path)]) == 0
    assert "hbm: largest distance from the expected ratio: found 0.3, expected 0 to 0.15" in capsys.readouterr().out
    text = (tmp_path / "physics.md").read_text()
    assert "| largest distance from the expected ratio | 0.3 | 0 to 0.15 | **no** |" in text
    assert "17 of 18 findings" in text


def test_data_or_matplotlib_that_is_missing_is_named(tmp_path, monkeypatch):
    """Fault: a traceback where something has to be measured or installed."""
    with pytest.raises(MosaicError, match=r"physics\.jsonl is not there: .*--steps physics"):
        plots.write(tmp_path)
    importing = builtins.__import__

    def without(name, *rest):
        if name == "matplotlib":
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MosaicError, match=r"pip install 'mosaic-torch\[docs\]'"):
        plots.plot(Finding("n", "t", "", "x", "y", {}, []), tmp_path / "n.svg")


def test_a_file_without_an_experiment_is_named():
    """Fault: a KeyError, since a case of the experiment was left out."""
    lines = [line for line in ideal_gpu.lines() if line["experiment"] != "hbm"]
    with pytest.raises(MosaicError, match=r"physics.jsonl lacks a part of an experiment \(KeyError\('hbm'\)\)"):
        findings(lines)


# The data set of the H200


# What the H200 does not do as it was expected to, before it was measured; physics.md has the numbers.
MISSED = {
    "hbm": "just over the peak two kernels move less together than one alone",
    "hbm-latency": "they slow each other down before the peak is reached",
    "fp32": "two of eight chains take less than twice as long",
    "fp64": "the kernel that came first keeps its rate, and the other waits",
    "fdtd": "slowest beside as much writing as reading, not beside reading",
}


def missed(name):
    """A name that is expected to fail; it has to."""
    reason = MISSED.get(name)
    return (
        pytest.param(name, marks=pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
        if reason
        else name
    )


def test_recorded_spins_run_side_by_side_up_to_132_blocks(recorded):
    """Two of 132 blocks: 1.00 +- 0.03; two of 264: 2.00 +- 0.03."""
    at = dict(recorded["blocks"].series["found"])
    assert at[132] == pytest.approx(1.0, abs=0.03)
    assert at[264] == pytest.approx(2.0, abs=0.03)


@pytest.mark.xfail(reason=MISSED["hbm"], raises=AssertionError, strict=True)
def test_recorded_copies_share_the_memory(recorded):
    """s = max(1, sum of demands / peak)."""
    for who in "AB":
        for demand, s in recorded["hbm"].series[who]:
            assert s == pytest.approx(max(1, demand), rel=0.15), f"{who} at {demand}"


@pytest.mark.parametrize("dtype", [*map(missed, ["fp32", "fp64"])])
def test_recorded_chains_go_from_free_to_serialised(recorded, dtype):
    for who in "AB":
        at = dict(recorded[dtype].series[who])
        assert at[1] == pytest.approx(1, abs=0.05)
        assert at[8] == pytest.approx(2, abs=0.1)


# Findings of `findings`, by name: what the ideal GPU shows too.
NAMES = (
    *("waves", "room", "room-high", "limits", "carveout", "release", "release-packing", "priority", "disjoint"),
    *("blocks", "hbm", "hbm-latency", "fp32", "fp64", "l2", "l1", "fdtd", "fdtd-bandwidth"),
)


@pytest.mark.parametrize("name", [*map(missed, NAMES)])
def test_recorded_findings_hold(recorded, name):
    """Capacity cliffs, placement, release, priority, partitions and Figure 3: every check of each."""
    assert [dataclasses.astuple(check) for check in recorded[name].checks if not check.holds] == []


def test_no_recorded_finding_is_left_out(recorded):
    assert set(recorded) == set(NAMES)
