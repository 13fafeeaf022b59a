"""The kernel zoo: what it lists, that all of it compiles, and that every kernel computes what it says.

Own kernels also run on the CPU here, at small shapes, with a stand-in for CUDA; on a GPU all of them run as listed.
"""

import ctypes
import math
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mosaic_torch.errors import DeviceError, UsageError
from mosaic_torch.profiling import zoo
from mosaic_torch.profiling.zoo import library, nvrtc, own, table

TABLE_8 = [
    *("copy", "gemm", "gemv", "softmax", "fdtd", "histogram", "mul", "pchase", "scan", "transpose"),
    *("attention", "silumul", "convolution", "batchnorm", "spmv", "rmsnorm"),
]
UNSEEN = {"batchnorm", "gemm", "fdtd", "mul", "transpose", "gemv"}
OWN = [family for family in zoo.families().values() if family.kind == "cuda"]
SOURCES = sorted(path.name for path in nvrtc.FOLDER.glob("*.cu"))


def test_families_are_those_of_table_8():
    """Fault: a family of the paper's that is missing, or one of ours that passes for the paper's."""
    assert [name for name, family in zoo.families().items() if family.table8] == TABLE_8
    assert {name for name, family in zoo.families().items() if not family.table8} == {"memthrash", "spin", "chain"}
    assert sorted([*(family.source for family in OWN), "meet.cu"]) == SOURCES  # that one is the rig's


def test_every_family_varies():
    """Fault: a family too thin to learn from, or a kind of pressure that nearly nothing exerts."""
    per_family = Counter(config.family for config in zoo.configs())
    assert set(per_family) == set(zoo.families())
    assert min(per_family.values()) >= 8
    assert sum(per_family[name] for name in TABLE_8) >= 128
    aims = Counter(config.aim for config in zoo.configs())
    assert set(aims) == set(zoo.AIMS)
    assert min(aims.values()) >= 16


def test_names_are_unique_and_say_all():
    """Fault: two kernels whose measurements are mixed up."""
    names = [config.name for config in zoo.configs()]
    assert len(set(names)) == len(names)
    assert all(zoo.make(config.family, **config.params).name == config.name for config in zoo.configs())


def test_unseen_families_are_fixed():
    """Fault: a test set that somebody chose, or that moved after training."""
    assert {name for name in TABLE_8 if zoo.is_unseen(name)} == UNSEEN
    assert zoo.is_unseen("GEMM")


def test_memthrash_covers_the_papers_mixtures():
    """Fault: a write ratio of Figure 3 that is missing."""
    listed = [config.params for config in zoo.configs() if config.family == "memthrash"]
    assert {p["write_percent"] for p in listed} == set(range(0, 101, 10))
    assert {"blocks", "per_sm"} <= {key for p in listed for key in p}
    assert len({p["mib"] for p in listed}) > 1


@pytest.fixture(scope="module")
def compiler():
    try:
        nvrtc.nvrtc()
    except nvrtc.MosaicError as e:
        pytest.skip(f"NO NVRTC HERE: {e}")


@pytest.mark.parametrize("sm", [80, 86, 89, 90])
@pytest.mark.parametrize("source", SOURCES)
def test_sources_compile(compiler, source, sm):
    """Fault: a source that only fails once it is on a GPU."""
    assert nvrtc.compiled(source, sm)[:4] == b"\x7fELF"


def test_a_source_that_does_not_compile_is_named(compiler, tmp_path, monkeypatch):
    """Fault: an error without the compiler's words."""
    (tmp_path / "wrong.cu").write_text("KERNEL wrong(undeclared x) {}")
    (tmp_path / nvrtc.HEADER).write_text("")
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    with pytest.raises(nvrtc.CompileError, match=r"wrong\.cu for sm_80: (.|\n)*undeclared"):
        nvrtc.compiled("wrong.cu", 80)


