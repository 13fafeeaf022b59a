"""Profiling without a GPU: statistics, timelines, the rig's bookkeeping, plans, joins and refusals."""

import dataclasses
import gzip
import itertools
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fakes import FakeGpu, FakeLibrary
from mosaic_torch.errors import MosaicError, UsageError
from mosaic_torch.profiling import clocks, counters, dataset, files, kernels, pairs, profiler, rig, workload
from mosaic_torch.profiling.kernels import Kernel, longest, measure_alone, zoo_kernels
from mosaic_torch.profiling.observe import Apart, Launch, Observer
from mosaic_torch.profiling.spread import Spread
from mosaic_torch.profiling.timeline import Span, Timeline, after_prelude, spans_of


def test_a_spread_is_of_the_samples():
    """Fault: a mean, or deciles that lie between samples."""
    assert Spread.of([5, 1, 3]) == Spread(3, 1, 5, 3)
    assert Spread.of(list(range(100, 0, -1))) == Spread(50, 11, 90, 100)
    with pytest.raises(ValueError, match="no samples"):
        Spread.of([])


@pytest.mark.parametrize(
    ("low", "high", "median", "noisy"),
    [(100_000, 111_000, 100_000, True), (100_000, 110_000, 100_000, False), (3_000, 4_900, 4_000, False)],
)
def test_noise_is_by_the_stated_rule(low, high, median, noisy):
    """Fault: a rule other than that of profiles/README.md."""
    assert Spread(median, low, high, 7).noisy is noisy


@dataclass
class Event:
    """What torch's profiler gives."""

    text: str
    stream: int
    start: int
    length: int
    device: object = torch.autograd.DeviceType.CUDA
    annotation: bool = False
    metadata: str = ""

    name = property(lambda self: lambda: self.text)
    device_resource_id = property(lambda self: lambda: self.stream)
    start_ns = property(lambda self: lambda: self.start)
    duration_ns = property(lambda self: lambda: self.length)
    device_type = property(lambda self: lambda: self.device)
    is_user_annotation = property(lambda self: lambda: self.annotation)
    metadata_json = property(lambda self: lambda: self.metadata)


def test_a_timeline_is_what_the_gpu_did():
    """Fault: host calls or annotations taken for kernels, or kernels out of order."""
    events = [
        Event("b", 7, 200, 5),
        Event("a", 7, 100, 10),
        Event("cudaLaunchKernel", 1, 50, 3, torch.autograd.DeviceType.CPU),
        Event("a range", 7, 100, 105, annotation=True),
        Event("Memset (Device)", 7, 150, 1),
    ]
    spans = spans_of(events)
    assert [(s.name, s.start_ns, s.duration_ns, s.is_kernel) for s in spans] == [
        ("a", 100, 10, True),
        ("Memset (Device)", 150, 1, False),
        ("b", 200, 5, True),
    ]


def test_streams_of_two_contexts_are_two():
    """Fault: lanes on two partitions whose streams have one number are taken for one lane."""
    of = ['"device": 0, "context": 3, "stream": 13', '"device": 0, "context": 4, "stream": 13', ""]
    spans = spans_of(Event("k", 13, i, 1, metadata=text) for i, text in enumerate(of))
    assert [span.stream for span in spans] == [(3 << 32) + 13, (4 << 32) + 13, 13]


SLEEP = "void at::cuda::(anonymous namespace)::spin_kernel(long)"
MEET = (SLEEP, 20), ("meet_first", 21), ("meet_second", 22)


def timeline_of(spans):
    timeline = Timeline()
    timeline.spans = sorted(spans, key=lambda span: span.start_ns)
    return timeline


def a_timeline(rounds, pair_count):
    """Gate 20, a 21, b 22. Alone: a takes 100 + round, b 40 + round; together 150 and 70, b 30 later; else 290."""
    spans = [Span(SLEEP, stream, at, at + 1) for at, stream in enumerate((20, 21, 22))]
    at = 1000
    for _ in range(pair_count):
        for i in range(rounds):
            for step in ("warm", "a", "both", "warm", "b"):
                spans.extend(Span(name, stream, at, at + 5) for name, stream in MEET)
                if step == "warm":
                    spans.append(Span("A", 21, at + 10, at + 300))
                elif step == "a":
                    spans.append(Span("A", 21, at + 10, at + 110 + i))
                elif step == "b":
                    spans.append(Span("B", 22, at + 10, at + 50 + i))
                else:
                    spans.append(Span("Memcpy DtoH", 22, at + 10, at + 30))
                    spans.append(Span("A", 21, at + 10, at + 160))
                    spans.append(Span("B", 22, at + 40, at + 110))
                at += 1000
    return timeline_of(spans)


