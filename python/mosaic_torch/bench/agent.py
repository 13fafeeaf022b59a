"""One agent: a thread that builds jobs, warms them, and runs segments as it is told.

Its commands are the ``op_*`` methods; the coordinator's side is ``fleet``.
"""

import gc
import importlib
import json
import os
import threading
import time
import traceback

from . import arrivals, control, loops, workloads
from .device import open_device


class Shared:
    """What the agents of one process have in common."""

    def __init__(self, device, control_spec, block, tiny, seed):
        self.device_text = device
        self.control_spec = control_spec
        self.block = block
        self.tiny = tiny
        self.seed = seed
        # Weights come from the process-wide random generator: one build at a time.
        self.build_lock = threading.Lock()
        self.pauses = loops.PauseLog()
        self._open_lock = threading.Lock()
        self._device = None
        self._control = None

    @property
    def device(self):
        with self._open_lock:
            if self._device is None:
                self._device = open_device(self.device_text)
            return self._device

    @property
    def control(self):
        with self._open_lock:
            if self._control is None:
                self._control = control.make(self.control_spec)
            return self._control


class Agent:
    """Serves one pipe."""

    def __init__(self, name, conn, shared):
        self.name = name
        self.conn = conn
        self.shared = shared
        self.jobs = {}
        self.wrapped = {}
        self.roles = {}

    def serve(self):
        """Until told to quit, or until the coordinator is gone."""
        loops.precise_sleep()
        try:
            with self.shared.device.thread_stream():
                self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # the device could not be opened: the first command learns why
            self._refuse_all(error)

    def _serve(self):
        while True:
            message = json.loads(self.conn.recv_bytes())
            if message["op"] == "quit":
                self._reply({"ok": True, "value": None})
                return
            self._reply(self._run(message))

    def _run(self, message):
        try:
            handler = getattr(self, f"op_{message['op']}")
            return {"ok": True, "value": handler(**message["args"])}
        except Exception as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}

    def _refuse_all(self, error):
        try:
            while json.loads(self.conn.recv_bytes())["op"] != "quit":
                self._reply({"ok": False, "error": f"{type(error).__name__}: {error}", "trace": ""})
        except (EOFError, OSError):
            return

    def _reply(self, reply):
        self.conn.send_bytes(json.dumps(reply).encode())

    # What topics use.

    def job(self, workload):
        try:
            return self.jobs[workload]
        except KeyError:
            raise ValueError(f"agent {self.name} has not loaded {workload!r}, only {sorted(self.jobs)}") from None

    def call_of(self, workload, mode):
        """The thing to call: ``raw`` on this thread's plain stream; ``wrapped`` through the role, inside a request;
        ``call`` through the role, the call itself being the request."""
        job = self.job(workload)
        if mode == "raw":
            return job.call
        if mode in ("wrapped", "call"):
            fn, inputs = self.wrapped[workload], job.inputs
            return lambda: fn(*inputs)
        raise ValueError(f"unknown mode {mode!r}: expected raw, wrapped or call")

    def request_of(self, workload, mode):
        """The maker of request contexts; None where the call itself is the request, or where there is no role."""
        if mode != "wrapped" or self.roles[workload] != "hp":
            return None
        made, fn = self.shared.control.request, self.wrapped[workload]
        return lambda arrived_at_s: made(fn, arrived_at_s)

    # Commands.

    def op_ping(self):
        return {"pid": os.getpid(), "now_ns": time.monotonic_ns()}

    def op_load(self, names):
        """Builds the jobs; returns what was built, and the seconds it took."""
        begin = time.monotonic()
        built = {}
        for name in names:
            with self.shared.build_lock:
                device = self.shared.device
                self.jobs[name] = workloads.build(name, device.torch_device, self.shared.tiny, self.shared.seed)
            built[name] = self.jobs[name].shape
        self.shared.device.synchronize()
        return {"built": built, "seconds": time.monotonic() - begin}

    def op_register(self, names, role, slo=1.1):
        """Puts loaded jobs under a role."""
        for name in names:
            job = self.job(name)
            ours = {"name": name, "device": self.shared.device.torch_device}
            if role == "hp":
                self.wrapped[name] = self.shared.control.hp(job.fn, slo=slo, **ours)
            elif role == "be":
                self.wrapped[name] = self.shared.control.be(job.fn, **ours)
            else:
                raise ValueError(f"unknown role {role!r}: expected hp or be")
            self.roles[name] = role

    def op_freeze(self):
        """What was built so far is no garbage: collections in a segment need not walk it."""
        gc.collect()
        gc.freeze()

    def op_warm(self, workload, mode, iterations, seconds):
        """At least so many iterations and so long, in this thread: cuDNN keeps its plans per thread."""
        call, wait = self.call_of(workload, mode), self.shared.device.marker()
        request = self.request_of(workload, mode)
        begin = time.monotonic()
        count = 0
        while count < iterations or time.monotonic() - begin < seconds:
            if request is None:
                call()
                wait()
            else:
                with request(time.monotonic()):
                    call()
                    wait()
            count += 1
        return {"iterations": count, "seconds": time.monotonic() - begin}

    def op_hp(self, workload, mode, requests, load="closed", rate_hz=None, seed=0, chunks=1, chunk=0, overload_s=None):
        """One HP segment: chunk ``chunk`` of ``requests`` requests."""
        kind, _, cv = arrivals.parse(load)
        if kind == arrivals.CLOSED:
            offsets = requests * (chunk + 1) // chunks - requests * chunk // chunks
        else:
            offsets = arrivals.chunk_ns(rate_hz, cv, seed, requests, chunks, chunk)
        return loops.run_hp(
            self.call_of(workload, mode),
            self.request_of(workload, mode),
            self.shared.device.marker(),
            offsets,
            self.shared.block,
            None if overload_s is None else round(overload_s * 1e9),
        )

    def op_be(self, workload, mode, seconds=None, at_least=1):
        """One BE segment: until the coordinator stops it, or for ``seconds``."""
        return loops.run_be(
            self.call_of(workload, mode), self.shared.device.marker(), self.shared.block, seconds, at_least
        )

    def op_configure(self, settings):
        self.shared.control.configure(**settings)

    def op_stats(self):
        return self.shared.control.stats()

    def op_ledger(self):
        return self.shared.control.ledger()

    def op_pauses(self):
        return self.shared.pauses.events

    def op_facts(self):
        import platform

        import torch

        facts = {"python": platform.python_version(), "torch": torch.__version__}
        return facts | self.shared.device.facts() | self.shared.control.facts()

    def op_topic(self, topic, function, args):
        """A function of a topic's agent side: ``<topic>_agent.<function>(agent, **args)``."""
        module = importlib.import_module(f"{__package__}.{topic}_agent")
        return getattr(module, function)(self, **args)
