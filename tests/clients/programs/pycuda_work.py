"""A PyCUDA program: makes a context, copies, loads PTX and launches it, uses its memory pool, then fills its share.

Prints one JSON object. Kernels take time on the simulator but compute nothing, so only copies are compared.
"""

import json

import numpy as np
import pycuda.driver as cuda
from pycuda.tools import DeviceMemoryPool

CHUNK = 64 << 20
PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing(.param .u64 address)
{
	ret;
}
"""


def until_refused(allocate):
    """Allocate CHUNKs until it is refused, free all; (bytes given, what was raised)."""
    held = []
    try:
        while True:
            held.append(allocate(CHUNK))
    except cuda.MemoryError as error:
        refusal = str(error)
    given = len(held) * CHUNK
    held.clear()
    return given, refusal


cuda.init()
device = cuda.Device(0)
context = device.make_context()
free_before, total = cuda.mem_get_info()

sent = np.random.default_rng().random(1 << 18).astype(np.float32)
block = cuda.to_device(sent)
stream, done = cuda.Stream(), cuda.Event()
pinned = cuda.pagelocked_empty_like(sent)
cuda.memcpy_dtoh_async(pinned, block, stream)
kernel = cuda.module_from_buffer(PTX).get_function("nothing")
kernel.prepare("P").prepared_async_call((256, 1), (128, 1, 1), stream, block)
done.record(stream).synchronize()
returned = cuda.from_device_like(block, sent)
pitched, pitch = cuda.mem_alloc_pitch(1000, 10, 4)

pool = DeviceMemoryPool()
pooled = until_refused(pool.allocate)
kept = cuda.mem_get_info()[0]  # the pool holds what it has had
pool.free_held()
block.free()
pitched.free()
print(
    json.dumps(
        {
            "name": device.name(),
            "same_bytes": bool((sent == pinned).all() and (sent == returned).all()),
            "pitch": pitch,
            "device_total": device.total_memory(),
            "total": total,
            "pool": pooled,
            "kept": kept,
            "plain": until_refused(cuda.mem_alloc),
            "lost": free_before - cuda.mem_get_info()[0],
        }
    )
)
context.pop()
