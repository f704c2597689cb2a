"""`partage resize`: change a running share; the program sees it at its next allocation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from partage.cli import completed
from partage.cli.devices import devices_of_machine
from partage.cli.types import CORES, MEMORY
from partage.model import Device, LedgerError, PolicyError, UsageError, format_cores, format_memory, pick
from partage.run import handover
from partage.shm import Policy, PolicyDevice, PolicyFile

if TYPE_CHECKING:
    from partage.run.handover import HandOver


@click.command(short_help="Change a share while its program runs.")
@click.argument("name", shell_complete=completed.hand_overs)
@click.option("--memory", "-m", type=MEMORY, help="New memory limit, e.g. 12Gi.")
@click.option("--cores", "-c", type=CORES, help="New part of the device's time, e.g. 60%.")
@click.option("--device", "-d", help="Index or UUID; needed where the share has several devices.")
def resize(name: str, *, memory: int | None, cores: int | None, device: str | None) -> None:
    """Change the share NAME (see `partage top`) while its program runs.

    Growing works at once. Shrinking below what is in use is allowed: nothing is taken away, but further allocations
    are refused until use has fallen below the new limit.
    """
    if memory is None and cores is None:
        raise click.UsageError("nothing to change: give --memory, --cores, or both")
    entry = handover.find(name)
    before = _chosen(entry, device)
    after = _changed(entry, before.uuid, memory, cores)
    click.echo(
        f"{entry.name} {before.uuid}: memory {format_memory(before.memory)} -> {format_memory(after.memory)}, "
        f"cores {format_cores(before.cores)} -> {format_cores(after.cores)}, {_use(entry, after)}"
    )


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


def _changed(entry: HandOver, uuid: str, memory: int | None, cores: int | None) -> PolicyDevice:
    """Write the new policy under the registry's lock and return the device's new values."""
    cards = {card.uuid: card for card in devices_of_machine()[0]}
    root = entry.path.parent

    def change(policy: Policy) -> Policy:
        device = policy.device(uuid)
        if device is None:
            raise PolicyError(f"policy of '{entry.name}'", f"no device {uuid}", "one of its own", "try again")
        wanted = policy.changed(uuid, **_values(device, policy.share_class, memory, cores))
        handover.check_room(wanted, cards, root, instead_of=entry)
        return replace(wanted, generation=policy.generation + 1)

    with handover.registry(root):
        file = PolicyFile.open(entry.policy_path)
        try:
            device = file.update(change).device(uuid)
        finally:
            file.close()
    assert device is not None  # noqa: S101 -- change() has seen it
    return device


def _values(device: PolicyDevice, share_class: str, memory: int | None, cores: int | None) -> dict[str, int]:
    """Return the fields that change; cores move the ceiling of a fixed share with them."""
    values = {} if memory is None else {"memory": memory}
    if cores is None:
        return values
    if share_class == "best-effort":
        return values | {"ceiling": cores}
    ceiling = cores if share_class == "fixed" else device.ceiling
    return values | {"cores": cores, "ceiling": ceiling, "weight": cores}