# Small shapes of every own kernel: (family, parameters).
GRID = {"threads": 64, "blocks": 3}
SMALL = [
    ("copy", {"mib": 1, "width": 4, **GRID}),
    ("copy", {"mib": 1, "width": 16, **GRID}),
    *(("mul", {"ilp": ilp, "iterations": 37, **GRID}) for ilp in (1, 2, 4, 8)),
    *(
        ("chain", {"dtype": dtype, "ilp": ilp, "iterations": 101, **GRID})
        for dtype in ("fp32", "fp64")
        for ilp in range(1, 9)
    ),
    ("spin", {"cycles": 5000, **GRID}),
    ("spin", {"cycles": 5000, "step": 3000, **GRID}),
    ("pchase", {"kib": 16, "cache": "l1", "steps": 300, "threads": 1, "blocks": 3}),
    ("pchase", {"kib": 64, "cache": "l2", "steps": 300, "threads": 32, "blocks": 2}),
    *(("memthrash", {"mib": 1, "write_percent": w, "accesses": 100, **GRID}) for w in (0, 10, 50, 73, 100)),
    ("memthrash", {"mib": 1, "write_percent": 30, "accesses": 1000, "threads": 160, "blocks": 1}),
    ("histogram", {"mib": 1, "bits": 8, "bins": 256, "copies": 2, "input": "even", **GRID}),
    ("histogram", {"mib": 1, "bits": 8, "bins": 16, "copies": 1, "input": "same", **GRID}),
    ("histogram", {"mib": 1, "bits": 16, "bins": 4096, "copies": 1, "input": "even", **GRID}),
    ("histogram", {"mib": 1, "bits": 16, "bins": 65536, "copies": 0, "input": "even", **GRID}),
    ("scan", {"way": "steele", "mib": 1, "threads": 128, "blocks": 3}),
    ("scan", {"way": "tree", "mib": 1, "threads": 128, "blocks": 3}),
    ("scan", {"way": "shuffle", "mib": 1, "threads": 128, "blocks": 3}),
    *(
        ("transpose", {"tile": tile, "height": 64, "width": 192})
        for tile in ["tile16", "tile16_padded", "tile32", "tile32_padded", "tile64", "tile64_padded", "direct"]
    ),
    ("silumul", {"tokens": 5, "width": 520, "dtype": "bf16", "threads": 64}),
    ("silumul", {"tokens": 5, "width": 516, "dtype": "fp32", "threads": 64}),
    ("rmsnorm", {"tokens": 5, "width": 520, "dtype": "bf16", "threads": 64}),
    ("rmsnorm", {"tokens": 5, "width": 516, "dtype": "fp32", "threads": 96}),
    *(
        ("spmv", {"way": way, "rows": 500, "per_row": 12, "pattern": pattern, "threads": 64})
        for way in ("thread", "warp")
        for pattern in ("band", "random", "skewed")
    ),
    ("fdtd", {"radius": 1, "nx": 16, "ny": 8, "nz": 6, "x": 8, "y": 4, "depth": 3}),
    ("fdtd", {"radius": 2, "nx": 16, "ny": 8, "nz": 6, "x": 16, "y": 4, "depth": 6}),
    ("fdtd", {"radius": 4, "nx": 32, "ny": 16, "nz": 12, "x": 16, "y": 8, "depth": 4}),
]


