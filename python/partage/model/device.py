"""A physical accelerator as every room knows it: by UUID; the index is only what people count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partage.model.errors import UsageError

SHORT_UUID: Final = 12  # "GPU-" and eight digits


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Memory in bytes; `allocatable` is what shares may add up to, `physical` what the card carries."""

    uuid: str
    index: int
    name: str
    physical: int
    allocatable: int
    used: int = 0

    @property
    def short_uuid(self) -> str:
        """The start of the UUID by which people can tell it from others, and that `pick` accepts: `GPU-57ded2e4`."""
        return self.uuid[:SHORT_UUID]

    @property
    def simulated(self) -> bool:
        """Whether this is the simulated driver's: it says so in its name."""
        return "SIMULATED" in self.name


def pick(devices: list[Device], wanted: str) -> Device:
    """Return the device that `wanted` names: an index, a UUID, or an unambiguous start of a UUID.

    Raises UsageError with the devices there are.
    """
    found = [device for device in devices if wanted in {str(device.index), device.uuid}]
    if not found and wanted.startswith(("GPU-", "MIG-")):
        found = [device for device in devices if device.uuid.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{device.index} = {device.short_uuid}" for device in devices) or "none"
    problem = "no such device" if not found else f"means {len(found)} devices"
    raise UsageError(f"device '{wanted}'", problem, f"there are: {there}", "name one by index or UUID")
