"""Agent side of ``overhead``: requests without a role and in their role, in turn.

A host whose speed changes from one second to the next changes less from one request to the next.
"""

import time


def in_turn(agent, workload, pairs):
    """Nanoseconds of each request, by variant."""
    wait, clock = agent.shared.device.marker(), time.monotonic_ns
    calls = [("unregistered", agent.call_of(workload, "raw")), ("on", agent.call_of(workload, "call"))]
    times = {name: [] for name, _ in calls}
    for _ in range(pairs):
        for name, call in calls:
            begin = clock()
            call()
            wait()
            times[name].append(clock() - begin)
        calls.reverse()  # neither always comes second
    return times
