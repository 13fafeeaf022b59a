"""On a real GPU: wrapped models compute what they did before, whoever else runs, however they are called.

All small: what is tested is the order of the work, not its size. Run by `make test-gpu`.
"""

import copy
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import mosaic_torch
from mosaic_torch._runtime import wrapper_of

pytestmark = pytest.mark.gpu

PACKAGE = Path(mosaic_torch.__file__).parent
WRAP = {"hp": mosaic_torch.hp, "be": mosaic_torch.be}
OTHER = {"hp": "be", "be": "hp"}
BLOCK = {"hp": mosaic_torch.request, "be": mosaic_torch.best_effort}
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
# Best effort is held for as long as a request is open: no bound lets it go before a test has looked.
HOLD = {"calibration_requests": 0, "stall_ms": 600_000, "max_wait_ms": 600_000}
LONG_S = 30


@pytest.fixture(scope="module", autouse=True)
def settings():
    before = mosaic_torch.stats()["settings"]
    mosaic_torch.configure(**HOLD)
    yield
    mosaic_torch.configure(**before)


@contextmanager
def wrapped(model, role, **options):
    """The model under a role, for the length of a block."""
    job = WRAP[role](model, **options)
    try:
        yield job
    finally:
        mosaic_torch.unwrap(job)


def job_stats(name):
    (found,) = [job for job in mosaic_torch.stats()["jobs"] if job["name"] == name]
    return found


def launches(job):
    """Its launches so far, of any kind; each is counted before it comes to the gate."""
    return job["kernels"] + job["graphs"] + job["copies"]


def until(condition, what):
    """Waits for what another thread does."""
    waited = threading.Event()
    for _ in range(LONG_S * 1000):
        if condition():
            return
        waited.wait(0.001)
    raise AssertionError(f"not within {LONG_S} s: {what}")


@contextmanager
def running(function, *, synchronize=True):
    """Calls the function again and again in a thread; at least once before the block begins, and once in it."""
    calls, stop, failed = [0], threading.Event(), []

    def loop():
        try:
            while not stop.is_set():
                function()
                if synchronize:
                    torch.cuda.current_stream().synchronize()
                calls[0] += 1
                stop.wait(0.0005)
        except BaseException as e:
            failed.append(e)
            raise

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        until(lambda: calls[0] or failed, "the first call in the other thread")
        at_begin = calls[0]
        yield
        until(lambda: calls[0] > at_begin or failed, "a call in the other thread")
    finally:
        stop.set()
        thread.join(LONG_S)
    assert not failed
    assert not thread.is_alive()


@contextmanager
def deterministic():
    """Kernels that add in a fixed order, where there are such."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Task(threading.Thread):
    """One call in a thread of its own; `result()` raises what it raised."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self._function, self._result, self._error = function, None, None
        self.start()

    def run(self):
        try:
            self._result = self._function()
            torch.cuda.current_stream().synchronize()
        except BaseException as e:
            self._error = e

    def result(self):
        self.join(LONG_S)
        assert not self.is_alive(), "still held"
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def held(server, name, function):
    """Best-effort `function` (of the job `name`) in a thread that stands in the gate while the block lasts."""
    with ExitStack() as stack:
        request = mosaic_torch.request(server).open()
        stack.callback(request.close)
        before = job_stats(name)
        task = Task(function)
        until(lambda: launches(job_stats(name)) > launches(before), "a best-effort launch")
        yield task
        assert task.is_alive(), "it was not held"
        assert job_stats(name)["be"]["admitted"] == before["be"]["admitted"]
    task.result()


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 100),
        )


class Perceptron(nn.Sequential):
    def __init__(self, width=512, depth=4):
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
        super().__init__(*layers)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)

    def forward(self, tokens):
        return self.layer(self.embedding(tokens)).mean(1)


