"""The harness's figures: arrivals, quantiles, loops, plans, summaries, records. No process is started."""

import gzip
import math

import pytest

import bench_support

bench_support.package()

from mosaic_bench import (  # noqa: E402
    arrivals,
    block,
    budget,
    loops,
    overhead,
    plan,
    quantiles,
    records,
    report,
    stats_view,
    summary,
)


@pytest.fixture
def words(tmp_path):
    return block.Block(tmp_path / "block", create=True)


# Quantiles


@pytest.mark.parametrize(("n", "index"), [(1, 0), (60, 59), (100, 99), (101, 99), (1000, 990)])
def test_p99_is_element_floor_of_099n_and_the_maximum_up_to_100(n, index):
    """Guards against interpolating quantiles, which would not compare with earlier records."""
    assert quantiles.quantile(list(reversed(range(n))), 0.99) == index


def test_no_samples_have_no_quantile():
    with pytest.raises(ValueError, match="no samples"):
        quantiles.quantile([], 0.5)


def test_iterations_count_by_the_part_inside_the_window():
    """Guards against counting whole iterations: a BE with three a second would be off by a third."""
    assert quantiles.iterations_in(0, [100, 200, 300], (50, 250)) == pytest.approx(0.5 + 1 + 0.5)
    assert quantiles.iterations_in(0, [1000], (200, 300)) == pytest.approx(0.1)
    assert quantiles.iterations_in(0, [10, 20], (100, 200)) == 0


# Arrivals


