"""From raw segments to metrics: pure, so that a record can be made again from its raw file."""

from .quantiles import iterations_in, mean, quantile
from .records import Row, merge

# Targets of the bound on hp_p99_ratio, by placement, and of be_fraction for the three BE jobs under Poisson load.
P99_TARGET = {"threads": 1.05, "mps": 1.05, "processes": 1.10}
# A request whose launching alone takes so many times HP's isolated service time is late because of its own CPU.
HOST_BOUND = 1.05
BE_TARGET = {"bert-large": 0.45, "dlrm": 0.42, "resnet50-fp16": 0.38}


def latencies_ms(run):
    """From intended arrival to completion."""
    return [(end - arrival) / 1e6 for arrival, end in zip(run["arrival"], run["end"], strict=True)]


def services_ms(run):
    """From the start of serving to completion."""
    return [(end - start) / 1e6 for start, end in zip(run["start"], run["end"], strict=True)]


def launch_cpu_ms(run):
    """CPU time that it took to launch each request; none in records made before it was kept."""
    return [ns / 1e6 for ns in run.get("submit_cpu", ())]


def window_ns(run):
    """From the beginning of the segment to its last completion."""
    return run["base"], run["base"] + (run["end"][-1] if run["end"] else 0)


def busy_fraction(runs):
    """Of the time, with HP at work."""
    busy = sum(end - start for run in runs for start, end in zip(run["start"], run["end"], strict=True))
    span = sum(window_ns(run)[1] - window_ns(run)[0] for run in runs)
    return busy / span if span > 0 else 0.0


def is_overloaded(runs):
    """HP could not keep up: it was told to end early, or it was never idle."""
    return any(run["overloaded"] for run in runs) or busy_fraction(runs) > 0.97


def bound_rows(items):
    """The rows of ``bound``, from its raw items; a later run replaces an earlier one's rows."""
    rows = []
    for run_id in dict.fromkeys(item["run"] for item in items):
        rows = merge(rows, _rows_of_run([item for item in items if item["run"] == run_id]))
    return rows


def _rows_of_run(items):
    idle = {}
    groups = {}
    for item in items:
        if item["variant"] == "be-idle":
            idle.setdefault((item["placement"], item["be"]), []).append(item["be_run"])
        else:
            key = (item["hp"], item["be"], item["load"], item["placement"], item["seed"], item["variant"])
            groups.setdefault(key, {})[item["chunk"]] = item
    rows = []
    for (hp, be, load, placement, seed, variant), chunks in groups.items():
        base = groups.get((hp, None, load, placement, seed, "isolated"), {})
        case = f"hp={hp} be={be or 'none'} load={load} placement={placement} seed={seed}"
        rows += _variant_rows(case, variant, chunks, base, idle.get((placement, be)), load)
    return rows


def _variant_rows(case, variant, chunks, base, idle_runs, load):
    runs = [chunk["hp_run"] for chunk in chunks.values() if chunk["hp_run"]["end"]]
    if not runs:
        return []
    mine = [ms for run in runs for ms in latencies_ms(run)]
    n = len(mine)
    rows = []

    def add(metric, value, unit, count=n):
        rows.append(Row("bound", case, variant, metric, float(value), unit, count))

    add("hp_p50_ms", quantile(mine, 0.5), "ms")
    add("hp_mean_ms", mean(mine), "ms")
    add("hp_p99_ms", quantile(mine, 0.99), "ms")
    if variant == "isolated":
        add("hp_service_p50_ms", quantile([ms for run in runs for ms in services_ms(run)], 0.5), "ms")
    launching = [ms for run in runs for ms in launch_cpu_ms(run)]
    alone = [ms for chunk in base.values() for ms in services_ms(chunk["hp_run"])]
    if launching and alone:
        add("hp_launch_cpu_p50_ms", quantile(launching, 0.5), "ms")
        add("hp_launch_cpu_p99_ms", quantile(launching, 0.99), "ms")
        # Late whatever the GPU did: launching alone took longer than a whole request of HP alone.
        add("host_bound", sum(ms > HOST_BOUND * quantile(alone, 0.5) for ms in launching), "count")
    # Only chunks that both have: the same arrivals.
    both = [index for index in chunks if index in base and base[index]["hp_run"]["end"]]
    if variant != "isolated" and both:
        ours = [ms for index in both for ms in latencies_ms(chunks[index]["hp_run"])]
        theirs = [ms for index in both for ms in latencies_ms(base[index]["hp_run"])]
        if ours:
            add("hp_p50_ratio", quantile(ours, 0.5) / quantile(theirs, 0.5), "ratio", len(ours))
            add("hp_mean_ratio", mean(ours) / mean(theirs), "ratio", len(ours))
            add("hp_p99_ratio", quantile(ours, 0.99) / quantile(theirs, 0.99), "ratio", len(ours))
    if variant == "isolated" and len(chunks) > 1:
        # How far apart isolated and isolated are: what a ratio near 1 has to be held against.
        p99s = [quantile(latencies_ms(run), 0.99) for run in runs]
        add("hp_p99_spread", max(p99s) / min(p99s), "ratio")
    add("requests", n, "count")
    if load != "closed":
        add("overloaded", is_overloaded(runs), "bool")
    add("stalls", sum(len(chunk["stalls"]) for chunk in chunks.values()), "count")
    be_runs = [(chunk["be_run"], window_ns(chunk["hp_run"])) for chunk in chunks.values() if chunk.get("be_run")]
    if be_runs:
        done = sum(_iterations(run, window) for run, window in be_runs)
        span = sum(hi - lo for _, (lo, hi) in be_runs) / 1e9
        if variant == "idle-only":
            gates = [chunk["gate"] for chunk in chunks.values() if chunk.get("gate")]
            for reason in ("held", "escaped", "admitted_hp_stalled", "admitted_wait_bound"):
                add(f"be_{reason}", sum(gate[reason] for gate in gates), "count")
        if span > 0:
            add("be_per_s", done / span, "1/s", round(done))
            if idle_runs:
                add("be_idle_per_s", idle_rate(idle_runs), "1/s", sum(len(run["done"]) for run in idle_runs))
                fraction = done / span / idle_rate(idle_runs)
                add("be_fraction", fraction, "ratio", round(done))
                # What it makes of the time that HP leaves: near 1, the rest is HP's.
                if load != "closed" and busy_fraction(runs) < 1:
                    add("be_of_hp_idle", fraction / (1 - busy_fraction(runs)), "ratio", round(done))
    return rows


def _iterations(run, window):
    return iterations_in(run["base"], [run["base"] + at for at in run["done"]], window)


def idle_rate(runs):
    """Iterations a second of BE with HP idle."""
    return sum(len(run["done"]) for run in runs) / (sum(run["done"][-1] for run in runs) / 1e9)


def stalls(run, threshold_ms, events):
    """Requests that took ``threshold_ms`` or longer to serve, each with the timed events that overlap it.

    ``events``: (kind, begin, end) on the same clock.
    """
    found = []
    for start, end in zip(run["start"], run["end"], strict=True):
        if (end - start) / 1e6 >= threshold_ms:
            lo, hi = run["base"] + start, run["base"] + end
            during = [[kind, (b - lo) / 1e6, (e - b) / 1e6] for kind, b, e in events if b < hi and e > lo]
            found.append({"at_ms": start / 1e6, "service_ms": (end - start) / 1e6, "during": during})
    return found
