"""`partage sim`: profiles of simulated machines, the machine of this user, faults to try programs with."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table

from partage.cli import completed
from partage.model import UsageError, format_memory
from partage.sim import faults, machine, profiles, state

if TYPE_CHECKING:
    from partage.sim.profiles import Profile

WIDTH = 160


def _profile(name: str) -> Profile:
    try:
        return profiles.find(name)
    except profiles.ProfileError as error:
        raise UsageError(f"profile '{name}'", str(error), "a profile of a machine", "see `partage sim list`") from error


@click.group(short_help="Simulated machines, and faults to try.")
def sim() -> None:
    """Look at simulated machines, make one, let things go wrong on it."""


@sim.command("list")
def list_profiles() -> None:
    """List the profiles that `--sim` accepts."""
    table = Table(box=None, pad_edge=False)
    for name in ("PROFILE", "ALIASES", "DEVICES", "MEMORY", "WHAT"):
        table.add_column(name, no_wrap=name != "WHAT")
    for profile in profiles.load_all():
        memory = ", ".join(dict.fromkeys(format_memory(device.memory) for device in profile.devices))
        table.add_row(profile.name, ", ".join(profile.aliases), str(len(profile.devices)), memory, profile.description)
    Console(width=WIDTH).print(table)


@sim.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(*, as_json: bool) -> None:
    """Show the simulated machine that programs of this user see now."""
    with machine.Machine() as there:
        found = state.read_state(there)
    if as_json:
        click.echo(msgspec.json.encode(asdict(found), order="sorted").decode())
        return
    click.echo(f"{found.profile}, driver {found.driver}, {there.path}")
    table = Table(box=None, pad_edge=False)
    for name in ("DEVICE", "NAME", "UUID", "USED", "PEAK", "MEMORY", "BUSY", "STATE"):
        table.add_column(name, no_wrap=True)
    for device in found.devices:
        amounts = map(format_memory, (device.used, device.peak, device.memory))
        health = "lost" if device.lost else f"XID {device.xid}" if device.xid else "good"
        table.add_row(str(device.index), device.name, device.uuid, *amounts, f"{device.busy:.0%}", health)
    Console(width=WIDTH).print(table)
    for client in found.clients:
        click.echo(f"process {client.pid} {client.name}: {format_memory(sum(client.memory))}, {client.calls} calls")


@sim.command(short_help="Make the machine of this user.")
@click.argument("profile", shell_complete=completed.profiles)
@click.option("--replace", is_flag=True, help="Replace the machine there is, if no program uses it.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Other UUIDs and serial numbers for the same profile.")
def create(profile: str, *, replace: bool, seed: int | None) -> None:
    """Make the machine of this user from PROFILE: a name, or the path of a TOML file."""
    click.echo(machine.create(_profile(profile), seed=seed, replace=replace))


@sim.group(short_help="Let calls fail and devices die.")
def fault() -> None:
    """Let calls fail, symbols lack, devices die: for running programs too."""


@fault.command(short_help="Let a call fail with a code.")
@click.argument("call")
@click.argument("code")
@click.option(
    "--after", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Calls that succeed first."
)
@click.option(
    "--count", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Calls that fail; 0: for ever."
)
@click.option("--device", type=int, help="Only calls on this device.")
def call(call: str, code: str, *, after: int, count: int, device: int | None) -> None:
    """Let CALL fail with CODE, e.g. `cuMemAlloc_v2 CUDA_ERROR_OUT_OF_MEMORY`."""
    with machine.Machine() as there:
        found = faults.arm(there, call, int(code) if code.isdigit() else code, after=after, count=count, device=device)
    click.echo(f"fault {found.place}: {found.call} fails with {found.code}")


@fault.command()
@click.argument("symbol")
def drop(symbol: str) -> None:
    """Let the driver not know SYMBOL, as an older one would."""
    with machine.Machine() as there:
        click.echo(f"fault {faults.drop_symbol(there, symbol).place}: {symbol} is missing")


@fault.command()
@click.argument("device", type=int)
@click.argument("number", type=click.IntRange(1, 65535))
def xid(device: int, number: int) -> None:
    """Report XID NUMBER on DEVICE."""
    with machine.Machine() as there:
        faults.raise_xid(there, device, number)
    click.echo(f"device {device}: XID {number}")


@fault.command()
@click.argument("device", type=int)
def lose(device: int) -> None:
    """Let DEVICE fall off the bus."""
    with machine.Machine() as there:
        faults.lose_device(there, device)
    click.echo(f"device {device} is lost; bring it back with `partage sim fault restore {device}`")


@fault.command()
@click.argument("device", type=int)
def restore(device: int) -> None:
    """Bring a lost DEVICE back."""
    with machine.Machine() as there:
        faults.restore_device(there, device)
    click.echo(f"device {device} is back")


@fault.command("slow-context")
@click.argument("device", type=int)
@click.argument("milliseconds", type=click.IntRange(0, 600_000))
def slow_context(device: int, milliseconds: int) -> None:
    """Let making a context on DEVICE take MILLISECONDS."""
    with machine.Machine() as there:
        found = faults.slow_context(there, device, milliseconds)
    click.echo(f"fault {found.place}: contexts on device {device} take {milliseconds} ms")


@fault.command("list")
def list_faults() -> None:
    """List the armed faults."""
    with machine.Machine() as there:
        for found in faults.list_faults(there):
            where = "any device" if found.device is None else f"device {found.device}"
            times = f"{found.count} times" if found.count else "for ever"
            click.echo(f"{found.place}: {found.call} code {found.code}, {where}, {times}, {found.seen} calls seen")


@fault.command()
@click.argument("place", type=int, required=False)
def clear(place: int | None) -> None:
    """Disarm the fault at PLACE, or all."""
    with machine.Machine() as there:
        click.echo(f"{faults.clear(there, place)} cleared")
