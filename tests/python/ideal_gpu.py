"""A GPU that does exactly what the experiments of `profiling.physics` expect: their whole file, made without one."""

import heapq
import math
from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mosaic_torch.profiling import physics, placement
from mosaic_torch.profiling.zoo import own

SMS, THREADS, SHARED_KIB, L2_MIB, L1_KIB = 132, 2048, 228, 60, 240
CARVEOUTS = (8, 16, 32, 64, 100, 132, 164, 196, 228)
PEAK = 4300.0  # bytes a nanosecond
HOST_NS = 10_000
GPU = {
    "experiment": "gpu",
    "x": SMS,
    "unit": "SMs",
    "threads_per_sm": THREADS,
    "registers_per_sm": 65_536,
    "shared_bytes_per_sm": SHARED_KIB << 10,
    "l2_bytes": L2_MIB << 20,
}


class Sm:
    """Threads and shared memory that are taken, the carveout while any block runs."""

    def __init__(self):
        self.threads = self.kib = self.held = self.carveout = 0

    def room(self, spin):
        carveout = self.carveout if self.held else spin.carveout
        return max(0, min((THREADS - self.threads) // spin.threads, (carveout - self.kib) // spin.kib))

    def take(self, spin, sign):
        if not self.held:
            self.carveout = spin.carveout
        self.held += sign
        self.threads += sign * spin.threads
        self.kib += sign * spin.kib


class Spin:
    """What waits to be placed of one launch."""

    def __init__(self, config, arrives, high, sms):
        p = config.params
        self.threads, self.blocks = p["threads"], p["blocks"]
        self.kib = 1 + p.get("ballast", 0) // 1024
        fit = min(THREADS // self.threads, SHARED_KIB // self.kib)
        self.carveout = min(c for c in CARVEOUTS if c >= fit * self.kib)
        self.cycles, self.step = p["cycles"], p.get("step", 0)
        self.arrives, self.high, self.sms = arrives, high, sms
        self.sm, self.begin_ns, self.end_ns = [], [], []

    def left(self):
        return len(self.sm) < self.blocks

    def record(self):
        return {"sm": self.sm, "begin_ns": self.begin_ns, "end_ns": self.end_ns}


def run(spins):
    """Places blocks where there is most room, a kernel after the other, as SMs are released."""
    sms = [Sm() for _ in range(SMS)]
    running = []  # (end, order, SM, spin)
    now = 0
    while any(spin.left() for spin in spins):
        for spin in sorted((s for s in spins if s.arrives <= now and s.left()), key=lambda s: (-s.high, s.arrives)):
            rooms = [sms[i].room(spin) for i in spin.sms]
            while spin.left() and max(rooms) > 0:
                at = rooms.index(max(rooms))
                sms[spin.sms[at]].take(spin, 1)
                rooms[at] = sms[spin.sms[at]].room(spin)
                end = now + round((spin.cycles + len(spin.sm) * spin.step) / 1.98)
                heapq.heappush(running, (end, len(running), spin.sms[at], spin))
                spin.sm.append(spin.sms[at])
                spin.begin_ns.append(now)
                spin.end_ns.append(end)
            if spin.left() and len(spin.sms) == SMS:
                break  # the next kernel waits for this one's last block
        now = min([s.arrives for s in spins if s.arrives > now] + [end for end, *_ in running[:1]])
        while running and running[0][0] <= now:
            _, _, sm, spin = heapq.heappop(running)
            sms[sm].take(spin, -1)
    return spins


def placed(case):
    """The line of a case of `placement`."""
    lanes = SimpleNamespace(
        full=lambda high, name: SimpleNamespace(high=high, sms=range(SMS)),
        part=lambda sms, rest=False: SimpleNamespace(high=False, sms=range(sms, SMS) if rest else range(sms)),
    )
    spins = [
        Spin(config, i * HOST_NS, lane.high, lane.sms)
        for i, (lane, config) in enumerate(zip(case.lanes(lanes), (case.a, case.b), strict=True))
        if config
    ]
    line = {"experiment": case.experiment, "x": case.x, "unit": case.unit}
    for name, spin in zip("ab", run(spins), strict=False):
        line |= {f"{name}_sms": len(spin.sms), f"{name}_blocks": spin.record()}
    return line


def _hits(size, capacity):
    """What a cache keeps of a set that is gone through again and again."""
    return min(1.0, max(0.0, 1 - 2 * (size / capacity - 1)))


def _waits(size, capacity):
    return 3 - 2 * _hits(size, capacity)


def _times(case, work):
    """Alone (both alike), and beside the other: a, b."""
    x = case.x
    if case.experiment == "blocks":
        return 505_000, 1.0, math.ceil(2 * x / 264)
    if case.experiment.startswith("hbm"):
        whole = case.experiment == "hbm-peak"
        if case.experiment == "hbm":
            demand = min(x * 100, PEAK)
        else:
            demand = min(x * (SMS if whole else physics.HALF) * 32 / 700, PEAK if whole else 0.8 * PEAK)
        s = max(1.0, 2 * demand / PEAK)
        return (work["a_bytes_read"] + work["a_bytes_written"]) / demand, s, s
    if case.experiment in ("fp32", "fp64"):
        rate = min(1.0, x / 4)
        s = max(1.0, 2 * rate)
        return work["a_flops"] / (30_000 * rate), s, s
    if case.experiment in ("l1", "l2"):
        capacity = {"l1": L1_KIB, "l2": L2_MIB}[case.experiment]
        s = _waits(2 * x, capacity) / _waits(x, capacity)
        return 500_000 * _waits(x, capacity), s, s
    assert case.experiment == "fdtd"
    return 300_000 / (1 + x / 300), 2 - x / 200, 1.1


def paired(case):
    """The line of a pair."""
    with FakeTensorMode():
        target = own.Target(torch.device("cpu"), SMS)
        plans = [own.plan(config.family, config.params, target) for config in (case.a, case.b)]
    work = physics.work("a", plans[0]) | physics.work("b", plans[1])
    alone, a, b = _times(case, work)

    def spread(ns):
        return {"median_ns": round(ns), "p10_ns": round(ns), "p90_ns": round(ns), "n": 7}

    durations = {"a_alone_ns": alone, "b_alone_ns": alone, "a_ns": a * alone, "b_ns": b * alone}
    line = {"experiment": case.experiment, "x": case.x, "unit": case.unit, **work}
    line |= {"a": "zoo:a", "b": "zoo:b", "mode": case.mode.name, "a_sms": SMS, "b_sms": SMS}
    line |= {name: spread(ns) for name, ns in durations.items()}
    return line | {"lead_ns": 2000, "overlap_ns": round(min(a, b) * alone), "noisy": False}


def lines():
    """All of `physics.jsonl` but its first line."""
    return [GPU, *(placed(c) if isinstance(c, placement.Case) else paired(c) for c in physics.cases())]
