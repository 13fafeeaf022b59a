"""Topic ``overhead``: HP's latency with the hook and without, no BE anywhere."""

from . import report
from .quantiles import quantile
from .records import Row
from .summary import latencies_ms
from .workloads import find

TOPIC = "overhead"
WORKLOADS = ("resnet50", "bert-large-8x128", "llama-decode")
# Variant → (agent, how it calls). Two processes without the hook show how far apart equal things are, which is far for
# jobs bound by the CPU; "before-import" and "unregistered" are of the very process that "on" is of.
VARIANTS = {
    "off": ("off", "raw"),
    "on": ("on", "call"),
    "off-control": ("off-control", "raw"),
    "unregistered": ("on", "raw"),
}
BEFORE = "before-import"
IN_TURN = "on, over unregistered request by request"
ROUNDS = 6
ROUNDS_BEFORE = 3
SEGMENT_S = 0.6
START_S = 60.0


def _names(options):
    return ("toy",) if options.tiny else WORKLOADS


def _requests(name, tiny):
    """So many that a segment takes about SEGMENT_S."""
    return 5 if tiny else max(20, round(SEGMENT_S * 1e3 / find(name).expected_ms))


def expected_seconds(options):
    """For planning, on an H200."""
    segments = ROUNDS * (len(VARIANTS) + 2) + ROUNDS_BEFORE  # in turn: two requests for each of a segment
    return START_S + len(_names(options)) * (segments * SEGMENT_S * 1.2 + 4)


def run(ctx):
    """The topic, as far as time reaches."""
    if not ctx.options.tiny and not ctx.budget.fits(START_S):
        ctx.uncovered.append(f"overhead: {START_S:.0f} s needed to start")
        return
    with ctx.fleet() as fleet:
        (off,), (control,) = fleet.start(["off"], control="off"), fleet.start(["off-control"], control="off")
        (on,) = fleet.start(["on"])
        _Run(ctx, fleet, {"off": off, "off-control": control, "on": on}).all()


class _Run:
    def __init__(self, ctx, fleet, agents):
        self.ctx, self.fleet, self.agents = ctx, fleet, agents
        self.samples = {}
        self.in_turn = {}
        self.pending = []
        self.patience = ctx.budget.timeout(60.0)

    def all(self):
        ctx, names = self.ctx, _names(self.ctx.options)
        ctx.progress.total += len(names) * (ROUNDS + 1)
        self.fleet.all_do(self.agents.values(), "load", self.patience, names=list(names))
        # Nothing has imported mosaic_torch yet.
        for name in names:
            for agent in self.agents:
                self._warm(agent, name, "raw", 15)
            for _ in range(ROUNDS_BEFORE):
                self._segment(name, BEFORE, "on", "raw")
        on = self.agents["on"]
        ctx.facts |= on.call("facts", 30.0)
        for raw in self.pending:
            ctx.record(TOPIC).raw.append(raw)
        on.call("register", 60.0, names=list(names), role="hp", slo=1.1)
        for name in names:
            self._warm("on", name, "call", 230)  # through the calibration
        self.fleet.all_do(self.agents.values(), "freeze", 30.0)
        for name in names:
            for index in range(ROUNDS):
                with ctx.step(f"overhead {name} round {index + 1}", len(VARIANTS) * SEGMENT_S * 1.2) as fits:
                    if fits:
                        for variant in rotated(list(VARIANTS), index):
                            self._segment(name, variant, *VARIANTS[variant])
            pairs = ROUNDS * _requests(name, ctx.options.tiny)
            with ctx.step(f"overhead {name} in turn", 2 * ROUNDS * SEGMENT_S * 1.2) as fits:
                if fits:
                    args = {"workload": name, "pairs": pairs}
                    self.in_turn[name] = on.topic(TOPIC, "in_turn", self.patience, **args)
            table = rows(self.samples) + in_turn_rows(self.in_turn)
            ctx.publish(TOPIC, [*_others(ctx), *table], report.plain(table))

    def _warm(self, agent, name, mode, iterations):
        iterations = 2 if self.ctx.options.tiny else iterations
        args = {"workload": name, "mode": mode, "iterations": iterations, "seconds": 0.0}
        self.agents[agent].call("warm", self.patience, **args)

    def _segment(self, name, variant, agent, mode):
        args = {"workload": name, "mode": mode, "requests": _requests(name, self.ctx.options.tiny)}
        reply = self.agents[agent].call("hp", self.ctx.budget.timeout(SEGMENT_S), **args)
        self.samples.setdefault(name, {}).setdefault(variant, []).append(latencies_ms(reply))
        raw = {"run": self.ctx.run_id, "workload": name, "variant": variant, "hp_run": reply}
        # The record's folder is named after the GPU, which is not known before the first facts.
        if self.ctx.facts:
            self.ctx.record(TOPIC).raw.append(raw)
        else:
            self.pending.append(raw)


def _others(ctx):
    """Rows of this file that another topic of this command has written (micro)."""
    return [row for row in ctx.record(TOPIC).rows if row.metric in ("ns_per_launch", "added_ns_per_launch")]


def rotated(names, by):
    """``names`` from another beginning: no variant always runs first."""
    by %= len(names)
    return names[by:] + names[:by]


def rows(samples):
    """``samples``: workload → variant → rounds of latencies. Ratios are over ``off``; of ``on`` also over the same
    process without a role."""
    out = []
    for name, variants in samples.items():
        for variant, parts in variants.items():
            mine = [ms for part in parts for ms in part]
            out.append(Row(TOPIC, name, variant, "hp_p50_ms", quantile(mine, 0.5), "ms", len(mine)))
            out.append(Row(TOPIC, name, variant, "hp_p99_ms", quantile(mine, 0.99), "ms", len(mine)))
            if variant not in ("off", BEFORE):
                out += _ratios(name, variant, parts, variants.get("off"))
        for base in (BEFORE, "unregistered"):
            if base in variants and "on" in variants:
                out += _ratios(name, f"on, over {base} in its process", variants["on"], variants[base])
    return out


def in_turn_rows(in_turn):
    """``in_turn``: workload → variant → nanoseconds, pair by pair."""
    out = []
    for name, times in in_turn.items():
        on, base = times["on"], times["unregistered"]
        pairs = [a / b for a, b in zip(on, base, strict=True)]
        values = {f"hp_{q}_ratio": quantile(on, p) / quantile(base, p) for q, p in (("p50", 0.5), ("p99", 0.99))}
        values["hp_p50_ratio_median_of_pairs"] = quantile(pairs, 0.5)
        out += [Row(TOPIC, name, IN_TURN, metric, value, "ratio", len(on)) for metric, value in values.items()]
    return out


def _ratios(name, label, parts, base_parts):
    if not base_parts:
        return []
    mine, base = ([ms for part in side for ms in part] for side in (parts, base_parts))
    out = [
        Row(TOPIC, name, label, f"hp_{q}_ratio", quantile(mine, p) / quantile(base, p), "ratio", len(mine))
        for q, p in (("p50", 0.5), ("p99", 0.99))
    ]
    # Round by round: drift between rounds cancels.
    ratios = [quantile(a, 0.5) / quantile(b, 0.5) for a, b in zip(parts, base_parts, strict=False)]
    return [*out, Row(TOPIC, name, label, "hp_p50_ratio_median_of_rounds", quantile(ratios, 0.5), "ratio", len(mine))]
