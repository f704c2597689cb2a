"""A cuda.core program: compiles and launches a kernel, copies both ways, then fills its share from each resource.

Prints one JSON object. Kernels take time on the simulator but compute nothing, so only copies are compared.
"""

import ctypes
import json
import os

from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ManagedMemoryResourceOptions,
    Program,
    ProgramOptions,
    VirtualMemoryResource,
    launch,
)

CHUNK = 64 << 20
SOURCE = 'extern "C" __global__ void scale(float *v, float f, int n) { if (threadIdx.x < n) v[threadIdx.x] *= f; }'


def driver_error(error):
    """Name the driver's error in what a resource raised: each has exceptions of its own, all quote it."""
    return next((word.strip(":") for word in str(error).split() if word.startswith("CUDA_ERROR")), repr(error))


def until_refused(make_resource):
    """Allocate CHUNKs until the driver refuses, free all; (bytes given, name of the error)."""
    held, refusal = [], ""
    try:
        resource = make_resource()
        while True:
            held.append(resource.allocate(CHUNK, stream=stream))
    except Exception as error:
        refusal = driver_error(error)
    given = len(held) * CHUNK
    for buffer in held:
        buffer.close(stream)
    stream.sync()
    return given, refusal


def host_bytes(buffer):
    """View a pinned buffer's bytes."""
    return (ctypes.c_char * buffer.size).from_address(int(buffer.handle))


device = Device(0)
device.set_current()
stream = device.create_stream()
program = Program(SOURCE, code_type="c++", options=ProgramOptions(arch=f"sm_{device.arch}"))
kernel = program.compile("cubin").get_kernel("scale")

pinned = LegacyPinnedMemoryResource()
going, coming = pinned.allocate(1 << 20), pinned.allocate(1 << 20)
source = os.urandom(1 << 20)
host_bytes(going)[:] = source
on_device = device.memory_resource.allocate(1 << 20, stream=stream)
on_device.copy_from(going, stream=stream)
on_device.copy_to(coming, stream=stream)
launch(stream, LaunchConfig(grid=256, block=256), kernel, on_device, ctypes.c_float(1.0), ctypes.c_int(256))
stream.sync()
returned = host_bytes(coming)[:]
on_device.close(stream)
stream.sync()

print(
    json.dumps(
        {
            "same_bytes": returned == source,
            "registers": kernel.attributes.num_regs,
            "given": {
                "default pool": until_refused(lambda: device.memory_resource),
                "own pool": until_refused(lambda: DeviceMemoryResource(device, DeviceMemoryResourceOptions())),
                "managed pool": until_refused(lambda: ManagedMemoryResource(ManagedMemoryResourceOptions())),
                # Last: cuda.core 1.2.2 keeps a handle of each of these (it retains one more than it releases), so
                # their memory does not return before the program ends, whatever the driver.
                "virtual memory": until_refused(lambda: VirtualMemoryResource(device)),
            },
        }
    )
)