def test_the_rig_tells_alone_from_together():
    """Fault: a kernel alone is taken for one beside another; a sleep is read as a kernel."""
    found = rig.read(a_timeline(3, 2), 3, 2, False)
    assert len(found) == 2
    for together in found:
        assert together.a_alone_ns == [100, 101, 102]
        assert together.b_alone_ns == [40, 41, 42]
        assert (together.a_ns, together.b_ns) == ([150] * 3, [70] * 3)
        assert (together.lead_ns, together.overlap_ns) == ([30] * 3, [70] * 3)
    orders = rig.Order(), rig.Order(b_first=True)
    assert [found[0].record(order)["noisy"] for order in orders] == [False, True]
    swapped = {21: 22, 22: 21}
    spans = [dataclasses.replace(s, stream=swapped.get(s.stream, 20)) for s in a_timeline(3, 2).spans]
    mirrored = timeline_of(spans)
    mirrored.spans[1:3] = mirrored.spans[2:0:-1]
    other = rig.read(mirrored, 3, 2, True)[1]
    assert (other.b_alone_ns, other.a_alone_ns, other.lead_ns) == ([100, 101, 102], [40, 41, 42], [-30] * 3)
    assert found[0].record(rig.Order())["a_ns"] == {"median_ns": 150, "p10_ns": 150, "p90_ns": 150, "n": 3}


def test_a_timeline_that_lacks_a_kernel_is_refused():
    """Fault: durations of one pair taken for another's after a record was lost."""
    timeline = a_timeline(3, 2)
    timeline.spans = [span for span in timeline.spans if span.name != "B"][:-1]
    with pytest.raises(MosaicError, match="found 24 and 0 kernels in the timeline, expected 24 and 12"):
        rig.read(timeline, 3, 2, False)
    with pytest.raises(MosaicError, match="found 0 sleeps"):
        rig.read(timeline_of([]), 3, 2, False)


def test_a_timeline_begins_after_its_prelude():
    """Fault: lost records shift all durations by one kernel; or the sleep of a lane is taken for the prelude's."""
    prelude = [Span(SLEEP, 7, at, at + 1) for at in range(5)]
    lanes = [Span(SLEEP, stream, stream, stream + 1) for stream in (20, 21, 22)]
    for lost in (0, 3):
        assert after_prelude([*prelude[lost:], *lanes], 5) == (lanes, lost)
    assert after_prelude(prelude, 3) == (prelude[3:], 0)
    for spans in ([], lanes, [prelude[4], *lanes]):
        with pytest.raises(MosaicError, match=r"lost the first records of a timeline: found \d of its 5"):
            after_prelude(spans, 5)


NEVER_STUCK = SimpleNamespace(enqueued=lambda *_: None, all_ended=lambda: None)


def a_kernel(key, median_ns):
    return Kernel(key, Launch("kernel", "0" * 16, 0), ["f"], False, {132: Spread(median_ns, median_ns, median_ns, 7)})


def test_pairs_are_distinct_and_mostly_alike():
    """Fault: a pair that is measured twice, or a data set of pairs that do not meet."""
    some = [a_kernel(f"zoo:k{i}", 1000 * 3**i) for i in range(9)]
    chosen = pairs.choose(some, 132, 15, seed=1)
    assert len({(a.key, b.key) for a, b in chosen}) == 15
    assert chosen == pairs.choose(some, 132, 15, seed=1)
    everything = pairs.choose(some, 132, 1000, seed=1)
    assert len(everything) == 9 * 8
    near = sum(1 / 10 < a.isolated[132].median_ns / b.isolated[132].median_ns < 10 for a, b in chosen)
    assert near >= 12


def test_modes_are_enough():
    """Fault: a data set that is thinner than what it has to hold."""
    count = {}
    splits = {}
    for mode, n in pairs.modes():
        count[mode.name] = count.get(mode.name, 0) + n
        splits.setdefault(mode.name, set()).add((mode.a_sms, mode.b_sms))
    assert all(count[mode.name] >= 1500 for mode in pairs.FULL)
    assert sum(count[mode.name] for mode in pairs.FULL) >= 6000
    assert count["separate"] >= 3000
    assert len(splits["separate"]) >= 4
    assert count["confined"] >= 1500
    assert {b for _, b in splits["confined"]} == {8, 16, 32, 64, 96}


