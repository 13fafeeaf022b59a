"""For scripts on the double of libcuda: contexts, streams, launches, by ctypes. A kernel's name gives its length."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
locked = ctypes.PyDLL("libcuda.so.1")  # launches with the interpreter's lock held, as Inductor's static launcher does


def check(result):
    if result != 0:
        raise RuntimeError(f"the double answers {result}")


def attach():
    """Gives the calling thread the primary context of device 0."""
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def stream():
    made = ctypes.c_void_p()
    check(cuda.cuStreamCreateWithPriority(ctypes.byref(made), 1, 0))
    return made


def kernel(name):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"image"))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return function


def launch(function, on=None, through=cuda):
    check(through.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, None, None))


def stream_role(library, on, job):
    set_role = library._c.mosaic_stream_set_role
    set_role.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library._check(set_role(on, job))
