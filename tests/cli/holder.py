"""A program of the driver API that allocates when told to: one JSON command a line, one JSON answer a line.

Commands: ["alloc", bytes] and ["free"] answer the driver's error number, ["info"] answers [free, total], ["exec"]
replaces the process by a fresh copy of itself, ["exit", code] ends it.
"""

import ctypes
import json
import os
import sys

cuda = ctypes.CDLL("libcuda.so.1")
blocks: list[ctypes.c_uint64] = []


def alloc(size: int) -> int:
    pointer = ctypes.c_uint64()
    error = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    if error == 0:
        blocks.append(pointer)
    return error


def info() -> list[int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return [free.value, total.value]


def start() -> None:
    context, device = ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def main() -> None:
    start()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        match json.loads(line):
            case ["alloc", size]:
                answer = alloc(size)
            case ["free"]:
                answer = cuda.cuMemFree_v2(blocks.pop())
            case ["info"]:
                answer = info()
            case ["exit", code]:
                os._exit(code)
            case ["exec"]:
                os.execv(sys.executable, [sys.executable, __file__])  # noqa: S606
            case _:
                answer = "unknown command"
        print(json.dumps(answer), flush=True)


main()
