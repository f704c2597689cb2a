"""The devices of this machine for commands that only look: never starts a simulated machine of its own accord."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.devices.nvidia.nvml import Nvml
from partage.run import libraries
from partage.sim.machine import machine_path

if TYPE_CHECKING:
    from partage.model import Device, DeviceError


def utilization_of(uuids: set[str]) -> dict[str, dict[int, int]]:
    """Return for each device pid -> percent of the last second in which its kernels ran; raises DeviceError."""
    with Nvml(libraries.driver_directory(simulate=False)) as nvml:
        return {uuid: nvml.utilization(uuid) for uuid in uuids}


def devices_of_machine() -> tuple[list[Device], tuple[DeviceError, ...]]:
    """Return the devices, and why some do not answer; none where there is neither a driver nor a simulated machine.

    Raises DeviceError where there should be devices and NVML does not answer.
    """
    if not libraries.real_driver() and not machine_path().exists():
        return [], ()
    with Nvml(libraries.driver_directory(simulate=False)) as nvml:
        return nvml.devices(), nvml.faults
