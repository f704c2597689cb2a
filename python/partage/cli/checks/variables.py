"""Findings about environment variables: those that change nothing here, and those that do not parse.

Called by `doctor`. The rules are the library's (hook/shim/env.c, docs/reference/environment.md), applied to this
process's own environment: what a program started here would meet.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from partage.cli.checks import library
from partage.cli.checks.finding import Finding, finding
from partage.cli.checks.shares import CONTAINER, own
from partage.model import (
    DeviceError,
    NotFoundError,
    PolicyError,
    UsageError,
    format_memory,
    names,
    parse_memory,
)
from partage.model.units import MEMORY_FORMS
from partage.run import libraries
from partage.sim import profiles
from partage.sim.machine import Machine, machine_path
from partage.sim.state import read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.cli.checks.driver import Seen

_NUMBERED: Final = re.compile(rf"{names.ENV_MEMORY_LIMIT}(_\d+)?")
_COMPUTE: Final = (names.ENV_SM_LIMIT, names.ENV_CORE_POLICY)
_UNDER_POLICY: Final = (names.ENV_DISABLE_CONTROL, names.ENV_OVERSUBSCRIBE, names.ENV_SHARED_CACHE)
_LOG, _LOG_LEVEL, _CONTEXT = "PARTAGE_LOG", "PARTAGE_LOG_LEVEL", "PARTAGE_CONTEXT_MEMORY"
_SWITCHES: Final = {"1", "t", "T", "true", "True", "TRUE"}


def check_variables(seen: Seen) -> Iterator[Finding]:
    """Go through the variables that somebody may have set in the hope of an effect."""
    variables = {name: value for name, value in os.environ.items() if value}
    limits = {name: value for name, value in variables.items() if _NUMBERED.fullmatch(name)}
    limits |= {name: variables[name] for name in (names.ENV_MAX_GPU_MEM_MB, _CONTEXT) if name in variables}
    yield from _check_limits(limits)
    for name in _COMPUTE:
        if name in variables:
            yield _without(name, variables[name], "not read: `partage run --cores` or a pod's share say it")
    inside = own() is not None
    yield from _check_inside(variables, limits) if inside else _check_outside(variables, limits)
    yield from _check_machine(variables, seen)
    yield from _check_visible(seen)
    if _LOG_LEVEL in variables and _LOG not in variables:
        yield finding("variable-idle", _LOG_LEVEL, f"nothing is logged while {_LOG} is not set")


def _without(name: str, value: str, why: str) -> Finding:
    return finding("variable-without-effect", name, f"'{value}': {why}")


def _check_limits(limits: dict[str, str]) -> Iterator[Finding]:
    for name, value in limits.items():
        if name == names.ENV_MAX_GPU_MEM_MB:
            good, forms = value.isdecimal() and value.isascii(), "a whole number of MiB"
        else:
            good, forms = _bytes(value) is not None, MEMORY_FORMS
        if not good:
            yield finding("variable-invalid", name, f"'{value}' is not a size", forms)


def _bytes(text: str) -> int | None:
    """Return the bytes that the library reads from text; 0 is no limit; None where it reads none."""
    try:
        return parse_memory(text)
    except UsageError:
        return 0 if re.fullmatch(r"0+([kmgt]i?)?b?", text, re.IGNORECASE | re.ASCII) else None


def _check_inside(variables: dict[str, str], limits: dict[str, str]) -> Iterator[Finding]:
    """Under a policy the environment may only lower a limit."""
    for name in _UNDER_POLICY:
        if name in variables:
            yield _without(name, variables[name], "ignored under a policy")
    entry = own()
    if entry is None:
        return
    if entry.path == CONTAINER and variables.get(names.ENV_DIR, str(CONTAINER)) != str(CONTAINER):
        yield _without(names.ENV_DIR, variables[names.ENV_DIR], f"{CONTAINER} comes first")
    try:
        granted = entry.policy().devices
    except PolicyError:
        return
    for name, value in limits.items():
        position = name.removeprefix(f"{names.ENV_MEMORY_LIMIT}_")
        of = granted[int(position) : int(position) + 1] if position.isdecimal() else granted
        if not of:
            yield _without(name, value, f"the policy grants {len(granted)} devices, counted from 0")
            continue
        size = int(value) << 20 if name == names.ENV_MAX_GPU_MEM_MB and value.isdecimal() else _bytes(value)
        highest = max(device.memory for device in of)
        if name != _CONTEXT and size is not None and (size == 0 or size >= highest):
            yield _without(name, value, f"the policy's {format_memory(highest)} is not higher")


def _check_outside(variables: dict[str, str], limits: dict[str, str]) -> Iterator[Finding]:
    """Without a share, limits need the library in the program; `partage run` takes its own from its options."""
    preloaded = any(map(library.is_ours, library.preloads() + library.in_file()))
    switches = [name for name in _UNDER_POLICY if name in variables]
    for name in (*limits, *switches):
        if not preloaded:
            why = f"{names.LIBRARY} is not preloaded, and `partage run` takes the limit from its options"
            yield _without(name, variables[name], why)
    if variables.get(names.ENV_DISABLE_CONTROL) in _SWITCHES and preloaded:
        for name in limits:
            yield _without(name, variables[name], f"{names.ENV_DISABLE_CONTROL} switches limits off")


def _check_machine(variables: dict[str, str], seen: Seen) -> Iterator[Finding]:
    """Variables of the simulated driver and the machine it uses."""
    real = libraries.real_driver()
    if names.ENV_SIM_FORCE in variables and not real:
        yield finding("variable-idle", names.ENV_SIM_FORCE, "no real driver is here that it could matter for")
    wanted = variables.get(names.ENV_SIM)
    if wanted is None or own() is not None:
        return
    if seen.directory is None:
        yield _without(names.ENV_SIM, wanted, "the real driver is used")
        return
    made = _profile_of_machine()
    try:
        name = profiles.find(wanted).name
    except profiles.ProfileError as error:
        yield _without(names.ENV_SIM, wanted, str(error))
        return
    if made is not None and made != name:
        yield _without(names.ENV_SIM, wanted, f"the machine at {machine_path()} is '{made}' already")


def _profile_of_machine() -> str | None:
    try:
        with Machine() as machine:
            return read_state(machine).profile
    except (DeviceError, NotFoundError):
        return None


def _check_visible(seen: Seen) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES ends at the first entry that names nothing."""
    text = os.environ.get(names.ENV_VISIBLE_DEVICES)
    if text is None or not seen.facts.get("devices"):
        return
    uuids, count = [device.uuid for device in seen.devices], len(seen.devices)
    for entry in text.split(","):
        word = entry.strip()
        numbered = word.isdecimal() and int(word) < count
        if not numbered and not (word.startswith(("GPU-", "MIG-")) and any(uuid.startswith(word) for uuid in uuids)):
            value = f"'{text}': '{word}' names no device of {count}"
            yield finding("variable-names-no-device", names.ENV_VISIBLE_DEVICES, value, "indices or UUIDs")
            return
