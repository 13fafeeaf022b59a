"""Topic ``identity``: outputs are bit-equal to the unwrapped model's, in both roles, while the other role runs."""

from . import report
from .fleet import wait_until
from .records import Row
from .workloads import find

TOPIC = "identity"
WORKLOADS = ("resnet50", "mobilenetv3", "bert-large", "dlrm", "llama-decode", "resnet50-train")
DETERMINISTIC = ("resnet50-train",)
REPEATS = 5
SECONDS = 0.5  # and for so long, so that the other role really runs meanwhile
PARTNERS = {"hp": "dlrm", "be": "resnet50"}  # role under test → what runs in the other role meanwhile
LOAD = "poisson0.5"


def _names(options):
    return ("toy",) if options.tiny else WORKLOADS


def _partner(role, options):
    return "blip" if options.tiny else PARTNERS[role]


def _seconds(name):
    return 6.0 + SECONDS + 0.02 * REPEATS * find(name).expected_ms


def expected_seconds(options):
    """For planning, on an H200."""
    return 35.0 + sum(2 * _seconds(name) for name in _names(options))


def run(ctx):
    """The topic, as far as time reaches."""
    out = []
    ctx.progress.total += 2 * len(_names(ctx.options))
    with ctx.fleet() as fleet:
        # cuBLAS is deterministic only with a workspace of fixed size.
        hp, be = fleet.start(["hp", "be"], env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        _prepare(ctx, fleet, hp, be)
        for name in _names(ctx.options):
            for role, agent in (("hp", hp), ("be", be)):
                with ctx.step(f"identity {name} as {role}", _seconds(name)) as fits:
                    if fits:
                        out += _case(ctx, fleet, name, role, agent, be if role == "hp" else hp)
                        ctx.publish(TOPIC, out, report.plain(out))


def _prepare(ctx, fleet, hp, be):
    patience = ctx.budget.timeout(60.0)
    warm = {"iterations": 2, "seconds": 0.0} if ctx.options.tiny else {"iterations": 30, "seconds": 0.0}
    other = {"hp": _partner("be", ctx.options), "be": _partner("hp", ctx.options)}
    fleet.all_do((hp, be), "ping", patience)
    # Jobs come and go here: none of them is to hold BE while it is new.
    fleet.all_do((hp, be), "configure", 30.0, settings={"calibration_requests": 0})
    for role, agent in (("hp", hp), ("be", be)):
        agent.call("load", patience, names=[other[role]])
        agent.call("register", 60.0, names=[other[role]], role=role)
        agent.call("warm", patience, workload=other[role], mode="wrapped", **warm)
    ctx.facts |= hp.call("facts", 30.0)


def _case(ctx, fleet, name, role, agent, other):
    patience = ctx.budget.timeout(_seconds(name))
    deterministic = name in DETERMINISTIC
    partner = _partner(role, ctx.options)
    if name != _partner("be" if role == "hp" else "hp", ctx.options):
        agent.call("load", patience, names=[name])
    itself = agent.topic("identity", "reference", patience, workload=name, deterministic=deterministic)
    args = {"workload": name, "role": role, "repeats": REPEATS, "seconds": SECONDS, "deterministic": deterministic}
    hp_args = {"topic": "identity", "function": "compare", "args": args}
    if role == "hp":
        be_args = {"workload": partner, "mode": "wrapped"}
        reply, load = fleet.colocated(other, be_args, agent, "topic", hp_args, patience)
        beside = len(load["done"])
    else:
        reply, beside = _beside_hp(fleet, agent, hp_args, other, partner, patience)
    variant = f"{role} beside {partner}"
    return [
        Row(
            TOPIC,
            name,
            variant,
            "mismatched_elements",
            reply["mismatched"],
            "count",
            reply["calls"] * itself["elements"],
        ),
        Row(TOPIC, name, "no role", "mismatched_elements", itself["mismatched"], "count", itself["elements"]),
        Row(TOPIC, name, variant, "other_role_iterations", beside, "count", 1),
    ]


def _beside_hp(fleet, agent, args, hp, partner, patience):
    """BE under test while HP's requests come and go."""
    rate = 0.5e3 / find(partner).expected_ms
    block = fleet.block
    block.set("hp_stop", 0)
    block.set("hp_completed", 0)
    hp.send("hp", workload=partner, mode="wrapped", requests=100_000, load=LOAD, rate_hz=rate)
    try:
        wait_until(lambda: block.get("hp_completed") > 2 or hp.ready(), 20.0, "HP to serve", hp.worker)
        compared = agent.call("topic", patience, **args)
    finally:
        block.set("hp_stop", 1)
        served = hp.finish(30.0)
    return compared, len(served["end"])
