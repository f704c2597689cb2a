"""What a machine does now: its devices with used, peak and busy figures, and the processes on them.

A snapshot for `partage sim show` and for tests; nothing here locks or changes anything, so a figure may be a moment
older than its neighbour.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from partage._abi import ffi, lib

if TYPE_CHECKING:
    from partage.sim.machine import Machine

_WINDOW: Final = 20  # buckets: the last second


@dataclass(frozen=True, slots=True)
class ClientState:
    """One live process, by its pid here (0: outside this pid namespace).

    Per device: `memory`, `contexts` in bytes, `busy` as a ratio 0 to 1 of the last second, `busy_ns`: time of its
    compute engine that the process used since it started.
    """

    slot: int
    pid: int
    pid_ns: int
    name: str
    calls: int
    memory: tuple[int, ...]
    contexts: tuple[int, ...]
    busy: tuple[float, ...]
    busy_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device: sizes in bytes, `busy` as a ratio 0 to 1 of the last second, `xid` the last one (0: none)."""

    index: int
    name: str
    uuid: str
    pci: str
    part: str
    memory: int
    reserved: int
    context: int
    used: int
    peak: int
    busy: float
    lost: bool
    xid: int


@dataclass(frozen=True, slots=True)
class MachineState:
    """The whole machine at one moment."""

    profile: str
    driver: str
    cuda_version: int
    seed: int
    devices: tuple[DeviceState, ...]
    clients: tuple[ClientState, ...]


def _text(field: Any) -> str:
    return str(ffi.string(field).decode("utf-8", "replace"))


def _busy(device: Any, now_ns: int) -> float:
    last = now_ns // lib.SIM_BUCKET_NS
    used = 0
    for bucket in range(last - _WINDOW, last):
        at = bucket % lib.SIM_BUCKETS
        if device.bucket_at[at] == bucket:
            used += device.bucket_ns[at]
    return min(1.0, float(used / (_WINDOW * lib.SIM_BUCKET_NS)))


def _client(machine: Machine, slot: int, ndev: int) -> ClientState | None:
    if not machine.alive(slot) or not machine.read("uint32_t", "client", slot, "state"):
        return None
    client = machine.read("struct sim_client", "client", slot)
    devices = [client.device[index] for index in range(ndev)]
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return ClientState(
        slot=slot,
        pid=machine.pid_of(slot),
        pid_ns=client.pid_ns,
        name=_text(client.name),
        calls=client.calls,
        memory=tuple(int(device.memory) for device in devices),
        contexts=tuple(int(device.contexts) for device in devices),
        busy=tuple(_busy(device, now) for device in devices),
        busy_ns=tuple(int(device.busy_ns) for device in devices),
    )


def _device(machine: Machine, index: int, clients: tuple[ClientState, ...]) -> DeviceState:
    model = machine.read("struct sim_device_model", "model", index)
    state = machine.read("struct sim_device_state", "device", index)
    return DeviceState(
        index=index,
        name=_text(model.name),
        uuid=_text(model.uuid),
        pci=_text(model.pci),
        part=_text(model.part),
        memory=model.memory,
        reserved=model.reserved,
        context=model.context,
        used=sum(client.memory[index] for client in clients),
        peak=state.peak,
        busy=min(1.0, sum(client.busy[index] for client in clients)),
        lost=bool(state.lost),
        xid=state.xid,
    )


def read_state(machine: Machine) -> MachineState:
    """Read what the machine is and does now; dead processes count nothing. Raises DeviceError where it was cut."""
    ndev = machine.ndev
    found = (_client(machine, slot, ndev) for slot in range(lib.SIM_CLIENTS))
    clients = tuple(client for client in found if client is not None)
    return MachineState(
        profile=_text(machine.read("char[64]", "profile")[0]),
        driver=_text(machine.read("char[32]", "driver")[0]),
        cuda_version=machine.read("uint32_t", "cuda_version"),
        seed=machine.read("uint64_t", "seed"),
        devices=tuple(_device(machine, index, clients) for index in range(ndev)),
        clients=clients,
    )
