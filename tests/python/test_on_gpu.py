"""On a GPU: nothing changes but the time. `pytest -m gpu`; the workloads' real sizes are in `bench identity`."""

import copy
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from torch import nn

import mosaic_torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True, scope="module")
def no_calibration():
    """Jobs come and go here: none of them may hold BE while it is new."""
    if torch.cuda.is_available():
        mosaic_torch.configure(calibration_requests=0)


def _conv():
    block = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(512, 10)), torch.randn(8, 3, 64, 64)


def _attention():
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 64, 128)


def _embedding():
    return nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 64), nn.Sigmoid()), torch.randint(5000, (256, 20))


def _recurrent():
    return nn.GRU(32, 64, num_layers=2), torch.randn(20, 4, 32)


MODELS = {"conv": _conv, "attention": _attention, "embedding": _embedding, "recurrent": _recurrent}
WRAPS = {"hp": mosaic_torch.hp, "be": mosaic_torch.be}


@pytest.fixture(params=MODELS)
def pair(request):
    """A model and its input."""
    torch.manual_seed(0)
    model, x = MODELS[request.param]()
    return model.to(DEVICE).eval(), x.to(DEVICE)


@pytest.fixture
def other_role():
    """Runs a job of the other role in a thread, for as long as the test lasts."""
    stop, threads, failures = threading.Event(), [], []

    def start(role):
        torch.manual_seed(1)
        model, x = _conv()
        model, x = WRAPS["be" if role == "hp" else "hp"](model.to(DEVICE).eval(), name="the other"), x.to(DEVICE)
        running = threading.Event()

        def work():
            try:
                with torch.inference_mode():
                    while not stop.is_set():
                        model(x)
                        torch.cuda.current_stream().synchronize()
                        running.set()
                        time.sleep(0.001)
            except Exception as e:
                failures.append(e)
                running.set()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        assert running.wait(60)

    yield start
    stop.set()
    for thread in threads:
        thread.join(60)
    assert failures == []


