"""Agent side of ``death``: an HP that stays inside one request until it is killed."""

import time


def hang(agent, workload, seconds):
    """Serves inside one open request; ends by itself after ``seconds``, should nobody kill it."""
    call, wait = agent.call_of(workload, "wrapped"), agent.shared.device.marker()
    block = agent.shared.block
    deadline = time.monotonic() + seconds
    with agent.request_of(workload, "wrapped")(time.monotonic()):
        while time.monotonic() < deadline:
            call()
            wait()
            block.set("hp_inside", 1)
    block.set("hp_inside", 0)
