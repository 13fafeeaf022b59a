"""The policies that are compared, and the placements they are compared in."""

import contextlib
import dataclasses

from . import mps


@dataclasses.dataclass(frozen=True)
class Variant:
    """How HP and BE are called, and under which policy of the hook."""

    name: str
    hp_mode: str  # raw: a plain stream, the hook lets it straight through; wrapped: in its role
    be_mode: str | None  # None: no BE runs
    policy: str | None  # of the hook; None: no one is in a role


VARIANTS = {
    v.name: v
    for v in (
        Variant("isolated", "raw", None, None),
        Variant("isolated-again", "raw", None, None),
        Variant("no-op", "wrapped", None, "idle-only"),
        Variant("streams", "raw", "raw", None),
        # In their roles, so with the driver's priorities, but nothing is held.
        Variant("priority", "wrapped", "wrapped", "none"),
        Variant("idle-only", "wrapped", "wrapped", "idle-only"),
    )
}

# What a variant does to HP's service time, for planning: measured once on an H200, the worst BE of the three.
SLOWDOWN = {
    "threads": {"streams": 1.7, "priority": 1.6},
    "processes": {"streams": 2.2, "priority": 2.2},
    "mps": {"streams": 1.7, "priority": 1.3},
}

PLACEMENTS = tuple(SLOWDOWN)


@contextlib.contextmanager
def hp_and_be(fleet, placement):
    """Starts HP's and BE's agents as ``placement`` says; yields (hp, be). Ends the fleet's processes on leaving."""
    if placement == "threads":
        yield fleet.start(["hp", "be"])
    elif placement == "processes":
        yield (*fleet.start(["hp"]), *fleet.start(["be"]))
    elif placement == "mps":
        with mps.daemon() as env:
            try:
                yield (*fleet.start(["hp"], env=env), *fleet.start(["be"], env=env))
            finally:
                # Clients first: a daemon does not quit while it has some.
                fleet.end_workers()
    else:
        raise ValueError(f"unknown placement {placement!r}: expected one of {', '.join(PLACEMENTS)}")
