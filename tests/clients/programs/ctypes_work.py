"""A program that knows the driver only by ctypes: allocates through dlsym and cuGetProcAddress until it is refused.

Prints one JSON object: bytes given and the error for each door alone and for both in turns.
"""

import ctypes
import json

CHUNK = 64 << 20
libcuda = ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    """Call and raise on an error."""
    error = function(*arguments)
    if error:
        raise RuntimeError(f"{function}: {error}")


def by_proc_address(name, version):
    """Fetch a function as the runtime library does."""
    pointer, status = ctypes.c_void_p(), ctypes.c_int()
    ask = libcuda.cuGetProcAddress_v2
    call(ask, name, ctypes.byref(pointer), version, ctypes.c_uint64(0), ctypes.byref(status))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)(pointer.value)


def until_refused(*doors):
    """Allocate CHUNKs through the doors in turns; (bytes given, error)."""
    held, error = [], 0
    while not error:
        pointer = ctypes.c_uint64()
        error = doors[len(held) % len(doors)](ctypes.byref(pointer), ctypes.c_size_t(CHUNK))
        if not error:
            held.append(pointer)
    for pointer in held:
        call(libcuda.cuMemFree_v2, pointer)
    return len(held) * CHUNK, error


context = ctypes.c_void_p()
call(libcuda.cuInit, 0)
call(libcuda.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0)
call(libcuda.cuCtxSetCurrent, context)
fetched = by_proc_address(b"cuMemAlloc", 3020)
print(
    json.dumps(
        {
            "dlsym": until_refused(libcuda.cuMemAlloc_v2),
            "cuGetProcAddress": until_refused(fetched),
            "both": until_refused(libcuda.cuMemAlloc_v2, fetched),
        }
    )
)