def on(sms=2):
    return own.Target(torch.device("cpu"), sms)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Runs a plan whose tensors are the CPU's."""
    if not shutil.which("c++"):
        pytest.skip("NO C++ COMPILER HERE: the kernels do not run on the CPU")
    folder = tmp_path_factory.mktemp("zoo")
    shutil.copy(Path(__file__).with_name("cuda_on_cpu.hpp"), folder / nvrtc.HEADER)
    names: dict[str, set[str]] = {}
    for family, params in SMALL:
        names.setdefault(zoo.families()[family].source, set()).add(own.plan(family, params, on()).kernel)
    libraries = {}
    for source, kernels in names.items():
        shutil.copy(nvrtc.FOLDER / source, folder)
        entries = "\n".join(
            f'extern "C" void launch_{name}(const u32* grid, const u32* block, void** args)'
            f" {{ cpu::launch<{name}>(grid, block, args); }}"
            for name in sorted(kernels)
        )
        program = folder / f"{source}.cpp"
        program.write_text(f'#include "{source}"\n{entries}\n')
        library = program.with_suffix(".so")
        # No contraction: the kernels that mean a fused multiply-add say so.
        options = ["-std=c++20", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run(["c++", *options, program, "-o", library], check=True)
        libraries[source] = ctypes.CDLL(str(library))

    def run(source, plan):
        addresses = (ctypes.c_void_p * len(plan.values))(*map(ctypes.addressof, plan.values))
        launch = getattr(libraries[source], f"launch_{plan.kernel}")
        launch((ctypes.c_uint * 3)(*plan.grid), (ctypes.c_uint * 3)(*plan.block), addresses)

    return run


@pytest.mark.parametrize(("family", "params"), SMALL, ids=lambda x: x if isinstance(x, str) else "")
def test_own_kernels_compute_what_they_say(on_cpu, family, params):
    """Fault: a kernel that does other work than its name and its figures say."""
    plan = own.plan(family, params, on())
    plan.check(lambda: on_cpu(zoo.families()[family].source, plan))


@pytest.mark.parametrize("family", sorted({family for family, _ in SMALL}))
def test_the_check_sees_a_kernel_that_does_nothing(family):
    """Fault: a check that any kernel passes."""
    plan = own.plan(family, next(p for f, p in SMALL if f == family), on())
    with pytest.raises(AssertionError):
        plan.check(lambda: None)


def test_every_own_kernel_is_tried():
    """Fault: a kernel in a listed configuration that no small shape covers."""
    tried = {own.plan(family, params, on()).kernel for family, params in SMALL}
    with FakeTensorMode():
        listed = {own.plan(c.family, c.params, on()).kernel for c in zoo.configs() if c.family in own._BUILDERS}
    assert listed <= tried


# Small shapes of every library call; scaled_dot_product_attention has a flash kernel for the CPU too.
IMAGES = {"batch": 3, "channels": 8, "side": 9}
CALLS = [
    ("gemm", {"m": 33, "n": 17, "k": 65, "dtype": "fp32"}),
    ("gemm", {"m": 33, "n": 17, "k": 65, "dtype": "tf32"}),
    ("gemv", {"m": 33, "n": 65, "dtype": "fp32"}),
    ("gemv", {"m": 33, "n": 65, "dtype": "fp64", "layout": "transposed"}),
    ("softmax", {"rows": 5, "columns": 100, "dtype": "fp32"}),
    *(
        (
            "attention",
            {"backend": backend, "batch": 2, "heads": 3, "queries": 40, "keys": keys, "size": 16, "mask": mask},
        )
        for backend, keys, mask in (("math", 40, "causal"), ("math", 70, "full"), ("flash", 40, "causal"))
    ),
    *(
        (
            "convolution",
            {**IMAGES, "filters": 16, "size": 3, "stride": 2, "groups": g, "dtype": "fp32", "layout": layout},
        )
        for g, layout in ((1, "nhwc"), (8, "nchw"))
    ),
    *(
        ("batchnorm", {**IMAGES, "mode": mode, "dtype": "fp32", "layout": layout})
        for mode, layout in (("train", "nchw"), ("eval", "nhwc"))
    ),
]


@pytest.mark.parametrize(("family", "params"), CALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_library_calls_compute_what_they_say(family, params):
    """Fault: a reference that is not the call's, or global settings of torch's that stay changed."""
    owners = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [owner.fp32_precision for owner in owners]
    call = library.call(family, params, on())
    call.check(call.run)
    with pytest.raises(AssertionError):
        call.check(lambda: 0.98 * call.run())
    assert [owner.fp32_precision for owner in owners] == before


@pytest.mark.parametrize("config", zoo.configs(), ids=lambda config: config.name)
def test_listed_shapes_fit_a_gpu(config):
    """Fault: a listed shape that its builder refuses, that no GPU from 8.0 to 9.0 launches, or too large."""
    with FakeTensorMode():  # shapes only
        if zoo.families()[config.family].kind == "torch":
            assert library.call(config.family, config.params, on(sms=132)).footprint_bytes < 2 << 30
            return
        plan = own.plan(config.family, config.params, on(sms=132))
    assert 0 < plan.footprint_bytes < 2 << 30
    assert math.prod(plan.block) <= 1024
    assert all(0 < n <= most for n, most in zip(plan.grid, (2**31 - 1, 65535, 65535), strict=True))
    assert plan.shared_bytes + 1024 <= 99 * 1024  # the least that compute capability 8.6 and 8.9 have
    assert all(0 <= arg < 2**32 for arg in plan.args if isinstance(arg, int))


@pytest.mark.parametrize(
    ("family", "params", "text"),
    [
        ("memthrash", {"mib": 1, "write_percent": 101, "accesses": 100, **GRID}, "write_percent = 101"),
        ("memthrash", {"mib": 1, "write_percent": 10, "accesses": 150, **GRID}, "accesses = 150"),
        ("transpose", {"tile": "tile32", "height": 40, "width": 64}, "height = 40"),
        ("fdtd", {"radius": 4, "nx": 16, "ny": 8, "nz": 8, "x": 16, "y": 2, "depth": 8}, "16 x 2"),
        ("rmsnorm", {"tokens": 1, "width": 64, "dtype": "fp32", "threads": 40}, "threads = 40"),
    ],
)
def test_shapes_that_a_kernel_cannot_do_are_refused(family, params, text):
    """Fault: a launch that reads past its inputs, or a mixture that is not the one asked for."""
    with pytest.raises(UsageError, match=text):
        own.plan(family, params, on())


def test_inputs_are_the_same_again_but_not_the_same_twice():
    """Fault: measurements of other inputs each time, or a product of a matrix with itself."""
    (a, b), (c, d) = ((target.floats(9), target.floats(9)) for target in (on(), on()))
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)


def test_unknown_family_is_named():
    """Fault: an unhelpful error, or one only a GPU machine shows."""
    with pytest.raises(UsageError, match="'nothing'"):
        zoo.build(table.make("nothing"))


class Driver:
    """Stands in for libcuda: one kernel that may have 48 KiB of shared memory until told otherwise."""

    def __init__(self, launch_code=0):
        self.launch_code, self.shared_bytes, self.launches = launch_code, 48 << 10, []

    def cuLibraryLoadData(self, library, image, *nothing):
        library._obj.value = 1
        return 0

    def cuLibraryGetKernel(self, kernel, library, name):
        kernel._obj.value = 2
        return 0 if name == b"copy_4" else 500

    def cuKernelGetAttribute(self, value, which, kernel, device):
        value._obj.value = {1: 16, 4: 20, 8: self.shared_bytes}[which]
        return 0

    def cuKernelSetAttribute(self, which, value, kernel, device):
        assert which == 8
        self.shared_bytes = value
        return 0

    def cuLaunchKernel(self, *args):
        self.launches.append(args)
        return self.launch_code

    def cuGetErrorName(self, code, name):
        name._obj.value = b"CUDA_ERROR_%d" % code
        return 0


@pytest.fixture
def driver(monkeypatch):
    double = Driver()
    monkeypatch.setattr(nvrtc, "_driver", lambda: double)
    monkeypatch.setattr(nvrtc, "_library", nvrtc._library.__wrapped__)
    return double


def test_a_launch_passes_shape_stream_and_arguments(compiler, driver):
    """Fault: arguments in another order or size than the kernel's, or freed before the launch."""
    kernel = nvrtc.Kernel("copy.cu", "copy_4", 0, 80)
    launch = kernel.bound((7, 6, 5), (4, 3, 2), 100, [ctypes.c_void_p(1 << 40), ctypes.c_uint(9), ctypes.c_float(0.5)])
    launch(77)
    (handle, *shape, addresses, extra) = driver.launches[0]
    assert (handle.value, shape, extra) == (2, [7, 6, 5, 4, 3, 2, 100, 77], None)
    types = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_float)
    values = [kind.from_address(address).value for kind, address in zip(types, addresses, strict=True)]
    assert values == [1 << 40, 9, 0.5]
    assert (kernel.registers, kernel.static_shared_bytes) == (20, 16)