class Bags(nn.Sequential):
    def __init__(self):
        super().__init__(nn.EmbeddingBag(5000, 64), nn.Linear(64, 64), nn.Sigmoid())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(64, 128, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


def floats(*shape):
    return torch.randn(shape, device="cuda")


WORKLOADS = {
    "convolutions": (Convolutions, lambda: floats(16, 3, 64, 64)),
    "linear": (Perceptron, lambda: floats(256, 512)),
    "attention": (Attention, lambda: torch.randint(1000, (8, 128), device="cuda")),
    "bags": (Bags, lambda: torch.randint(5000, (256, 20), device="cuda")),
    "recurrent": (Recurrent, lambda: floats(8, 32, 64)),
}


def build(workload="linear", seed=0):
    torch.manual_seed(seed)
    kind, make_input = WORKLOADS[workload]
    return kind().cuda().eval(), make_input()


@contextmanager
def neighbour(role):
    """Another model at work in that role, in a thread."""
    model, x = build(seed=99)
    with wrapped(model, role, name=f"neighbour-{role}"):

        def call():  # in no_grad itself: the block has a mode of its own
            with torch.no_grad():
                model(x)

        with running(call):
            yield model


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("role", WRAP)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_outputs_are_bit_equal_beside_the_other_role(workload, role, mode):
    """Fault: a kernel that reads its input too early, or memory that is used again too early."""
    model, x = build(workload)
    inputs = [x, *(build(workload, seed)[1] for seed in (1, 2))]
    with MODES[mode]():
        expected = [model(i) for i in inputs]
        torch.cuda.synchronize()
        with wrapped(model, role), neighbour(OTHER[role]):
            for _ in range(10):
                # The inputs are written just before, on the caller's stream, and dropped just after.
                outputs = [model(i + 0) for i in inputs]
                for output, right in zip(outputs, expected, strict=True):
                    assert torch.equal(output, right)


def test_best_effort_training_step_is_bit_equal():
    """Fault: a backward or an optimizer step that does not wait for the forward on the other stream."""
    # Its own process: cuBLAS reads this variable once.
    out = run_python(TRAINING, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    assert out.splitlines()[-1] == "equal: loss, 18 gradients, 18 parameters"


TRAINING = """
import copy, threading
import torch
from torch import nn
import mosaic_torch

torch.use_deterministic_algorithms(True)
mosaic_torch.configure(calibration_requests=0)
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3))
        self.tokens = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    def forward(self, x):
        return self.tokens(self.conv(x).flatten(2).transpose(1, 2)).mean(1)

plain = Net().cuda().train()
trained = copy.deepcopy(plain)
x, y = torch.randn(8, 3, 14, 14, device="cuda"), torch.randint(64, (8,), device="cuda")

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()

right = train(plain, 5)
torch.cuda.synchronize()
server = mosaic_torch.hp(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda())
job = mosaic_torch.be(trained)
stop = threading.Event()
def serve():
    with torch.no_grad():
        z = torch.randn(64, 256, device="cuda")
        while not stop.wait(0.001):
            server(z)
            torch.cuda.current_stream().synchronize()
threading.Thread(target=serve).start()
try:
    # Steps 1 to 4 as they are written for a plain model, the last as a whole under the role.
    optimizer = torch.optim.SGD(job.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        def one():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(job(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()
        if step < 4:
            loss = one()
        else:
            with mosaic_torch.best_effort(job):
                loss = one()
    torch.cuda.synchronize()
finally:
    stop.set()
assert torch.equal(loss, right), (loss, right)
pairs = list(zip(plain.parameters(), job.parameters(), strict=True))
assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
assert all(torch.equal(a, b) for a, b in pairs)
(be,) = [j for j in mosaic_torch.stats()["jobs"] if j["role"] == "be"]
assert be["kernels"] > 100, be
print(f"equal: loss, {len(pairs)} gradients, {len(pairs)} parameters")
"""


def run_python(program, **environment):
    """A program in a Python of its own; its output, or what it said when it failed."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PYTHONFAULTHANDLER": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
    return done.stdout


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    torch.cuda.current_stream().synchronize()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("role", WRAP)
def test_gradients_are_bit_equal_beside_the_other_role(role):
    """Fault: a backward that starts before the forward on the job's stream is done, or in a thread without the role."""
    model, x = build("attention")
    with deterministic(), sdpa_kernel(SDPBackend.MATH):  # the other attentions' backward may add in any order
        expected = gradients(model, x)
        with wrapped(model, role), neighbour(OTHER[role]):
            for _ in range(5):
                for gradient, right in zip(gradients(model, x), expected, strict=True):
                    assert torch.equal(gradient, right)


@pytest.mark.parametrize("role", WRAP)
def test_training_steps_in_a_block_are_bit_equal(role):
    """Fault: forward, backward and optimizer in one block of a role, which do not wait for each other."""
    plain, x = build("convolutions")
    model = copy.deepcopy(plain.train())

    def step(m, optimizer):
        optimizer.zero_grad()
        m(x).square().mean().backward()
        optimizer.step()

    with deterministic(), wrapped(model, role):
        ours, theirs = (torch.optim.AdamW(m.parameters()) for m in (model, plain))
        for _ in range(3):
            with BLOCK[role](model):
                step(model, ours)
            step(plain, theirs)
        for parameter, right in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(parameter, right)


def test_hp_backward_passes_a_held_best_effort_backward():
    """Fault: both backwards in the device's one autograd thread, where the held one keeps HP's waiting for ever."""
    (server, x), (trainer, y) = build(), build(seed=1)
    right_server, right_trainer = gradients(server, x), gradients(trainer, y)
    trainer.zero_grad()
    ready, go = threading.Event(), threading.Event()
    with wrapped(server, "hp"), wrapped(trainer, "be", name="trainer"):

        def step():
            loss = trainer(y).square().sum()
            torch.cuda.current_stream().synchronize()
            ready.set()
            assert go.wait(LONG_S)
            with mosaic_torch.best_effort(trainer):
                loss.backward()

        task = Task(step)
        until(lambda: ready.is_set() or not task.is_alive(), "the best-effort forward")
        with mosaic_torch.request(server):
            seen = launches(job_stats("trainer"))
            go.set()
            until(lambda: launches(job_stats("trainer")) > seen, "the best-effort backward's first launch")
            mine = Task(lambda: gradients(server, x))
            for gradient, right in zip(mine.result(), right_server, strict=True):
                assert torch.equal(gradient, right)
            assert task.is_alive(), "best effort was not held"
        task.result()
        torch.cuda.synchronize()
        for parameter, right in zip(trainer.parameters(), right_trainer, strict=True):
            assert torch.equal(parameter.grad, right)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("role", WRAP)
def test_results_are_right_from_any_stream_and_thread(role, mode):
    """Fault: a join with the default stream instead of with the caller's."""
    model, x = build()
    with torch.no_grad():
        expected = [model(x * i) for i in range(1, 5)]
    torch.cuda.synchronize()
    with wrapped(model, role):

        def caller(i):
            with MODES[mode](), torch.cuda.stream(torch.cuda.Stream() if i % 2 else torch.cuda.default_stream()):
                here = torch.cuda.current_stream()
                for _ in range(20):
                    torch.cuda._sleep(20_000)  # the input is late
                    output = model(x * (i + 1))
                    assert torch.cuda.current_stream() == here
                    if mode == "inference_mode":
                        assert output.is_inference()
                    assert output.requires_grad == (mode == "grad")
                    # Read on the caller's stream with no wait of the CPU's.
                    assert torch.equal(output, expected[i])

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(caller, i) for i in range(4)]:
                future.result(LONG_S)


@dataclasses.dataclass
class Answer:
    value: torch.Tensor
    other: list


class Opaque:
    """Nothing that a walk over containers could see into."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Doubling(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.two = nn.Parameter(torch.tensor(2.0))

    def forward(self, box):
        x = box["x"] if isinstance(box, dict) else box.value
        torch.cuda._sleep(50_000)
        y = x * self.two
        return {
            "dict": lambda: {"a": [y], "b": (None, "text")},
            "dataclass": lambda: Answer(y, [y + 1]),
            "opaque": lambda: Opaque(y),
        }[self.kind]()


@pytest.mark.parametrize("kind", ["dict", "dataclass", "opaque"])
@pytest.mark.parametrize("role", WRAP)
def test_tensors_in_containers_and_objects_are_kept_from_early_reuse(role, kind):
    """Fault: memory of an input or output inside an object goes to somebody else while the GPU still uses it."""
    model = Doubling(kind).cuda()
    take = {"dict": lambda o: o["a"][0], "dataclass": lambda o: o.value, "opaque": lambda o: o.value}[kind]
    wrong = torch.zeros((), device="cuda", dtype=torch.long)
    with wrapped(model, role), torch.no_grad():
        for i in range(100):
            x = torch.full((1 << 18,), float(i), device="cuda")
            box = {"x": x} if kind == "dict" else Opaque(x)
            output = model(box)
            del x, box
            # Takes the input's block, if it is free, and overwrites it; then the output's is read late and dropped.
            torch.full((1 << 18,), -1.0, device="cuda")
            torch.cuda._sleep(50_000)
            wrong += (take(output) != 2.0 * i).sum()
            del output
    assert wrong.item() == 0


@pytest.mark.parametrize("role", WRAP)
def test_memory_is_not_reused_early_with_many_callers(role):
    """Fault: an output that is freed at once goes to another thread, while its caller's stream is still to read it."""
    model = nn.Linear(1024, 1024, bias=False).cuda()
    nn.init.eye_(model.weight)

    def serve(n):
        stream = torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            for i in range(60):
                x = torch.full((256, 1024), float(n * 1000 + i), device="cuda")
                y = model(x)
                del x
                torch.cuda._sleep(300_000)
                kept = y + 0
                del y
                stream.synchronize()
                assert torch.equal(kept, torch.full_like(kept, float(n * 1000 + i))), (n, i)

    with wrapped(model, role), ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(serve, n) for n in range(4)]:
            future.result(120)


