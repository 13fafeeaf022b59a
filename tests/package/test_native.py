"""The native files of the installed package: what they export, need and do outside Python."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = ["libmosaic.so", "libmosaic_engine.so"]


def symbols(library, *options: str) -> set[str]:
    out = subprocess.run(["nm", "-D", "--format=posix", *options, library], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in out.stdout.splitlines()}


def needed(library) -> list[str]:
    out = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "RUNPATH" not in out
    assert "RPATH" not in out
    return re.findall(r"\(NEEDED\).*\[(.+)\]", out)


@pytest.mark.parametrize("library", LIBRARIES)
def test_exports_are_the_header(installed, library):
    """Fault: a function that the header promises and the library lacks, or the other way round."""
    header = (installed / "include/mosaic.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    promised = set(re.findall(r"\b(mosaic_\w+)\(", code))
    exported = {name for name in symbols(installed / library, "--defined-only") if name.startswith("mosaic_")}
    assert len(promised) > 10
    assert exported == promised


def test_extension_finds_torch_by_name_only(installed):
    """Fault: no DT_NEEDED entry (torch is loaded RTLD_LOCAL), or a path of the build machine in it."""
    assert "libtorch.so" in needed(installed / "libmosaic.so")


def test_engine_needs_neither_torch_nor_cuda(installed):
    """Fault: a program outside Python that cannot load the library."""
    assert not [name for name in needed(installed / "libmosaic_engine.so") if re.search("torch|cuda|python|stdc", name)]


def test_extension_leaves_only_torch_to_others(installed):
    """Fault: a linker that reads left to right passed cxx's C++ half over; loading would then fail."""
    undefined = symbols(installed / "libmosaic.so", "--undefined-only")
    assert not [name for name in undefined if "cxxbridge" in name or name.startswith("_ZN4rust")]
    assert "torch_library_impl" in undefined, "no op is registered: --whole-archive is missing"


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_path_of_the_build_machine(installed, library):
    """Fault: two builds of equal sources that differ, and a home folder's name in a shipped file."""
    content = (installed / library).read_bytes()
    assert str(ROOT).encode() + b"/" not in content
    assert b"/.cargo/registry" not in content


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c11"), ("c++", "c++20")])
def test_program_outside_python(installed, compile_program, run_program, compiler, standard):
    """Fault: a header that is no C or no C++, an entry that crashes or accepts garbage."""
    program = compile_program(
        "engine.c",
        f"-I{installed / 'include'}",
        str(installed / "libmosaic_engine.so"),
        f"-Wl,-rpath,{installed}",
        compiler=compiler,
        standard=standard,
    )
    run_program(program)


def test_preload_leaves_a_program_alone(installed, run_program):
    """Fault: a preloaded engine library that disturbs a program which never uses the GPU."""
    assert run_program("echo", "as before", LD_PRELOAD=str(installed / "libmosaic_engine.so")) == "as before\n"


def test_torch_without_cuda_is_named(installed, compile_program, run_program):
    """Fault: an extension that does not load, or crashes, in a torch that lacks the CUDA functions."""
    stub = compile_program("../../cpp/torch_stub.c", "-shared", "-fPIC", "-Wl,-soname,libtorch.so", compiler="cc",
                           standard="c11", name="libtorch.so")  # fmt: skip
    host = compile_program("fake_torch.cpp", "-rdynamic", "-ldl")
    assert "built without CUDA" in run_program(host, installed / "libmosaic.so", LD_LIBRARY_PATH=str(stub.parent))


def test_sections(compile_program, run_program):
    """Fault: streams not put back, requests left open; sections_test.cpp says which."""
    program = compile_program("sections_test.cpp", f"-I{ROOT / 'cpp'}", "-pthread", "-fsanitize=address,undefined")
    run_program(program, LD_PRELOAD="")
