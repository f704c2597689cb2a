"""A tenant that uses cuda-bindings, NVIDIA's own Python binding of the driver API, and nothing else of CUDA."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from typing import Any

from cuda.bindings import driver
from serve import serve  # type: ignore[import-not-found]  # lies beside this script

PTX = b""".version 8.0
.target sm_70
.address_size 64
.visible .entry spin_ns(.param .u64 duration) { ret; }
\0"""
KERNEL_NS = 1_000_000
COPY_BYTES = 1 << 20


class CudaError(Exception):
    """The driver's own error; the text is its name."""


def check(result: tuple[Any, ...]) -> Any:
    """Return a call's values; raises CudaError."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(driver.cuGetErrorName(error)[1].decode())
    return values[0] if len(values) == 1 else tuple(values)


class BindingsTenant:
    """Holds a primary context, a module and the blocks it was asked to keep."""

    def __init__(self) -> None:
        check(driver.cuInit(0))
        device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
        self._kernel = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(PTX)), b"spin_ns"))
        self._kept: list[Any] = []

    def work(self) -> dict[str, Any]:
        """Copy bytes to the device, within it and back; verify; launch a kernel and wait for it."""
        sent, received = os.urandom(COPY_BYTES), bytearray(COPY_BYTES)
        first, second = check(driver.cuMemAlloc(COPY_BYTES)), check(driver.cuMemAlloc(COPY_BYTES))
        check(driver.cuMemcpyHtoD(first, sent, COPY_BYTES))
        check(driver.cuMemcpyDtoD(second, first, COPY_BYTES))
        check(driver.cuMemcpyDtoH(received, second, COPY_BYTES))
        self.launch()
        self.finish()
        check(driver.cuMemFree(first))
        check(driver.cuMemFree(second))
        return {"verified": COPY_BYTES if bytes(received) == sent else 0, "launches": 1}

    def launch(self) -> None:
        """Launch a kernel of one millisecond."""
        arguments = ((KERNEL_NS,), (ctypes.c_uint64,))
        check(driver.cuLaunchKernel(self._kernel, 1, 1, 1, 32, 1, 1, 0, 0, arguments, 0))

    def finish(self) -> None:
        """Wait for all kernels."""
        check(driver.cuCtxSynchronize())

    def hold(self, size: int) -> str | None:
        """Allocate and keep; the driver's error where it is refused."""
        try:
            self._kept.append(check(driver.cuMemAlloc(size)))
        except CudaError as error:
            return str(error)
        return None

    def drop(self) -> None:
        """Free what is kept."""
        while self._kept:
            check(driver.cuMemFree(self._kept.pop()))

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        free, total = check(driver.cuMemGetInfo())
        return free, total


if __name__ == "__main__":
    serve(BindingsTenant(), f"cuda-bindings {importlib.metadata.version('cuda-bindings')}")