def test_who_comes_later_waits_for_its_share():
    """Fault: the arriving kernel is the one that runs."""
    a, b = a_kernel("a", 1000), a_kernel("b", 5000)
    equal, running, arriving = pairs.FULL
    assert equal.order(a, b, 132) == rig.Order(False, 0)
    assert running.order(a, b, 132) == rig.Order(True, 2000)
    assert arriving.order(a, b, 132) == rig.Order(False, 400)
    assert pairs.Mode("separate", a_sms=64).order(a, b, 132) == rig.Order()
    assert pairs.Mode("separate", a_sms=40, b_first=True, later=0.2).order(a, b, 132) == rig.Order(True, 1000)


def test_a_stream_is_held_back_by_copies():
    """Fault: one that is shorter than any copy takes that one's time, one of a millisecond ends early."""
    delay = rig.Delay.__new__(rig.Delay)
    delay._bytes_per_ns, copied = 50.0, []
    delay._copy = copied.append
    delay.hold(None, 6_999)
    assert not copied
    delay.hold(None, 7_000)
    assert copied.pop() == 200_000
    delay.hold(None, 103_000)
    assert copied == [2 << 20, 2 << 20, 5_000_000 - (4 << 20)]


def test_the_longest_of_a_call_stands_for_it():
    """Fault: a split-K reduction measured as the matrix product."""
    launches = [Launch("copy", "1", 0), Launch("kernel", "2", 0, kept=5), Launch("kernel", "3", 0)]
    spans = [Span("Memset (Device)", 7, 0, 50), Span("product", 7, 60, 90), Span("sum", 7, 100, 105)]
    found = longest(launches, timeline_of(spans))
    assert (found.kernel_id, found.kept) == ("2", 5)
    with pytest.raises(MosaicError, match="the hook saw 2 kernels and CUPTI 1"):
        longest(launches, timeline_of(spans[:2]))


def test_kernels_of_one_workload_are_no_pair():
    """Fault: two kernels that count in the same workspace wait for each other for ever."""
    some = [a_kernel(key, 1000) for key in ("zoo:a", "zoo:b", "resnet50:1.0", "resnet50:1.1", "dlrm:1.0")]
    chosen = {(a.key, b.key) for a, b in pairs.choose(some, 132, 100, seed=0)}
    assert chosen == {(a.key, b.key) for a in some for b in some if a.origin != b.origin}
    assert len(chosen) == 25 - 5 - 2


def test_what_a_kept_launch_touches_is_given_to_nobody():
    """Fault: a kept gather whose indices another operator of the call has overwritten."""

    def places():
        return {torch.arange(4096).add_(i).data_ptr() for i in range(8)}

    entered = []

    @contextmanager
    def own_memory():
        entered.append("in")
        yield
        entered.append("out")

    with Apart(own_memory):
        held = places()
    assert len(held) == 8 > len(places())
    operators = len(entered) // 2
    assert operators >= 16
    assert entered == ["in", "out"] * operators  # each of them by itself


def test_an_operator_has_a_pool_and_a_workspace_of_its_own(monkeypatch):
    """Fault: the workspace of cuBLAS, and the counters in it, are those of the operator before."""
    done = []

    @contextmanager
    def use(pool, device):
        done.append(("in", pool, device))
        yield
        done.append(("out", pool, device))

    pools = itertools.count()
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("clear"), raising=False)
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    observer = object.__new__(Observer)
    observer.device, observer._memory, observer._held = 3, [], []
    with observer._apart():
        torch.ones(1).view(1)
    operators = len(observer._held[0])
    assert operators >= 2
    assert observer._memory == list(range(operators))
    assert done == [step for pool in observer._memory for step in ("clear", ("in", pool, 3), ("out", pool, 3))]


