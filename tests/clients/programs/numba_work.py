"""A numba-cuda program: compiles and launches a kernel, copies both ways, then allocates until it is refused.

Prints one JSON object. Kernels take time on the simulator but compute nothing, so only copies are compared.
"""

import json

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

CHUNK = 64 << 20


@cuda.jit
def scale(values, factor):
    """Multiply in place."""
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


source = np.random.default_rng(1).integers(0, 256, 8 << 20, dtype=np.uint8)
on_device = cuda.to_device(source)
returned = on_device.copy_to_host()
pinned = cuda.pinned_array(source.shape, dtype=np.uint8)
stream = cuda.stream()
on_device.copy_to_host(pinned, stream=stream)
stream.synchronize()
values = cuda.to_device(np.ones(1 << 16, dtype=np.float32))
begin, end = cuda.event(), cuda.event()
begin.record()
scale[256, 256](values, 2.0)
end.record()
end.synchronize()
free_before, total = cuda.current_context().get_memory_info()
held, code = [], 0
while not code:
    try:
        held.append(cuda.device_array(CHUNK, dtype=np.uint8))
    except CudaAPIError as error:
        code = error.code
free_full, _ = cuda.current_context().get_memory_info()
chunks = len(held)
del held
cuda.current_context().memory_manager.deallocations.clear()
free_after, _ = cuda.current_context().get_memory_info()
print(
    json.dumps(
        {
            "same_bytes": returned.tobytes() == source.tobytes() and pinned.tobytes() == source.tobytes(),
            "compiled": "scale" in next(iter(scale.inspect_asm().values())),
            "elapsed_ms": cuda.event_elapsed_time(begin, end),
            "total": total,
            "free_before": free_before,
            "free_full": free_full,
            "free_after": free_after,
            "chunks": chunks,
            "code": code,
            "name": cuda.get_current_device().name.decode()
            if isinstance(cuda.get_current_device().name, bytes)
            else cuda.get_current_device().name,
        }
    )
)
