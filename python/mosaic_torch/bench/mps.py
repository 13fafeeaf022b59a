"""A private MPS daemon for one run: its own pipe and log folders, stopped afterwards."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"


class MpsError(Exception):
    """The daemon could not be started."""


@contextlib.contextmanager
def daemon():
    """Starts the daemon; yields the environment that makes a process its client."""
    if shutil.which(CONTROL) is None:
        raise MpsError(f"{CONTROL} is not on PATH: it comes with the NVIDIA driver")
    folder = Path(tempfile.mkdtemp(prefix="mosaic-mps-"))
    env = {}
    for variable, name in (("CUDA_MPS_PIPE_DIRECTORY", "pipe"), ("CUDA_MPS_LOG_DIRECTORY", "log")):
        (folder / name).mkdir()
        env[variable] = str(folder / name)
    whole = {**os.environ, **env}
    try:
        # It detaches and keeps what it inherited: a pipe to it would never end.
        started = subprocess.run(
            [CONTROL, "-d"], env=whole, timeout=60, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if started.returncode != 0:
            raise MpsError(f"{CONTROL} -d ended with status {started.returncode}\n{_log(folder)}".rstrip())
        _ask(whole, "get_server_list", folder)
        try:
            yield env
        finally:
            pid = _pid(folder)
            with contextlib.suppress(MpsError):
                _ask(whole, "quit", folder)
            _await_end(pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(env, command, folder):
    """One command to the daemon."""
    try:
        reply = subprocess.run(
            [CONTROL], input=command + "\n", env=env, text=True, capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        raise MpsError(f"the MPS daemon did not answer {command!r}\n{_log(folder)}".rstrip()) from None
    if reply.returncode != 0:
        raise MpsError(f"the MPS daemon refused {command!r}: {(reply.stderr or reply.stdout).strip()}\n{_log(folder)}")
    return reply.stdout


def _pid(folder):
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    return None


def _await_end(pid, timeout_s=30.0):
    """Until the daemon's process is gone; its death ends its clients' server."""
    deadline = time.monotonic() + timeout_s
    while pid is not None and time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except OSError:
            return
        time.sleep(0.05)


def _log(folder):
    with contextlib.suppress(OSError):
        return "\n".join((folder / "log" / "control.log").read_text(errors="replace").splitlines()[-5:])
    return ""
