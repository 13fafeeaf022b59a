"""CUDA C++ to kernels at run time: NVRTC and the driver, both through ctypes.

NVRTC is the library that torch brings; compiling needs no GPU. Kernels are context-independent (`CUkernel`), so that
they can be launched on the streams of green contexts too.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import DeviceError, MosaicError

FOLDER = Path(__file__).parent
HEADER = "common.cuh"
# CU_FUNC_ATTRIBUTE_…: SHARED_SIZE_BYTES, NUM_REGS, MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED_BYTES, _REGISTERS, _MAX_DYNAMIC_SHARED_BYTES = 1, 4, 8
_loading = threading.Lock()
Dim3 = tuple[int, int, int]


class CompileError(MosaicError):
    """A source of the zoo that NVRTC refuses; the text is NVRTC's log."""


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """NVRTC as torch brings it, else as the system has it."""
    spec = find_spec("torch")
    site = Path(spec.origin).parents[1] if spec and spec.origin else FOLDER
    found = sorted(map(str, site.glob("nvidia/*/lib/libnvrtc.so.*")), reverse=True)
    for name in (*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise MosaicError(f"found no libnvrtc beside torch in {site} nor in the system: install a CUDA build of torch")


def _call(function: str, *args: Any) -> None:
    code = getattr(nvrtc(), function)(*args)
    if code:
        raise CompileError(f"{function}: {nvrtc().nvrtcGetErrorString(code).decode()}")


@functools.cache
def compiled(source: str, sm: int) -> bytes:
    """The cubin of one `.cu` file of this folder for a compute capability, given as 80 for 8.0."""
    text, header = ((FOLDER / name).read_bytes() for name in (source, HEADER))
    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(header), (ctypes.c_char_p * 1)(HEADER.encode())
    _call("nvrtcCreateProgram", ctypes.byref(program), text, source.encode(), 1, headers, names)
    try:
        options = [f"--gpu-architecture=sm_{sm}".encode(), b"--std=c++17"]
        failed = nvrtc().nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            raise CompileError(f"{source} for sm_{sm}: {_text(program, 'nvrtcGetProgramLog').decode(errors='replace')}")
        return _text(program, "nvrtcGetCUBIN")
    finally:
        nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, getter: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"{getter}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(getter, program, buffer)
    return buffer.raw


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise DeviceError(f"libcuda.so.1 cannot be loaded: {e}") from e
    u, p = ctypes.c_uint, ctypes.c_void_p
    driver.cuLaunchKernel.argtypes = [p, u, u, u, u, u, u, u, p, p, p]
    return driver


def _check(function: str, code: int) -> None:
    if code:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        raise DeviceError(f"{function}: {(name.value or b'unknown').decode()} ({code})")


@functools.cache
def _library(source: str, sm: int) -> ctypes.c_void_p:
    """The source's cubin, loaded; for as long as the process lives, since kernels of it may be in flight."""
    library = ctypes.c_void_p()
    image = compiled(source, sm)
    _check("cuLibraryLoadData", _driver().cuLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0))
    return library


class Kernel:
    """One kernel of a source, on one device."""

    def __init__(self, source: str, name: str, device: int, sm: int) -> None:
        self.name = name
        self._device = device
        self._handle = ctypes.c_void_p()
        with _loading:
            library = _library(source, sm)
        code = _driver().cuLibraryGetKernel(ctypes.byref(self._handle), library, name.encode())
        _check(f"cuLibraryGetKernel({name})", code)

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        code = _driver().cuKernelGetAttribute(ctypes.byref(value), which, self._handle, self._device)
        _check("cuKernelGetAttribute", code)
        return value.value

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return self._attribute(_REGISTERS)

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory per block that the source itself declares."""
        return self._attribute(_STATIC_SHARED_BYTES)

    def bound(self, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]) -> Launch:
        """A launch with everything but the stream; `args` are ctypes values."""
        which = _MAX_DYNAMIC_SHARED_BYTES
        if shared_bytes > self._attribute(which):  # never lowered: another launch may need it
            code = _driver().cuKernelSetAttribute(which, shared_bytes, self._handle, self._device)
            _check(f"{self.name}: cuKernelSetAttribute({shared_bytes} bytes of shared memory)", code)
        return Launch(self.name, self._handle, grid, block, shared_bytes, args)


class Launch:
    """A kernel with its arguments: called with a raw stream, it launches once and does not wait."""

    def __init__(
        self, name: str, handle: ctypes.c_void_p, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        self._name = name
        self._args = list(args)  # kept: the driver reads through the addresses at each launch
        addresses = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in self._args))
        self._head = (handle, *grid, *block, shared_bytes)
        self._tail = (addresses, None)

    def __call__(self, stream: int) -> None:
        code = _driver().cuLaunchKernel(*self._head, stream, *self._tail)
        if code:
            _check(f"cuLaunchKernel({self._name})", code)
