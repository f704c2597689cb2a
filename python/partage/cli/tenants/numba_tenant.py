"""A tenant that uses numba-cuda: arrays on the device, copies, memory information."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from serve import serve  # type: ignore[import-not-found]  # lies beside this script

COPY_BYTES = 1 << 20


class NumbaTenant:
    """Holds the arrays it was asked to keep."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        cuda.current_context()

    def work(self) -> dict[str, Any]:
        """Copy random numbers to the device, within it and back; verify them."""
        sent = np.random.default_rng().integers(0, 256, COPY_BYTES, dtype=np.uint8)
        first = cuda.to_device(sent)
        second = cuda.device_array_like(first)
        second.copy_to_device(first)
        received = second.copy_to_host()
        return {"verified": COPY_BYTES if np.array_equal(received, sent) else 0, "launches": 0}

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
