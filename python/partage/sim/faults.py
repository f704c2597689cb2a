"""Faults on a running machine: calls that fail, symbols that are missing, XIDs, lost devices, slow contexts.

A fault stands in the machine file, so it reaches programs that run already, and it stays until it is cleared. Arming
and clearing are serialised by the machine's event lock. What can go wrong: no free place (32 at once), a call that is
no entry point, an unknown code, a device that the machine does not have; all UsageError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from partage._abi import ffi, lib
from partage.locks import locked
from partage.model import NotFoundError, UsageError
from partage.sim.codes import parse_code

if TYPE_CHECKING:
    from partage.sim.machine import Machine

_CALL: Final = re.compile(r"^(cu|nvml)[A-Z]\w{1,60}$")
DROP: Final = "drop:"
SLOW_CONTEXT: Final = "slow-context"
FOREIGN_PIDS: Final = "foreign-pids"
NVML_OF_DEVICE: Final = "nvml"
XID_LOST: Final = 79  # "GPU has fallen off the bus"


@dataclass(frozen=True, slots=True)
class Fault:
    """One armed fault. `call`: entry point, `drop:NAME`, `slow-context`, `foreign-pids` or `nvml`; `device` None: any.

    The call succeeds `after` times, then fails `count` times (0: for ever) with `code`; `seen` calls came so far.
    """

    place: int
    call: str
    code: int
    device: int | None
    after: int
    count: int
    seen: int


def _store(machine: Machine, place: int, fault: Fault) -> None:
    entry: Any = ffi.new("struct sim_fault *")
    entry.call, entry.code = fault.call.encode(), fault.code
    entry.device = -1 if fault.device is None else fault.device
    entry.after, entry.count = fault.after, fault.count
    machine.write_bytes(bytes(ffi.buffer(entry)), "fault", place)
    machine.write("uint32_t", 1, "fault", place, "active")  # last: whoever sees it armed sees all of it
    machine.write("uint32_t", max(place + 1, machine.read("uint32_t", "faults")), "faults")


def _arm(machine: Machine, wanted: Fault) -> Fault:
    """Put the fault into the first free place."""
    call, device, after, count = wanted.call, wanted.device, wanted.after, wanted.count
    if device is not None:
        machine.check_device(device)
    if not 0 <= after < 2**63 or not 0 <= count < 2**63:
        raise UsageError(f"fault {call}", f"after {after}, count {count}", "0 or more each", "count 0 means for ever")
    with locked(machine.fd, lib.SIM_LOCK_EVENT):
        for place in range(lib.SIM_FAULTS):
            if machine.read("uint32_t", "fault", place, "active"):
                continue
            fault = replace(wanted, place=place)
            _store(machine, place, fault)
            return fault
    limit = f"at most {lib.SIM_FAULTS}"
    raise UsageError("faults of the simulated machine", f"{lib.SIM_FAULTS} are armed", limit, "clear some first")


def arm(  # noqa: PLR0913 -- all keyword-only but the first three
    machine: Machine, call: str, code: int | str, *, after: int = 0, count: int = 1, device: int | None = None
) -> Fault:
    """Let `call` fail with `code` (number or name) `count` times (0: for ever) once `after` calls went through.

    `device` limits it to calls whose current device has that index, and in NVML to calls about that device; a call of
    NVML that is about none is then never struck.
    """
    if not _CALL.match(call):
        raise UsageError(f"call '{call}'", "no entry point", "a name of cuda.h or nvml.h", "for example cuMemAlloc_v2")
    return _arm(machine, Fault(0, call, parse_code(call, code), device, after, count, 0))


def drop_symbol(machine: Machine, symbol: str) -> Fault:
    """Let cuGetProcAddress not know `symbol`, as an older driver would."""
    if not _CALL.match(symbol) or len(DROP + symbol) > 63:
        raise UsageError(f"symbol '{symbol}'", "no entry point", "a name of cuda.h", "for example cuMemCreate")
    return _arm(machine, Fault(0, DROP + symbol, 0, None, 0, 0, 0))


def foreign_pids(machine: Machine) -> Fault:
    """Let NVML give pids that mean nothing in the caller's pid namespace, as older drivers do in containers."""
    return _arm(machine, Fault(0, FOREIGN_PIDS, 0, None, 0, 0, 0))