def test_requests_with_several_calls_from_many_threads():
    """Fault: calls in one thread's request count as requests of their own, or for another thread's."""
    model, x = build("convolutions")
    with torch.inference_mode(), wrapped(model, "hp", name="served"):
        expected = model(x)

        def serve():
            with torch.inference_mode(), mosaic_torch.request(model, arrived_at=time.monotonic()):
                for _ in range(3):
                    output = model(x)
                torch.cuda.current_stream().synchronize()
                assert torch.equal(output, expected)

        for _ in range(5):
            for task in [Task(serve) for _ in range(8)]:
                task.result()
        assert job_stats("served")["hp"]["requests"] == 41


def test_capture_elsewhere_while_hp_runs_and_best_effort_is_held():
    """Fault: an event query, a wait or a launch of ours that invalidates another thread's capture, or joins it."""
    torch.manual_seed(0)
    server = nn.Linear(64, 64).cuda()
    small = floats(8, 64)
    worker, x = build(seed=1)
    static = torch.arange(1024.0, device="cuda")
    with torch.no_grad():
        right = worker(x)
    graph = torch.cuda.CUDAGraph()
    kept = []

    def serve():
        with torch.no_grad():
            # Kept: starting a capture frees cached memory, and an allocation by the driver would break any capture.
            kept.append(server(small))
            del kept[:-64]

    def work():
        with torch.no_grad():
            return worker(x)

    with wrapped(server, "hp", name="server"), wrapped(worker, "be", name="worker"):
        work()
        torch.cuda.synchronize()
        # CUDA itself forbids a synchronize in another thread while this one captures.
        with running(serve, synchronize=False), held(server, "worker", work) as task:
            with torch.cuda.graph(graph):
                y = static * 2
                served = job_stats("server")["hp"]["requests"]
                until(lambda: job_stats("server")["hp"]["requests"] >= served + 20, "HP requests during the capture")
                y += 1
            assert task.is_alive(), "the capture let best effort go"
        assert torch.equal(task.result(), right)
    y.zero_()
    graph.replay()
    assert torch.equal(y, static * 2 + 1)


