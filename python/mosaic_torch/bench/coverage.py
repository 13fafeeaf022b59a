"""Topic ``coverage``: kernels that the hook sees against kernels that torch.profiler reports."""

from . import report
from .records import Row

TOPIC = "coverage"
# Case → (workload, how it is made, expected seconds).
CASES = {
    "resnet50": ("resnet50", "eager", 6),
    "bert-large": ("bert-large", "eager", 4),
    "dlrm": ("dlrm", "eager", 3),
    "llama-decode": ("llama-decode", "eager", 8),
    "resnet50-graph": ("resnet50", "graph", 3),
    "resnet50-train": ("resnet50-train", "eager", 5),
    "resnet50-compiled": ("resnet50", "compiled", 60),
    "resnet50-compiled-no-static-launcher": ("resnet50", "compiled-no-static-launcher", 40),
}
CAPTURE = "capture-while-hp-runs-and-be-is-held"


def _cases(options):
    return {case: what for case, what in CASES.items() if case not in options.skip}


def expected_seconds(options):
    """For planning, on an H200."""
    return 25.0 + sum(seconds for _, _, seconds in _cases(options).values()) + 5


def run(ctx):
    """The topic, as far as time reaches."""
    cases = _cases(ctx.options)
    ctx.progress.total += len(cases) + 1
    out = []

    def publish():
        ctx.publish(TOPIC, out, report.plain(out))

    with ctx.fleet() as fleet:
        (agent,) = fleet.start(["hp"])
        agent.call("ping", ctx.budget.timeout(40.0))
        with ctx.step(CAPTURE, 12) as fits:
            if fits:
                agent.call("load", ctx.budget.timeout(15.0), names=["resnet50", "toy"])
                ctx.facts |= agent.call("facts", 30.0)
                args = {"workload": "resnet50", "held": "toy"}
                reply = agent.topic("coverage", "capture_while_held", ctx.budget.timeout(10.0), **args)
                out += capture_rows(reply)
                publish()
        for case, (workload, variant, seconds) in cases.items():
            with ctx.step(case, seconds) as fits:
                if fits:
                    agent.call("load", ctx.budget.timeout(seconds), names=[workload])
                    ctx.facts |= agent.call("facts", 30.0)
                    args = {"case": case, "workload": workload, "variant": variant}
                    reply = agent.topic("coverage", "run_case", ctx.budget.timeout(seconds), **args)
                    out += rows(case, reply)
                    publish()


def rows(case, reply):
    """The record's rows; a count that the profiler's presence changes is shown."""
    out = [
        Row(TOPIC, case, "hook", "kernels_seen", reply["kernels_seen"], "count", 1),
        Row(TOPIC, case, "profiler", "kernels_profiler", reply["kernels_profiler"], "count", 1),
        Row(TOPIC, case, "hook", "escapes", reply["escapes"], "count", 1),
    ]
    for when in ("before", "after"):
        out.append(Row(TOPIC, case, f"hook, {when} the profiler", "kernels_seen", reply[when], "count", 1))
    return out


def capture_rows(reply):
    """All three are 1 when the capture worked beside a held BE."""
    checks = {
        "be_was_held": reply["was_held"],
        "replay_equal": reply["mismatched"] == 0,
        "be_finished": reply["be_finished"],
    }
    return [Row(TOPIC, CAPTURE, "hook", name, int(value), "bool", 1) for name, value in checks.items()]