def break_nvml(machine: Machine, device: int, code: int | str, *, after: int = 0, count: int = 0) -> Fault:
    """Let every question to NVML about a device fail with `code`, `count` times (0: until cleared).

    The device stays listed and programs on it run on, as where the driver's management side is stuck.
    """
    return _arm(machine, Fault(0, NVML_OF_DEVICE, parse_code("nvml", code), device, after, count, 0))


def slow_context(machine: Machine, device: int, milliseconds: int) -> Fault:
    """Let making a context on a device take this long; clearing the fault brings the profile's time back."""
    if not 0 <= milliseconds <= 600_000:
        raise UsageError("slow context", f"{milliseconds} ms", "0 to 600000 ms", "give another time")
    usual = machine.read("uint32_t", "model", machine.check_device(device), "context_ms")
    for fault in list_faults(machine):
        if fault.call == SLOW_CONTEXT and fault.device == device:
            usual = fault.after  # the time of the profile, not of the fault before
            clear(machine, fault.place)
    found = _arm(machine, Fault(0, SLOW_CONTEXT, milliseconds, device, usual, 0, 0))
    machine.write("uint32_t", milliseconds, "model", device, "context_ms")
    return found


def list_faults(machine: Machine) -> tuple[Fault, ...]:
    """All armed faults, by place."""
    found = []
    for place in range(lib.SIM_FAULTS):
        entry = machine.read("struct sim_fault", "fault", place)
        if entry.active:
            call = ffi.string(entry.call).decode("utf-8", "replace")
            device = None if entry.device < 0 else int(entry.device)
            found.append(Fault(place, call, entry.code, device, entry.after, entry.count, entry.seen))
    return tuple(found)


def clear(machine: Machine, place: int | None = None) -> int:
    """Disarm the fault at `place`, or all; returns how many. Raises NotFoundError where none is armed there."""
    armed = [fault for fault in list_faults(machine) if place is None or fault.place == place]
    if place is not None and not armed:
        step = "see `partage sim fault list`"
        raise NotFoundError(f"fault {place}", "is not armed", "the places of armed faults", step)
    with locked(machine.fd, lib.SIM_LOCK_EVENT):
        for fault in armed:
            machine.write("uint32_t", 0, "fault", fault.place, "active")
            if fault.call == SLOW_CONTEXT and fault.device is not None:
                machine.write("uint32_t", fault.after, "model", fault.device, "context_ms")
        left = [fault.place for fault in list_faults(machine)]
        machine.write("uint32_t", max(left, default=-1) + 1, "faults")  # programs look at no more than this many
    return len(armed)


# ---- what happens to devices -----------------------------------------------------------------------------------------


def _happen(machine: Machine, device: int, xid: int, *, lost: bool) -> None:
    """Write the event and, between it and the waking of those who sleep, the loss: they find both."""
    machine.check_device(device)
    if not 0 < xid < 2**31:
        raise UsageError(f"XID {xid}", "no such number", "a positive number", "for example 79")
    with locked(machine.fd, lib.SIM_LOCK_EVENT):
        sequence = machine.read("uint64_t", "event_count") + 1
        at = (sequence - 1) % lib.SIM_EVENTS
        machine.write("uint64_t", 0, "event", at, "sequence")  # torn until it is whole
        machine.write("int32_t", device, "event", at, "device")
        machine.write("uint32_t", xid, "event", at, "xid")
        machine.write("uint64_t", sequence, "event", at, "sequence")
        machine.write("uint32_t", xid, "device", device, "xid")
        machine.write("uint64_t", sequence, "event_count")
        if lost:
            machine.write("uint32_t", 1, "device", device, "lost")
        machine.write("uint32_t", (machine.read("uint32_t", "event_word") + 1) % 2**32, "event_word")
    machine.wake("event_word")


def raise_xid(machine: Machine, device: int, xid: int) -> None:
    """Let an XID happen on a device now: event sets that watch it wake up."""
    _happen(machine, device, xid, lost=False)


def lose_device(machine: Machine, device: int) -> None:
    """Let a device fall off the bus: XID 79, then every call on it says so."""
    _happen(machine, device, XID_LOST, lost=True)


def restore_device(machine: Machine, device: int) -> None:
    """Bring a lost device back, as after a reset."""
    machine.write("uint32_t", 0, "device", machine.check_device(device), "lost")
    machine.write("uint32_t", 0, "device", device, "xid")
