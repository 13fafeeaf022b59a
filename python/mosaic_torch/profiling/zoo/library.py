"""The zoo's library kernels: torch calls that end in cuBLAS, cuDNN or torch's own kernels.

Which kernel a call launches is the library's choice, so bytes are known only as the floor that `footprint_bytes` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .own import Target
from .table import Param

Params = Mapping[str, Any]
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp64": torch.float64,
}
# Of the error's norm to the result's.
TOLERANCE = {"fp16": 2e-3, "bf16": 1e-2, "fp32": 1e-4, "tf32": 2e-3, "fp64": 1e-12}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class Call:
    """One torch call on the current stream, and the same by another way in a wider type."""

    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    footprint_bytes: int
    flops: int | None = None
    tolerance: float = 1e-4

    def check(self, run: Callable[[], Tensor]) -> None:
        """Raises AssertionError where the result is not what it should be."""
        got, expected = run().double(), self.reference().double()
        assert got.shape == expected.shape, f"found the shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        error = ((got - expected).norm() / expected.norm()).item()
        assert error <= self.tolerance, f"found a relative error of {error}, expected at most {self.tolerance}"


def call(family: str, params: Mapping[str, Param], target: Target) -> Call:
    """The call of one configuration of a library kernel."""
    return _BUILDERS[family](params, target)


@contextmanager
def _settings(*wanted: tuple[Any, str, Any]) -> Iterator[None]:
    """Some of torch's global settings, each an owner, a name and a value; as they were afterwards."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
    try:
        for each in wanted:
            setattr(*each)
        yield
    finally:
        for each in before:
            setattr(*each)


def _tf32(wanted: bool) -> tuple[tuple[Any, str, Any], ...]:
    """FP32 products with or without TF32."""
    precision = "tf32" if wanted else "ieee"
    return (
        (torch.backends.cuda.matmul, "fp32_precision", precision),
        (torch.backends.cudnn.conv, "fp32_precision", precision),
    )


def _gemm(p: Params, target: Target) -> Call:
    m, n, k, dtype = p["m"], p["n"], p["k"], DTYPES[p["dtype"]]
    a, b = target.floats(m, k, dtype=dtype), target.floats(n, k, dtype=dtype).T
    c = target.empty(m, n, dtype=dtype)

    def run() -> Tensor:
        with _settings(*_tf32(p["dtype"] == "tf32")), torch.no_grad():
            return torch.mm(a, b, out=c)

    return Call(
        run,
        lambda: a.double() @ b.double(),
        footprint_bytes=a.nbytes + b.nbytes + c.nbytes,
        flops=2 * m * n * k,
        tolerance=TOLERANCE[p["dtype"]],
    )


def _gemv(p: Params, target: Target) -> Call:
    m, n, dtype = p["m"], p["n"], DTYPES[p["dtype"]]
    a = target.floats(n, m, dtype=dtype).T if p.get("layout") == "transposed" else target.floats(m, n, dtype=dtype)
    x, y = target.floats(n, dtype=dtype), target.empty(m, dtype=dtype)

    def run() -> Tensor:
        with _settings(*_tf32(False)), torch.no_grad():
            return torch.mv(a, x, out=y)

    return Call(
        run,
        lambda: a.double() @ x.double(),
        footprint_bytes=a.nbytes + x.nbytes + y.nbytes,
        flops=2 * m * n,
        tolerance=TOLERANCE[p["dtype"]],
    )


