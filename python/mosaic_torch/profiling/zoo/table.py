"""What is in the zoo: families and their configurations. Data only; nothing here needs torch or a GPU.

The sixteen families are those of the paper's Table 8. Where Table 8 names a library (cuBLAS, cuDNN), torch's call
into it is used; where it names CUDA samples, FlashInfer or code of others, the algorithm was written anew here. Three
further families are micro-benchmarks: memthrash (§4.3) and, for the physics of placement and packing, spin and chain.
(The paper's custom pointer chase is Table 8's pchase.)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Param = int | str
KIB = 1 << 10
AIMS = ("memory", "compute", "latency", "shared")


@dataclass(frozen=True)
class Family:
    """Kernels of one algorithm.

    kind: "cuda" (own source, compiled at run time) or "torch" (a torch call).
    source: the `.cu` file, or the call.
    table8: whether the paper's Table 8 lists it.
    several: whether one call may launch more than one kernel; the zoo kernel is then the longest of them.
    """

    name: str
    kind: str
    source: str
    table8: bool = True
    several: bool = False


@dataclass(frozen=True)
class Config:
    """One kernel of the zoo: a family and its parameters. The name is unique and says all of them.

    Some configurations are one kernel in one launch shape and differ in its arguments alone (memthrash's mixtures), so
    their KernelId is the same: measurements go by the name.

    aim: the resource that it is meant to press on, one of AIMS; what it does press on is for counters to say.
    """

    family: str
    name: str
    params: Mapping[str, Param] = field(hash=False)
    aim: str = "memory"


_FAMILIES = (
    Family("copy", "cuda", "copy.cu"),
    Family("gemm", "torch", "torch.mm (cuBLAS)", several=True),  # split-K adds a reduction
    Family("gemv", "torch", "torch.mv (cuBLAS)", several=True),
    Family("softmax", "torch", "torch.softmax (torch's own kernels)"),
    Family("fdtd", "cuda", "fdtd.cu"),
    Family("histogram", "cuda", "histogram.cu"),
    Family("mul", "cuda", "mul.cu"),
    Family("pchase", "cuda", "pchase.cu"),
    Family("scan", "cuda", "scan.cu"),
    Family("transpose", "cuda", "transpose.cu"),
    Family("attention", "torch", "scaled_dot_product_attention", several=True),  # few queries: split keys, then combine
    Family("silumul", "cuda", "silumul.cu"),
    Family("convolution", "torch", "conv2d (cuDNN)", several=True),  # changes of layout, split-K
    Family("batchnorm", "torch", "batch_norm (cuDNN, torch)", several=True),  # training: statistics apart
    Family("spmv", "cuda", "spmv.cu"),
    Family("rmsnorm", "cuda", "rmsnorm.cu"),
    Family("memthrash", "cuda", "memthrash.cu", table8=False),
    Family("spin", "cuda", "spin.cu", table8=False),
    Family("chain", "cuda", "chain.cu", table8=False),
)


def families() -> dict[str, Family]:
    """All families by name, Table 8's sixteen first, in its order."""
    return {family.name: family for family in _FAMILIES}


def is_unseen(family: str) -> bool:
    """Whether a predictor never trains on the family, so that it can be tested on it.

    A rule fixed before any measurement: the first byte of the SHA-256 of the name in lower case is below 0x55, which
    keeps about a third of all names back.
    """
    return hashlib.sha256(family.lower().encode()).digest()[0] < 0x55


def make(family: str, aim: str = "memory", **params: Param) -> Config:
    """A configuration, named after its parameters; any parameters that the family's builder takes, listed or not."""
    parts = (value if isinstance(value, str) else f"{key}{value}" for key, value in params.items())
    return Config(family, "-".join((family, *parts)), params, aim)


@functools.cache
def configs() -> tuple[Config, ...]:
    """Every listed configuration, family by family."""
    return tuple(config for family in _FAMILIES for config in _LISTS[family.name]())


# Parameters that own kernels share: `threads` in a block; `blocks`, or `per_sm` blocks times the SMs of the device;
# `ballast` bytes of shared memory that nothing uses, so that fewer blocks fit an SM.


def _copy() -> Iterator[Config]:
    for mib in (4, 16, 64, 256):
        yield make("copy", mib=mib, width=16, threads=256, per_sm=8)
    yield make("copy", mib=256, width=4, threads=256, per_sm=8)
    yield make("copy", mib=64, width=4, threads=1024, per_sm=2)
    yield make("copy", mib=128, width=16, threads=512, per_sm=1)
    yield make("copy", "latency", mib=16, width=16, threads=128, per_sm=1)
    yield make("copy", "latency", mib=16, width=4, threads=64, per_sm=2)
    yield make("copy", mib=64, width=16, threads=1024, blocks=32)
    yield make("copy", mib=128, width=16, threads=256, per_sm=2, ballast=96 * KIB)


def _gemm() -> Iterator[Config]:
    for m, n, k, dtype in (
        (512, 512, 512, "bf16"),
        (1024, 1024, 1024, "bf16"),
        (2048, 2048, 2048, "bf16"),
        (4096, 4096, 4096, "bf16"),
        (8192, 4096, 1024, "fp16"),
        (1024, 1024, 16384, "fp16"),
        (1024, 1024, 1024, "fp32"),
        (2048, 2048, 2048, "fp32"),
        (2048, 2048, 2048, "tf32"),
        (1024, 1024, 1024, "fp64"),
    ):
        yield make("gemm", "compute", m=m, n=n, k=k, dtype=dtype)
    yield make("gemm", m=32, n=8192, k=8192, dtype="bf16")
    yield make("gemm", m=64, n=4096, k=4096, dtype="fp16")


def _gemv() -> Iterator[Config]:
    for m, n, dtype in (
        (2048, 2048, "fp32"),
        (4096, 4096, "fp32"),
        (8192, 8192, "fp32"),
        (16384, 4096, "fp32"),
        (512, 65536, "fp32"),
        (65536, 512, "fp32"),
        (8192, 8192, "bf16"),
        (4096, 14336, "fp16"),
    ):
        yield make("gemv", m=m, n=n, dtype=dtype)
    yield make("gemv", m=8192, n=8192, dtype="fp32", layout="transposed")
    yield make("gemv", "latency", m=256, n=1024, dtype="fp32")


def _softmax() -> Iterator[Config]:
    for rows, columns, dtype in (
        (65536, 128, "fp32"),
        (131072, 512, "fp16"),
        (32768, 1024, "fp32"),
        (16384, 2048, "bf16"),
        (8192, 4096, "fp32"),
        (2048, 32768, "fp32"),
        (1024, 50257, "bf16"),
        (256, 131072, "fp32"),
    ):
        yield make("softmax", rows=rows, columns=columns, dtype=dtype)
    yield make("softmax", "latency", rows=32, columns=32768, dtype="fp32")
    yield make("softmax", "latency", rows=256, columns=256, dtype="fp16")


def _fdtd() -> Iterator[Config]:
    # nx, ny, nz: inner points. A block walks `depth` planes.
    for radius, nx, ny, nz, x, y, depth in (
        (1, 256, 256, 256, 32, 8, 32),
        (2, 256, 256, 256, 32, 16, 64),
        (4, 256, 256, 256, 32, 16, 64),
        (4, 384, 384, 384, 32, 16, 96),
        (4, 384, 384, 192, 64, 8, 48),
        (1, 512, 512, 256, 64, 16, 64),
    ):
        yield make("fdtd", radius=radius, nx=nx, ny=ny, nz=nz, x=x, y=y, depth=depth)
    yield make("fdtd", "shared", radius=4, nx=128, ny=128, nz=128, x=32, y=8, depth=16)
    yield make("fdtd", "shared", radius=4, nx=160, ny=128, nz=128, x=32, y=32, depth=32)
    yield make("fdtd", "shared", radius=2, nx=128, ny=128, nz=256, x=16, y=16, depth=64)
    yield make("fdtd", "latency", radius=4, nx=128, ny=128, nz=128, x=32, y=8, depth=128)


def _histogram() -> Iterator[Config]:
    # bits: of an input value. input: "even" over all values, or "same", all values in one bin. copies: sub-histograms.
    def one(aim: str = "shared", **params: Param) -> Config:
        return make("histogram", aim, **params)

    yield one(mib=64, bits=8, bins=256, copies=1, input="even", threads=256, per_sm=8)
    yield one(mib=64, bits=8, bins=256, copies=8, input="even", threads=256, per_sm=8)
    yield one(mib=16, bits=8, bins=64, copies=8, input="even", threads=256, per_sm=4)
    yield one(mib=16, bits=8, bins=16, copies=1, input="even", threads=512, per_sm=2)
    yield one(mib=4, bits=8, bins=256, copies=1, input="same", threads=256, per_sm=4)
    yield one(mib=64, bits=16, bins=4096, copies=2, input="even", threads=512, per_sm=4)
    yield one(mib=128, bits=16, bins=1024, copies=16, input="even", threads=1024, per_sm=2)
    yield one(mib=64, bits=16, bins=8192, copies=2, input="even", threads=1024, per_sm=1)
    yield one("latency", mib=16, bits=8, bins=256, copies=2, input="even", threads=64, per_sm=1)
    yield one("memory", mib=16, bits=16, bins=65536, copies=0, input="even", threads=256, per_sm=8)


def _mul() -> Iterator[Config]:
    for ilp, threads, per_sm, iterations in (
        (1, 1024, 2, 4096),
        (2, 512, 2, 4096),
        (4, 256, 4, 2048),
        (4, 256, 16, 1024),
        (8, 128, 4, 2048),
        (8, 1024, 1, 2048),
        (8, 256, 8, 512),
        (2, 256, 32, 1024),
    ):
        yield make("mul", "compute", ilp=ilp, threads=threads, per_sm=per_sm, iterations=iterations)
    yield make("mul", "latency", ilp=1, threads=128, per_sm=1, iterations=8192)
    yield make("mul", "latency", ilp=1, threads=32, per_sm=4, iterations=4096)


def _pchase() -> Iterator[Config]:
    # Nodes are 128 bytes apart. cache: the first that a load may hit.
    for kib, cache, threads, per_sm, steps in (
        (16, "l1", 1, 1, 8192),
        (64, "l1", 32, 1, 4096),
        (128, "l1", 32, 4, 2048),
        (1024, "l2", 1, 1, 2048),
        (8 * 1024, "l2", 32, 1, 2048),
        (16 * 1024, "l2", 32, 8, 1024),
        (16 * 1024, "l2", 128, 2, 512),
        (256 * 1024, "l2", 1, 1, 1024),
        (256 * 1024, "l2", 32, 4, 512),
        (512 * 1024, "l1", 256, 2, 256),
    ):
        yield make("pchase", "latency", kib=kib, cache=cache, threads=threads, per_sm=per_sm, steps=steps)


def _scan() -> Iterator[Config]:
    for way, threads, per_sm, mib in (
        ("steele", 256, 8, 32),
        ("steele", 512, 4, 64),
        ("steele", 1024, 2, 64),
        ("tree", 128, 8, 32),
        ("tree", 256, 8, 64),
        ("tree", 512, 2, 32),
        ("tree", 1024, 1, 32),
    ):
        yield make("scan", "shared", way=way, threads=threads, per_sm=per_sm, mib=mib)
    yield make("scan", way="shuffle", threads=256, per_sm=8, mib=128)
    yield make("scan", way="shuffle", threads=1024, per_sm=2, mib=256)
    yield make("scan", "latency", way="shuffle", threads=128, per_sm=1, mib=16)
    yield make("scan", "latency", way="steele", threads=64, per_sm=2, mib=8)


def _transpose() -> Iterator[Config]:
    for tile, height, width in (
        ("tile32", 1024, 1024),
        ("tile32", 4096, 4096),
        ("tile16", 4096, 4096),
        ("tile64", 4096, 8192),
        ("tile32", 8192, 2048),
    ):
        yield make("transpose", "shared", tile=tile, height=height, width=width)
    for tile, height, width in (
        ("tile32_padded", 1024, 1024),
        ("tile32_padded", 4096, 4096),
        ("tile32_padded", 8192, 8192),
        ("tile16_padded", 4096, 4096),
        ("tile64_padded", 8192, 4096),
        ("direct", 2048, 2048),
        ("direct", 8192, 4096),
    ):
        yield make("transpose", tile=tile, height=height, width=width)


def _attention() -> Iterator[Config]:
    for backend, batch, heads, queries, keys, size, mask in (
        ("flash", 4, 16, 1024, 1024, 64, "full"),
        ("flash", 2, 32, 2048, 2048, 128, "causal"),
        ("flash", 1, 32, 4096, 4096, 128, "causal"),
        ("flash", 32, 16, 384, 384, 64, "full"),
        ("efficient", 4, 16, 1024, 1024, 64, "full"),
        ("efficient", 2, 32, 2048, 2048, 128, "causal"),
        ("cudnn", 4, 16, 1024, 1024, 64, "full"),
        ("cudnn", 2, 32, 2048, 2048, 128, "causal"),
    ):
        yield make("attention", "compute", backend=backend, batch=batch, heads=heads, queries=queries, keys=keys,
                   size=size, mask=mask)  # fmt: skip
    for backend, batch, heads, queries, keys, size in (
        ("flash", 8, 32, 1, 4096, 128),
        ("flash", 64, 32, 1, 1024, 128),
        ("efficient", 16, 32, 16, 2048, 64),
    ):
        yield make("attention", backend=backend, batch=batch, heads=heads, queries=queries, keys=keys, size=size,
                   mask="full")  # fmt: skip


def _silumul() -> Iterator[Config]:
    for tokens, width, dtype, threads in (
        (8192, 14336, "bf16", 1024),
        (4096, 11008, "bf16", 512),
        (2048, 4096, "bf16", 256),
        (16384, 1024, "bf16", 128),
        (4096, 8192, "fp32", 1024),
        (8192, 2048, "fp32", 256),
        (1024, 14336, "bf16", 256),
    ):
        yield make("silumul", tokens=tokens, width=width, dtype=dtype, threads=threads)
    yield make("silumul", "latency", tokens=8, width=14336, dtype="bf16", threads=1024)
    yield make("silumul", "latency", tokens=128, width=14336, dtype="bf16", threads=128)


def _convolution() -> Iterator[Config]:
    # side: of the square input; a filter of size 1, 3 or 7 is padded to keep it.
    for batch, channels, filters, side, size, stride, groups, dtype, layout in (
        (64, 64, 64, 56, 3, 1, 1, "fp16", "nhwc"),
        (32, 128, 128, 28, 3, 1, 1, "fp16", "nhwc"),
        (64, 256, 256, 14, 3, 1, 1, "bf16", "nhwc"),
        (32, 512, 512, 7, 3, 1, 1, "tf32", "nhwc"),
        (32, 64, 64, 56, 3, 1, 1, "fp32", "nchw"),
        (32, 3, 64, 224, 7, 2, 1, "tf32", "nhwc"),
        (64, 256, 64, 56, 1, 1, 1, "fp16", "nhwc"),
        (32, 128, 128, 28, 3, 1, 1, "tf32", "nchw"),
    ):
        yield make("convolution", "compute", batch=batch, channels=channels, filters=filters, side=side, size=size,
                   stride=stride, groups=groups, dtype=dtype, layout=layout)  # fmt: skip
    for groups, side, stride, dtype, layout in ((96, 112, 1, "fp32", "nchw"), (240, 28, 2, "fp16", "nchw")):
        yield make("convolution", batch=64, channels=groups, filters=groups, side=side, size=3, stride=stride,
                   groups=groups, dtype=dtype, layout=layout)  # fmt: skip


def _batchnorm() -> Iterator[Config]:
    for batch, channels, side, mode, dtype, layout in (
        (64, 64, 112, "eval", "fp32", "nchw"),
        (64, 256, 56, "eval", "fp32", "nhwc"),
        (32, 512, 28, "eval", "fp16", "nhwc"),
        (128, 16, 112, "eval", "fp32", "nchw"),
        (64, 64, 56, "train", "fp32", "nchw"),
        (64, 256, 56, "train", "fp16", "nhwc"),
        (32, 1024, 14, "train", "fp32", "nchw"),
        (32, 128, 56, "train", "fp32", "nhwc"),
    ):
        yield make("batchnorm", batch=batch, channels=channels, side=side, mode=mode, dtype=dtype, layout=layout)
    yield make("batchnorm", "latency", batch=8, channels=2048, side=7, mode="train", dtype="fp32", layout="nchw")
    yield make("batchnorm", "latency", batch=4, channels=512, side=7, mode="eval", dtype="fp32", layout="nchw")


def _spmv() -> Iterator[Config]:
    # way: one thread or one warp to a row. pattern: where a row's columns lie, how row lengths are spread.
    for way, rows, per_row, pattern, threads in (
        ("thread", 1 << 20, 8, "band", 256),
        ("thread", 1 << 20, 16, "random", 256),
        ("warp", 1 << 18, 64, "band", 256),
        ("warp", 1 << 18, 64, "random", 128),
        ("warp", 1 << 16, 512, "random", 512),
        ("warp", 1 << 17, 128, "band", 1024),
    ):
        yield make("spmv", way=way, rows=rows, per_row=per_row, pattern=pattern, threads=threads)
    for way, rows, per_row, pattern, threads in (
        ("thread", 1 << 18, 32, "skewed", 128),
        ("thread", 1 << 14, 64, "random", 64),
        ("warp", 1 << 16, 32, "skewed", 256),
        ("warp", 1 << 13, 256, "random", 128),
    ):
        yield make("spmv", "latency", way=way, rows=rows, per_row=per_row, pattern=pattern, threads=threads)


def _rmsnorm() -> Iterator[Config]:
    for tokens, width, dtype, threads in (
        (16384, 4096, "bf16", 512),
        (8192, 8192, "bf16", 1024),
        (32768, 1024, "bf16", 128),
        (4096, 4096, "bf16", 256),
        (8192, 4096, "fp32", 1024),
        (16384, 2048, "fp32", 256),
        (4096, 14336, "bf16", 512),  # 56 KiB of shared memory: three or four blocks on an SM
    ):
        yield make("rmsnorm", tokens=tokens, width=width, dtype=dtype, threads=threads)
    yield make("rmsnorm", "latency", tokens=8, width=4096, dtype="bf16", threads=512)
    yield make("rmsnorm", "latency", tokens=256, width=8192, dtype="bf16", threads=128)


def _memthrash() -> Iterator[Config]:
    for write_percent in range(0, 101, 10):
        yield _thrash(mib=16, write_percent=write_percent)
    for write_percent in (0, 50, 100):
        yield _thrash(mib=1024, write_percent=write_percent, accesses=100)
    for blocks in (8, 32, 92):
        yield _thrash(mib=16, write_percent=0, threads=1024, blocks=blocks)
    yield _thrash(mib=32, write_percent=30, threads=512, per_sm=2)


def _thrash(mib: int, write_percent: int, accesses: int = 200, threads: int = 256, **grid: int) -> Config:
    grid = grid or {"per_sm": 8}
    return make("memthrash", mib=mib, write_percent=write_percent, accesses=accesses, threads=threads, **grid)


def _spin() -> Iterator[Config]:
    for threads, per_sm, cycles in (
        (32, 1, 20_000),
        (128, 1, 20_000),
        (1024, 1, 20_000),
        (1024, 2, 20_000),
        (1024, 6, 20_000),
        (256, 8, 100_000),
        (64, 32, 20_000),
    ):
        yield make("spin", "compute", threads=threads, per_sm=per_sm, cycles=cycles)
    yield make("spin", "compute", threads=1024, blocks=64, cycles=100_000)
    yield make("spin", "compute", threads=256, per_sm=4, cycles=20_000, ballast=48 * KIB)


def _chain() -> Iterator[Config]:
    for dtype in ("fp32", "fp64"):
        for ilp in range(1, 9):
            yield make("chain", "compute", dtype=dtype, ilp=ilp, threads=256, per_sm=2, iterations=4096)
    for threads, per_sm in ((32, 1), (128, 1), (512, 1), (1024, 2)):  # one warp on an SM to all that fit
        yield make("chain", "compute", dtype="fp32", ilp=4, threads=threads, per_sm=per_sm, iterations=4096)


_LISTS = {
    "copy": _copy,
    "gemm": _gemm,
    "gemv": _gemv,
    "softmax": _softmax,
    "fdtd": _fdtd,
    "histogram": _histogram,
    "mul": _mul,
    "pchase": _pchase,
    "scan": _scan,
    "transpose": _transpose,
    "attention": _attention,
    "silumul": _silumul,
    "convolution": _convolution,
    "batchnorm": _batchnorm,
    "spmv": _spmv,
    "rmsnorm": _rmsnorm,
    "memthrash": _memthrash,
    "spin": _spin,
    "chain": _chain,
}
