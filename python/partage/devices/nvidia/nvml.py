"""The devices of this machine as NVML tells them: real or simulated, through the same unmodified nvidia-ml-py.

Called by `run`, `top`, `doctor`, the watcher and the node agent. nvidia-ml-py has no types, so this folder is the one
place that touches it: sessions and processes here, cards in `cards.py`, links in `links.py`, events in `xids.py`. Every
failure is a DeviceError.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import TYPE_CHECKING, Any, Final, Self

import pynvml

from partage.devices.backend import CardUse
from partage.devices.nvidia.usage import Usage
from partage.model import Device, DeviceError, NotFoundError, names
from partage.sim.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_STEP: Final = "run `partage doctor`; it looks at driver, libraries and permissions"

#: By kind of process, newest version first: drivers before 510 have no third. The binding's functions without a version
#: raise what is no NVMLError where a driver lacks theirs.
_LISTINGS: Final = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
)
_REVIVE: Final = "reset it (`nvidia-smi -r -i {index}`); a simulated one: `partage sim fault restore {index}`"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


class Nvml:
    """An initialised NVML. `directory` holds the simulated library; None means the system's.

    `usage` is what it says of processes, shared by all who watch some; `now` is their clock, in seconds.
    """

    def __init__(self, directory: Path | None, now: Callable[[], float] = time.monotonic) -> None:
        if directory is not None:
            _check_machine()
            load(directory / names.NVML_LIBRARY)
        with translated("NVML"):
            pynvml.nvmlInit()
        self._handles: dict[str, Any] = {}
        self.usage = Usage(self, now)
        self.faults: tuple[DeviceError, ...] = ()

    def close(self) -> None:
        """Give NVML back."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def driver_version(self) -> str:
        """Return the driver's version as NVML reports it; a simulated one says so."""
        with translated("NVML"):
            return _text(pynvml.nvmlSystemGetDriverVersion())

    def cuda_version(self) -> str:
        """Return the highest version of CUDA that the driver serves, e.g. `13.0`."""
        with translated("NVML"):
            version = int(pynvml.nvmlSystemGetCudaDriverVersion())
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        """Return how many cards NVML lists; those that do not answer are among them."""
        with translated("NVML"):
            return int(pynvml.nvmlDeviceGetCount())

    def devices(self) -> list[Device]:
        """Return the devices that answer, memory in bytes; why the others do not is in `faults` then.

        One card that fell off the bus is no reason to do without the others.
        """
        with translated("NVML"):
            count = pynvml.nvmlDeviceGetCount()
        found: list[Device] = []
        faults: list[DeviceError] = []
        for index in range(count):
            try:
                with translated(f"device {index}", _REVIVE.format(index=index)):
                    found.append(self._device(index))
            except DeviceError as error:
                faults.append(error)
        self.faults = tuple(faults)
        return found

    def _device(self, index: int) -> Device:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        total, reserved, used = _memory(handle)
        name = _text(pynvml.nvmlDeviceGetName(handle))
        return Device(uuid=uuid, index=index, name=name, physical=total, allocatable=total - reserved, used=used)

    def in_mig_mode(self, uuid: str) -> bool:
        """Whether the device with this UUID is a card in MIG mode; cards that know no MIG are not."""
        with translated(uuid), contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            current, _ = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByUUID(uuid))
            return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
        return False

    def use(self, uuid: str) -> CardUse:
        """Return what NVML says of the use of the device with this UUID; what it does not say is None.

        Raises DeviceError where it does not answer for the device's memory: then it answers for nothing.
        """
        busy = memory_busy = used = holders = None
        with self._card(uuid) as handle:
            with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
                used = _memory(handle)[2]
            with contextlib.suppress(pynvml.NVMLError):
                rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
                busy, memory_busy = rates.gpu * 10, rates.memory * 10
            with contextlib.suppress(pynvml.NVMLError):
                holders = _holders(handle)
        return CardUse(used, busy, memory_busy, holders)

    def processes(self, uuid: str) -> dict[int, int]:
        """Return pid -> bytes of device memory on the device with this UUID, for processes with a known amount."""
        with self._card(uuid) as handle:
            holders = _holders(handle) or {}
            return {pid: amount for pid, amount in holders.items() if amount is not None}

    def utilization(self, uuid: str) -> dict[int, int]:
        """Return pid -> percent of the last second in which its kernels ran; empty where the driver does not tell."""
        nothing = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotFound)
        with translated(uuid), contextlib.suppress(*nothing):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            latest: dict[int, Any] = {}
            for sample in pynvml.nvmlDeviceGetProcessUtilization(handle, 0):
                known = latest.setdefault(sample.pid, sample)
                if sample.timeStamp > known.timeStamp:
                    latest[sample.pid] = sample
            return {pid: sample.smUtil for pid, sample in latest.items()}
        return {}

    def samples_since(self, uuid: str, since: int, until: int) -> dict[int, tuple[int, int]]:
        """Return pid -> (when, percent) of its latest sample of use in (`since`, `until`], in µs of NVML's clock.

        NVML keeps the samples of what has ended. Empty where it does not tell.
        """
        nothing = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotFound)
        with self._card(uuid) as handle, contextlib.suppress(*nothing):
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
            latest = sorted((s.timeStamp, s.pid, s.smUtil) for s in samples if since < s.timeStamp <= until)
            return {pid: (at, percent) for at, pid, percent in latest}
        return {}

    @contextlib.contextmanager
    def _card(self, uuid: str) -> Iterator[Any]:
        """Yield the card's handle, asked for anew after it failed: a card that was reset has another one."""
        try:
            with translated(uuid):
                handle = self._handles.get(uuid)
                if handle is None:
                    handle = self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                yield handle
        except DeviceError:
            self._handles.pop(uuid, None)
            raise


def _check_machine() -> None:
    """Raise DeviceError where the machine that the simulated driver would use is none of this version's.

    The driver itself can only say "not loaded". No machine is fine: the driver makes one.
    """
    with contextlib.suppress(NotFoundError), Machine():
        pass


def load(path: Path) -> None:
    """Make the NVML that pynvml will find by its name this one, unless another was loaded; raises DeviceError."""
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DeviceError(
            str(path), f"cannot be loaded ({error})", "NVML answers for the devices", "build it again"
        ) from error


def processes_on(handle: Any) -> list[Any] | None:
    """Return what NVML lists of the processes on a card; None where it lists none for this card at all."""
    found: list[Any] | None = None
    for versions in _LISTINGS:
        for listing in versions:
            with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
                found = [*(found or ()), *getattr(pynvml, listing)(handle)]
                break
    return found


def _holders(handle: Any) -> dict[int, int | None] | None:
    """Return pid -> bytes, None where NVML does not say how much; None in all where it lists no processes here."""
    listed = processes_on(handle)
    if listed is None:
        return None
    found: dict[int, int | None] = {}
    for process in listed:
        amounts = [one for one in (found.get(process.pid), process.usedGpuMemory) if one is not None]
        found[process.pid] = max(amounts, default=None)
    return found


def _memory(handle: Any) -> tuple[int, int, int]:
    """Return (total, reserved, used) in bytes; drivers before 510 know no reserved part."""
    with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return info.total, info.reserved, info.used
    info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return info.total, 0, info.used


@contextlib.contextmanager
def translated(subject: str, step: str = _STEP) -> Iterator[None]:
    """Turn NVML's errors within into a DeviceError about `subject`."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise DeviceError(subject, f"NVML says: {error}", "devices are read through NVML", step) from error