def test_pairs_that_are_not_in_the_timeline_are_named(monkeypatch):
    """Fault: one lost record of the profiler ends an hour of measuring."""
    kernels = [(a_kernel(f"a{i}", 1000), a_kernel(f"b{i}", 1000)) for i in range(pairs.BATCH + 1)]
    for kernel in (kernel for pair in kernels for kernel in pair):
        kernel.launch = Launch("kernel", "0" * 16, 0, kept=1)
    each = rig.Together(*([1000] * 7 for _ in range(6)))
    answers = iter([MosaicError("found 3 kernels"), [each]])

    def read(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Takes:
        sms, stream = 132, None

        def refuses(self, kept):
            return ""

    class Quiet:
        a = b = gate = Takes()

        def identify(self):
            pass

        def enqueue(self, *_):
            pass

    class NoTimeline:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(pairs, "read", read)
    monkeypatch.setattr(pairs, "Timeline", NoTimeline)
    said, done = [], []
    lines = list(pairs.measure(Quiet(), pairs.FULL[0], kernels, 132, done.append, said.append, NEVER_STUCK))
    assert [line["a"] for line in lines] == [f"a{pairs.BATCH}"]
    assert said == [f"{pairs.BATCH} pairs are left out: found 3 kernels"]
    assert done == [pairs.BATCH, 1]


def test_a_kernel_that_two_workloads_have_is_counted_once():
    """Fault: counters given to a kernel of the same name and launch that does another amount of work."""

    def kernel(key, median_ns, **counted):
        isolated = [{"sms": 8, "median_ns": 1}, {"sms": 132, "median_ns": median_ns}]
        return {"key": key, "kernel_id": key[-1], "isolated": isolated} | counted

    counted = [kernel("one:x", 10_000, metrics={"ipc": 1.0}, working_set_from="dram-reads")]
    lines = [kernel("two:x", 11_000), kernel("three:x", 30_000), kernel("two:y", 10_000), {"kernel": 0}]
    assert dataset.borrow(lines, counted) == 1
    assert lines[0] == kernel("two:x", 11_000, metrics={"ipc": 1.0}, working_set_from="dram-reads")
    assert not any("metrics" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--steps", "zoo,bake"], "found the step 'bake', expected some of physics, zoo"),
        (["--workloads", "resnet51"], "found the workload 'resnet51', expected some of resnet50, "),
    ],
)
def test_a_step_that_is_not_there_is_named(option, says):
    """Fault: a typing error measures nothing, and says nothing."""
    with pytest.raises(UsageError, match=says):
        dataset.main(option)


class NoGpu:
    """Stands for a timeline, and for a lane that refuses some launches: a kernel takes its number in microseconds."""

    sms, stream = 8, None

    def __init__(self, refused=()):
        self.refused, self.launched = refused, []

    def __enter__(self):
        self.launched.clear()
        return self

    def __exit__(self, *_):
        self.spans = [Span("k", 7, i, i + 1000 * kept) for i, kept in enumerate(self.launched)]

    def fill_and_launch(self, kept):
        if kept in self.refused:
            raise MosaicError("the kept launch failed: too large")
        self.launched.append(kept)

    refuses = rig.Lane.refuses


def test_a_launch_that_is_refused_is_left_out_and_named(monkeypatch):
    """Fault: one kernel that does not fit a partition ends the measuring of all, or shifts the times of the others."""
    lane = NoGpu(refused=[2])
    monkeypatch.setattr(kernels, "Timeline", lambda: lane)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = [Kernel(f"k{i}", Launch("kernel", "0" * 16, 0, kept=i), ["f"], False) for i in (1, 2, 3)]
    assert measure_alone(found, lane, NEVER_STUCK) == ["k2: the kept launch failed: too large"]
    assert [{sms: s.median_ns for sms, s in k.isolated.items()} for k in found] == [{8: 1000}, {}, {8: 3000}]

    def dead():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure_alone(found, lane, NEVER_STUCK)


def test_a_configuration_that_fails_is_left_out_and_named(monkeypatch):
    """Fault: one configuration that cannot be built, and all that were built before it are lost."""

    class Watched:
        device = 0

    def build(config, device):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(kernels.zoo, "build", build)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    said = []
    config = kernels.zoo.configs()[0]
    assert list(zoo_kernels(Watched(), [config], said.append)) == []
    assert said == [f"{config.name} is left out: out of memory"]


def test_launches_of_one_kernel_that_differ_are_apart():
    """Fault: one KernelId with two problem sizes counted as one kernel."""
    work = workload.Workload("m", [Launch("kernel", i, 0) for i in "xyxx"])
    times = [10_000, 500, 30_000, 11_000]
    work.samples = [{132: [t], 64: [2 * t]} for t in times]
    work.durations = [{sms: Spread.of(s) for sms, s in samples.items()} for samples in work.samples]
    work.start_offset_ns = [0, 1, 2, 3]
    workload.classify(work, 132)
    assert [kernel.key for kernel in work.kernels] == ["m:x.0", "m:x.1", "m:y.0"]
    assert work.kernel_of == [0, 2, 1, 0]
    assert work.kernels[0].isolated[64] == Spread.of([20_000, 22_000])
    assert work.lines()[3] == {
        "kernel": 0,
        "start_offset_ns": 0,
        "durations": [[64, *[20_000] * 3], [132, *[10_000] * 3]],
    }


