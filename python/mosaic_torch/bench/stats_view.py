"""What the harness reads of ``mosaic_torch.stats()``: the only place that knows its keys."""

# Launches of one kernel each, in the hook's count; a graph launch counts by its kernel nodes.
_SEEN = "kernels_seen"
_ESCAPED = "escaped"


def jobs(stats):
    """Name → the job's counters."""
    return {job["name"]: job for job in stats.get("jobs", [])}


def kernels_seen(stats, name):
    """Kernels that the hook has seen of job ``name``."""
    return jobs(stats).get(name, {}).get(_SEEN, 0)


def escapes(stats):
    """Launches on registered streams that did not pass the gate, of all jobs."""
    return sum(job.get(_ESCAPED, 0) for job in jobs(stats).values())


def calibrated(stats, name):
    """Whether the job's isolated times are known."""
    job = jobs(stats).get(name)
    return job is not None and not job.get("calibrating", False)


def held_now(stats):
    """BE launches that wait in the gate at this moment."""
    return sum(job.get("waiting", 0) for job in jobs(stats).values())


def timed_events(stats):
    """(kind, begin_ns, end_ns) of calls that can stall HP without being a launch."""
    return [(event["kind"], event["begin_ns"], event["end_ns"]) for event in stats.get("events", [])]