@pytest.mark.parametrize("role", WRAP)
def test_graph_replay_inside_a_block_is_counted_by_its_kernels(role):
    """Fault: a replay that runs on the caller's stream, without a role, or counts as one kernel."""
    model, x = build()
    with torch.no_grad():
        expected = model(x)
        static = x.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(static)
        with wrapped(model, role, name="replayed") as job:
            before = job_stats("replayed")
            for _ in range(3):
                output.zero_()
                with BLOCK[role](job):
                    graph.replay()
                assert torch.equal(output, expected)
            after = job_stats("replayed")
    assert after["graphs"] - before["graphs"] == 3
    assert (after["kernels"] - before["kernels"]) % 3 == 0
    assert (after["kernels"] - before["kernels"]) // 3 >= 8
    if role == "be":
        assert after["be"]["escaped"] == 0


@pytest.mark.parametrize("role", WRAP)
def test_capture_of_a_wrapped_model_goes_into_the_graph(role):
    """Fault: the call moves to the job's stream, and the capture loses it; or the other role's work breaks it."""
    model, x = build("attention")
    with torch.inference_mode(), neighbour(OTHER[role]):
        with wrapped(model, role):
            expected = model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = model(x)
        with wrapped(graph.replay, role, name="replay", device=0) as replay:
            for _ in range(20):
                output.zero_()
                replay()
                torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
            assert job_stats("replay")["graphs"] == 20


