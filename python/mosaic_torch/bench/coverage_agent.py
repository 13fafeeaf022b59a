"""Agent side of ``coverage``: the hook's count beside the profiler's."""

import contextlib
import json
import os
import tempfile
import threading
import time

from . import stats_view


def _profiled_kernels(action):
    """Kernels that torch.profiler reports for ``action``; memory copies and memsets are not kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        action()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    return sum(1 for event in events if event.get("cat") == "kernel")


def run_case(agent, case, workload, variant):
    """One request of ``workload``, made by ``variant``, counted before, under and after the profiler."""
    made = _makers()[variant](agent, workload)
    control = agent.shared.control
    with made as (fn, inputs):
        wrapped = control.hp(fn, slo=1.1, name=case, device=agent.shared.device.torch_device)
        wait = agent.shared.device.marker()

        def once():
            wrapped(*inputs)
            wait()

        def seen(action):
            before = stats_view.kernels_seen(control.stats(), case)
            value = action()
            return stats_view.kernels_seen(control.stats(), case) - before, value

        for _ in range(3):
            once()
        before, _ = seen(once)
        during, profiled = seen(lambda: _profiled_kernels(once))
        after, _ = seen(once)
        escapes = stats_view.escapes(control.stats())
    return {"before": before, "kernels_seen": during, "after": after, "kernels_profiler": profiled, "escapes": escapes}


def _makers():
    return {
        "eager": _eager,
        "graph": _graph,
        "compiled": lambda agent, name: _compiled(agent, name, True),
        "compiled-no-static-launcher": lambda agent, name: _compiled(agent, name, False),
    }


@contextlib.contextmanager
def _eager(agent, workload):
    job = agent.job(workload)
    yield job.fn, job.inputs


@contextlib.contextmanager
def _graph(agent, workload):
    import torch

    job = agent.job(workload)
    for _ in range(3):
        job.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job.call()
    yield graph.replay, ()


@contextlib.contextmanager
def _compiled(agent, workload, static_launcher):
    import torch
    from torch._inductor import config

    job = agent.job(workload)
    launchers = [name for name in ("use_static_cuda_launcher", "use_static_triton_launcher") if hasattr(config, name)]
    # A cached graph would bring its own launcher.
    with config.patch({**dict.fromkeys(launchers, static_launcher), "fx_graph_cache": static_launcher}):
        torch._dynamo.reset()
        compiled = torch.compile(job.model)

        @torch.no_grad()
        def fn(*inputs):
            return compiled(*inputs)

        yield fn, job.inputs
    torch._dynamo.reset()


def capture_while_held(agent, workload, held, timeout_s=60.0):
    """Captures a graph while another thread is inside an HP request and a third is held in the gate."""
    import torch

    device, control = agent.shared.device, agent.shared.control
    job, be = agent.job(workload), agent.job(held)
    expected = job.call()
    torch.cuda.synchronize()
    hp_call = control.hp(job.fn, slo=1.1, name=f"{workload} while capturing", device=device.torch_device)
    be_call = control.be(be.fn, name=f"{held} while capturing", device=device.torch_device)
    hp_call(*job.inputs)
    be_call(*be.inputs)
    torch.cuda.synchronize()
    inside, captured, held_done = threading.Event(), threading.Event(), threading.Event()
    errors = []

    def guarded(body):
        def target():
            try:
                with device.thread_stream():
                    body()
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        return target

    def serve():
        with control.request(hp_call, time.monotonic()):
            # This thread's own plans, handles and memory are made now: an allocation would break the capture.
            for _ in range(3):
                hp_call(*job.inputs)
            scratch = torch.zeros(1 << 20, device=device.torch_device)
            torch.cuda.current_stream().synchronize()
            inside.set()
            deadline = time.monotonic() + timeout_s
            # Launches all through the capture. No synchronisation and no new memory, which a capture in global mode
            # forbids to every thread: torch.cuda.graph empties the cache, so a model's call would allocate.
            while not captured.wait(0.002) and time.monotonic() < deadline:
                scratch.add_(1)

    def work():
        inside.wait(timeout_s)
        be_call(*be.inputs)
        held_done.set()

    threads = [threading.Thread(target=guarded(body)) for body in (serve, work)]
    for thread in threads:
        thread.start()
    try:
        if not inside.wait(timeout_s):
            raise RuntimeError(f"the HP thread did not begin: {errors}")
        was_held = not held_done.wait(0.2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = job.call()
    finally:
        captured.set()
        for thread in threads:
            thread.join(timeout_s)
    graph.replay()
    torch.cuda.synchronize()
    if errors:
        raise RuntimeError("; ".join(errors))
    mismatched = int((output != expected).sum())
    return {"was_held": was_held, "mismatched": mismatched, "be_finished": held_done.is_set()}
