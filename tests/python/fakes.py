"""A library and a GPU in plain Python: they keep the streams and the rules of the real ones, and write down calls."""

from __future__ import annotations

import itertools
import json
import threading

import torch

from mosaic_torch._cuda import Cuda
from mosaic_torch._runtime import Runtime
from mosaic_torch.errors import MosaicError

CALLER = 7  # the raw handle of the stream that a thread starts on


class Threads(threading.local):
    def __init__(self):
        self.stream = CALLER
        self.sections = []


class FakeGpu:
    """What the library and torch's view share: each thread's current stream."""

    def __init__(self):
        self.threads = Threads()


class FakeLibrary:
    def __init__(self, gpu):
        self.gpu = gpu
        self.calls = []
        self.jobs = {}
        self.requests = {}
        self.fail_leave = False
        self.trace = ""
        self.observed = []
        self.hook_error = None
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)

    # The two ops. Like the real ones they are C functions to their caller: `map` calls them without a frame between.

    def enter(self, job, request, device):
        if job not in self.jobs:
            raise RuntimeError(f"no job {job}")
        if request and request not in self.requests:
            raise RuntimeError(f"no request {request}")
        mine = self.gpu.threads
        token = next(self._tokens)
        mine.sections.append((token, mine.stream))
        mine.stream = 100 + job
        self.calls.append(("enter", job, request, device))
        return token

    def leave(self, token, ok):
        mine = self.gpu.threads
        if not mine.sections or mine.sections[-1][0] != token:
            raise RuntimeError(f"token {token} is not this thread's innermost")
        mine.stream = mine.sections.pop()[1]
        self.calls.append(("leave", token, ok))
        if self.fail_leave:
            raise RuntimeError("the driver said no")

    # The C ABI

    def init(self):
        self.calls.append(("init",))
        if self.hook_error is not None:
            raise self.hook_error

    def shutdown(self):
        self.calls.append(("shutdown",))

    def job_register(self, name, role, device, slo, fingerprint):
        job = next(self._ids)
        self.jobs[job] = (name, role, device, slo, fingerprint)
        return job

    def job_unregister(self, job):
        self.jobs.pop(job, None)

    def request_open(self, job, arrived_at_ns):
        request = next(self._ids)
        self.requests[request] = (job, arrived_at_ns)
        self.calls.append(("open", request, arrived_at_ns))
        return request

    def request_close(self, request):
        del self.requests[request]
        self.calls.append(("close", request))

    def process_role(self, role, name, slo):
        self.calls.append(("process_role", role, name, slo))

    def configure(self, settings):
        self.calls.append(("configure", settings))

    def stats(self):
        return {"jobs": len(self.jobs)}

    def doctor(self):
        return {"mechanism": "detour"}

    def record_start(self, job):
        self.calls.append(("record_start", job))

    def record_stop(self):
        return self.trace

    def stream_set_role(self, stream, job):
        self.calls.append(("stream_set_role", stream, job))

    def observe_start(self, job, options):
        self.calls.append(("observe_start", job, options))

    def observe_stop(self):
        return self.observed

    def kept_fill(self, kept, stream):
        self.calls.append(("kept_fill", kept, stream))

    def kept_launch(self, kept, stream):
        self.calls.append(("kept_launch", kept, stream))

    def kept_clear(self):
        self.calls.append(("kept_clear",))

    def device(self, device):
        return {"sms": 132, "granularity_sms": 8, "priority_lowest": 0, "priority_highest": -5}

    def stream_create(self, device, priority):
        self.calls.append(("stream_create", device, priority))
        return 1000 + next(self._ids)

    def partition(self, device, sms):
        self.calls.append(("partition", device, sms))
        got = -(-sms // 8) * 8
        return {"partition": next(self._ids), "sms": got, "rest_sms": 132 - got}

    def partition_stream(self, partition, rest, priority):
        self.calls.append(("partition_stream", partition, rest, priority))
        return 1000 + next(self._ids)

    def partition_close(self, partition):
        self.calls.append(("partition_close", partition))

    def ncu_metrics(self):
        return ["m"]

    def ncu_launches(self, path):
        """Of a table that holds JSON lines instead of columns."""
        with open(path) as table:
            text = table.read()
        if text.startswith("==ERROR=="):
            raise MosaicError(text.strip())
        return [json.loads(line) for line in text.splitlines() if not line.startswith("==")]

    def names(self):
        return [call[0] for call in self.calls if call[0] in ("enter", "leave", "open", "close")]


class FakeCuda(Cuda):
    def __init__(self, gpu, devices=2):
        super().__init__()
        self.gpu = gpu
        self.devices = devices
        self.why = None
        self.capturing = False

    def problem(self):
        return self.why

    def init(self):
        pass

    def device_count(self):
        return self.devices

    def current_device(self):
        return 0

    def raw_stream(self, device):
        return self.gpu.threads.stream

    def stream(self, device, raw):
        return (device, raw)

    def passive(self):
        return self.capturing


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and writes down which streams it was marked for."""

    @staticmethod
    def __new__(cls, index=0):
        self = torch.Tensor._make_subclass(cls, torch.zeros(2))
        self.index = index
        self.marks = []
        return self

    def get_device(self):
        return self.index

    @property
    def device(self):
        return torch.device("cuda", self.index)

    def record_stream(self, stream):
        self.marks.append(stream)


class Model(torch.nn.Module):
    """A module whose parameter says it is on a GPU."""

    def __init__(self, *indices):
        super().__init__()
        self.on = indices or (0,)

    def parameters(self, recurse=True):
        return iter([OnGpu(i) for i in self.on])

    def forward(self, x, scale=1.0):
        """Scales."""
        return x * scale


def world():
    gpu = FakeGpu()
    library = FakeLibrary(gpu)
    return Runtime(lambda: library, FakeCuda(gpu)), library