def test_counters_are_taken_at_the_first_launch_of_a_kernel():
    """Fault: the counters of one class of launches given to another of the same KernelId."""
    kernels = [
        {"key": "m:x.0", "kernel_id": "x"},
        {"key": "m:x.1", "kernel_id": "x"},
        {"key": "m:y.0", "kernel_id": "y", "metrics": {}},
    ]
    launches = [{"kernel": k} for k in (1, 2, 1, 0)]
    assert profiler.plan_of(kernels + launches) == [("x", 2, "m:x.0"), ("x", 0, "m:x.1")]


def test_what_two_tools_saw_is_joined_in_order_or_refused():
    """Fault: counters of another launch."""
    ours = [{"key": "a", "symbol": "s", "grid": [1, 1, 1], "block": [32, 1, 1]}]
    theirs = [{"name": "s", "grid": [1, 1, 1], "block": [32, 1, 1], "metrics": {"waves": 1.0}}]
    assert counters.joined(ours, theirs) == [(ours[0], theirs[0])]
    with pytest.raises(counters.CountersError, match="marked 1 launches and ncu profiled 0"):
        counters.joined(ours, [])
    with pytest.raises(counters.CountersError, match=r"launch 0: .* grid \[1, 1, 1\]"):
        counters.joined(ours, [theirs[0] | {"grid": [2, 1, 1]}])


def test_clocks_are_the_lowest_and_the_highest():
    """Fault: nvidia-smi's words taken for numbers."""
    text = "1980, 3201\n1755, 3201\n[N/A], 3201\n"
    assert clocks.clocks_of(text) == {"sm_clock_mhz": [1755, 1980], "memory_clock_mhz": [3201, 3201]}
    assert clocks.clocks_of("") == {}


def test_a_file_is_whole_or_not_there(tmp_path):
    """Fault: half a file after an interruption, or a folder that turns out not to be writable after the measuring."""
    path = tmp_path / "new" / "a.jsonl"
    files.write(path, "mosaic-pairs", {"gpu": "g"}, [{"a": 1}])
    first, lines = files.read(path)
    assert first == {"format": "mosaic-pairs", "version": 1, "gpu": "g", "records": 1}
    assert lines == [{"a": 1}]
    assert [p.name for p in path.parent.iterdir()] == ["a.jsonl"]
    compressed = tmp_path / "a.jsonl.gz"
    files.write(compressed, "mosaic-pairs", {"gpu": "g"}, [{"a": 1}])
    assert files.read(compressed) == (first, lines)
    assert compressed.read_bytes()[:2] == b"\x1f\x8b"
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(MosaicError, match=r"cannot be written: .*--out"):
        files.require_writable(blocked / "b.jsonl")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.jsonl", b'{"records":2}\n{"a":1}\n'),
        ("empty.jsonl", b""),
        ("half.jsonl", b'{"records":1}\n{"a":'),
        ("bytes.jsonl", b"\xff\xfe"),
        ("plain.jsonl.gz", b'{"records":0}\n'),
        ("short.jsonl.gz", gzip.compress(b'{"records":0}\n')[:-9]),
        ("absent.jsonl", None),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, data):
    """Fault: a traceback, or a data set that silently lacks what was cut off."""
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(MosaicError, match=f"{name} cannot be read: .*--show"):
        files.read(path)


