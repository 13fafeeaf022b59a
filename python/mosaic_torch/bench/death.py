"""Topic ``death``: a killed HP lets BE run again; a killed BE leaves HP as it was."""

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

from . import report
from .fleet import AgentError, AgentLost, wait_until
from .quantiles import quantile
from .records import Row
from .summary import latencies_ms

TOPIC = "death"
HP_CASES = ("sigkill", "zombie", "pid-namespace")
BE_CASES = ("be-held", "be-running")
SILENT_NS = 100_000_000
HANG_S = 60.0
# The gate's own bound on waiting must not be what lets BE run again.
LONG_WAIT_MS = 120_000


def expected_seconds(options):
    """For planning, on an H200."""
    return 75.0


def run(ctx):
    """The topic, as far as time reaches."""
    ctx.progress.total += len(HP_CASES) + len(BE_CASES)
    out = []

    def publish():
        ctx.publish(TOPIC, out, report.plain(out))

    hp_name = "toy" if ctx.options.tiny else "resnet50"
    with ctx.fleet() as fleet:
        killable = _start_hps(ctx, fleet, hp_name)
        (be,) = fleet.start(["be"])
        _ready_be(ctx, be)
        for case in filter(killable.__contains__, HP_CASES):
            with ctx.step(f"death {case}", 5.0) as fits:
                if fits:
                    hp = killable[case]
                    out.append(
                        Row(TOPIC, case, "hook", "be_resume_ms", _kill_hp(fleet, hp, be, hp_name, case), "ms", 1)
                    )
                    publish()
        for case in BE_CASES:
            with ctx.step(f"death {case}", 15.0) as fits:
                if fits:
                    out += _kill_be(fleet, killable["survivor"], be, hp_name, case)
                    publish()
                    (be,) = fleet.start(["be"])
                    _ready_be(ctx, be)


def _start_hps(ctx, fleet, hp_name):
    """One HP process a case, all started at once; only the one that hangs holds BE."""
    hps = {}
    for case in (*HP_CASES, "survivor"):
        prefix, follow = (), True
        if case == "pid-namespace":
            if shutil.which("unshare") is None or os.geteuid() != 0:
                ctx.uncovered.append("death pid-namespace: needs root and unshare")
                continue
            # CUDA looks itself up in /proc, so that has to be of the same namespace.
            prefix, follow = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"), False
        (hps[case],) = fleet.start(["hp"], prefix=prefix, follow=follow)
    patience = ctx.budget.timeout(60.0)
    warm = {"iterations": 2, "seconds": 0.0} if ctx.options.tiny else {"iterations": 230, "seconds": 0.0}
    fleet.all_do([hp for case, hp in hps.items() if case != "pid-namespace"], "load", patience, names=[hp_name])
    if apart := hps.get("pid-namespace"):
        try:
            apart.call("load", patience, names=[hp_name])
        except (AgentError, AgentLost) as error:  # CUDA may not work there
            ctx.uncovered.append(f"death pid-namespace: {error}")
            apart.worker.kill()
            fleet.workers.remove(apart.worker)
            del hps["pid-namespace"]
    ctx.facts |= hps["survivor"].call("facts", 30.0)
    fleet.all_do(hps.values(), "register", 60.0, names=[hp_name], role="hp")
    for hp in hps.values():  # one after the other: calibration is of isolated requests
        hp.call("warm", patience, workload=hp_name, mode="wrapped", **warm)
    return hps


def _ready_be(ctx, be):
    patience = ctx.budget.timeout(30.0)
    be.call("load", patience, names=["blip"])
    be.call("register", 60.0, names=["blip"], role="be")
    be.call("configure", 30.0, settings={"policy": "idle-only", "max_wait_ms": LONG_WAIT_MS})
    be.call("warm", patience, workload="blip", mode="wrapped", iterations=50, seconds=0.2)


def _hold_be(fleet, hp, be, hp_name):
    """BE in its loop, HP inside a request, and BE silent since a while: it is held."""
    block = fleet.block
    block.reset()
    be.send("be", workload="blip", mode="wrapped")
    wait_until(lambda: block.get("be_iterations") > 3, 20.0, "BE to iterate", be.worker)
    hp.send("topic", topic="death", function="hang", args={"workload": hp_name, "seconds": HANG_S})
    wait_until(lambda: block.get("hp_inside") == 1, 20.0, "HP to be inside its request", hp.worker)
    silent = "BE to be held by HP's open request"
    wait_until(lambda: time.monotonic_ns() - block.get("be_last_done_ns") > SILENT_NS, 20.0, silent, be.worker)


def _kill_hp(fleet, hp, be, hp_name, case):
    """From SIGKILL to BE's next completed iteration, in milliseconds."""
    _hold_be(fleet, hp, be, hp_name)
    block = fleet.block
    victim = hp.worker.process.pid
    if case == "pid-namespace":
        victim = int(Path(f"/proc/{victim}/task/{victim}/children").read_text().split()[0])
    # Reaped at once, by a thread of its own: BE's first iteration is read meanwhile. Otherwise a zombie it stays.
    reaper = threading.Thread(target=hp.worker.process.wait, args=(30,))
    killed_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    if case == "sigkill":
        reaper.start()
    wait_until(lambda: block.get("be_last_done_ns") > killed_ns, 30.0, "BE to run again", be.worker)
    resumed_ns = block.get("be_last_done_ns")
    block.set("be_stop", 1)
    be.finish(30.0)
    if case == "sigkill":
        reaper.join()
    hp.worker.kill()
    fleet.workers.remove(hp.worker)
    return (resumed_ns - killed_ns) / 1e6


def _kill_be(fleet, hp, be, hp_name, case):
    """HP's latency before and after BE's death, beside each other; the BE's worker is gone afterwards."""
    args = {"workload": hp_name, "mode": "wrapped", "requests": 150}
    before = latencies_ms(hp.call("hp", 60.0, **args))
    if case == "be-held":
        # Held behind this closed loop nearly all the time.
        fleet.block.reset()
        be.send("be", workload="blip", mode="wrapped")
        wait_until(lambda: fleet.block.get("be_iterations") > 3, 20.0, "BE to iterate", be.worker)
        hp.send("hp", **args)
        wait_until(lambda: fleet.block.get("hp_completed") > 5, 20.0, "HP to serve", hp.worker)
    else:
        fleet.block.reset()
        be.send("be", workload="blip", mode="wrapped")
        wait_until(lambda: fleet.block.get("be_iterations") > 3, 20.0, "BE to iterate", be.worker)
    pid = be.worker.process.pid
    be.worker.kill()
    fleet.workers.remove(be.worker)
    with contextlib.suppress(AgentLost):
        be.finish(1.0)
    during = latencies_ms(hp.finish(60.0)) if case == "be-held" else None
    after = latencies_ms(hp.call("hp", 60.0, **args))
    left = sum(entry["pid"] == pid for entry in hp.call("ledger", 30.0))
    rows = [Row(TOPIC, case, "hook", "ledger_entries_left", left, "count", 1)]
    for variant, samples in (("during", during), ("after", after)):
        if samples:
            for q, name in ((0.5, "p50"), (0.99, "p99")):
                ratio = quantile(samples, q) / quantile(before, q)
                rows.append(Row(TOPIC, case, variant, f"hp_{name}_ratio", ratio, "ratio", len(samples)))
    return rows
