"""The coordinator's side: starts workers, commands their agents, notices when one dies or hangs."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from .block import Block


class AgentError(Exception):
    """A command failed in the agent; the agent itself goes on."""


class AgentLost(Exception):
    """An agent's process died, or did not answer in time: nothing more can be asked of it."""


class Worker:
    """One process with its agents."""

    def __init__(self, names, *, folder, block_path, device, control, tiny, seed, env=None, prefix=(), follow=True):
        self.log_path = Path(folder) / f"{'-'.join(names)}-{time.monotonic_ns()}.log"
        pairs = [socket.socketpair() for _ in names]
        command = [*prefix, sys.executable, str(Path(__file__).with_name("launch.py"))]
        for name, (_, theirs) in zip(names, pairs, strict=True):
            command += ["--agent", f"{name}={theirs.fileno()}"]
        command += ["--block", str(block_path), "--device", device, "--control", control, "--seed", str(seed)]
        if tiny:
            command.append("--tiny")
        if follow:
            command += ["--parent", str(os.getpid())]
        # The worker runs by path: it must find the same mosaic_torch as the coordinator.
        home = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": paths, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno() for _, theirs in pairs],
                start_new_session=True,  # the coordinator decides what an interrupt means
            )
        self.agents = {}
        for name, (ours, theirs) in zip(names, pairs, strict=True):
            theirs.close()
            self.agents[name] = Handle(name, Connection(ours.detach()), self)

    def log_tail(self, lines=15):
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def kill(self):
        """Ends it at once. Its group is its own: what it started goes with it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)

    def close(self, timeout=30.0):
        """Asks its agents to end; kills it if they do not."""
        try:
            for agent in self.agents.values():
                agent.send("quit")
            self.process.wait(timeout)
        except (AgentLost, RuntimeError, subprocess.TimeoutExpired):
            self.kill()


class Handle:
    """One agent, as the coordinator sees it: one command at a time."""

    def __init__(self, name, conn, worker):
        self.name = name
        self._conn = conn
        self.worker = worker
        self._pending = None

    def send(self, op, **args):
        """Starts a command; ``finish`` waits for its reply."""
        if self._pending:
            raise RuntimeError(f"agent {self.name} is still busy with {self._pending}")
        try:
            self._conn.send_bytes(json.dumps({"op": op, "args": args} if op != "quit" else {"op": op}).encode())
        except OSError as error:
            raise AgentLost(self._epitaph(op)) from error
        self._pending = op

    def finish(self, timeout):
        """The reply to the command that was sent."""
        op = self._pending
        try:
            if not self._conn.poll(max(0.0, timeout)):
                raise AgentLost(f"agent {self.name} did not answer {op!r} within {timeout:.0f} s")
            reply = json.loads(self._conn.recv_bytes())
        except (EOFError, OSError) as error:
            raise AgentLost(self._epitaph(op)) from error
        self._pending = None
        if not reply["ok"]:
            raise AgentError(f"agent {self.name}, {op}: {reply['error']}\n{reply['trace']}".rstrip())
        return reply["value"]

    def ready(self):
        """Whether a reply has come (or the end of the pipe)."""
        return self._conn.poll(0)

    def call(self, op, timeout, **args):
        """Command and reply."""
        self.send(op, **args)
        return self.finish(timeout)

    def topic(self, topic, function, timeout, **args):
        """A function of a topic's agent side."""
        return self.call("topic", timeout, topic=topic, function=function, args=args)

    def _epitaph(self, op):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.worker.process.wait(5)
        code = self.worker.process.returncode
        how = "is closing its pipe but still runs" if code is None else f"ended with status {code}"
        return f"agent {self.name} was lost during {op!r}: its process {how}\n{self.worker.log_tail()}".rstrip()


class Fleet:
    """Workers of one placement, their agents by name, and the block that all share."""

    def __init__(self, *, device, control="mosaic", tiny=False, seed=0):
        # Shared memory proper where there is some: the block is written in the inner loops.
        root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="mosaic-bench-", dir=root))
        self._block_path = self.folder / "block"
        self.block = Block(self._block_path, create=True)
        self._common = {"device": device, "control": control, "tiny": tiny, "seed": seed}
        self.workers = []

    def start(self, names, **options):
        """Starts one worker with these agents; returns their handles, in order."""
        settings = {**self._common, **options}
        worker = Worker(names, folder=self.folder, block_path=self._block_path, **settings)
        self.workers.append(worker)
        return [worker.agents[name] for name in names]

    def all_do(self, agents, op, timeout, **args):
        """The same command to several agents at once."""
        for agent in agents:
            agent.send(op, **args)
        deadline = time.monotonic() + timeout
        return [agent.finish(deadline - time.monotonic()) for agent in agents]

    def colocated(self, be, be_args, hp, hp_op, hp_args, timeout, settle_s=0.3):
        """Runs a BE segment around an HP one; returns (HP's reply, BE's reply)."""
        block = self.block
        block.set("be_stop", 0)
        block.set("be_running", 0)
        block.set("hp_stop", 0)
        be.send("be", **be_args)
        running = "BE to enter its loop"
        wait_until(lambda: block.get("be_running") == 1 or be.ready(), 20.0, running, be.worker)
        time.sleep(settle_s)
        try:
            hp_reply = hp.call(hp_op, timeout, **hp_args)
        except AgentError:
            block.set("be_stop", 1)
            be.finish(30.0)
            raise
        finally:
            block.set("be_stop", 1)
        return hp_reply, be.finish(30.0)

    def end_workers(self):
        """Ends every worker: by asking, and where that does not help, by force."""
        for worker in self.workers:
            worker.close()
        self.workers = []

    def kill_workers(self):
        for worker in self.workers:
            worker.kill()
        self.workers = []

    def close(self):
        self.end_workers()
        self._remove()

    def kill(self):
        self.kill_workers()
        self._remove()

    def _remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.kill()
        return False


def wait_until(condition, timeout, what, worker=None):
    """Polls a word of the block (each poll a load) until ``condition`` holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if worker is not None and worker.process.poll() is not None:
            raise AgentLost(f"process ended with status {worker.process.returncode} while waiting for {what}")
        if time.monotonic() > deadline:
            raise AgentLost(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.0005)
