"""Why a public name is not simulated: patterns and their reasons, for the support table.

Read by `emit_sim`; a test fails on a name without code and without a reason. The first pattern that matches counts.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_YET: Final = "not simulated yet"
_GRAPHICS: Final = "a simulated machine has no graphics API"
_VGPU: Final = "no hypervisor divides a simulated card"
_ROOT: Final = "changes the card: needs rights that programs here are not given"
_CONFIDENTIAL: Final = "no confidential computing on a simulated card"
_NO_KERNELS: Final = "kernels do not compute here, so nothing of theirs can be measured"
_NO_FABRIC: Final = "one machine: no fabric joins several"
_CHANGES: Final = (
    r"nvml(Device|Gpu|GpuInstance|ComputeInstance|System)\w*"
    r"(Create|Destroy|Set|Reset|Clear|Freeze|Lock|Remove|Discover|Modify|Validate|Update|Activate|Write)\w*"
)
_BOARD: Final = "the profiles say nothing of it"

#: Pattern of whole names -> reason.
REASONS: Final[tuple[tuple[str, str], ...]] = (
    # the driver
    (r"cuCheckpoint\w+", "another process cannot be stopped inside the driver and its memory moved out and back"),
    (r"cuStream(Begin|End)CaptureToCig\w*", _GRAPHICS),
    (r"cuStreamBeginRecaptureToGraph\w*", "a graph is captured anew or updated; recapturing one " + _NOT_YET),
    (r"cuDeviceGetNvSciSyncAttributes", "NvSci is another library, which is not here"),
    (r"cuDevice(Unr|R)egisterAsyncNotification", "tells of a memory budget, which only Windows has"),
    (r"cuProfilerInitialize", "gone from the driver since CUDA 11, which answers the same"),
    (r"cuMemBatchDecompressAsync\w*", "the profiles have no decompression engine"),
    (r"cu(DeviceGetClique\w+|DeviceGetFabricClusterUuid|FabricCpyBatchAsync\w*)", _NO_FABRIC),
    (r"cuLogicalEndpoint\w+", _NO_FABRIC),
    (r"cuMemGetHandleForAddressRange", "memory here has no DMA-BUF, which is the kernel's to make"),
    (r"cu\w*(External\w+|Import\w+|Ipc\w+|MemPool(Ex|Im)port\w+)", _NOT_YET),
    (r"cu\w*(Array\w*|Mipmapped\w*|AtoA\w*|Tex\w+|Surf\w+|TensorMap\w+)", _NOT_YET),
    (r"cuMem\w*(Batch|WithAttributes)\w*", _NOT_YET),
    # NVML
    (r"nvml\w*([vV]gpu|Pgpu|VirtualizationMode)\w*", _VGPU),
    (r"nvml\w*(EncoderSessions|EncoderCapacity|FBCSessions)\w*", "nothing is encoded on a simulated card"),
    (r"nvml\w*(ConfCompute|DramEncryption)\w*", _CONFIDENTIAL),
    (r"nvml(EventSet|System(Register)?Event)\w+", "only XID events happen here; nvmlEventSetWait tells them"),
    (_CHANGES, _ROOT),
    (r"nvmlDeviceQueryDrainState", _ROOT),
    (r"nvmlUnit\w+", "S-class units are machines of another age"),
    (r"nvmlGpm\w+", _NO_KERNELS),
    (r"nvmlDevice(PerfMetricsGetSamples|ReadPRMCounters)\w*", _NO_KERNELS),
    (r"nvmlGet(Blacklist|Excluded)Device\w+", "no card is excluded on a simulated machine"),
    (r"nvml\w*(NvLink|Nvlink|C2c|Fabric)\w*", "of links only state, version, speed and the other end are simulated"),
    (r"nvmlGpuInstance\w+", "an instance is one compute instance; " + _NOT_YET),
    (r"nvmlDeviceGetAccountingStats_v2", "accounting is off for good: root switches it on"),
    (r"nvml\w+", _BOARD),
)


def reason(name: str) -> str | None:
    """Return why `name` has no code, None where nobody has said."""
    return next((why for pattern, why in REASONS if re.fullmatch(pattern, name)), None)
