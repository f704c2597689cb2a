"""`partage resize`: change a running share; the program sees it at its next allocation, and in its next turn."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from partage.cli import completed
from partage.cli.devices import devices_of_machine
from partage.cli.types import CLASSES, CORES, MEMORY, PRIORITY, WEIGHT
from partage.model import (
    Device,
    LedgerError,
    PolicyError,
    ShareClass,
    UsageError,
    default_weight,
    format_cores,
    format_memory,
    pick,
    times_of,
)
from partage.run import gates, handover
from partage.run.arbiter import Keeper, lock_directory
from partage.run.libraries import driver_directory
from partage.shm import Policy, PolicyDevice, PolicyFile

if TYPE_CHECKING:
    from partage.run.handover import HandOver


@dataclass(frozen=True, slots=True)
class _Changes:
    """What the user asked for, None where nothing. Memory in bytes, cores in permille."""

    memory: int | None
    cores: int | None
    share_class: ShareClass | None
    priority: int | None
    weight: int | None


@click.command(short_help="Change a share while its program runs.")
@click.argument("name", shell_complete=completed.hand_overs)
@click.option("--memory", "-m", type=MEMORY, help="New memory limit, e.g. 12Gi.")
@click.option("--cores", "-c", type=CORES, help="New part of the device's time, e.g. 60%.")
@click.option("--class", "share_class", type=CLASSES, help="New class, on all devices of the share.")
@click.option("--priority", "-p", type=PRIORITY, help="P0 (first), P1 or P2, on all devices of the share.")
@click.option("--weight", "-w", type=WEIGHT, help="New part of the surplus, 1 to 10000.")
@click.option("--device", "-d", help="Index or UUID; needed where the share has several devices.")
def resize(  # noqa: PLR0913 -- one parameter an option
    name: str,
    *,
    memory: int | None,
    cores: int | None,
    share_class: str | None,
    priority: int | None,
    weight: int | None,
    device: str | None,
) -> None:
    """Change the share NAME (see `partage top`) while its program runs.

    Growing works at once. Shrinking below what is in use is allowed: nothing is taken away, but further allocations
    are refused until use has fallen below the new limit. A part of the device's time holds from the next turn on.
    """
    changes = _Changes(memory, cores, ShareClass(share_class) if share_class else None, priority, weight)
    if changes == _Changes(None, None, None, None, None):
        raise click.UsageError("nothing to change: give --memory, --cores, --class, --priority or --weight")
    entry = handover.find(name)
    before = _chosen(entry, device)
    old, new = _change(entry, before.uuid, changes)
    click.echo(
        f"{entry.name} {before.uuid}: {_said(old, new, before.uuid)}, {_use(entry, _share(entry, new, before.uuid))}"
    )


def _share(entry: HandOver, policy: Policy, uuid: str) -> PolicyDevice:
    """Return the device that a policy surely has; raises PolicyError where it was taken away meanwhile."""
    share = policy.device(uuid)
    if share is None:
        raise PolicyError(f"policy of '{entry.name}'", f"no device {uuid}", "one of its own", "try again")
    return share


def _said(old: Policy, new: Policy, uuid: str) -> str:
    """Say what a share was and is: memory and cores always, the rest where it changed."""
    before, after = old.device(uuid), new.device(uuid)
    assert before is not None and after is not None  # noqa: S101, PT018 -- _change() has seen both
    words = [
        f"memory {format_memory(before.memory)} -> {format_memory(after.memory)}",
        f"cores {format_cores(before.cores)} -> {format_cores(after.cores)}",
    ]
    others = (
        ("class", old.share_class, new.share_class),
        ("ceiling", format_cores(before.ceiling), format_cores(after.ceiling)),
        ("priority", f"P{old.priority}", f"P{new.priority}"),
        ("weight", before.weight, after.weight),
    )
    return ", ".join(words + [f"{name} {was} -> {now}" for name, was, now in others if was != now])


def _use(entry: HandOver, after: PolicyDevice) -> str:
    """Say what is in use beside the new limit; a ledger that its tenant spoilt is no reason to fail."""
    try:
        used = entry.ledger().used(after.uuid) + after.overhead
    except LedgerError as error:
        return f"use not known ({error})"
    words = f"{format_memory(used)} in use"
    if used > after.memory:
        over = format_memory(used - after.memory)
        words += f", {over} over the new limit: allocations are refused until it is below"
    return words


def _chosen(entry: HandOver, wanted: str | None) -> PolicyDevice:
    """Return the device of the share that is meant."""
    shares = entry.policy().devices
    if wanted is None and len(shares) == 1:
        return shares[0]
    there = [Device(share.uuid, index, "", share.physical, share.memory) for index, share in enumerate(shares)]
    if wanted is None:
        uuids = ", ".join(share.uuid for share in shares)
        raise UsageError(f"share '{entry.name}'", f"{len(shares)} devices", uuids, "name one with --device")
    return shares[pick(there, wanted).index]


def _change(entry: HandOver, uuid: str, changes: _Changes) -> tuple[Policy, Policy]:
    """Write the new policy, and who takes turns now, under the registry's lock; return the policy before and after."""
    cards = {card.uuid: card for card in devices_of_machine()[0]}
    root = entry.path.parent
    seen: list[Policy] = []

    def change(policy: Policy) -> Policy:
        _share(entry, policy, uuid)
        seen.append(policy)
        wanted = _changed(policy, uuid, changes)
        handover.check_room(wanted, cards, root, instead_of=entry)
        return replace(wanted, generation=policy.generation + 1)

    with handover.registry(root):
        with contextlib.closing(PolicyFile.open(entry.policy_path)) as file:
            after = file.update(change)
        if gates.decide(root):
            simulated = driver_directory(simulate=False) is not None
            with contextlib.closing(Keeper(root, lock_directory(simulated=simulated))) as keeper:
                keeper.ensure()
    return seen[0], after


def _changed(policy: Policy, uuid: str, changes: _Changes) -> Policy:
    """Return the policy with what was asked for: class and priority are the container's, the rest is the device's."""
    kind = changes.share_class or ShareClass(policy.share_class)
    shares = tuple(
        _changed_share(share, ShareClass(policy.share_class), kind, changes if share.uuid == uuid else None)
        for share in policy.devices
    )
    priority = policy.priority if changes.priority is None else changes.priority
    return replace(policy, devices=shares, share_class=kind.value, priority=priority)


def _changed_share(share: PolicyDevice, before: ShareClass, kind: ShareClass, changes: _Changes | None) -> PolicyDevice:
    """Return one device's share; `changes` is None where only the class may be another."""
    asked = changes.cores if changes else None
    if asked is not None or kind is not before:
        # The class rules, with the cores named now, else those of before (a best-effort share's were its ceiling).
        held = share.cores or (share.ceiling if share.ceiling < 1000 else 0)  # permille of the whole device
        named = held if asked is None else asked
        if kind is ShareClass.FIXED and not named:
            raise UsageError("class fixed", "no cores given", "a fixed share is exactly its cores", "add --cores")
        cores, ceiling = times_of(kind, named)
        followed = share.weight == default_weight(share.cores)  # nobody asked for another
        weight = default_weight(cores) if followed else share.weight
        share = replace(share, cores=cores, ceiling=ceiling, weight=weight)
    if changes is None:
        return share
    return replace(share, memory=changes.memory or share.memory, weight=changes.weight or share.weight)
