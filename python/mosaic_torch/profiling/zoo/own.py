"""The zoo's own CUDA kernels: inputs, launch shapes, and what each has to compute.

A builder turns parameters into a Plan on any torch device; running it is the caller's, so a plan can be checked
without a GPU too. Inputs come from a fixed seed.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from .table import Param

SEED = 20_260_101
MIB = 1 << 20
Dim3 = tuple[int, int, int]
Params = Mapping[str, Any]
Run = Callable[[], None]


@dataclass(frozen=True)
class Target:
    """Where a plan is for: the device of its tensors, and how many SMs `per_sm` multiplies."""

    device: torch.device
    sms: int

    @functools.cached_property
    def generator(self) -> torch.Generator:
        """One for all draws: tensors of one plan differ, and a new target repeats them."""
        return torch.Generator(self.device).manual_seed(SEED)

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """From the normal distribution."""
        return torch.randn(*shape, generator=self.generator, device=self.device).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Evenly from low to high - 1."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device, dtype=dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype)


@dataclass(frozen=True)
class Plan:
    """One launch. The fields that `Prepared` has too mean the same there."""

    kernel: str
    grid: Dim3
    block: Dim3
    args: tuple[Any, ...]  # tensors, ints (32 bits, unsigned) or ctypes values
    check: Callable[[Run], None]
    footprint_bytes: int
    bytes_read: int | None
    bytes_written: int | None
    flops: int | None = 0
    shared_bytes: int = 0

    @functools.cached_property
    def values(self) -> tuple[Any, ...]:
        """The ctypes values whose addresses a launch passes."""
        return tuple(map(_value, self.args))


def _value(arg: Any) -> Any:
    if isinstance(arg, Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_uint(arg) if isinstance(arg, int) else arg


def plan(family: str, params: Mapping[str, Param], target: Target) -> Plan:
    """The launch of one configuration of an own kernel."""
    return _BUILDERS[family](params, target)


def _equals(
    out: Tensor,
    expected: Callable[[], Tensor],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    blank: int = 0xFF,
    part: Callable[[Tensor], Tensor] = lambda out: out,
) -> Callable[[Run], None]:
    """A check that blanks `out` byte by byte (0xFF: NaN or -1), runs, and compares."""

    def check(run: Run) -> None:
        out.view(torch.uint8).fill_(blank)
        run()
        torch.testing.assert_close(part(out), expected(), rtol=rtol, atol=atol, check_dtype=False)

    return check


def _line(p: Params, target: Target) -> tuple[Dim3, Dim3]:
    """Grid and block of one dimension."""
    return (p.get("blocks") or p["per_sm"] * target.sms, 1, 1), (p["threads"], 1, 1)


def _divided(what: str, total: int, by: int) -> int:
    if total % by:
        raise UsageError(f"found {what} = {total}, expected a multiple of {by}")
    return total // by


def _copy(p: Params, target: Target) -> Plan:
    n_bytes, width, ahead = p["mib"] * MIB, p["width"], p.get("ahead", 1)
    x = target.floats(n_bytes // 4)
    out = target.empty(n_bytes // 4)
    grid, block = _line(p, target)
    return Plan(
        f"copy_{width}" + (f"x{ahead}" if ahead > 1 else ""),
        grid,
        block,
        (x, out, n_bytes // width),
        _equals(out, lambda: x),
        footprint_bytes=2 * n_bytes,
        bytes_read=n_bytes,
        bytes_written=n_bytes,
        shared_bytes=p.get("ballast", 0),
    )


def _sums_over_chains(by_start: Tensor, ilp: int, block: int, blocks: int, target: Target) -> Tensor:
    """What each thread adds up: chain i of thread t began at (t + i) % 32."""
    sums = sum(by_start.roll(-i) for i in range(ilp))
    return sums.repeat(math.ceil(block / 32))[:block].repeat(blocks).to(target.device)


def _mul(p: Params, target: Target) -> Plan:
    ilp, iterations = p["ilp"], p["iterations"]
    grid, block = _line(p, target)
    threads = grid[0] * block[0]
    up = torch.tensor(1.0 + 2.0**-10)
    down = 1.0 / up
    out = target.empty(threads)

    def expected() -> Tensor:
        x = 1.0 + 0.0625 * torch.arange(32, dtype=torch.float32)
        for _ in range(iterations):
            x *= up
            x *= down
        return _sums_over_chains(x, ilp, block[0], grid[0], target)

    return Plan(
        f"mul_ilp{ilp}",
        grid,
        block,
        (out, iterations, ctypes.c_float(up.item()), ctypes.c_float(down.item())),
        _equals(out, expected, rtol=1e-6),
        footprint_bytes=4 * threads,
        bytes_read=0,
        bytes_written=4 * threads,
        flops=2 * ilp * iterations * threads,
        shared_bytes=p.get("ballast", 0),
    )


def _chain(p: Params, target: Target) -> Plan:
    ilp, iterations = p["ilp"], p["iterations"]
    wide = p["dtype"] == "fp64"
    grid, block = _line(p, target)
    threads = grid[0] * block[0]
    a = -(2.0 + 2.0**-12)  # x grows slowly, its sign changes
    out = target.empty(threads, dtype=torch.float64 if wide else torch.float32)
    number = ctypes.c_double if wide else ctypes.c_float

    def expected() -> Tensor:
        x = (1.0 + a) ** iterations * torch.arange(32, dtype=torch.float64)
        return _sums_over_chains(x, ilp, block[0], grid[0], target)

    return Plan(
        f"chain_{'f64' if wide else 'f32'}_ilp{ilp}",
        grid,
        block,
        (out, iterations, number(a)),
        _equals(out, expected, rtol=1e-9 if wide else 1e-4),
        footprint_bytes=out.nbytes,
        bytes_read=0,
        bytes_written=out.nbytes,
        flops=2 * ilp * iterations * threads,
        shared_bytes=p.get("ballast", 0),
    )


def _spin(p: Params, target: Target) -> Plan:
    grid, block = _line(p, target)
    cycles, step = p["cycles"], p.get("step", 0)
    out = target.empty(grid[0], 4, dtype=torch.int64)  # per block: cycles, SM, begin_ns, end_ns

    def check(run: Run) -> None:
        out.fill_(-1)
        run()
        waited, sm, begin_ns, end_ns = out.T.tolist()
        for block, found in enumerate(waited):
            due = cycles + block * step
            assert found >= due, f"block {block} waited {found} cycles of {due}"
        assert 0 <= min(sm) <= max(sm) < 1024, f"SM indices from {min(sm)} to {max(sm)}"
        assert all(0 < begin <= end for begin, end in zip(begin_ns, end_ns, strict=True)), (
            "a block ends before it begins"
        )

    return Plan(
        "spin",
        grid,
        block,
        (out, ctypes.c_uint64(cycles), ctypes.c_uint64(step)),
        check,
        footprint_bytes=out.nbytes,
        bytes_read=0,
        bytes_written=out.nbytes,
        shared_bytes=p.get("ballast", 0),
    )


def _pchase(p: Params, target: Target) -> Plan:
    node_words = 32  # 128 bytes: neighbouring nodes share no sector and no line
    nodes = _divided("kib * 1024", p["kib"] * 1024, 4 * node_words)
    grid, block = _line(p, target)
    threads, steps = grid[0] * block[0], p["steps"]
    cpu = torch.Generator().manual_seed(SEED)
    order = (torch.randperm(nodes, generator=cpu) * node_words).to(target.device)  # one cycle through all nodes
    following = torch.zeros(nodes * node_words, device=target.device, dtype=torch.int32)
    following[order] = order.roll(-1).int()
    places = torch.randint(nodes, (threads,), generator=cpu).to(target.device)
    starts = order[places].int()
    out = target.empty(threads, dtype=torch.int32)
    return Plan(
        f"pchase_{p['cache']}",
        grid,
        block,
        (following, starts, out, steps),
        _equals(out, lambda: order[(places + steps) % nodes]),
        footprint_bytes=32 * min(nodes, threads * steps) + 8 * threads,  # at most: a sector of each node
        bytes_read=4 * threads * (steps + 1),
        bytes_written=4 * threads,
        shared_bytes=p.get("ballast", 0),
    )


def _memthrash(p: Params, target: Target) -> Plan:
    grid, block = _line(p, target)
    threads, accesses, percent = grid[0] * block[0], p["accesses"], p["write_percent"]
    if not 0 <= percent <= 100:
        raise UsageError(f"found write_percent = {percent}, expected 0 to 100")
    _divided("accesses", accesses, 100)  # so that the mixture is exact
    n = p["mib"] * MIB // 16
    words = (torch.arange(n, device=target.device) * 2654435761 + 12345) & 0xFFFFFFFF
    words = torch.where(words < 1 << 31, words, words - (1 << 32)).int()
    data = words[:, None].repeat(1, 4)
    out = target.empty(threads, 2, dtype=torch.int32)

    def simulate() -> tuple[Tensor, Tensor, Tensor]:
        """Sum of words and number of stores per thread, and whether each place is stored to."""
        thread = torch.arange(threads, device=target.device)
        at, due = thread % n, thread // 32 * 37 % 100
        total, stores = torch.zeros_like(at), torch.zeros_like(at)
        stored = torch.zeros(n, device=target.device, dtype=torch.bool)
        for _ in range(accesses):
            due += percent
            store = due >= 100
            due -= 100 * store
            total += torch.where(store, 0, 4 * words[at].long())
            stores += store
            stored[at[store]] = True
            at = (at + threads % n) % n
        total &= 0xFFFFFFFF
        return torch.where(total < 1 << 31, total, total - (1 << 32)), stores, stored

    def check(run: Run) -> None:
        total, stores, stored = simulate()
        out.fill_(-1)
        run()
        assert torch.equal(out, torch.stack((total, stores), 1).int()), "wrong sums, or numbers of stores"
        assert torch.equal(data, words[:, None].expand(-1, 4)), "a store changed what was there"
        data.zero_()
        run()
        assert torch.equal(data, torch.where(stored, words, 0)[:, None].expand(-1, 4)), "stores in the wrong places"
        data.copy_(words[:, None].expand(-1, 4))

    stores = accesses * percent // 100
    return Plan(
        "memthrash",
        grid,
        block,
        (data, out, n, accesses, percent),
        check,
        footprint_bytes=16 * min(n, threads * accesses) + 8 * threads,
        bytes_read=16 * (accesses - stores) * threads,
        bytes_written=(16 * stores + 8) * threads,
        shared_bytes=p.get("ballast", 0),
    )


def _histogram(p: Params, target: Target) -> Plan:
    bits, bins, copies = p["bits"], p["bins"], p["copies"]
    shift = bits - (bins.bit_length() - 1)
    n = p["mib"] * MIB // 4
    same = 0x5A5A5A5A
    words = (
        target.integers(-(2**31), 2**31, n) if p["input"] == "even" else target.empty(n, dtype=torch.int32).fill_(same)
    )
    counts = target.empty(bins, dtype=torch.int32)
    grid, block = _line(p, target)

    def expected() -> Tensor:
        values = words.view(torch.uint8) if bits == 8 else words.view(torch.int16).int() & 0xFFFF
        return torch.bincount(values.int() >> shift, minlength=bins)

    args: tuple[Any, ...] = (words, counts, n, bins, shift, copies) if copies else (words, counts, n, shift)
    return Plan(
        f"histogram_{bits}" if copies else f"histogram_global_{bits}",
        grid,
        block,
        args,
        _equals(counts, expected, blank=0),  # launches add to what is there
        footprint_bytes=4 * (n + bins),
        bytes_read=4 * n,
        bytes_written=0,  # atomics are no stores
        shared_bytes=4 * bins * copies + p.get("ballast", 0),
    )


def _scan(p: Params, target: Target) -> Plan:
    threads, way = p["threads"], p["way"]
    length = threads * {"steele": 1, "tree": 2, "shuffle": 4}[way]
    segments = _divided("values", p["mib"] * MIB // 4, length)
    x = target.integers(0, 256, segments, length)
    out = target.empty(segments, length, dtype=torch.int32)
    grid, block = _line(p, target)
    return Plan(
        f"scan_{way}",
        grid,
        block,
        (x, out, segments),
        _equals(out, lambda: x.cumsum(1) - x),
        footprint_bytes=2 * x.nbytes,
        bytes_read=x.nbytes,
        bytes_written=x.nbytes,
        shared_bytes=(0 if way == "shuffle" else 8 * threads) + p.get("ballast", 0),
    )


def _transpose(p: Params, target: Target) -> Plan:
    height, width = p["height"], p["width"]
    tile, block = {"16": ((16, 16), (16, 16, 1)), "32": ((32, 32), (32, 8, 1)), "64": ((64, 64), (64, 8, 1))}.get(
        p["tile"].removeprefix("tile").removesuffix("_padded"), ((32, 8), (32, 8, 1))
    )
    x = target.floats(height, width)
    out = target.empty(width, height)
    return Plan(
        f"transpose_{p['tile']}",
        (_divided("width", width, tile[0]), _divided("height", height, tile[1]), 1),
        block,
        (x, out, width, height),
        _equals(out, lambda: x.T),
        footprint_bytes=2 * x.nbytes,
        bytes_read=x.nbytes,
        bytes_written=x.nbytes,
        shared_bytes=p.get("ballast", 0),
    )


_DTYPES = {"fp32": (torch.float32, "f32", 1e-5), "bf16": (torch.bfloat16, "bf16", 1e-2)}


def _silumul(p: Params, target: Target) -> Plan:
    tokens, width = p["tokens"], p["width"]
    dtype, suffix, rtol = _DTYPES[p["dtype"]]
    x = target.floats(tokens, 2 * width, dtype=dtype)
    out = target.empty(tokens, width, dtype=dtype)

    def expected() -> Tensor:
        gate, up = x.float().chunk(2, 1)
        return (torch.nn.functional.silu(gate) * up).to(dtype)

    return Plan(
        f"silumul_{suffix}",
        (tokens, 1, 1),
        (p["threads"], 1, 1),
        (x, out, _divided("bytes of a row", out[0].nbytes, 16)),
        _equals(out, expected, rtol=rtol, atol=1e-5),
        footprint_bytes=x.nbytes + out.nbytes,
        bytes_read=x.nbytes,
        bytes_written=out.nbytes,
        flops=None,  # the exponential is the hardware's
        shared_bytes=p.get("ballast", 0),
    )


def _rmsnorm(p: Params, target: Target) -> Plan:
    tokens, width, epsilon = p["tokens"], p["width"], 1e-6
    dtype, suffix, rtol = _DTYPES[p["dtype"]]
    _divided("threads", p["threads"], 32)
    _divided("bytes of a row", width * dtype.itemsize, 16)
    x = target.floats(tokens, width, dtype=dtype)
    weight = (1.0 + 0.1 * target.floats(width)).to(dtype)
    out = target.empty(tokens, width, dtype=dtype)

    def expected() -> Tensor:
        y = x.float()
        return (y * (y.square().mean(1, keepdim=True) + epsilon).rsqrt() * weight.float()).to(dtype)

    return Plan(
        f"rmsnorm_{suffix}",
        (tokens, 1, 1),
        (p["threads"], 1, 1),
        (x, weight, out, width, ctypes.c_float(epsilon)),
        _equals(out, expected, rtol=rtol, atol=1e-5),
        footprint_bytes=2 * x.nbytes + weight.nbytes,
        bytes_read=x.nbytes + tokens * weight.nbytes,
        bytes_written=x.nbytes,
        flops=4 * tokens * width,  # square and add, scale and weight; the sums over threads are left out
        shared_bytes=4 * width + p.get("ballast", 0),
    )


def _spmv(p: Params, target: Target) -> Plan:
    rows, per_row, warp = p["rows"], p["per_row"], p["way"] == "warp"
    row = torch.arange(rows, device=target.device)
    lengths, n = torch.full_like(row, per_row), rows * per_row
    if p["pattern"] == "skewed":  # one row in 64 has half of all the values
        lengths = torch.where(row % 64 == 0, 32 * per_row, per_row // 2)
        long_rows = math.ceil(rows / 64)
        n = 32 * per_row * long_rows + per_row // 2 * (rows - long_rows)
    begins = torch.zeros(rows + 1, device=target.device, dtype=torch.int32)
    begins[1:] = lengths.cumsum(0)
    row_of = row.repeat_interleave(lengths, output_size=n)
    if p["pattern"] == "band":
        columns = ((row_of + torch.arange(n, device=target.device) - begins[row_of] - per_row // 2) % rows).int()
    else:
        columns = target.integers(0, rows, n)
    values, x, y = target.floats(n), target.floats(rows), target.empty(rows)
    threads = p["threads"]
    if warp:
        _divided("threads", threads, 32)
    blocks = math.ceil(rows * (32 if warp else 1) / threads)

    def expected() -> Tensor:
        products = values.double() * x[columns]
        return torch.zeros(rows, device=x.device, dtype=torch.float64).index_add_(
            0, row.repeat_interleave(lengths), products
        )

    del row_of
    return Plan(
        f"spmv_{p['way']}",
        (blocks, 1, 1),
        (threads, 1, 1),
        (begins, columns, values, x, y, rows),
        _equals(y, expected, rtol=1e-4, atol=1e-4),
        footprint_bytes=8 * n + 12 * rows,
        bytes_read=12 * n + 8 * rows * (32 if warp else 1),  # each lane loads its row's bounds
        bytes_written=4 * rows,
        flops=2 * n,
        shared_bytes=p.get("ballast", 0),
    )


def _fdtd(p: Params, target: Target) -> Plan:
    radius, nx, ny, nz, depth = p["radius"], p["nx"], p["ny"], p["nz"], p["depth"]
    block = (p["x"], p["y"], 1)
    if min(block[:2]) < radius:
        raise UsageError(
            f"found a block of {block[0]} x {block[1]}, expected at least the radius, {radius}, on each side"
        )
    grid = (_divided("nx", nx, block[0]), _divided("ny", ny, block[1]), _divided("nz", nz, depth))
    star = [0.4, *(0.1 / r for r in range(1, radius + 1))]
    x = target.floats(nz + 2 * radius, ny + 2 * radius, nx + 2 * radius)
    out = torch.empty_like(x)

    def inner(a: Tensor, dz: int = 0, dy: int = 0, dx: int = 0) -> Tensor:
        z, y, x_ = radius + dz, radius + dy, radius + dx
        return a[z : z + nz, y : y + ny, x_ : x_ + nx]

    def expected() -> Tensor:
        total = star[0] * inner(x)
        for r in range(1, radius + 1):
            for d in (-r, r):
                total += star[r] * (inner(x, dz=d) + inner(x, dy=d) + inner(x, dx=d))
        return total

    points = nx * ny * nz
    halo = 2 * radius * (block[0] + block[1]) * depth * math.prod(grid)
    column = points // depth * (depth + 2 * radius)
    return Plan(
        f"fdtd_r{radius}",
        grid,
        block,
        (x, out, nx, ny, depth, (ctypes.c_float * (radius + 1))(*star)),
        _equals(out, expected, rtol=1e-5, atol=1e-5, part=inner),
        footprint_bytes=x.nbytes + 4 * points,
        bytes_read=4 * (column + halo),
        bytes_written=4 * points,
        flops=(1 + 7 * radius) * points,
        shared_bytes=4 * (block[0] + 2 * radius) * (block[1] + 2 * radius) + p.get("ballast", 0),
    )


_BUILDERS: dict[str, Callable[[Params, Target], Plan]] = {
    "copy": _copy,
    "mul": _mul,
    "chain": _chain,
    "spin": _spin,
    "pchase": _pchase,
    "memthrash": _memthrash,
    "histogram": _histogram,
    "scan": _scan,
    "transpose": _transpose,
    "silumul": _silumul,
    "rmsnorm": _rmsnorm,
    "spmv": _spmv,
    "fdtd": _fdtd,
}
