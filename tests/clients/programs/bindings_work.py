"""A cuda-bindings program: every implemented kind of memory until it is refused, copies compared byte for byte.

Prints one JSON object: for each kind how many bytes were given before CUDA_ERROR_OUT_OF_MEMORY.
"""

import json
import os

from cuda.bindings import driver

CHUNK = 64 << 20


def check(result):
    """Unpack a result tuple; raise on any error."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if values else None


def until_refused(allocate, free):
    """Allocate CHUNKs until the driver refuses, free all; (bytes given, name of the error)."""
    held = []
    while True:
        error, *values = allocate()
        if error != driver.CUresult.CUDA_SUCCESS:
            break
        held.append(values[0])
    for item in held:
        check(free(item))
    check(driver.cuCtxSynchronize())
    return len(held) * CHUNK, error.name


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
stream = check(driver.cuStreamCreate(0))

source = os.urandom(4 << 20)
target = bytearray(len(source))
pointer = check(driver.cuMemAlloc(len(source)))
check(driver.cuMemcpyHtoD(pointer, source, len(source)))
check(driver.cuMemcpyDtoH(target, pointer, len(source)))
check(driver.cuMemFree(pointer))

location = driver.CUmemLocation()
location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
prop = driver.CUmemAllocationProp()
prop.type, prop.location = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, location
attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
given = {
    "plain": until_refused(lambda: driver.cuMemAlloc(CHUNK), driver.cuMemFree),
    "managed": until_refused(lambda: driver.cuMemAllocManaged(CHUNK, attach), driver.cuMemFree),
    "pitched": until_refused(lambda: driver.cuMemAllocPitch(1 << 16, CHUNK >> 16, 4)[:2], driver.cuMemFree),
    "async": until_refused(lambda: driver.cuMemAllocAsync(CHUNK, stream), lambda p: driver.cuMemFreeAsync(p, stream)),
    "vmm": until_refused(lambda: driver.cuMemCreate(CHUNK, prop, 0), driver.cuMemRelease),
}
free, total = driver.cuMemGetInfo()[1:]
print(
    json.dumps({"same_bytes": bytes(target) == source, "given": given, "free": free, "total": total}),
)
