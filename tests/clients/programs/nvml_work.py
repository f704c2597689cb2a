"""An nvidia-ml-py program beside a cuda-bindings one in the same process: what the tools of the ecosystem are shown."""

import json
import os

import pynvml
from cuda.bindings import driver

pynvml.nvmlInit()  # before cuInit, as vLLM and Ray do
count = pynvml.nvmlDeviceGetCount()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
driver.cuInit(0)
context = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(context)
error, pointer = driver.cuMemAlloc(512 << 20)
memory, memory_v2 = (
    pynvml.nvmlDeviceGetMemoryInfo(handle),
    pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
)
_, free, total = driver.cuMemGetInfo()
processes = [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
name = pynvml.nvmlDeviceGetName(handle)
print(
    json.dumps(
        {
            "count": count,
            "name": name if isinstance(name, str) else name.decode(),
            "cuda": {"total": total, "free": free, "device_total": driver.cuDeviceTotalMem(0)[1]},
            "v1": {"total": memory.total, "used": memory.used, "free": memory.free},
            "v2": {"total": memory_v2.total, "used": memory_v2.used, "free": memory_v2.free},
            "processes": processes,
            "pid": os.getpid(),
            "error": error.name,
        }
    )
)
