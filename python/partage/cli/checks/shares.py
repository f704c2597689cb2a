"""Findings about hand-overs: the one of this very process, and those that run on this machine.

Called by `doctor`. Files are read guarded (bounds, checksums), since a tenant may have written anything into them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.cli.checks.finding import Finding, finding, of_error
from partage.cli.checks.places import mount_of
from partage.model import LaunchError, LedgerError, PolicyError, format_memory, names
from partage.run import handover
from partage.run.handover import HandOver
from partage.shm import read_turns_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.cli.checks.driver import Seen
    from partage.model import Device
    from partage.shm import Policy

CONTAINER: Final = Path(names.HOST_ROOT)  # in a container this is the hand-over itself


def own() -> HandOver | None:
    """Return the hand-over of this process by the library's own rule: the container's, else the one named."""
    files = (names.POLICY_FILE, names.TURNS_FILE, names.LEDGER_FILE)
    if any((CONTAINER / name).exists() for name in files):
        return HandOver(CONTAINER)
    named = os.environ.get(names.ENV_DIR)
    return HandOver(Path(named)) if named else None


def check_own() -> Iterator[Finding]:
    """Look at the three files of this process's hand-over as the library would."""
    entry = own()
    if entry is None:
        return
    mount = mount_of(entry.path)
    lies = f"{entry.path} on {mount.kind} ({'read-only' if 'ro' in mount.options else 'read-write'})"
    try:
        policy = entry.policy()
    except PolicyError as error:
        yield of_error("share-policy-broken", error)
    else:
        granted = ", ".join(f"{format_memory(device.memory)} of {device.uuid}" for device in policy.devices)
        if policy.is_open:
            yield finding("share", entry.name, f"{granted}; generation {policy.generation}; {lies}")
        else:
            yield finding("share-closed", entry.policy_path, f"closed; {granted}; {lies}", "open")
    if os.access(entry.policy_path, os.W_OK) and os.geteuid() != 0:
        yield finding("share-policy-writable", entry.policy_path, f"writable for uid {os.geteuid()}")
    yield from _check_own_ledger(entry)
    size = read_turns_size(entry.path / names.TURNS_FILE)
    if size is None:
        yield finding("share-turns-broken", entry.path / names.TURNS_FILE, "missing, short or foreign", "a turns file")


def _check_own_ledger(entry: HandOver) -> Iterator[Finding]:
    try:
        entry.ledger()
    except LedgerError as error:
        yield of_error("share-ledger-broken", error)
        return
    try:
        os.close(os.open(entry.ledger_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except OSError as error:
        yield finding("share-ledger-read-only", entry.ledger_path, error.strerror or error, "writable for this user")


# ---- what runs on this machine ---------------------------------------------------------------------------------------


def check_running(seen: Seen) -> Iterator[Finding]:
    """Look at every hand-over in use: files, sums per card, who watches."""
    if own() is not None:
        return  # a share sees its own; the others are none of its business
    try:
        root = handover.user_root()
    except (LaunchError, OSError):
        return  # said by the check of places
    there = handover.living([root, CONTAINER])
    living = {entry.path for entry in there}
    left = [path for path in root.iterdir() if path.is_dir() and path not in living]
    yield finding("shares", "running shares", f"{len(there)} in use")
    if left:
        yield finding("shares-left-over", root, f"{len(left)} that nobody uses")
    policies: dict[str, Policy] = {}
    for entry in there:
        yield from _check_files(entry, policies)
    if not seen.is_share and seen.devices:
        yield from _check_sums(policies, {device.uuid: device for device in seen.devices})


def _check_files(entry: HandOver, policies: dict[str, Policy]) -> Iterator[Finding]:
    try:
        policies[entry.name] = entry.policy()
    except PolicyError as error:
        yield of_error("running-policy-broken", error)
    try:
        ledger = entry.ledger()
    except LedgerError as error:
        yield of_error("running-ledger-broken", error)
        return
    if not entry.is_watched():
        yield finding("running-unwatched", entry.name, "nobody watches")
    policy = policies.get(entry.name)
    for device in policy.devices if policy else ():
        used = max(0, ledger.used(device.uuid) + device.overhead)
        if used > device.memory:
            value = f"{format_memory(used)} of {device.uuid} used"
            yield finding("running-over-limit", entry.name, value, f"{format_memory(device.memory)}")


def _check_sums(policies: dict[str, Policy], cards: dict[str, Device]) -> Iterator[Finding]:
    promised: dict[str, dict[str, int]] = {}
    for name, policy in policies.items():
        for device in policy.devices:
            promised.setdefault(device.uuid, {})[name] = device.memory
    for uuid, holders in promised.items():
        if uuid not in cards:
            yield finding(
                "running-device-gone", ", ".join(holders), f"device {uuid} does not answer", "a card that does"
            )
            continue
        room, total = cards[uuid].allocatable, sum(holders.values())
        if total > room:
            value = f"{format_memory(total)} promised to {', '.join(holders)}"
            yield finding("running-over-card", f"device {uuid}", value, f"{format_memory(room)} to promise")
