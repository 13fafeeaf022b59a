"""Topic ``bound``: HP's latency beside BE, and what BE gets, for every variant of a placement."""

import time

from . import arrivals, report, stats_view, summary
from .fleet import AgentError, AgentLost
from .plan import bound_plan, fit
from .variants import VARIANTS, hp_and_be
from .workloads import find

TOPIC = "bound"
# Starting processes, building models, warming them; measured generously.
START_S = 40.0


def make_plan(options, placement):
    """The whole plan of one placement, before time is looked at."""
    return bound_plan(
        bes=options.be,
        loads=options.loads,
        seeds=options.seeds,
        variants=options.variants,
        placement=placement,
        requests={"closed": options.closed_requests, "poisson": options.requests, "gamma": options.requests},
        chunks=options.chunks,
        hp_ms=find(options.hp).expected_ms if not options.tiny else 1.0,
        be_idle_s=options.be_idle_seconds,
        rival_chunks=options.rival_chunks,
    )


def describe(group):
    """A group of segments, for people."""
    variant, be, load, seed = group
    return f"{variant} be={be or 'none'} load={load} seed={seed}"


def run(ctx):
    """Every placement asked for, one after the other."""
    placements = ctx.options.placements
    for index, placement in enumerate(placements):
        share = ctx.budget.left() / (len(placements) - index)
        with _named_failures(ctx, placement):
            _Placement(ctx, placement, share).run()


class _named_failures:
    """A placement that cannot run (no MPS, say) is named; the others go on."""

    def __init__(self, ctx, placement):
        self._ctx, self._placement = ctx, placement

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is None or not issubclass(kind, Exception):
            return False
        self._ctx.failures.append(f"placement {self._placement}: {kind.__name__}: {error}")
        self._ctx.progress.say(f"placement {self._placement} FAILED: {error}")
        return True


