"""The simulated machine as `partage run` meets it: which one there is, which one the user asked for.

The machine is one file (`hook/sim/machine.h`), made by whoever comes first from the profile that `PARTAGE_SIM` names.
An existing machine keeps its profile, so asking for another one is an error and not a surprise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partage._abi import ffi, lib
from partage.model import UsageError, names
from partage.sim import profiles

_MODELS_END: Final[int] = ffi.offsetof("struct sim_machine", "link")


def machine_path() -> Path:
    """Return where the machine's file is or would be; the same rule as the simulated driver's own."""
    given, runtime = os.environ.get(names.ENV_SIM_DIR), os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        return Path(given, names.MACHINE_FILE)
    if runtime.startswith("/"):
        return Path(runtime, names.SIM_DIRECTORY, names.MACHINE_FILE)
    return Path(f"/tmp/{names.SIM_DIRECTORY}-{os.geteuid()}", names.MACHINE_FILE)  # noqa: S108 -- the driver checks it


@dataclass(frozen=True, slots=True)
class _Machine:
    """What is read of a machine: its profile's name and the bytes one context takes, by UUID."""

    profile: str
    contexts: dict[str, int]


def _read() -> _Machine | None:
    """Return the machine there is; None where there is none or it is of another layout."""
    try:
        with machine_path().open("rb") as file:
            data = file.read(_MODELS_END)
    except OSError:
        return None
    if len(data) < _MODELS_END:
        return None
    machine = ffi.cast("struct sim_machine *", ffi.from_buffer(data))  # only the part up to `link` is there
    known = machine.magic == lib.SIM_MACHINE_MAGIC and machine.layout == lib.SIM_MACHINE_LAYOUT
    if not known or machine.ndev > lib.SIM_DEVICES:
        return None
    models = [machine.model[index] for index in range(machine.ndev)]
    return _Machine(_text(machine.profile), {_text(model.uuid): int(model.context) for model in models})


def _text(field: Any) -> str:
    return str(ffi.string(field).decode("utf-8", "replace"))


def choose_machine(wanted: str | None) -> None:
    """Let the simulated driver use the profile `wanted` (None: what there is, else the driver's default).

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
    machine = _read()
    if machine is not None and machine.profile != profile.name:
        raise UsageError(
            f"profile '{wanted}'",
            f"the simulated machine at {machine_path()} is '{machine.profile}'",
            "a machine keeps its profile",
            f"leave --sim out, set {names.ENV_SIM_DIR} to another directory, or run `partage sim create {wanted}`",
        )
    os.environ[names.ENV_SIM] = profile.name


def context_of(uuid: str) -> int | None:
    """Return the bytes one context takes on a simulated device, None where it is not one."""
    machine = _read()
    return machine.contexts.get(uuid) if machine else None
