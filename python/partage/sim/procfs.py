"""What the kernel would say of a simulated machine's cards: files of /proc/driver and /sys/bus/pci, as text.

Called by `tree.py`, which writes them below a directory that then looks like the root of a driver installation. The
layout is that of NVIDIA's kernel module, so that programs which read these files (a device plugin where NVML does not
answer, for NUMA nodes, for the numbers of MIG capabilities) find what they look for. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The kernel module counts this many GPU instances a card, and compute instances each, whatever the card can do.
GPU_INSTANCES: Final = 15
COMPUTE_INSTANCES: Final = 8
CONFIG_MINOR: Final = 1
MONITOR_MINOR: Final = 2
_FIRST_MINOR: Final = 3


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of one card. `pci` as the machine has it (`00000000:1a:00.0`), `numa` its node."""

    name: str
    uuid: str
    pci: str
    minor: int
    vbios: str
    numa: int
    pci_device_id: int  # device << 16 | vendor
    pci_subsystem_id: int

    @property
    def address(self) -> str:
        """The bus address as the kernel writes it: `0000:1a:00.0`."""
        domain, _, rest = self.pci.lower().partition(":")
        return f"{domain[-4:]}:{rest}"


def gpu_instance_minor(minor: int, gpu_instance: int) -> int:
    """Return N of /dev/nvidia-caps/nvidia-capN for a GPU instance of the card /dev/nvidia<minor>."""
    return _FIRST_MINOR + (minor * GPU_INSTANCES + gpu_instance) * (COMPUTE_INSTANCES + 1)


def compute_instance_minor(minor: int, gpu_instance: int, compute_instance: int) -> int:
    """Return the same for a compute instance within it."""
    return gpu_instance_minor(minor, gpu_instance) + 1 + compute_instance


def _mig_minors(cards: tuple[Card, ...]) -> str:
    lines = [f"config {CONFIG_MINOR}", f"monitor {MONITOR_MINOR}"]
    for card in cards:
        for gpu in range(GPU_INSTANCES):
            place = f"gpu{card.minor}/gi{gpu}"
            lines.append(f"{place}/access {gpu_instance_minor(card.minor, gpu)}")
            lines += [
                f"{place}/ci{compute}/access {compute_instance_minor(card.minor, gpu, compute)}"
                for compute in range(COMPUTE_INSTANCES)
            ]
    return "\n".join(lines) + "\n"


def _information(card: Card) -> str:
    lines = (
        ("Model:", card.name),
        ("IRQ:", str(64 + card.minor)),
        ("GPU UUID:", card.uuid),
        ("Video BIOS:", card.vbios),
        ("Bus Type:", "PCIe"),
        ("DMA Size:", "52 bits"),
        ("DMA Mask:", "0xfffffffffffff"),
        ("Bus Location:", card.address),
        ("Device Minor:", str(card.minor)),
        ("GPU Excluded:", "No"),
    )
    return "".join(f"{key:<16} {value}\n" for key, value in lines)


def _pci_device(card: Card) -> dict[str, str]:
    return {
        "vendor": f"{card.pci_device_id & 0xFFFF:#06x}\n",
        "device": f"{card.pci_device_id >> 16:#06x}\n",
        "subsystem_vendor": f"{card.pci_subsystem_id & 0xFFFF:#06x}\n",
        "subsystem_device": f"{card.pci_subsystem_id >> 16:#06x}\n",
        "class": "0x030200\n",  # a 3D controller
        "numa_node": f"{card.numa}\n",
    }


def files(driver: str, cards: tuple[Card, ...], *, mig: bool) -> dict[str, str]:
    """Return the text of each file by its path below the root; `mig`: some card can be cut into instances."""
    there = {"proc/driver/nvidia/version": f"NVRM version: SIMULATED UNIX x86_64 Kernel Module  {driver}\n"}
    if mig:
        there["proc/driver/nvidia-caps/mig-minors"] = _mig_minors(cards)
    for card in cards:
        there[f"proc/driver/nvidia/gpus/{card.address}/information"] = _information(card)
        for name, text in _pci_device(card).items():
            there[f"sys/bus/pci/devices/{card.address}/{name}"] = text
    return there