def test_ncu_that_is_missing_is_named(monkeypatch, tmp_path):
    """Fault: a FileNotFoundError where the user has to install something."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(counters, "PLACES", (str(tmp_path / "ncu"), str(tmp_path)))
    with pytest.raises(counters.CountersError, match="install it"):
        counters.find_ncu()


@pytest.mark.parametrize(
    ("writes", "status", "says"),
    [("", 9, "wrote no table"), ("==ERROR== no permission", 1, "no permission"), ("{}", 3, "exit status 3 under ncu")],
)
def test_ncu_that_fails_says_why(monkeypatch, tmp_path, writes, status, says):
    """Fault: a profile that silently lacks counters."""
    a_fake_ncu(monkeypatch, tmp_path, writes, status)
    lines = tmp_path / "lines"
    lines.write_text("")
    with pytest.raises(counters.CountersError, match=says) as refused:
        counters.count(FakeLibrary(FakeGpu()), ["-c", "pass"], lines, {}, lambda _: None)
    assert "its last words" in str(refused.value)


def a_fake_ncu(monkeypatch, tmp_path, writes, status):
    ncu = tmp_path / "ncu"
    write = f"open(table, 'w').write({writes!r})" if writes else "pass"
    ncu.write_text(
        f"#!{sys.executable}\nimport sys\nif '--query-metrics' in sys.argv:\n    sys.exit(1)\n"
        f"table = sys.argv[sys.argv.index('--log-file') + 1]\n{write}\n"
        f"print('its last words')\nsys.exit({status})\n"
    )
    ncu.chmod(0o755)
    monkeypatch.setattr(counters, "find_ncu", lambda: str(ncu))


def test_launches_that_are_profiled_are_heard_of(monkeypatch, tmp_path):
    """Fault: a bar that stands still for the minutes that Nsight Compute takes, or that counts a launch twice."""
    launch = {"name": "s", "grid": [1, 1, 1], "block": [32, 1, 1], "metrics": {}}
    words = '==PROF== Profiling "s" - 0: 0%....100% - 6 passes\n'
    a_fake_ncu(monkeypatch, tmp_path, 2 * words + 2 * (json.dumps(launch) + "\n"), 0)
    lines = tmp_path / "lines"
    lines.write_text(2 * (json.dumps(launch | {"key": "k", "symbol": "s"}) + "\n"))
    heard = []
    found = counters.count(FakeLibrary(FakeGpu()), ["-c", "pass"], lines, {}, heard.append)
    assert [ours["key"] for ours, _ in found] == ["k", "k"]
    assert sum(heard) == 2


@pytest.mark.parametrize(
    ("prints", "status", "known"),
    [
        ("gpu__time  Counter  nsecond\nsm__pipe_a  Counter  inst", 0, ["gpu__time.sum", "sm__pipe_a.avg", "launch__x"]),
        ("no such option", 0, None),
        ("gpu__time", 1, None),
    ],
)
def test_counters_that_ncu_does_not_know_are_not_asked_for(tmp_path, capsys, prints, status, known):
    """Fault: one unknown name, and not one kernel is profiled; or a list that cannot be had drops everything."""
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\nprint({prints!r})\nraise SystemExit({status})\n")
    ncu.chmod(0o755)
    asked = ("gpu__time.sum", "sm__pipe_a.avg", "sm__pipe_b.avg", "launch__x")
    assert counters.available(str(ncu), asked) == (known or list(asked))
    assert ("no sm__pipe_b.avg" in capsys.readouterr().err) is (known is not None)


def test_the_session_reaches_the_script(monkeypatch):
    """Fault: a script that measures on other partitions than it was told."""
    session = profiler.Session("out", 3, (8, 64), {"m": [("x", 0, "m:x.0")]}, "lines")
    for name, value in session.variable().items():
        monkeypatch.setenv(name, value)
    again = profiler.Session.current()
    assert (again.out, again.requests, again.partitions, again.lines) == ("out", 3, (8, 64), "lines")
    assert json.loads(json.dumps(again.plan)) == {"m": [["x", 0, "m:x.0"]]}


def test_durations_are_kept_where_counters_are_refused(monkeypatch, tmp_path, capsys):
    """Fault: a measured profile lost, or an exception, since Nsight Compute may not read counters."""
    a_fake_ncu(monkeypatch, tmp_path, "==ERROR== no permission", 1)
    path = tmp_path / "m.profile.jsonl"
    lines = [{"key": "m:x.0", "kernel_id": "x", "symbol": "s"}, {"kernel": 0}]
    files.write(path, "mosaic-workload", {"workload": "m"}, lines)

    class Silent(profiler.Progress):
        def say(self, text):
            pass

    progress = Silent(profiler.Budget())
    lib = FakeLibrary(FakeGpu())

    def program(folder):
        return ["-c", f"open({str(folder / 'lines.jsonl')!r}, 'w')"]

    profiler.try_counters([path], lib, program, progress)
    assert "no permission" in capsys.readouterr().err
    assert files.read(path)[1] == lines
    assert profiler.missing([path]) == [f"{path}: no counters of m:x.0 (s)"]
