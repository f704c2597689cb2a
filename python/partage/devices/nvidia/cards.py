"""One card as NVML describes it, and whether it answers at all.

Handles are asked for anew each time: after a reset of the card an old one is stale. Called by discovery and by health.
What can go wrong: the card fell off the bus, or the driver does not answer for what a share needs (DeviceError): which
card it is, its memory, its modes, its address. Discovery and health ask for the same of these, so that they agree. Of
all else, whatever NVML says instead of an answer costs that answer alone, not the card; what an older driver does not
know is left at what it means there (no MIG, nothing reserved).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from partage.devices.nvidia.nvml import processes_on, translated
from partage.model import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSFS: Final = Path("/sys/bus/pci/devices")
UNKNOWN_NODE: Final = -1
_NODES: Final = 1024  # of NUMA: how many bits NVML is asked for
_WORD_BITS: Final = 64
_ADDRESS: Final = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", re.ASCII)
_UNTOLD: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_InvalidArgument)
# nvml.h's modes other than DEFAULT: one context a device, or none.
EXCLUSIVE: Final = "EXCLUSIVE_PROCESS"
_COMPUTE_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: EXCLUSIVE,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "EXCLUSIVE_THREAD",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "PROHIBITED",
}
# NVML's words for what a card needs before it works again.
_ACTIONS: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "its peers drained",
    4: "its peers drained and a reset of the GPU",
    5: "its IMEX domain recovered",
    6: "a reset of its PCIe bus",
    7: "a reboot of the system",
}


@dataclass(frozen=True, slots=True)
class RawCard:
    """A card as NVML has it. Memory in bytes; `reserved` by the driver; `mig`: cut.

    `idle`: NVML says that no process is on it; False also where it lists none for the card, as in guests of a vGPU.
    `action`: what NVML wants done with it before it is used; empty: nothing, or it does not say. `compute_mode`: the
    word of one that keeps programs from having a context each; empty: none does.
    """

    uuid: str
    index: int
    minor: int
    name: str
    address: str
    total: int
    reserved: int
    used: int
    idle: bool
    mig: bool
    mig_capable: bool
    numa: int
    action: str = ""
    compute_mode: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a card said when asked how it is. `fault`: why it does not answer, empty: it does.

    `action`: what NVML wants done with it, empty: nothing; None: this driver does not say.
    """

    fault: str = ""
    action: str | None = None


def read_card(index: int, sysfs: Path = SYSFS) -> RawCard:
    """Return the card with this index; raises DeviceError."""
    with translated(f"card {index}"):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        needed = _needed(handle)
        return RawCard(
            **needed,
            index=index,
            minor=_minor(handle),
            idle=_is_idle(handle),
            numa=_numa(handle, needed["address"], sysfs),
            action=_action(handle) or "",
        )


def ask(uuid: str) -> Answer:
    """Return how the card with this UUID is; never raises for a card that does not answer."""
    try:
        with translated(uuid):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            _needed(handle)
            return Answer(action=_action(handle))
    except DeviceError as error:
        return Answer(fault=reason_of(error))


def _needed(handle: Any) -> dict[str, Any]:
    """Return what no share can do without, by the names of `RawCard`; raises NVMLError for a card that fails."""
    total, reserved, used = _memory(handle)
    mig_capable, mig = _mig(handle)
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "name": text(pynvml.nvmlDeviceGetName(handle)),
        "address": normal_address(text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
        "total": total,
        "reserved": reserved,
        "used": used,
        "mig": mig,
        "mig_capable": mig_capable,
        "compute_mode": _compute_mode(handle),
    }


def reason_by(action: str) -> str:
    """Return why a card is not healthy for which NVML advises an action; empty: it is."""
    return f"NVML advises {action}" if action else ""


def reason_of(error: DeviceError) -> str:
    """Return why a card does not answer, in the words that stand in annotations: the same from whoever asked."""
    return str(error.value)


def normal_address(address: str) -> str:
    """Return a PCI address as sysfs writes it: `0000:1a:00.0`; NVML writes eight digits of domain, others capitals."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return address.lower()
    domain, *rest = (part.lower() for part in found.groups())
    return f"{int(domain, 16):04x}:{rest[0]}:{rest[1]}.{rest[2]}"


def text(value: str | bytes) -> str:
    """Return NVML's text as text."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """Leave out what a driver or a card does not know."""
    with contextlib.suppress(*_UNTOLD):
        yield


@contextlib.contextmanager
def dispensable() -> Iterator[None]:
    """Leave out what cannot be read, whatever the reason: a card is served without it."""
    with contextlib.suppress(pynvml.NVMLError):
        yield


def _memory(handle: Any) -> tuple[int, int, int]:
    """Return (total, reserved, used) in bytes; zeros where the card has no memory of its own, as NVML says it."""
    with untold():
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(info.total), int(info.reserved), int(info.used)
    with untold():
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.total), 0, int(info.used)
    return 0, 0, 0


def _minor(handle: Any) -> int:
    """Return N of /dev/nvidiaN; -1 where the card has no node of its own, or NVML does not say which."""
    with dispensable():
        return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    return -1


def _mig(handle: Any) -> tuple[bool, bool]:
    """Return whether the card can be cut, and whether it is."""
    with untold():
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return True, bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False, False


def _compute_mode(handle: Any) -> str:
    with untold():
        return _COMPUTE_MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), "")
    return ""


def _is_idle(handle: Any) -> bool:
    """Whether NVML says that nobody is on the card; what it does not say is no proof."""
    with dispensable():
        return processes_on(handle) == []
    return False


def _action(handle: Any) -> str | None:
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    with dispensable():
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            action = int(value.value.uiVal)
            return "" if action == 0 else _ACTIONS.get(action, f"recovery action {action}")
    return None


def _numa(handle: Any, address: str, sysfs: Path) -> int:
    """Return the NUMA node next to which the card sits: what the kernel says, else NVML; -1 where nobody knows."""
    with contextlib.suppress(OSError, ValueError):
        node = int((sysfs / address / "numa_node").read_text())
        if node >= 0:
            return node
    with dispensable():
        words = pynvml.nvmlDeviceGetMemoryAffinity(handle, _NODES // _WORD_BITS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        nodes = [at * _WORD_BITS + bit for at, word in enumerate(words) for bit in range(_WORD_BITS) if word >> bit & 1]
        if len(nodes) == 1:
            return nodes[0]
    return UNKNOWN_NODE
