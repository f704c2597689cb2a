"""A tenant that uses numba-cuda: arrays on the device, copies, memory information, and kernels.

numba compiles kernels with NVIDIA's compiler, which is not on every machine; the kernel here is PTX that numba loads,
and it is launched as numba itself launches, through cuda.core.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import ctypes
import importlib.metadata
import re
from typing import Any

import numpy as np
from cuda.core import Device, LaunchConfig, launch
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from serve import serve  # type: ignore[import-not-found]  # lies beside this script

PTX = b""".version 8.0
.target sm_70
.address_size 64
.visible .entry spin_ns(.param .u64 duration) { ret; }
\0"""
KERNEL_NS = 1_000_000
COPY_BYTES = 1 << 20


class NumbaTenant:
    """Holds the arrays it was asked to keep."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        module = cuda.current_context().create_module_ptx(PTX)
        self._kernel = module.get_function("spin_ns").kernel
        self._config = LaunchConfig(grid=1, block=32)
        device = Device(0)
        device.set_current()
        self._stream = device.default_stream

    def work(self) -> dict[str, Any]:
        """Copy random numbers to the device, within it and back; verify them; launch a kernel and wait for it."""
        sent = np.random.default_rng().integers(0, 256, COPY_BYTES, dtype=np.uint8)
        first = cuda.to_device(sent)
        second = cuda.device_array_like(first)
        second.copy_to_device(first)
        received = second.copy_to_host()
        self.launch()
        self.finish()
        return {"verified": COPY_BYTES if np.array_equal(received, sent) else 0, "launches": 1}

    def launch(self) -> None:
        """Launch a kernel of one millisecond."""
        launch(self._stream, self._config, self._kernel, ctypes.c_uint64(KERNEL_NS))

    def finish(self) -> None:
        """Wait for all kernels."""
        cuda.synchronize()

    def hold(self, size: int) -> str | None:
        """Allocate an array and keep it; the driver's error, as numba names it, where it is refused."""
        try:
            self._kept.append(cuda.device_array(size, dtype=np.uint8))
        except CudaAPIError as error:
            named = re.search(r"CUDA_ERROR_\w+", str(error))
            return named[0] if named else str(error)
        return None

    def drop(self) -> None:
        """Let all arrays go, at once: numba itself would free them when it sees fit."""
        self._kept.clear()
        cuda.current_context().memory_manager.deallocations.clear()

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        free, total = cuda.current_context().get_memory_info()
        return free, total


if __name__ == "__main__":
    serve(NumbaTenant(), f"numba-cuda {importlib.metadata.version('numba-cuda')}")
