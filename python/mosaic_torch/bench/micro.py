"""Topic ``micro``: what the hook adds to one launch. Its rows belong to the record ``overhead``."""

from . import overhead, report
from .quantiles import quantile
from .records import Row

TOPIC = overhead.TOPIC
ROUNDS = 8
BURSTS = 40
# Case → (agent, place).
CASES = {
    "launch no-hook": ("off", "plain"),
    "launch unregistered": ("on", "plain"),
    "launch hp": ("on", "hp"),
    "launch be-idle": ("on", "be-idle"),
}


def expected_seconds(options):
    """For planning, on an H200."""
    return 35.0


def run(ctx):
    """The topic, as far as time reaches."""
    with ctx.step("micro", 35.0) as fits:
        if fits:
            with ctx.fleet() as fleet:
                (off,), (on,) = fleet.start(["off"], control="off"), fleet.start(["on"])
                _measure(ctx, fleet, {"off": off, "on": on})


def _measure(ctx, fleet, agents):
    patience = ctx.budget.timeout(40.0)
    fleet.all_do(agents.values(), "load", patience, names=["toy", "blip"])
    on = agents["on"]
    ctx.facts |= on.call("facts", 30.0)
    on.call("register", 60.0, names=["toy"], role="hp", slo=1.1)
    on.call("register", 60.0, names=["blip"], role="be")
    on.call("warm", patience, workload="toy", mode="wrapped", iterations=230, seconds=0.5)
    on.call("warm", patience, workload="blip", mode="wrapped", iterations=230, seconds=0.5)
    for agent in agents.values():
        agent.topic("micro", "setup", patience)
    samples = {}
    for index in range(ROUNDS):
        for case in overhead.rotated(list(CASES), index):
            agent, where = CASES[case]
            for refused in (False, True):
                args = {"where": where, "refused": refused, "bursts": BURSTS}
                costs = agents[agent].topic("micro", "measure", patience, **args)
                samples.setdefault((case, "refused" if refused else "launched"), []).append(quantile(costs, 0.5))
    table = rows(samples)
    kept = [row for row in ctx.record(TOPIC).rows if row.metric not in ("ns_per_launch", "added_ns_per_launch")]
    ctx.publish(TOPIC, [*kept, *table], report.plain(table))


def rows(samples):
    """Medians over rounds; what is added, as the median over rounds of the difference to no hook."""
    out = []
    for (case, variant), costs in samples.items():
        n = len(costs) * BURSTS
        out.append(Row(TOPIC, case, variant, "ns_per_launch", quantile(costs, 0.5), "ns", n))
        base = samples.get(("launch no-hook", variant))
        if case != "launch no-hook" and base:
            added = quantile([a - b for a, b in zip(costs, base, strict=True)], 0.5)
            out.append(Row(TOPIC, case, variant, "added_ns_per_launch", added, "ns", n))
    return out