def profiled(function):
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        result = function()
        torch.cuda.synchronize()
    on_gpu = [e.name for e in p.events() if e.device_type == DeviceType.CUDA]
    return result, [n for n in on_gpu if not n.startswith(("Memcpy", "Memset"))]


def test_profiler_before_during_and_after():
    """Fault: the hook and the profiler take the launches from each other."""
    (server, x), (worker, y) = build(), build("convolutions")
    with torch.no_grad():
        right_server, right_worker = server(x), worker(y)
        torch.cuda.synchronize()
        _, before = profiled(lambda: server(x))
        with wrapped(server, "hp", name="server"), wrapped(worker, "be", name="worker"):
            server(x), worker(y)
            torch.cuda.synchronize()
            seen = {name: job_stats(name)["kernels"] for name in ("server", "worker")}
            (mine, theirs), during = profiled(lambda: (server(x), worker(y)))
            seen = {name: job_stats(name)["kernels"] - seen[name] for name in seen}
            assert torch.equal(mine, right_server)
            assert torch.equal(theirs, right_worker)
            assert seen["server"] == len(before)
            assert seen["server"] + seen["worker"] == len(during), during
            # Afterwards both still work.
            _, again = profiled(lambda: server(x))
            assert sorted(again) == sorted(before)

            def work():
                with torch.no_grad():
                    return worker(y)

            with held(server, "worker", work) as task:
                assert torch.equal(server(x), right_server)
            assert torch.equal(task.result(), right_worker)


@pytest.mark.parametrize("order", ["compile(wrap)", "wrap(compile)"])
@pytest.mark.parametrize(
    ("workload", "role"),
    [("linear", "hp"), ("attention", "hp"), ("attention", "be")],
    ids=["hp of torch's own code", "hp", "be"],
)
def test_compiled_model(workload, role, order):
    """Fault: our call is compiled instead of the model, or nothing at all.

    Or Inductor's launcher, which launches with Python's lock held, waits with it: then the other role's thread stands.
    """
    pytest.importorskip("triton", reason="NO TRITON HERE: torch.compile needs it")
    torch._dynamo.reset()
    model, x = build(workload)
    compiled_graphs = []

    def backend(graph, inputs):
        from torch._inductor.compile_fx import compile_fx

        compiled_graphs.append(graph)
        return compile_fx(graph, inputs)

    with torch.no_grad(), ExitStack() as stack:
        expected = model(x)
        if order == "compile(wrap)":
            stack.enter_context(wrapped(model, role, name="compiled"))
            function = torch.compile(model, backend=backend)
        else:
            function = torch.compile(model, backend=backend)
            stack.enter_context(wrapped(function, role, name="compiled"))
        first = function(x)
        assert len(compiled_graphs) == 1, "the model itself was not compiled, as one graph"
        torch.testing.assert_close(first, expected, rtol=1e-3, atol=1e-3)
        with neighbour(OTHER[role]):
            before = job_stats("compiled")
            for _ in range(30):
                assert torch.equal(function(x), first)
            after = job_stats("compiled")
    assert len(compiled_graphs) == 1, "it was compiled again"
    assert after["kernels"] - before["kernels"] >= 90, "its kernels do not run on the job's stream"
    if role == "hp":
        assert after["hp"]["requests"] - before["hp"]["requests"] == 30