class _Placement:
    """One placement: its processes, its segments, its rows."""

    def __init__(self, ctx, placement, share_s):
        self.ctx = ctx
        self.placement = placement
        self.begin_s = ctx.budget.spent()
        self.share_s = share_s
        self.items = []
        self.rate_hz = None
        self.service_ms = None
        self.restarts_left = 1

    def time_left(self):
        return min(self.ctx.budget.left(), self.share_s - (self.ctx.budget.spent() - self.begin_s))

    def run(self):
        plan = make_plan(self.ctx.options, self.placement)
        start_s = 0.0 if self.ctx.options.tiny else START_S
        kept, out = fit(plan, self.time_left() - start_s)
        for group in dict.fromkeys(segment.group for segment in out):
            self._uncovered(group, "left out of the plan: too little time")
        self.ctx.progress.total += len(kept)
        todo = list(kept)
        while todo:
            try:
                self._run_in_new_processes(todo)
                return
            except AgentLost as lost:
                self.ctx.failures.append(f"{self.placement}: {lost}")
                self.ctx.progress.say(f"lost an agent: {lost}")
                if self.restarts_left == 0 or self.time_left() < start_s:
                    for group in dict.fromkeys(segment.group for segment in todo):
                        self._uncovered(group, "an agent was lost")
                    return
                self.restarts_left -= 1

    def _run_in_new_processes(self, todo):
        """Works ``todo`` off from its front."""
        with self.ctx.fleet() as fleet, hp_and_be(fleet, self.placement) as (hp, be):
            try:
                self.fleet, self.hp, self.be = fleet, hp, be
                self._prepare()
                skipped = set()
                while todo:
                    segment = todo[0]
                    if segment.group in skipped or segment.seconds > self.time_left():
                        if segment.group not in skipped:
                            self._uncovered(segment.group, f"out of time at part {segment.chunk + 1}")
                        skipped.add(segment.group)
                        todo.pop(0)
                        continue
                    try:
                        self._segment(segment)
                    except AgentError as error:
                        self.ctx.failures.append(f"{self.placement} {segment.title}: {error}")
                    except AgentLost:
                        todo.pop(0)  # do not meet the same end again
                        raise
                    todo.pop(0)
                    self.publish()
            except AgentLost:
                fleet.kill_workers()
                raise

    def _uncovered(self, group, why):
        self.ctx.uncovered.append(f"{self.placement} {describe(group)}: {why}")

    def _prepare(self):
        ctx, options = self.ctx, self.ctx.options
        agents = (self.hp, self.be)
        # A cold machine reads torch from disk for the first time here.
        patience = ctx.budget.timeout(60.0)
        self.fleet.all_do(agents, "ping", patience)
        self.hp.send("load", names=[options.hp])
        self.be.send("load", names=list(options.be))
        built = self.hp.finish(patience)["built"], self.be.finish(patience)["built"]
        shapes = {f"workload {name}": shape for part in built for name, shape in part.items()}
        ctx.facts |= self.hp.call("facts", 30.0) | shapes
        ctx.progress.say(f"{self.placement}: models built on {ctx.facts.get('gpu')}")
        self._configure("idle-only")
        self.hp.call("register", 60.0, names=[options.hp], role="hp", slo=1.1)
        self.be.call("register", 60.0, names=list(options.be), role="be")
        warm = {"iterations": 3, "seconds": 0.0} if options.tiny else {"iterations": 20, "seconds": 0.5}
        self.hp.call("warm", patience, workload=options.hp, mode="raw", **warm)
        # The first isolated requests are the calibration; BE stays away meanwhile.
        calibration = warm if options.tiny else {"iterations": options.calibration_requests + 20, "seconds": 0.0}
        self.hp.call("warm", patience, workload=options.hp, mode="wrapped", **calibration)
        for name in options.be:
            for mode in ("raw", "wrapped"):
                self.be.call("warm", patience, workload=name, mode=mode, **warm)
        self.fleet.all_do(agents, "freeze", 30.0)
        calibrated = stats_view.calibrated(self.hp.call("stats", 30.0), options.hp)
        ctx.progress.say(f"{self.placement}: warm; HP calibrated: {'yes' if calibrated else 'NO'}")

    def _configure(self, policy):
        # Threads share one process: the second call says the same again.
        self.fleet.all_do((self.hp, self.be), "configure", 30.0, settings={"policy": policy})

    def _segment(self, segment):
        item = {"run": self.ctx.run_id, "placement": self.placement, "hp": self.ctx.options.hp}
        item |= {"variant": segment.variant, "be": segment.be, "load": segment.load, "seed": segment.seed}
        item |= {"chunk": segment.chunk, "chunks": segment.chunks}
        if segment.variant == "be-idle":
            self._configure("idle-only")
            seconds = self.ctx.options.be_idle_seconds
            self.fleet.block.set("be_stop", 0)
            args = {"workload": segment.be, "mode": "wrapped", "seconds": seconds}
            item["be_run"] = self.be.call("be", self.ctx.budget.timeout(seconds), **args)
            said = f"{summary.idle_rate([item['be_run']]):.1f}/s alone"
        else:
            self._hp_segment(segment, item)
            latencies = summary.latencies_ms(item["hp_run"])
            p50, p99 = (summary.quantile(latencies, q) for q in (0.5, 0.99)) if latencies else (0, 0)
            said = f"p50 {p50:.2f} p99 {p99:.2f} ms, {len(latencies)} requests"
            said += ", OVERLOADED" if item["hp_run"]["overloaded"] else ""
            said += f", {len(item['stalls'])} STALLS {item['stalls']}" if item["stalls"] else ""
        self.items.append(item)
        self.ctx.record(TOPIC).raw.append(item)
        self.ctx.progress.step(f"{self.placement} {segment.title}: {said}")

    def _hp_segment(self, segment, item):
        options, variant = self.ctx.options, VARIANTS[segment.variant]
        if variant.policy is not None:
            self._configure(variant.policy)
        args = {"workload": options.hp, "mode": variant.hp_mode, "requests": segment.requests, "load": segment.load}
        args |= {"seed": segment.seed, "chunks": segment.chunks, "chunk": segment.chunk}
        args["overload_s"] = options.overload_seconds
        kind, fraction, _ = arrivals.parse(segment.load)
        if kind != arrivals.CLOSED:
            args["rate_hz"] = self._rate(fraction)
            item["rate_hz"] = args["rate_hz"]
        self.fleet.block.set("hp_stop", 0)
        patience = self.ctx.budget.timeout(segment.seconds)
        if variant.be_mode is None:
            item["hp_run"] = self.hp.call("hp", patience, **args)
        else:
            be_args = {"workload": segment.be, "mode": variant.be_mode}
            before = self._gate()
            replies = self.fleet.colocated(self.be, be_args, self.hp, "hp", args, patience)
            item["hp_run"], item["be_run"] = replies
            item["gate"] = {key: count - before[key] for key, count in self._gate().items()}
        item["at"] = time.time()
        item["stalls"] = self._stalls(item["hp_run"])

    def _gate(self):
        return stats_view.gate(self.be.call("stats", 30.0))

    def _rate(self, fraction):
        """Requests a second that make ``fraction`` of the isolated closed-loop service time; fixed for the run."""
        if self.service_ms is None:
            runs = [i["hp_run"] for i in self.items if i["variant"] == "isolated" and i["load"] == arrivals.CLOSED]
            if not runs:  # closed was not asked for, or failed: measure it now
                args = {"workload": self.ctx.options.hp, "mode": "raw", "requests": 100}
                runs = [self.hp.call("hp", self.ctx.budget.timeout(2.0), **args)]
            self.service_ms = summary.quantile([ms for run in runs for ms in summary.services_ms(run)], 0.5)
            self.ctx.progress.say(f"{self.placement}: isolated service time {self.service_ms:.3f} ms")
        return fraction / (self.service_ms / 1e3)

    def _stalls(self, run):
        services = summary.services_ms(run)
        if not services:
            return []
        threshold = max(self.ctx.options.stall_ms, 5 * summary.quantile(services, 0.5))
        if max(services) < threshold:
            return []
        events = [tuple(event) for agent in (self.hp, self.be) for event in agent.call("pauses", 30.0)]
        for agent in (self.hp, self.be):
            events += stats_view.timed_events(agent.call("stats", 30.0))
        return summary.stalls(run, threshold, list(dict.fromkeys(events)))

    def publish(self):
        rows = [row for row in self.ctx.record(TOPIC).rows if f"placement={self.placement} " not in row.case]
        rows += summary.bound_rows(self.items)
        self.ctx.publish(TOPIC, rows, report.bound(rows))
