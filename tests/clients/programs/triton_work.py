"""A Triton program without torch: its JIT compiles a kernel, its own C helper (built against cuda.h when it starts and
linked to libcuda.so.1) asks for the device, loads the cubin and launches it; memory comes from cuda-bindings.

Prints one JSON object. Kernels take time on the simulator but compute nothing, so only copies are compared.
"""

import json
import os

import triton
import triton.language as tl
from cuda.bindings import driver as cu
from triton.runtime import driver

MIB = 1 << 20
CHUNK = 64 * MIB


@triton.jit
def add_one(source, target, count, BLOCK: tl.constexpr):  # noqa: N803 -- Triton's style
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count) + 1, mask=at < count)


class Block:
    """Device memory as Triton wants it: a type and an address."""

    dtype = "float32"

    def __init__(self, size):
        self.address = ok(cu.cuMemAlloc(size))

    def data_ptr(self):
        return int(self.address)


def ok(result):
    """Unpack what a call of cuda-bindings returns; an error ends the program."""
    error, *values = result
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def until_refused():
    """Allocate CHUNKs until the driver refuses; (bytes given, name of the error)."""
    held = []
    while True:
        error, address = cu.cuMemAlloc(CHUNK)
        if error != cu.CUresult.CUDA_SUCCESS:
            break
        held.append(address)
    for address in held:
        ok(cu.cuMemFree(address))
    return len(held) * CHUNK, error.name


utils = driver.active.utils  # compiles and loads the helper
target = driver.active.get_current_target()
properties = utils.get_device_properties(driver.active.get_current_device())
stream = driver.active.get_current_stream(0)  # makes the primary context current
free_before, total = ok(cu.cuMemGetInfo())

source, result = Block(MIB), Block(MIB)
sent, returned = os.urandom(MIB), bytearray(MIB)
ok(cu.cuMemcpyHtoD(source.data_ptr(), sent, MIB))
compiled = add_one[(256,)](source, result, MIB // 4, BLOCK=1024)
ok(cu.cuCtxSynchronize())
ok(cu.cuMemcpyDtoH(returned, source.data_ptr(), MIB))

print(
    json.dumps(
        {
            "target": [target.backend, target.arch, target.warp_size],
            "sms": properties["multiprocessor_count"],
            "cubin": compiled.asm["cubin"][:4] == b"\x7fELF",
            "registers": compiled.n_regs,
            "capturing": utils.is_stream_capturing(stream),
            "same_bytes": bytes(returned) == sent,
            "total": total,
            "free_before": free_before,
            "free": ok(cu.cuMemGetInfo())[0],
            "given": until_refused(),
        }
    )
)
