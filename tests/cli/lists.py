"""A program that launches one kernel of 1 ms on two devices by one call, again and again: lists.py FIRST SECOND.

Says its pid as JSON, then obeys a line each: ["launch", n] launches n times, waits until all is done, and answers
how many ms that took.
"""

import ctypes
import json
import os
import sys
import time

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns)\n{\n\tret;\n}\n"

cuda = ctypes.CDLL("libcuda.so.1")


class Launch(ctypes.Structure):
    """CUDA_LAUNCH_PARAMS."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
    )


def check(error: int) -> None:
    assert error == 0, error


def launch_on(ordinal: int, parameters: ctypes.c_void_p) -> tuple[ctypes.c_void_p, Launch]:
    """Return a context of the device and what is to be launched there."""
    context, module, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    function, stream = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_ns"))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    return context, Launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters)


def main() -> None:
    check(cuda.cuInit(0))
    ns = ctypes.c_uint64(1_000_000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    sides = [launch_on(int(ordinal), ctypes.cast(parameters, ctypes.c_void_p)) for ordinal in sys.argv[1:]]
    both = (Launch * len(sides))(*(launch for _, launch in sides))
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        _, count = json.loads(line)
        began = time.monotonic()
        for _ in range(count):
            check(cuda.cuLaunchCooperativeKernelMultiDevice(both, len(sides), 0))
        for context, _ in sides:
            check(cuda.cuCtxSetCurrent(context))
            check(cuda.cuCtxSynchronize())
        print(json.dumps(round(1000 * (time.monotonic() - began))), flush=True)


main()
