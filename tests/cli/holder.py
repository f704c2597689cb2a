"""A program of the driver API that allocates when told to: one JSON command a line, one JSON answer a line.

Commands: ["alloc", bytes], ["free"] and ["module"] answer the driver's error number, ["fill", bytes] allocates blocks
of so many until it is refused and answers with their sum, ["info"] answers [free, total], ["nvml"] what NVML says in
here, [used, total], ["exec"] replaces the process by a fresh copy of itself, ["exit", code] ends it.
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


def fill(size: int) -> int:
    before = len(blocks)
    while alloc(size) == 0:
        pass
    return (len(blocks) - before) * size


def load_module() -> int:
    text = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel() { ret; }\n"
    return cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), text)


def ask_nvml() -> list[int]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
    total, _, used = memory
    return [used, total]


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
            case ["fill", size]:
                answer = fill(size)
            case ["module"]:
                answer = load_module()
            case ["info"]:
                answer = info()
            case ["nvml"]:
                answer = ask_nvml()
            case ["exit", code]:
                os._exit(code)
            case ["become", *command]:
                os.execvp(command[0], command)  # noqa: S606
            case ["exec"]:
                os.execv(sys.executable, [sys.executable, __file__])  # noqa: S606
            case _:
                answer = "unknown command"
        print(json.dumps(answer), flush=True)


main()