# What each way of loading must give: right results, and best effort held while a request is open.
GATED = """
import threading, torch
from torch import nn
import mosaic_torch

mosaic_torch.configure(calibration_requests=0, stall_ms=600_000, max_wait_ms=600_000)
torch.manual_seed(0)
server, worker = (nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).cuda() for _ in range(2))
x = torch.randn(32, 256, device="cuda")
with torch.no_grad():
    expected = server(x), worker(x)
    torch.cuda.synchronize()
    mosaic_torch.hp(server, name="server")
    mosaic_torch.be(worker, name="worker")
    assert torch.equal(server(x), expected[0]) and torch.equal(worker(x), expected[1])
torch.cuda.synchronize()

done, got = threading.Event(), []
def work():
    with torch.no_grad():
        got.append(worker(x))
    torch.cuda.current_stream().synchronize()
    done.set()
request = mosaic_torch.request(server).open()
thread = threading.Thread(target=work)
thread.start()
with torch.no_grad():
    assert torch.equal(server(x), expected[0])
assert not done.wait(0.3), "best effort was not held"
request.close()
assert done.wait(20), "best effort stays held"
thread.join()
assert torch.equal(got[0], expected[1])
stats = mosaic_torch.stats()
be = next(j["be"] for j in stats["jobs"] if j["name"] == "worker")
assert be["held"] >= 1 and be["escaped"] == 0, be
print("mechanism:", stats["hook"]["mechanism"])
"""

IMPORTS = {
    "mosaic_torch first": "import mosaic_torch",
    "torch first": "import torch",
    "after CUDA is in use": "import torch; torch.ones(8, device='cuda').sum().item()",
    "in another thread": "import threading; t = threading.Thread(target=__import__, args=('mosaic_torch',)); "
    "import torch; torch.cuda.init(); t.start(); torch.ones(8, device='cuda').sum().item(); t.join()",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_import_order(order, tmp_path):
    """Fault: launches that are not seen, since torch or CUDA was there first."""
    out = run_python(IMPORTS[order] + "\n" + GATED, MOSAIC_LEDGER_DIR=str(tmp_path))
    assert out.splitlines()[-1] == "mechanism: detour"


@pytest.mark.parametrize("hook", ["cupti", "sections"])
def test_other_mechanisms_hold_best_effort_too(hook, tmp_path):
    """Fault: a mechanism that is named but does not hold, or holds its own thread for ever."""
    out = run_python(GATED, MOSAIC_HOOK=hook, MOSAIC_LEDGER_DIR=str(tmp_path))
    assert out.splitlines()[-1] == {"cupti": "mechanism: cupti", "sections": "mechanism: sections-only"}[hook]


# Best effort is held: an HP request is open.
IN_THE_GATE = """
import os, signal, threading, time, torch, mosaic_torch
mosaic_torch.configure(calibration_requests=0, stall_ms=60_000, max_wait_ms=MAX_WAIT_MS)
low = mosaic_torch.be(torch.nn.Linear(8, 8).cuda(), name="low")
high = mosaic_torch.hp(torch.nn.Linear(8, 8).cuda(), name="high")
x = torch.ones(1, 8, device="cuda")
with torch.inference_mode():
    high(x), low(x)
torch.cuda.synchronize()
pending = mosaic_torch.request(high).open()

def until_in_gate(thread_id):
    ends = time.monotonic() + 30
    while True:
        with open(f"/proc/self/task/{thread_id}/syscall") as file:
            if file.read().startswith("271 "):  # ppoll: the gate naps
                return
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.001)

def work():
    with torch.inference_mode():
        while True:
            low(x)
"""


@pytest.mark.parametrize("hook", ["detour", "cupti", "sections"])
def test_exit_with_a_daemon_thread_in_the_gate(hook, tmp_path):
    """Fault: let out at exit, the thread runs torch's operators while the interpreter ends: abort. Or exit hangs."""
    for _ in range(3):
        out = run_python(
            IN_THE_GATE.replace("MAX_WAIT_MS", "30_000")
            + """
thread = threading.Thread(target=work, daemon=True)
thread.start()
until_in_gate(thread.native_id)
print("exits")
""",
            MOSAIC_LEDGER_DIR=str(tmp_path),
            **({} if hook == "detour" else {"MOSAIC_HOOK": hook}),
        )
        assert "exits" in out.splitlines()


def test_ctrl_c_in_the_gate(tmp_path):
    """Fault: Ctrl-C does nothing until the gate opens, or leaves the thread on the job's stream."""
    out = run_python(
        IN_THE_GATE.replace("MAX_WAIT_MS", "1000")
        + """
def press():
    until_in_gate(os.getpid())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    work()
except KeyboardInterrupt:
    print("interrupted", torch.cuda.current_stream() == torch.cuda.default_stream())
pending.close()
""",
        MOSAIC_LEDGER_DIR=str(tmp_path),
    )
    assert "interrupted True" in out.splitlines()


def digest(tensor):
    return hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()


def child_of_spawn(role, results):
    model, x = build()
    WRAP[role](model, name="child")
    with torch.no_grad():
        results.put((launches(job_stats("child")), digest(model(x)), launches(job_stats("child"))))


@pytest.mark.parametrize("role", WRAP)
def test_spawned_child_has_jobs_of_its_own(role):
    """Fault: state of the parent's, or a hook that is not put in force again."""
    model, x = build()
    with torch.no_grad():
        expected = digest(model(x))
    with wrapped(model, OTHER[role]):
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        child = context.Process(target=child_of_spawn, args=(role, results))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    before, output, after = results.get()
    assert output == expected
    assert before == 0
    assert after >= 8


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((512,), float(index))


@pytest.mark.parametrize("role", WRAP)
def test_data_loader_workers_beside_jobs(role):
    """Fault: forked workers that hang, or end claims of the parent's."""
    model, _ = build()
    with torch.no_grad(), wrapped(model, role, name="loaded"), neighbour(OTHER[role]):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=2, pin_memory=True, timeout=60)
        outputs = [model(batch.cuda(non_blocking=True)) for batch in loader]
        name = f"neighbour-{OTHER[role]}"
        assert launches(job_stats(name)) > 0
        assert torch.isfinite(torch.cat(outputs)).all()
        seen = launches(job_stats("loaded"))
        model(torch.zeros(16, 512, device="cuda"))
        assert launches(job_stats("loaded")) > seen
    batches = torch.stack([torch.full((512,), float(i), device="cuda") for i in range(64)]).split(16)
    with torch.no_grad():
        assert torch.equal(torch.cat(outputs), torch.cat([model(b) for b in batches]))