def test_arrivals_are_a_function_of_the_seed():
    """Guards against baseline and candidate meeting different arrivals."""
    assert arrivals.offsets_ns(64, 1, 7, 100) == arrivals.offsets_ns(64, 1, 7, 100)
    assert arrivals.offsets_ns(64, 1, 7, 100) != arrivals.offsets_ns(64, 1, 8, 100)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gaps_have_the_given_rate_and_variation(cv):
    offsets = arrivals.offsets_ns(50, cv, 3, 40_000)
    gaps = [(b - a) / 1e9 for a, b in zip([0, *offsets], offsets, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert deviation / mean == pytest.approx(cv, rel=0.1)


def test_chunks_are_the_same_arrivals_cut_up():
    """Guards against a chunk that repeats, drops or shifts arrivals of the whole."""
    whole = arrivals.offsets_ns(64, 1, 1, 101)
    joined, base = [], 0
    for index in range(3):
        part = arrivals.chunk_ns(64, 1, 1, 101, 3, index)
        joined += [base + offset for offset in part]
        base = joined[-1]
    assert joined == whole


@pytest.mark.parametrize("text", ["open", "poisson", "poisson0", "gamma0.5", "gamma0.5x-1", "poissonx"])
def test_a_load_that_is_not_understood_is_refused_by_name(text):
    with pytest.raises(ValueError, match="load"):
        arrivals.parse(text)


def test_loads_that_are_understood():
    assert arrivals.parse("closed") == ("closed", None, None)
    assert arrivals.parse("poisson0.5") == ("poisson", 0.5, 1.0)
    assert arrivals.parse("gamma0.5x4") == ("gamma", 0.5, 4.0)


# Loops


class Requests:
    """Request contexts that keep a diary."""

    def __init__(self):
        self.diary = []
        self.open = 0

    def __call__(self, arrived_at_s):
        outer = self

        class Request:
            opened = False

            def open(self):
                self.opened = True
                outer.open += 1
                outer.diary.append("open ahead")

            def close(self):
                outer.open -= 1

            def __enter__(self):
                if not self.opened:
                    outer.open += 1
                outer.diary.append("enter")

            def __exit__(self, *_):
                outer.open -= 1
                outer.diary.append("exit")

        return Request()


def sleeper(ms):
    import time

    return lambda: time.sleep(ms / 1e3)


def test_latency_counts_from_the_intended_arrival(words):
    """Guards against forgiving a late start: three requests at once must wait for each other."""
    run = loops.run_hp(sleeper(20), None, lambda: None, [0, 0, 0], words)
    latencies = summary.latencies_ms(run)
    assert [round(ms / 20) for ms in latencies] == [1, 2, 3]
    assert all(19 < ms < 35 for ms in summary.services_ms(run))


def test_an_open_loop_waits_for_its_arrivals(words):
    run = loops.run_hp(lambda: None, None, lambda: None, [30_000_000, 60_000_000], words)
    assert run["start"][0] >= 30_000_000
    assert run["start"][1] >= 60_000_000
    assert all(ms < 20 for ms in summary.latencies_ms(run))


def test_a_waiting_request_is_open_before_the_one_before_it_ends(words):
    """Guards against a gap in which BE would be let in while a request is waiting."""
    requests = Requests()
    loops.run_hp(sleeper(5), requests, lambda: None, [0, 0, 500_000_000], words)
    assert requests.diary == ["enter", "open ahead", "exit", "enter", "exit", "enter", "exit"]
    assert requests.open == 0


def test_a_closed_loop_opens_nothing_ahead(words):
    requests = Requests()
    run = loops.run_hp(lambda: None, requests, lambda: None, 3, words)
    assert requests.diary == ["enter", "exit"] * 3
    assert run["arrival"] == run["start"]


def test_a_failing_request_leaves_none_open(words):
    """Guards against a dead segment that holds every BE for good."""
    requests = Requests()
    calls = iter([5, 5])

    def call():
        sleeper(next(calls))()

    with pytest.raises(StopIteration):
        loops.run_hp(call, requests, lambda: None, [0] * 4, words)
    assert requests.open == 0


def test_an_overloaded_segment_ends_early_and_says_so(words):
    """Guards against spending scarce time on a queue that only grows."""
    requests = Requests()
    run = loops.run_hp(sleeper(10), requests, lambda: None, [0] * 50, words, overload_ns=35_000_000)
    assert run["overloaded"]
    assert 3 <= len(run["end"]) < 10
    assert requests.open == 0
    assert summary.is_overloaded([run])


def test_stop_ends_an_hp_segment(words):
    words.set("hp_stop", 1)
    assert loops.run_hp(lambda: None, None, lambda: None, 100, words)["end"] == []


def test_be_runs_for_its_time_and_until_stopped(words):
    run = loops.run_be(sleeper(5), lambda: None, words, seconds=0.05)
    assert 3 <= len(run["done"]) <= 11
    assert words.get("be_iterations") == len(run["done"])
    words.set("be_stop", 1)
    assert loops.run_be(sleeper(5), lambda: None, words)["done"] == []
    assert words.get("be_running") == 0


# Plans


def options(**changes):
    base = {
        "bes": ["a", "b", "c"],
        "loads": ["poisson0.5", "closed"],
        "seeds": 3,
        "variants": ["isolated", "isolated-again", "no-op", "idle-only", "streams", "priority"],
        "placement": "threads",
        "requests": {"closed": 500, "poisson": 1000},
        "chunks": 2,
        "hp_ms": 7.8,
    }
    return base | changes


def groups(segments):
    return {segment.group for segment in segments}


def test_every_candidate_alternates_with_its_baseline():
    """Guards against a baseline measured minutes apart from what is held against it."""
    full = plan.bound_plan(**options())
    order = [(s.load, s.seed, s.chunk, s.variant) for s in full if s.variant != "be-idle"]
    rounds = list(dict.fromkeys(entry[:3] for entry in order))
    assert [entry[:3] for entry in order] == sorted((entry[:3] for entry in order), key=rounds.index)
    for key in rounds:
        assert next(entry[3] for entry in order if entry[:3] == key) == "isolated"


def test_later_seeds_have_baseline_and_idle_only():
    full = plan.bound_plan(**options())
    assert {s.variant for s in full if s.seed > 0} == {"isolated", "idle-only"}
    assert {s.seed for s in full if s.variant == "idle-only"} == {0, 1, 2}
    for load, count in (("poisson0.5", 1000), ("closed", 500)):
        assert {s.requests for s in full if s.load == load} == {count}


def test_a_short_budget_drops_seeds_first_then_rivals_never_the_core():
    full = plan.bound_plan(**options())
    whole = sum(s.seconds for s in full)
    kept, out = plan.fit(full, whole)
    assert not out
    kept, out = plan.fit(full, whole - 1)
    assert {(s.variant, s.load) for s in out} <= {("no-op", "poisson0.5"), ("isolated-again", "poisson0.5")}
    kept, out = plan.fit(full, whole - 60)
    first_out = {(s.load, s.seed) for s in out if s.variant not in ("no-op", "isolated-again")}
    assert first_out == {("closed", 1), ("closed", 2)}
    kept, out = plan.fit(full, 0)
    assert {s.variant for s in kept} == {"isolated", "idle-only", "be-idle"}
    assert {s.seed for s in kept} == {0}
    assert len(kept) + len(out) == len(full)


@pytest.mark.parametrize("seconds", range(0, 460, 20))
def test_whatever_is_kept_has_its_baseline_and_all_its_chunks(seconds):
    """Guards against half a comparison, which would be time spent for nothing."""
    full = plan.bound_plan(**options())
    kept, out = plan.fit(full, seconds)
    baselines = {(s.load, s.seed) for s in kept if s.variant == "isolated"}
    assert {(s.load, s.seed) for s in kept if s.variant != "be-idle"} == baselines
    assert not groups(kept) & groups(out)
    assert [s for s in full if s in kept] == kept


def test_rivals_may_run_fewer_chunks_than_their_baseline():
    rivals = [s for s in plan.bound_plan(**options(), rival_chunks=1) if s.variant in ("streams", "priority")]
    assert rivals
    assert {s.chunk for s in rivals} == {0}
    assert {s.chunks for s in rivals} == {2}


def test_chunks_are_never_empty():
    full = plan.bound_plan(**options(requests={"closed": 1, "poisson": 3}))
    assert all(s.chunks <= s.requests for s in full if s.variant != "be-idle")


# Summaries


def run_of(latencies_ms, gap_ms=10.0, overloaded=False):
    """Requests ``gap_ms`` apart that take so long."""
    arrival = [round(i * gap_ms * 1e6) for i in range(len(latencies_ms))]
    end = [a + round(ms * 1e6) for a, ms in zip(arrival, latencies_ms, strict=True)]
    return {"base": 10**12, "arrival": arrival, "start": arrival, "end": end, "overloaded": overloaded}


def item(variant, run, be=None, be_run=None, chunk=0, run_id="r1", **more):
    found = {"run": run_id, "placement": "threads", "hp": "h", "variant": variant, "be": be, "load": "poisson0.5"}
    return found | {"seed": 0, "chunk": chunk, "chunks": 2, "hp_run": run, "be_run": be_run, "stalls": []} | more


def idle_item(be="b", per_s=100.0):
    done = [round((i + 1) / per_s * 1e9) for i in range(50)]
    found = {"run": "r1", "placement": "threads", "hp": "h", "variant": "be-idle", "be": be, "load": "none"}
    return found | {"seed": 0, "chunk": 0, "chunks": 2, "be_run": {"base": 0, "done": done}}


def values(rows, variant):
    return {row.metric: row.value for row in rows if row.variant == variant}


def test_ratios_are_over_the_isolated_run_of_the_same_arrivals():
    items = [
        item("isolated", run_of([1.0] * 99 + [4.0])),
        item("isolated", run_of([3.0] * 100), chunk=1),
        # Only chunk 0 of the candidate was measured: chunk 1 of the baseline must not count.
        item("idle-only", run_of([2.0] * 99 + [5.0]), be="b"),
    ]
    found = values(summary.bound_rows(items), "idle-only")
    assert found["hp_p50_ratio"] == pytest.approx(2.0)
    assert found["hp_p99_ratio"] == pytest.approx(5.0 / 4.0)
    assert found["hp_mean_ratio"] == pytest.approx(2.03 / 1.03)
    assert found["requests"] == 100


def test_be_fraction_counts_only_while_hp_is_loaded():
    """Guards against counting BE's free time before HP's first and after its last request."""
    run = run_of([1.0] * 100)  # 0 to 991 ms
    # One iteration every 20 ms, from 300 ms before to 2,000 ms after.
    done = [round(i * 20e6) for i in range(1, 160)]
    be_run = {"base": run["base"] - 300_000_000, "done": done}
    gate = {"held": 5, "escaped": 0, "admitted_hp_stalled": 1, "admitted_wait_bound": 2}
    items = [idle_item(), item("isolated", run), item("idle-only", run, be="b", be_run=be_run, gate=gate)]
    found = values(summary.bound_rows(items), "idle-only")
    assert found["be_per_s"] == pytest.approx(50.0, rel=1e-3)
    assert found["be_idle_per_s"] == pytest.approx(100.0)
    assert found["be_fraction"] == pytest.approx(0.5, rel=1e-3)
    assert found["be_of_hp_idle"] == pytest.approx(0.5 / (1 - 100 / 991), rel=1e-3)  # HP is at work 100 of 991 ms
    assert (found["be_held"], found["be_admitted_wait_bound"]) == (5, 2)


def test_requests_that_their_own_cpu_makes_late_are_counted():
    """Guards against a slow host that is taken for interference on the GPU."""
    isolated = run_of([10.0] * 4) | {"submit_cpu": [4_000_000] * 4}
    beside = run_of([10.0, 10.0, 16.0, 17.0]) | {"submit_cpu": [4_000_000, 5_000_000, 6_000_000, 16_000_000]}
    rows = summary.bound_rows([item("isolated", isolated), item("idle-only", beside, "b")])
    assert values(rows, "idle-only")["host_bound"] == 1, "of the two late ones, one launched as fast as ever"
    assert values(rows, "isolated")["host_bound"] == 0
    assert values(rows, "idle-only")["hp_launch_cpu_p99_ms"] == 16.0


def test_without_a_baseline_there_is_no_ratio():
    assert "hp_p99_ratio" not in values(summary.bound_rows([item("idle-only", run_of([1.0]), be="b")]), "idle-only")


def test_never_idle_is_overloaded():
    assert summary.is_overloaded([run_of([10.0] * 50)])
    assert not summary.is_overloaded([run_of([5.0] * 50)])


def test_a_later_run_replaces_rows_of_an_earlier_one():
    items = [item("isolated", run_of([1.0] * 10)), item("isolated", run_of([2.0] * 10), run_id="r2")]
    rows = summary.bound_rows(items)
    assert values(rows, "isolated")["hp_p50_ms"] == 2.0
    assert len({row.key for row in rows}) == len(rows)


def test_a_stall_is_named_with_what_overlapped_it():
    run = run_of([5.0, 150.0, 5.0], gap_ms=200.0)
    lo = run["base"] + run["start"][1]
    events = [("free cuMemFree", lo - 5_000_000, lo + 1_000_000), ("alloc", lo - 9_000_000, lo - 1)]
    (found,) = summary.stalls(run, 100, events)
    assert found["service_ms"] == 150.0
    assert found["during"] == [["free cuMemFree", -5.0, 6.0]]


def test_requests_in_turn_are_compared_pair_by_pair():
    """Guards against a host that slows down half-way and shows as the hook's cost."""
    times = {"unregistered": [100, 100, 200, 200], "on": [101, 101, 202, 202]}
    found = {row.metric: row.value for row in overhead.in_turn_rows({"w": times})}
    assert found["hp_p50_ratio_median_of_pairs"] == pytest.approx(1.01)
    assert found["hp_p99_ratio"] == pytest.approx(1.01)


def test_stats_are_read_under_the_names_that_the_hook_gives():
    stats = {
        "jobs": [
            {"name": "m", "kernels": 7, "hp": {"isolated": {"p50_ns": 5}, "calibrating": False}},
            {"name": "m", "kernels": 2, "hp": {"isolated": None}},
            {"name": "b", "kernels": 9, "be": {"escaped": 3, "held": 4}},
        ],
        "stalls": [{"kind": "alloc", "call": "cuMemAlloc_v2", "at_ns": 10, "duration_ns": 5}],
    }
    assert stats_view.kernels_seen(stats, "m") == 9
    assert stats_view.escapes(stats) == 3
    assert stats_view.calibrated(stats, "m")
    assert not stats_view.calibrated(stats, "b")
    assert stats_view.timed_events(stats) == [("alloc cuMemAlloc_v2", 10, 15)]


def test_the_table_says_where_the_bound_is_missed():
    items = [idle_item(), item("isolated", run_of([1.0] * 200)), item("idle-only", run_of([1.2] * 200), be="b")]
    table = report.bound(summary.bound_rows(items))
    assert "p99 MISSES 1.05" in table
    assert "1.200" in table


# Records


def row(case, value, variant="v"):
    return records.Row("bound", case, variant, "m", value, "ratio", 3)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    rows = [row("hp=x be=y, z", 1.25), row("other", 3.0)]
    records.write_csv(tmp_path / "r.csv", rows)
    assert records.read_csv(tmp_path / "r.csv") == rows
    assert (tmp_path / "r.csv").read_text().splitlines()[0] == "topic,case,variant,metric,value,unit,n"


def test_a_foreign_csv_is_refused_with_both_headers(tmp_path):
    (tmp_path / "r.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="found columns a,b, expected topic,case"):
        records.read_csv(tmp_path / "r.csv")


def test_a_second_command_of_a_day_keeps_the_rows_of_the_first(tmp_path):
    """Guards against one placement's command wiping out another's."""
    first = records.Record(tmp_path, "bound", date="2026-01-01")
    first.write_rows([row("a", 1.0), row("b", 2.0)])
    first.write_text("first")
    second = records.Record(tmp_path, "bound", date="2026-01-01")
    for value in (7.0, 8.0):  # written again after each segment
        second.write_rows([row("b", value), row("c", 3.0)])
        second.write_text("second")
    assert [(r.case, r.value) for r in records.read_csv(second.csv_path)] == [("a", 1.0), ("b", 8.0), ("c", 3.0)]
    assert second.text_path.read_text().split() == ["first", "second"]


def test_a_raw_file_that_was_cut_off_keeps_its_whole_segments(tmp_path):
    """Guards against losing an hour's segments to one kill at the wrong moment."""
    raw = records.RawFile(tmp_path / "r.gz")
    for index in range(3):
        raw.append({"segment": index, "text": "x" * 1000})
    whole = raw.path.read_bytes()
    raw.path.write_bytes(whole[:-10])
    assert [entry["segment"] for entry in raw.read()][:2] == [0, 1]
    assert gzip.decompress(whole).count(b"\n") == 3


def test_a_budget_ends_before_its_limit():
    now = [100.0]
    limited = budget.Budget(60, clock=lambda: now[0])
    assert limited.left() == 60 - budget.Budget.RESERVE_S
    now[0] += 50
    assert limited.fits(1.5)
    assert not limited.fits(3)
    assert limited.timeout(100) <= 60 - 50
    assert budget.Budget().fits(1e9)
