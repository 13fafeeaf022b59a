"""The report of a data set: what is counted, and what counts as repeated."""

import json

import pytest

import ideal_gpu
from mosaic_torch.profiling import files, report


def a_pair(a, mode, times, noisy=False):
    names = ("a_alone_ns", "b_alone_ns", "a_ns", "b_ns")
    spreads = {name: {"median_ns": t, "p10_ns": t, "p90_ns": t, "n": 7} for name, t in zip(names, times, strict=True)}
    return {"a": a, "b": "zoo:b", "mode": mode, "a_sms": 132, "b_sms": 132, **spreads, "noisy": noisy}


@pytest.fixture
def folder(tmp_path):
    kernels = [{"key": "zoo:a", "symbol": "_Za", "metrics": {}}, {"key": "zoo:b", "symbol": "_Zb"}]
    files.write(tmp_path / "kernels.jsonl", "mosaic-kernels", {"gpu": "g"}, kernels)
    net = [{"key": "net:1.0", "symbol": "", "metrics": {}}, {"key": "net:2.0", "symbol": "_Zc"}]
    launches = [{"kernel": 0}, {"kernel": 0}, {"kernel": 0}, {"kernel": 1}]
    files.write(tmp_path / "workloads" / "net.jsonl.gz", "mosaic-workload", {"gpu": "g"}, net + launches)
    pairs = [
        a_pair("zoo:a", "full-equal", [100_000, 5_000, 100_000, 5_000]),
        a_pair("zoo:c", "full-equal", [100_000, 5_000, 100_000, 5_000], noisy=True),
        a_pair("zoo:a", "confined", [20_000, 20_000, 20_000, 20_000]),
    ]
    files.write(tmp_path / "pairs-x.jsonl", "mosaic-pairs", {"gpu": "g"}, pairs)
    return tmp_path


def values(rows, variant):
    return {row.metric: row.value for row in rows if row.variant == variant}


def test_a_data_set_is_counted(folder):
    """Fault: a launch whose kernel has no counters counted as joined, or one mode's pairs under another's name."""
    rows = report.rows(folder)
    assert values(rows, "all") == {
        "zoo_kernels": 2,
        "zoo_kernels_with_counters": 1,
        "workload_kernels": 2,
        "workload_kernels_with_counters": 1,
        "pairs_full_equal": 2,
        "pairs_full_hp_high_running": 0,
        "pairs_full_hp_high_arriving": 0,
        "pairs_separate": 0,
        "pairs_confined": 1,
        "noisy_fraction": pytest.approx(1 / 3),
        "joined_fraction": 0.75,
    }
    assert values(rows, "net") == {"joined_fraction": 0.75}
    assert report.unjoined(folder) == ["zoo:b (_Zb)", "net:2.0 (_Zc)"]


def test_a_pair_repeats_if_all_its_medians_do(folder):
    """Fault: a short kernel judged by the ratio, a long one by nanoseconds, or another pair's time taken."""
    again = [
        a_pair("zoo:a", "full-equal", [103_000, 6_000, 97_000, 4_000]),
        a_pair("zoo:c", "full-equal", [103_100, 5_000, 100_000, 5_000]),
        a_pair("zoo:a", "confined", [20_000, 20_000, 20_000, 20_700]),
        a_pair("zoo:unknown", "confined", [1, 1, 1, 1]),
    ]
    files.write(folder / "repeat.jsonl", "mosaic-pairs", {"gpu": "g"}, again)
    rows = report.repeats(folder)
    assert values(rows, "all")["pairs"] == 3
    assert values(rows, "all")["within_3pct_fraction"] == pytest.approx(1 / 3)
    assert values(rows, "not noisy")["within_3pct_fraction"] == 0.5
    assert values(rows, "all, confined")["off_p50"] == pytest.approx(0.035)
    assert not report.repeated(again[0], a_pair("zoo:a", "full-equal", [103_000, 7_001, 97_000, 4_000]))


def test_the_record_is_what_is_printed(folder, tmp_path, capsys):
    """Fault: a record that lacks what the command has shown."""
    report.main([str(folder), "--record", str(tmp_path / "record")])
    printed = capsys.readouterr().out
    (text,) = (tmp_path / "record").glob("*-dataset.txt")
    assert printed.strip() in text.read_text()
    assert "no counters: net:2.0 (_Zc)" in printed
    assert not list((tmp_path / "record").glob("*-repeatability.csv"))
    head = json.loads((folder / "kernels.jsonl").read_text().splitlines()[0])
    assert f"gpu: {head['gpu']}" in text.read_text()


def test_every_point_of_an_experiment_is_in_the_record(tmp_path):
    """Fault: the expected values are recorded as measured ones, or a finding that does not hold as one that does."""
    assert report.physics(tmp_path) == []
    files.write(tmp_path / "physics.jsonl", "mosaic-physics", {}, ideal_gpu.lines())
    rows = {(row.case, row.variant): row for row in report.physics(tmp_path)}
    assert all(row.value for (_, variant), row in rows.items() if variant == "all checks")
    spins = rows["blocks", "found at 264"]
    assert (spins.metric, spins.unit) == ("ratio", "both, over one alone")
    assert spins.value == pytest.approx(2, abs=0.01)
    assert not any(variant.startswith("expected") for _, variant in rows)