DUPLICATE = {"copy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m))}


@pytest.mark.parametrize("how", DUPLICATE)
@pytest.mark.parametrize("role", WRAP)
def test_copies_and_pickles_are_plain_models(role, how):
    """Fault: a copy that runs as the original's job, or a model that cannot be copied any more."""
    model, x = build()
    duplicate, state = DUPLICATE[how], {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        expected = model(x)
        with wrapped(model, role, name="original"):
            plain = duplicate(model)
            with wrapped(plain, OTHER[role], name="copy"):
                assert torch.equal(plain(x), expected)
                third = duplicate(plain)
            before = launches(job_stats("original"))
            for one in (plain, third, duplicate(third)):
                assert wrapper_of(one) is None
                assert torch.equal(one(x), expected)
                assert list(one.state_dict()) == list(state)
                assert all(torch.equal(v, state[k]) for k, v in one.state_dict().items())
            assert launches(job_stats("original")) == before
            assert torch.equal(model(x), expected)


@pytest.mark.parametrize("role", WRAP)
def test_exception_in_the_model_ends_the_call(role):
    """Fault: a request that stays open for ever, or a thread that stays on the job's stream."""
    (server, x), (worker, y) = build(), build("convolutions")
    failing = server if role == "hp" else worker

    def fail(*_):
        raise KeyError("in the model")

    with torch.no_grad(), wrapped(server, "hp", name="server"), wrapped(worker, "be", name="worker"):
        here = torch.cuda.current_stream()
        handle = failing[0].register_forward_hook(fail)
        for _ in range(3):
            with pytest.raises(KeyError, match="in the model"):
                failing(x if role == "hp" else y)
        handle.remove()
        assert torch.cuda.current_stream() == here

        def work():
            with torch.no_grad():
                worker(y)

        Task(work).result()  # no request is open, or this would be held for ever
        assert torch.isfinite(server(x)).all()
        assert job_stats("server")["hp"]["failed_requests"] == (3 if role == "hp" else 0)


ENGINE = r"""
#include <cuda.h>
#include <stdio.h>
#include "mosaic.h"
#define CHECK(call)               \
  do {                            \
    CUresult r_ = (call);         \
    if (r_ != CUDA_SUCCESS) {     \
      printf("%s: %d\n", #call, r_); \
      return 1;                   \
    }                             \
  } while (0)

static const char* const PTX =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry store(.param .u64 p, .param .u32 v) {\n"
    ".reg .b64 %a<3>;\n.reg .b32 %v;\n"
    "ld.param.u64 %a1, [p];\ncvta.to.global.u64 %a2, %a1;\nld.param.u32 %v, [v];\nst.global.u32 [%a2], %v;\nret;\n}\n";

int main(void) {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUmodule module;
  CUfunction store;
  CUdeviceptr out;
  unsigned value = 7, result = 0;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUresult loaded = cuModuleLoadData(&module, PTX);
  if (loaded == CUDA_ERROR_JIT_COMPILER_NOT_FOUND) return 77;
  CHECK(loaded);
  CHECK(cuModuleGetFunction(&store, module, "store"));
  CHECK(cuMemAlloc(&out, 4));
  if (mosaic_init() != 0) { printf("mosaic_init: %s\n", mosaic_last_error()); return 1; }
  int64_t job = mosaic_job_register("engine", MOSAIC_ROLE_HP, 0, 1.1, 0);
  if (job < 0) { printf("mosaic_job_register: %s\n", mosaic_last_error()); return 1; }
  for (unsigned i = 0; i < 10; ++i) {
    int64_t request = mosaic_request_begin(job, 0, stream);
    if (request <= 0) { printf("mosaic_request_begin: %s\n", mosaic_last_error()); return 1; }
    void* params[] = {&out, &value};
    CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    if (mosaic_request_end(request) != 0) { printf("mosaic_request_end: %s\n", mosaic_last_error()); return 1; }
  }
  CHECK(cuStreamSynchronize(stream));
  CHECK(cuMemcpyDtoH(&result, out, 4));
  char* stats = mosaic_stats_json();
  printf("%u\n%s\n", result, stats);
  mosaic_free(stats);
  mosaic_shutdown();
  return 0;
}
"""


def cuda_headers():
    roots = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), *Path(torch.__file__).parents[1].glob("nvidia/*")]
    return next((root / "include" for root in roots if (root / "include/cuda.h").exists()), None)


