"""The life of the process: a role for all of it, fork, exit."""

from __future__ import annotations

import atexit
import math
import os
import sys
import warnings

from ._lib import ROLES
from ._runtime import Runtime
from .errors import MosaicError, UsageError


def role_of_environment(environ: dict[str, str] | os._Environ[str] = os.environ) -> tuple[int, str, float] | None:
    """The role, name and bound that `mosaic run` put into the environment; None without one."""
    role = environ.get("MOSAIC_ROLE", "").strip().lower()
    if not role:
        return None
    if role not in ROLES:
        raise UsageError(f"found MOSAIC_ROLE={role}, expected hp or be")
    text = environ.get("MOSAIC_SLO", "").strip() or "1.1"
    try:
        slo = float(text)
    except ValueError:
        slo = math.nan
    if not 1.0 <= slo <= 1000.0:
        raise UsageError(f"found MOSAIC_SLO={text}, expected a ratio from 1.0 to 1000")
    name = environ.get("MOSAIC_NAME", "").strip() or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return ROLES[role], name.encode()[:63].decode(errors="ignore"), slo


def start(runtime: Runtime) -> None:
    """Puts the hook in force and applies the process's role, as importing the package does.

    Without a GPU or a built library the import still works: the first use says what is wrong. A role that cannot be
    applied is said at once, since a best-effort program would run unheld.
    """
    role = role_of_environment()
    atexit.register(runtime.shutdown)
    os.register_at_fork(after_in_child=runtime.after_fork_in_child)
    try:
        runtime.lib.init()
        if role is not None:
            runtime.lib.process_role(*role)
    except MosaicError as e:
        if role is not None and runtime.cuda.problem() is None:
            warnings.warn(f"mosaic_torch: this process runs WITHOUT its role: {e}", RuntimeWarning, stacklevel=2)
