"""Findings about the simulated machine of this user. Called by `doctor`; it is read, never made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.cli.checks.finding import Finding, finding, of_error
from partage.model import DeviceError, NotFoundError
from partage.run import libraries
from partage.sim import faults
from partage.sim.machine import Machine, machine_path
from partage.sim.state import read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.cli.checks.driver import Seen


def check_machine(seen: Seen) -> Iterator[Finding]:
    """Look at the machine that the simulated driver uses, where it is the driver to use."""
    if seen.directory is None:
        return
    if libraries.real_driver():
        yield finding("machine-beside-real", "driver", f"simulated, from {seen.directory}")
    try:
        with Machine() as machine:
            state, armed = read_state(machine), faults.list_faults(machine)
    except NotFoundError:
        yield finding("machine-none", machine_path(), "not there yet")
        return
    except DeviceError as error:
        yield of_error("machine-damaged", error)
        return
    value = f"profile {state.profile}, {len(state.devices)} devices, {len(state.clients)} programs"
    yield finding("machine", machine_path(), value)
    for device in state.devices:
        if device.xid and not device.lost:
            yield finding("machine-faults", f"device {device.index}", f"XID {device.xid} was raised", "none")
    if armed:
        calls = ", ".join(fault.call for fault in armed)
        yield finding("machine-faults", machine_path(), f"{len(armed)} armed: {calls}", "none")
