"""A numba-cuda program with NVML beside it, on several devices: what it is shown of each and given on each.

    devices_work.py FIRST SHARE_TENTHS

FIRST is the library that is initialised first, nvml or cuda. On every device it may use, the program takes so many
tenths of what is free, then prints one JSON object: devices in the order of CUDA and in that of NVML.
"""

import json
import sys

import numpy as np
import pynvml
from numba import cuda

first, tenths = sys.argv[1], int(sys.argv[2])


def in_cuda():
    """Take memory on each device, in CUDA's order."""
    shown = []
    for device in cuda.gpus:
        with device:
            free, total = cuda.current_context().get_memory_info()
            held.append(cuda.device_array(free // 10 * tenths, dtype=np.uint8))
            left = cuda.current_context().get_memory_info().free
        shown.append({"uuid": device._device.uuid, "total": total, "free": free, "left": left})
    return shown


def give_back():
    """Free everything, each on its own device: numba frees large arrays at once, which needs the context."""
    for device in cuda.gpus:
        with device:
            del held[0]
            cuda.current_context().memory_manager.deallocations.clear()


def in_nvml():
    """Tell what NVML says of each device, in its order."""
    shown = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        shown.append({"uuid": pynvml.nvmlDeviceGetUUID(handle), "total": memory.total, "free": memory.free})
    return shown


held = []
if first == "nvml":
    pynvml.nvmlInit()
devices = in_cuda()
if first == "cuda":
    pynvml.nvmlInit()
in_use = in_nvml()
give_back()
print(json.dumps({"cuda": devices, "nvml": in_use, "nvml_after": in_nvml()}))