def _softmax(p: Params, target: Target) -> Call:
    x = target.floats(p["rows"], p["columns"], dtype=DTYPES[p["dtype"]])
    y = torch.empty_like(x)

    def run() -> Tensor:
        with torch.no_grad():
            return torch.softmax(x, -1, out=y)

    def reference() -> Tensor:
        powers = (x.double() - x.double().amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    return Call(run, reference, footprint_bytes=x.nbytes + y.nbytes, tolerance=TOLERANCE[p["dtype"]])


def _attention(p: Params, target: Target) -> Call:
    batch, heads, queries, keys, size = (p[key] for key in ("batch", "heads", "queries", "keys", "size"))
    causal = p["mask"] == "causal"
    everything = target.floats(batch, heads, queries + 2 * keys, size, dtype=torch.bfloat16)
    q, k, v = (part.contiguous() for part in everything.split([queries, keys, keys], 2))

    def run() -> Tensor:
        with sdpa_kernel(BACKENDS[p["backend"]]), torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def reference() -> Tensor:
        out = torch.empty_like(q, dtype=torch.float32)
        for i in range(batch):  # one at a time: the scores of all would fill the GPU
            scores = q[i].float() @ k[i].float().mT / math.sqrt(size)
            if causal:
                later = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(1)
                scores.masked_fill_(later, -math.inf)
            out[i] = scores.softmax(-1) @ v[i].float()
        return out

    pairs = queries * (queries + 1) // 2 if causal else queries * keys
    return Call(
        run,
        reference,
        footprint_bytes=2 * q.nbytes + k.nbytes + v.nbytes,
        flops=4 * batch * heads * size * pairs,  # both products; the softmax is left out
        tolerance=TOLERANCE["bf16"],
    )


def _images(target: Target, p: Params) -> Tensor:
    x = target.floats(p["batch"], p["channels"], p["side"], p["side"], dtype=DTYPES[p["dtype"]])
    return x.to(memory_format=_FORMATS[p["layout"]])


_FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def _convolution(p: Params, target: Target) -> Call:
    size, stride, groups, filters = p["size"], p["stride"], p["groups"], p["filters"]
    x = _images(target, p)
    weight = target.floats(filters, p["channels"] // groups, size, size, dtype=x.dtype)
    weight = weight.to(memory_format=_FORMATS[p["layout"]])
    padding = size // 2
    side = (p["side"] + 2 * padding - size) // stride + 1
    outputs = p["batch"] * filters * side * side

    # Heuristics choose cuDNN's plan, not timings: the same kernel in each process.
    cudnn = torch.backends.cudnn
    fixed = (*_tf32(p["dtype"] == "tf32"), (cudnn, "benchmark", False), (cudnn, "deterministic", True))

    def run() -> Tensor:
        with _settings(*fixed), torch.no_grad():
            return F.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

    def reference() -> Tensor:
        with _settings(*_tf32(False), (cudnn, "enabled", False)), torch.no_grad():
            return F.conv2d(x.float(), weight.float(), stride=stride, padding=padding, groups=groups)

    return Call(
        run,
        reference,
        footprint_bytes=x.nbytes + weight.nbytes + outputs * x.itemsize,
        flops=2 * outputs * weight[0].numel(),  # as the definition has it: Winograd needs fewer
        tolerance=TOLERANCE[p["dtype"]],
    )


def _batchnorm(p: Params, target: Target) -> Call:
    x, training = _images(target, p), p["mode"] == "train"
    channels, epsilon = p["channels"], 1e-5
    mean, variance = 0.1 * target.floats(channels), 1.0 + 0.1 * target.floats(channels).abs()
    weight, bias = 1.0 + 0.1 * target.floats(channels), 0.1 * target.floats(channels)

    def run() -> Tensor:
        with torch.no_grad():  # momentum 0: the running statistics stay
            return F.batch_norm(x, mean, variance, weight, bias, training, momentum=0.0, eps=epsilon)

    def reference() -> Tensor:
        y = x.float()
        m, v = (y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)) if training else (mean, variance)
        m, v, w, b = (each.view(1, -1, 1, 1) for each in (m, v, weight, bias))
        return (y - m) * (v + epsilon).rsqrt() * w + b

    return Call(run, reference, footprint_bytes=2 * x.nbytes + 4 * weight.nbytes, tolerance=TOLERANCE[p["dtype"]])


_BUILDERS: dict[str, Callable[[Params, Target], Call]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "softmax": _softmax,
    "attention": _attention,
    "convolution": _convolution,
    "batchnorm": _batchnorm,
}
