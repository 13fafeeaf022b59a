"""Topic ``overhead``: HP's latency with the hook and without, no BE anywhere."""

from . import report
from .quantiles import quantile
from .records import Row
from .summary import latencies_ms
from .workloads import find

TOPIC = "overhead"
WORKLOADS = ("resnet50", "bert-large-8x128", "llama-decode")
# Variant → (agent, how it calls). Two processes without the hook show how far apart equal things are.
VARIANTS = {
    "off": ("off", "raw"),
    "on": ("on", "call"),
    "off-control": ("off-control", "raw"),
    "unregistered": ("on", "raw"),
}
ROUNDS = 6
SEGMENT_S = 0.6


def _names(options):
    return ("toy",) if options.tiny else WORKLOADS


def _requests(name, tiny):
    """So many that a segment takes about SEGMENT_S."""
    return 5 if tiny else max(20, round(SEGMENT_S * 1e3 / find(name).expected_ms))


def expected_seconds(options):
    """For planning, on an H200."""
    return 60.0 + len(_names(options)) * (ROUNDS * len(VARIANTS) * SEGMENT_S * 1.2 + 4)


def run(ctx):
    """The topic, as far as time reaches."""
    with ctx.step("overhead: start", 5.0 if ctx.options.tiny else 60.0) as fits:
        if not fits:
            return
    with ctx.fleet() as fleet:
        (off,), (control,) = fleet.start(["off"], control="off"), fleet.start(["off-control"], control="off")
        (on,) = fleet.start(["on"])
        _measure(ctx, fleet, {"off": off, "off-control": control, "on": on})


def _measure(ctx, fleet, agents):
    names = _names(ctx.options)
    patience = ctx.budget.timeout(60.0)
    ctx.progress.total += len(names) * ROUNDS
    samples = {}
    for name in names:
        fleet.all_do(agents.values(), "load", patience, names=[name])
        ctx.facts |= agents["on"].call("facts", 30.0)
        agents["on"].call("register", 60.0, names=[name], role="hp", slo=1.1)
        for agent, mode in dict.fromkeys(VARIANTS.values()):
            # Enough to be through the calibration.
            warm = {"iterations": 230 if mode == "call" else 15, "seconds": 0.5}
            warm = {"iterations": 2, "seconds": 0.0} if ctx.options.tiny else warm
            agents[agent].call("warm", patience, workload=name, mode=mode, **warm)
        fleet.all_do(agents.values(), "freeze", 30.0)
        count = _requests(name, ctx.options.tiny)
        for index in range(ROUNDS):
            with ctx.step(f"overhead {name} round {index + 1}", len(VARIANTS) * SEGMENT_S * 1.2) as fits:
                if fits:
                    for variant in _rotated(list(VARIANTS), index):
                        agent, mode = VARIANTS[variant]
                        args = {"workload": name, "mode": mode, "requests": count}
                        reply = agents[agent].call("hp", ctx.budget.timeout(SEGMENT_S), **args)
                        samples.setdefault(name, {}).setdefault(variant, []).append(latencies_ms(reply))
                        ctx.record(TOPIC).raw.append(
                            {"run": ctx.run_id, "workload": name, "variant": variant, "round": index, "hp_run": reply}
                        )
        table = rows(samples)
        ctx.publish(TOPIC, [*_others(ctx), *table], report.plain(table))


def _others(ctx):
    """Rows of this file that another topic of this command has written (micro)."""
    return [row for row in ctx.record(TOPIC).rows if row.metric in ("ns_per_launch", "added_ns_per_launch")]


def _rotated(names, by):
    by %= len(names)
    return names[by:] + names[:by]


def rows(samples):
    """``samples``: workload → variant → rounds of latencies. Ratios are over ``off``."""
    out = []
    for name, variants in samples.items():
        base = [ms for part in variants.get("off", []) for ms in part]
        for variant, parts in variants.items():
            mine = [ms for part in parts for ms in part]
            n = len(mine)
            out.append(Row(TOPIC, name, variant, "hp_p50_ms", quantile(mine, 0.5), "ms", n))
            out.append(Row(TOPIC, name, variant, "hp_p99_ms", quantile(mine, 0.99), "ms", n))
            if variant == "off" or not base:
                continue
            for q, label in ((0.5, "p50"), (0.99, "p99")):
                ratio = quantile(mine, q) / quantile(base, q)
                out.append(Row(TOPIC, name, variant, f"hp_{label}_ratio", ratio, "ratio", n))
            # Round by round: drift between rounds cancels.
            pairs = zip(parts, variants["off"], strict=False)
            ratios = [quantile(a, 0.5) / quantile(b, 0.5) for a, b in pairs]
            out.append(Row(TOPIC, name, variant, "hp_p50_ratio_median_of_rounds", quantile(ratios, 0.5), "ratio", n))
    return out
