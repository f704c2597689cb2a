"""The simulated machine as `partage run` meets it: which one there is, which one the user asked for.

An existing machine keeps its profile, so asking for another one is an error and not a surprise; where there is none it
is made. Called before the simulated driver is loaded.
"""

from __future__ import annotations

import contextlib

from partage.model import DeviceError, NotFoundError, UsageError, names
from partage.sim import machine, profiles, state


def choose_machine(wanted: str | None) -> None:
    """Let the simulated driver use the profile `wanted`; None: the machine there is, else the driver's default.

    Raises UsageError for an unknown profile and where a machine with another profile exists.
    """
    if wanted is None:
        return
    try:
        profile = profiles.find(wanted)
    except profiles.ProfileError as error:
        raise UsageError(
            f"profile '{wanted}'", str(error), "a profile of a machine", "see `partage sim list`"
        ) from error
    path = machine.machine_path()
    if not path.exists():
        with contextlib.suppress(UsageError):  # somebody else made one first: looked at below
            machine.create(profile)
    with machine.Machine() as there:
        found = state.read_state(there).profile
    if found != profile.name:
        raise UsageError(
            f"profile '{wanted}'",
            f"the simulated machine at {path} is '{found}'",
            "a machine keeps its profile",
            f"leave --sim out, set {names.ENV_SIM_DIR}, or run `partage sim create {wanted} --replace`",
        )


def context_of(uuid: str) -> int | None:
    """Return the bytes one context takes on a simulated device, None where it is not one."""
    try:
        with machine.Machine() as there:
            devices = state.read_state(there).devices
    except (DeviceError, NotFoundError):
        return None
    return next((device.context for device in devices if device.uuid == uuid), None)
