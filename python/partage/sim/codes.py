"""Result codes by name, for faults: CUresult of cuda.h and nvmlReturn_t of nvml.h.

The values are the public ABI of both headers. A code that is missing here can always be given as a number.
"""

from __future__ import annotations

from typing import Final

from partage.model import UsageError

CUDA: Final[dict[str, int]] = {
    "CUDA_SUCCESS": 0,
    "CUDA_ERROR_INVALID_VALUE": 1,
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_NOT_INITIALIZED": 3,
    "CUDA_ERROR_DEINITIALIZED": 4,
    "CUDA_ERROR_STUB_LIBRARY": 34,
    "CUDA_ERROR_DEVICE_UNAVAILABLE": 46,
    "CUDA_ERROR_NO_DEVICE": 100,
    "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_IMAGE": 200,
    "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_MAP_FAILED": 205,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": 209,
    "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_UNSUPPORTED_LIMIT": 215,
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": 217,
    "CUDA_ERROR_INVALID_PTX": 218,
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": 220,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": 222,
    "CUDA_ERROR_FILE_NOT_FOUND": 301,
    "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND": 302,
    "CUDA_ERROR_OPERATING_SYSTEM": 304,
    "CUDA_ERROR_INVALID_HANDLE": 400,
    "CUDA_ERROR_ILLEGAL_STATE": 401,
    "CUDA_ERROR_NOT_FOUND": 500,
    "CUDA_ERROR_NOT_READY": 600,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE": 708,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": 709,
    "CUDA_ERROR_ASSERT": 710,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
    "CUDA_ERROR_NOT_PERMITTED": 800,
    "CUDA_ERROR_NOT_SUPPORTED": 801,
    "CUDA_ERROR_SYSTEM_NOT_READY": 802,
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": 803,
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": 900,
    "CUDA_ERROR_TIMEOUT": 909,
    "CUDA_ERROR_UNKNOWN": 999,
}

_NVML_WORDS = (
    "UNINITIALIZED INVALID_ARGUMENT NOT_SUPPORTED NO_PERMISSION ALREADY_INITIALIZED NOT_FOUND INSUFFICIENT_SIZE "
    "INSUFFICIENT_POWER DRIVER_NOT_LOADED TIMEOUT IRQ_ISSUE LIBRARY_NOT_FOUND FUNCTION_NOT_FOUND CORRUPTED_INFOROM "
    "GPU_IS_LOST RESET_REQUIRED OPERATING_SYSTEM LIB_RM_VERSION_MISMATCH IN_USE MEMORY NO_DATA VGPU_ECC_NOT_SUPPORTED "
    "INSUFFICIENT_RESOURCES FREQ_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH DEPRECATED NOT_READY GPU_NOT_FOUND "
    "INVALID_STATE"
)

NVML: Final[dict[str, int]] = {
    "NVML_SUCCESS": 0,
    "NVML_ERROR_UNKNOWN": 999,
    **{f"NVML_ERROR_{word}": number for number, word in enumerate(_NVML_WORDS.split(), start=1)},
}


def parse_code(call: str, code: int | str) -> int:
    """Return the number of a code given as number, name, or name without its prefix, for the library of `call`.

    Raises UsageError.
    """
    prefix, table = ("NVML_ERROR_", NVML) if call.startswith("nvml") else ("CUDA_ERROR_", CUDA)
    text = str(code).strip()
    number = int(text) if text.isdecimal() else table.get(text.upper(), table.get(prefix + text.upper()))
    if number is None or number >= 2**31:
        step = "see cuda.h and nvml.h"
        raise UsageError(f"code of {call}", text, f"a number, or a name such as {prefix}UNKNOWN", step)
    return number