def _leaves(result):
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(_leaves(a), _leaves(b), strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("role", WRAPS)
def test_outputs_are_bit_equal(pair, role, mode, other_role):
    model, x = pair
    with mode():
        expected = [model(x) for _ in range(2)][-1]
        torch.cuda.synchronize()
        WRAPS[role](model)
        other_role(role)
        for _ in range(50):
            assert _equal(model(x), expected)


@pytest.mark.parametrize("role", WRAPS)
def test_gradients_are_bit_equal(role, other_role):
    torch.manual_seed(0)
    model, x = _attention()
    model, x = model.to(DEVICE), x.to(DEVICE)
    plain = copy.deepcopy(model)
    WRAPS[role](model)
    other_role(role)

    def step(m):
        m.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in m.parameters())]

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        expected = step(plain)
        for _ in range(5):
            assert _equal(step(model), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("role", WRAPS)
def test_a_training_step_as_a_best_effort_block(role):
    """Forward, backward, optimizer: all of it launched under the role, with the results of an unheld step."""
    torch.manual_seed(0)
    model, x = _conv()
    model, x = model.to(DEVICE), x.to(DEVICE)
    plain = copy.deepcopy(model)
    WRAPS[role](model)
    block = mosaic_torch.best_effort if role == "be" else mosaic_torch.request

    def step(m, optimizer):
        optimizer.zero_grad()
        m(x).square().mean().backward()
        optimizer.step()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        ours, theirs = (torch.optim.AdamW(m.parameters()) for m in (model, plain))
        for _ in range(3):
            with block(model):
                step(model, ours)
            step(plain, theirs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert _equal(list(model.parameters()), list(plain.parameters()))


@pytest.mark.parametrize("role", WRAPS)
def test_streams_join_before_and_after(role):
    """Without the joins the model would read its input before it is written, the caller its output before."""
    model = WRAPS[role](nn.Linear(4096, 4096, bias=False).to(DEVICE))
    nn.init.eye_(model.weight)
    side = torch.cuda.Stream()
    with torch.inference_mode():
        model(torch.zeros(1, 4096, device=DEVICE))
        for i in range(20):
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                x = torch.full((64, 4096), float(i), device=DEVICE)
                y = model(x)
                total = (y + 0).double().mean()
            side.synchronize()
            assert total.item() == i


@pytest.mark.parametrize("role", WRAPS)
def test_memory_is_not_reused_while_another_stream_uses_it(role):
    """An output that is freed at once, while the caller's stream is still to read it, in several threads."""
    model = WRAPS[role](nn.Linear(1024, 1024, bias=False).to(DEVICE))
    nn.init.eye_(model.weight)
    wrong, streams = [], [torch.cuda.Stream() for _ in range(4)]

    def serve(n):
        with torch.inference_mode(), torch.cuda.stream(streams[n]):
            for i in range(60):
                x = torch.full((256, 1024), float(n * 1000 + i), device=DEVICE)
                y = model(x)
                del x
                torch.cuda._sleep(300_000)
                kept = y + 0
                del y
                streams[n].synchronize()
                if not torch.equal(kept, torch.full_like(kept, float(n * 1000 + i))):
                    wrong.append((n, i))

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert wrong == []


def _job(name):
    return next(j for j in mosaic_torch.stats()["jobs"] if j["name"] == name)


def test_an_exception_in_forward_ends_the_request():
    """BE must run again: a request left open would hold it until the bound."""
    fails = mosaic_torch.hp(nn.Linear(8, 8).to(DEVICE), name="fails")
    low = mosaic_torch.be(nn.Linear(8, 8).to(DEVICE), name="low")
    x = torch.ones(1, 8, device=DEVICE)
    with torch.inference_mode():
        low(x)
        torch.cuda.synchronize()
        before = _job("low")["be"]["admitted_wait_bound"]
        for _ in range(5):
            with pytest.raises(RuntimeError, match=r"shapes|size"):
                fails(torch.ones(1, 9, device=DEVICE))
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
            begin = time.monotonic()
            low(x)
            torch.cuda.synchronize()
            assert time.monotonic() - begin < 0.5
        assert _job("low")["be"]["admitted_wait_bound"] == before


def test_best_effort_waits_for_an_open_request():
    low = mosaic_torch.be(nn.Linear(8, 8).to(DEVICE), name="low")
    mosaic_torch.configure(stall_ms=10_000.0, max_wait_ms=20_000.0)
    x = torch.ones(1, 8, device=DEVICE)
    done = threading.Event()

    def work():
        with torch.inference_mode():
            low(x)
        done.set()

    try:
        high = mosaic_torch.hp(nn.Linear(8, 8).to(DEVICE), name="high")
        with torch.inference_mode():
            high(x)
            low(x)
            torch.cuda.synchronize()
        pending = mosaic_torch.request(high).open()
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.2)
        with torch.inference_mode(), pending:
            high(x)
        assert done.wait(5)
        thread.join(5)
    finally:
        mosaic_torch.configure(stall_ms=20.0, max_wait_ms=1000.0)


@pytest.mark.parametrize("role", WRAPS)
def test_a_graph_capture_works_while_both_roles_run(role, other_role):
    other_role(role)
    torch.manual_seed(0)
    model, x = _attention()
    model, x = WRAPS[role](model.to(DEVICE).eval(), name="captured"), x.to(DEVICE)
    with torch.inference_mode():
        expected = model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = model(x)
        replay = WRAPS[role](graph.replay, name="replay", device=0)
        for _ in range(20):
            out.zero_()
            replay()
            assert torch.allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("order", ["compile of wrap", "wrap of compile"])
@pytest.mark.parametrize("role", WRAPS)
def test_compiled_models(role, order, other_role):
    """Inductor's static launcher launches with Python's lock held: a wait there must not stop HP's thread."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = _attention()
    model, x = model.to(DEVICE).eval(), x.to(DEVICE)
    with torch.inference_mode():
        expected = torch.compile(copy.deepcopy(model))(x)
        first, second = (torch.compile, WRAPS[role]) if order == "wrap of compile" else (WRAPS[role], torch.compile)
        call = second(first(model))
        call(x)
        other_role(role)
        for _ in range(30):
            assert torch.equal(call(x), expected)


def test_the_profiler_sees_the_same_kernels():
    from torch.profiler import ProfilerActivity, profile

    model, x = _conv()
    model, x = model.to(DEVICE).eval(), x.to(DEVICE)

    def kernels():
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as p:
            model(x)
            torch.cuda.synchronize()
        return sorted(e.name for e in p.events() if e.device_type.name == "CUDA" and not e.name.startswith("Mem"))

    with torch.inference_mode():
        model(x)
    plain = kernels()
    mosaic_torch.hp(model, name="profiled")
    with torch.inference_mode():
        model(x)
    seen = _job("profiled")["kernels"]
    assert kernels() == plain
    assert _job("profiled")["kernels"] - seen == len(plain)


def test_many_requests_in_flight():
    model, x = _conv()
    model, x = mosaic_torch.hp(model.to(DEVICE).eval(), name="served"), x.to(DEVICE)
    with torch.inference_mode():
        expected = model(x)
    wrong = []

    def serve():
        with torch.inference_mode(), mosaic_torch.request(model, arrived_at=time.monotonic()):
            for _ in range(3):
                out = model(x)
            torch.cuda.current_stream().synchronize()
            if not torch.equal(out, expected):
                wrong.append(threading.get_ident())

    for _ in range(5):
        threads = [threading.Thread(target=serve) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert wrong == []
    assert _job("served")["hp"]["requests"] == 41


def test_what_a_call_costs(capsys):
    """Guards the budget of 30 µs a call; the figures that count are in `bench overhead`."""
    x = torch.ones(1, device=DEVICE)
    cost = {}
    with torch.inference_mode():
        for name, call in (("plain", nn.Identity()), ("wrapped", mosaic_torch.hp(nn.Identity(), device=0))):
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


HELD = """
    import os, signal, sys, threading, time, torch, mosaic_torch
    mosaic_torch.configure(stall_ms=60_000, max_wait_ms=MAX_WAIT_MS, calibration_requests=0)
    low = mosaic_torch.be(torch.nn.Linear(8, 8).cuda(), name="low")
    high = mosaic_torch.hp(torch.nn.Linear(8, 8).cuda(), name="high")
    x = torch.ones(1, 8, device="cuda")
    with torch.inference_mode():
        high(x)
        low(x)
    torch.cuda.synchronize()
    pending = mosaic_torch.request(high).open()

    def in_gate(thread_id):
        with open(f"/proc/self/task/{thread_id}/syscall") as file:
            return file.read().startswith("271 ")  # ppoll: the gate naps

    def until(condition):
        ends = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < ends, "it never came"
            time.sleep(0.001)

    def be_thread():
        with torch.inference_mode():
            while True:
                low(x)
"""


@pytest.mark.parametrize(
    ("ends", "max_wait_ms", "says"),
    [
        (
            # Exit with BE in the gate.
            """
            thread = threading.Thread(target=be_thread, daemon=True)
            thread.start()
            until(lambda: in_gate(thread.native_id))
            print("exits")
            """,
            30_000,
            "exits",
        ),
        (
            # Ctrl-C in the gate.
            """
            def press():
                until(lambda: in_gate(os.getpid()))
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=press).start()
            try:
                be_thread()
            except KeyboardInterrupt:
                print("interrupted", torch.cuda.current_stream() == torch.cuda.default_stream())
            pending.close()
            """,
            1000,
            "interrupted True",
        ),
        (
            # Workers that are forked from a process that uses the GPU.
            """
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.arange(64.0).reshape(8, 8))
            pending.close()
            rows = 0
            for (batch,) in DataLoader(data, batch_size=2, num_workers=2, pin_memory=True):
                rows += low(batch.cuda(non_blocking=True)).shape[0]
            print("rows", rows)
            """,
            1000,
            "rows 8",
        ),
    ],
    ids=["exit in the gate", "ctrl-c in the gate", "data loader"],
)
def test_life(ends, max_wait_ms, says):
    text = textwrap.dedent(HELD).replace("MAX_WAIT_MS", str(max_wait_ms)) + textwrap.dedent(ends)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, says), done.stderr


def test_the_doctor_finds_nothing_wrong():
    found = mosaic_torch.doctor()
    assert found["problems"] == []
    assert found["probe"] == {"kernels_expected": 1, "kernels_seen": 1, "error": None}
