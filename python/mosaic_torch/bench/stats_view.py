"""What the harness reads of ``mosaic_torch.stats()``: the only place that knows its keys."""


def _jobs(stats, name=None):
    return [job for job in stats.get("jobs", []) if name is None or job["name"] == name]


def kernels_seen(stats, name):
    """Kernels that the hook has seen of jobs called ``name``; a graph launch counts by its kernel nodes."""
    return sum(job["kernels"] for job in _jobs(stats, name))


def escapes(stats):
    """Launches on BE streams that did not pass the gate, of all jobs."""
    return gate(stats)["escaped"]


def calibrated(stats, name):
    """Whether the HP job's isolated times are known."""
    return any((job.get("hp") or {}).get("isolated") for job in _jobs(stats, name))


def timed_events(stats):
    """(what, begin_ns, end_ns) of calls that can stall HP without being a launch."""
    return [
        (f"{stall['kind']} {stall['call']}", stall["at_ns"], stall["at_ns"] + stall["duration_ns"])
        for stall in stats.get("stalls", [])
    ]


def gate(stats):
    """How BE fared at the gate, all jobs together: a counter a reason."""
    keys = ("held", "admitted", "admitted_hp_stalled", "admitted_wait_bound", "escaped", "unknown")
    return {key: sum((job.get("be") or {}).get(key, 0) for job in _jobs(stats)) for key in keys}
