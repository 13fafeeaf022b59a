"""Agent side of ``identity``: a module's outputs in a role against its own outputs without one."""

import contextlib
import time


def _tensors(value):
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _copies(value):
    return [tensor.detach().to("cpu", copy=True) for tensor in _tensors(value)]


def mismatched_elements(left, right):
    """Elements whose bits differ (equal NaNs are equal, 0.0 and -0.0 are not); all of them where shapes differ."""
    import torch

    if len(left) != len(right):
        raise ValueError(f"found {len(right)} output tensors, expected {len(left)}")
    count = 0
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            count += max(a.numel(), b.numel())
            continue
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        count += int((a.contiguous().view(bits) != b.contiguous().view(bits)).sum())
    return count


@contextlib.contextmanager
def _deterministic(wanted):
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    # Where an operation has no deterministic form, the comparison of the job with itself will tell.
    torch.use_deterministic_algorithms(wanted or before, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def reference(agent, workload, deterministic):
    """Outputs without a role, twice: a job that differs from itself could show nothing."""
    with _deterministic(deterministic):
        job = agent.job(workload)
        for _ in range(3):
            job.call()
        first, second = _copies(job.call()), _copies(job.call())
    agent.references = getattr(agent, "references", {}) | {workload: first}
    return {"elements": sum(t.numel() for t in first), "mismatched": mismatched_elements(first, second)}


def compare(agent, workload, role, repeats, seconds, deterministic):
    """Wraps the module itself, calls it at least so often and so long, takes it out of its role again."""
    job, control = agent.job(workload), agent.shared.control
    device = agent.shared.device.torch_device
    name = f"{workload} as {role}"
    if role == "hp":
        control.hp(job.model, slo=1.1, name=name, device=device)
    else:
        control.be(job.model, name=name, device=device)
    try:
        with _deterministic(deterministic):
            total = calls = 0
            begin = time.monotonic()
            while calls < repeats or time.monotonic() - begin < seconds:
                total += mismatched_elements(agent.references[workload], _copies(job.call()))
                calls += 1
    finally:
        control.unwrap(job.model)
    return {"mismatched": total, "calls": calls}