def test_engine_outside_python(tmp_path):
    """Fault: the C interface does not see an engine's launches on a stream of its own."""
    compiler, headers, engine = shutil.which("gcc"), cuda_headers(), PACKAGE / "libmosaic_engine.so"
    for there, what in ((compiler, "gcc"), (headers, "cuda.h"), (engine.exists(), "libmosaic_engine.so")):
        if not there:
            pytest.skip(f"NO {what} HERE: the C interface is not tested on this machine")
    header = next(p for p in (PACKAGE / "include", PACKAGE.parents[1] / "cpp/include") if (p / "mosaic.h").exists())
    (tmp_path / "engine.c").write_text(ENGINE)
    libraries = [engine, "-l:libcuda.so.1", f"-Wl,-rpath,{PACKAGE}"]
    program = tmp_path / "engine"
    source = [tmp_path / "engine.c", f"-I{headers}", f"-I{header}"]
    subprocess.run([compiler, "-std=c11", *source, *libraries, "-o", program], check=True)
    out = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    if out.returncode == 77:
        pytest.skip("NO PTX COMPILER IN THE DRIVER HERE: the C interface is not tested on this machine")
    assert out.returncode == 0, out.stdout + out.stderr
    result, stats = out.stdout.splitlines()
    (job,) = json.loads(stats)["jobs"]
    assert result == "7"
    assert (job["kernels"], job["hp"]["requests"]) == (10, 10)


def test_what_a_call_costs(capsys):
    """Guards the budget of 30 µs a call; the figures that count are in `bench overhead`."""
    x, plain, server, cost = floats(1), nn.Identity(), nn.Identity(), {}
    with torch.inference_mode(), wrapped(server, "hp", device=0):
        for name, call in (("plain", plain), ("wrapped", server)):
            for _ in range(200):
                call(x)
            rounds = []
            for _ in range(20):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(20):
                    call(x)
                rounds.append((time.perf_counter() - begin) / 20 * 1e6)
            cost[name] = min(rounds)
    with capsys.disabled():
        print(f" [{cost['wrapped'] - cost['plain']:.1f} us a call]", end="")
    assert cost["wrapped"] - cost["plain"] < 60


def test_the_doctor_finds_nothing_wrong():
    found = mosaic_torch.doctor()
    assert found["problems"] == []
    assert found["probe"] == {"kernels_expected": 1, "kernels_seen": 1, "error": None}
