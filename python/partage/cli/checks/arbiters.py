"""Findings about turns: whether an arbiter serves those who must ask, whether it answers, who goes on without it.

Called by `doctor`. What a lock file says of its holder is shown and never believed; ledgers are a tenant's claim.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from partage import locks
from partage._abi import lib
from partage.cli.checks.finding import Finding, finding
from partage.cli.checks.shares import own
from partage.model import LaunchError, PartageError, names
from partage.run import arbiter, handover
from partage.shm import OPEN_FLAGS, Turn, read_turn_lines, read_turns
from partage.shm.ledger import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partage.run.handover import HandOver
    from partage.shm import Policy, Slot, SlotTurn

_SILENT_NS: Final[int] = 5 * lib.PTG_PATIENCE_NS  # a waiter was not answered, and no sign of life came, for so long


def check_arbiter() -> Iterator[Finding]:
    """Look at the arbiter of this user's shares and at who has to ask it; inside a share only at that share."""
    entry = own()
    if entry is not None:
        yield from _check_share(entry, "share-degraded")
        return
    try:
        root = handover.user_root()
    except (LaunchError, OSError):
        return  # said by the check of places
    there = [entry for entry in handover.living([root]) if _gated_of(entry)]
    pid = arbiter.serving(root)
    if there and pid is None:
        value = f"{len(there)} shares take turns, and no arbiter serves {root}"
        yield finding("arbiter-absent", "arbiter", value, "one that gives them", _read(root / names.ARBITER_LOG))
    elif pid is not None:
        yield finding("arbiter", "arbiter", f"pid {pid} serves {root}; {len(there)} shares take turns")
    for entry in there:
        yield from _check_share(entry, "running-degraded")
    for uuid in sorted({uuid for entry in there for uuid in _gated_of(entry)}):
        yield from _check_device(uuid, root)


def _gated_of(entry: HandOver) -> tuple[str, ...]:
    """Return the UUIDs of the devices on which a share takes turns; none where its policy cannot be read."""
    try:
        policy = entry.policy()
    except PartageError:
        return ()  # said by the check of running shares
    return tuple(device.uuid for device in policy.devices if device.gated)


def _check_share(entry: HandOver, kind: str) -> Iterator[Finding]:
    try:
        policy, ledger = entry.policy(), entry.ledger()
        lines = read_turn_lines(entry.ledger_path, [slot.index for slot in ledger.slots], len(ledger.devices))
    except PartageError:
        return  # said by the checks of shares
    turns = read_turns(entry.path / names.TURNS_FILE)
    for index, device in enumerate(ledger.devices[: len(policy.devices)]):
        at = policy.devices[index].turn
        turn = turns.turns[at] if turns and at < len(turns.turns) else None
        mine = [(slot, lines[slot.index][index]) for slot in ledger.slots]
        degraded = [_who(slot) for slot, line in mine if line.degraded]
        if degraded:
            yield finding(kind, entry.name, f"{device.uuid}: {', '.join(degraded)}", "turns of an arbiter")
        elif turn is not None and any(_is_unanswered(line, turn, policy) for _, line in mine):
            yield finding("arbiter-silent", entry.name, f"{device.uuid}: no sign of life beside a process that waits")


def _who(slot: Slot) -> str:
    return f"pid {slot.host_pid or slot.pid} {slot.name}"


def _is_unanswered(line: SlotTurn, turn: Turn, policy: Policy) -> bool:
    """Whether somebody has waited, and the arbiter been silent, for longer than one that lives would be."""
    if not any(device.gated for device in policy.devices) or turn.is_open or not line.want or not line.want_ns:
        return False
    now = time.monotonic_ns()
    return now - line.want_ns > _SILENT_NS and now - turn.heartbeat_ns > _SILENT_NS


def _check_device(uuid: str, root: Path) -> Iterator[Finding]:
    """Say who arbitrates a device where that is somebody else than the arbiter of our root."""
    for simulated in (True, False):
        try:
            path = arbiter.lock_directory(simulated=simulated) / f"partage-{uuid}.lock"
            fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
        except (LaunchError, OSError):
            continue  # nobody has ever arbitrated it there
        try:
            owner = printable(os.pread(fd, 4096, 0)).rstrip("?") if locks.is_locked(fd, 0) else ""
        finally:
            os.close(fd)
        if owner and not owner.endswith(f" root {root}"):
            yield finding("arbiter-elsewhere", f"device {uuid}", f"arbitrated by {owner}", f"the arbiter of {root}")


def _read(log: Path) -> str:
    """Return a remedy that names the arbiter's log where there is one."""
    if not log.exists():
        return ""
    return f"`partage run` starts one while its program takes turns; {log} says why the last one ended"
