"""The simulated machine as `partage run` meets it: which one there is, which one the user asked for.

An existing machine keeps its profile, so asking for another one is an error and not a surprise; where there is none it
is made. Called before the simulated driver is loaded.
"""

from __future__ import annotations

import contextlib
from typing import Any

from partage._abi import ffi
from partage.model import DeviceError, NotFoundError, UsageError, names
from partage.sim import machine, profiles


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
        found = _text(there.read("char[64]", "profile")[0])
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
            models = [there.read("struct sim_device_model", "model", index) for index in range(there.ndev)]
    except (DeviceError, NotFoundError):
        return None
    return next((int(model.context) for model in models if _text(model.uuid) == uuid), None)


def _text(field: Any) -> str:
    return str(ffi.string(field).decode("utf-8", "replace"))