def test_shared_memory_of_a_kernel_only_grows(compiler, driver):
    """Fault: a configuration that no longer launches, since a smaller one of its kernel was built after it."""
    kernel = nvrtc.Kernel("copy.cu", "copy_4", 0, 80)
    for shared_bytes, allowed in ((1 << 10, 48 << 10), (96 << 10, 96 << 10), (64 << 10, 96 << 10)):
        kernel.bound((1, 1, 1), (32, 1, 1), shared_bytes, [])
        assert driver.shared_bytes == allowed


def test_driver_errors_say_which_kernel(compiler, driver):
    """Fault: a launch that fails in silence."""
    with pytest.raises(DeviceError, match=r"copy_5.*CUDA_ERROR_500"):
        nvrtc.Kernel("copy.cu", "copy_5", 0, 80)
    driver.launch_code = 701
    with pytest.raises(DeviceError, match=r"copy_4.*CUDA_ERROR_701"):
        nvrtc.Kernel("copy.cu", "copy_4", 0, 80).bound((1, 1, 1), (1, 1, 1), 0, [])(0)


@pytest.mark.gpu
@pytest.mark.parametrize("config", zoo.configs(), ids=lambda config: config.name)
def test_on_a_gpu(config):
    """Fault: a kernel of the zoo that does not launch there, or computes something else."""
    kernel = zoo.build(config)
    kernel.check()
    stream = torch.cuda.Stream()
    kernel.launch(stream.cuda_stream)
    stream.synchronize()
    if config.family == "spin":
        assert kernel.registers <= 32
    del kernel
    torch.cuda.empty_cache()  # some have inputs of a GiB


@pytest.mark.gpu
@pytest.mark.parametrize("family", zoo.families())
def test_kernels_of_one_call(family):
    """Fault: a call that launches several kernels where the zoo says it is one: durations of the wrong thing."""
    for config in (config for config in zoo.configs() if config.family == family):
        kernel = zoo.build(config)
        kernel.launch()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            kernel.launch()
            torch.cuda.synchronize()
        names = [
            event.name
            for event in profile.events()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem")
        ]
        assert names, config.name
        assert len(names) == 1 or zoo.families()[family].several, f"{config.name} launches {names}"
        if kernel.kernel is not None:
            assert kernel.kernel in names[0]
