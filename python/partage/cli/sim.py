"""`partage sim`: profiles of simulated machines, the machine of this user, faults to try programs with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table

from partage.cli import completed
from partage.model import NotFoundError, UsageError, format_memory, names
from partage.run.libraries import find_sim
from partage.sim import faults, machine, profiles, state, tree

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
@click.option("--keep", is_flag=True, help="Keep the machine there is, whatever its profile.")
@click.option(
    "--seed", metavar="TEXT", help="Other UUIDs and serial numbers: a whole number, or any text, as a node's name."
)
@click.option("--shared", is_flag=True, help="For all users and containers, in PARTAGE_SIM_DIR or /run/partage-sim.")
def create(profile: str, *, replace: bool, keep: bool, seed: str | None, shared: bool) -> None:
    """Make the machine of this user from PROFILE: a name, or the path of a TOML file."""
    if replace and keep:
        raise UsageError("options", "--replace and --keep", "they exclude each other", "leave one out")
    wanted, number = _profile(profile), None if seed is None else _seed(seed)
    there = machine.existing(shared=shared) if keep else None
    click.echo(there or machine.create(wanted, seed=number, replace=replace, shared=shared))


def _seed(text: str) -> int:
    if text.isdecimal():
        number = int(text[:20])
        if number >= 1 << 63:
            raise UsageError(f"seed '{text}'", "too large", "a number below 2^63, or text", "write one of these")
        return number
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


@sim.command("tree", short_help="Make device nodes and a driver root for containers.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--libraries", type=click.Path(path_type=Path, file_okay=False), help="Where the simulated libraries are."
)
def make_tree(directory: Path, libraries: Path | None) -> None:
    """Write what stands for /dev, /proc/driver, /sys and the driver's libraries below DIRECTORY.

    From then on programs see the devices whose nodes they can open: all here, in a container those it was given.
    """
    place = libraries or find_sim()
    if place is None:
        raise NotFoundError("simulated driver", "not built", "its libraries are copied", "run `make build`")
    click.echo(tree.write_tree(directory, place))


@sim.command(short_help="Show what a container needs to use devices.")
@click.argument("uuids", metavar="UUID...", nargs=-1, required=True)
def edits(uuids: tuple[str, ...]) -> None:
    """Print a CDI spec with one device that gives a container the devices of these UUIDs."""
    found = tree.container_edits(*uuids)
    spec = {
        "cdiVersion": "0.5.0",
        "kind": names.CDI_KIND,
        "devices": [{"name": "simulated", "containerEdits": found.cdi()}],
    }
    click.echo(json.dumps(spec, indent=2, sort_keys=True))


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


@fault.command(short_help="Let NVML fail for one device.")
@click.argument("device", type=int)
@click.argument("code", default="NVML_ERROR_UNKNOWN")
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, help="Questions that are answered first.")
@click.option(
    "--count", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Questions that fail; 0: all."
)
def nvml(device: int, code: str, *, after: int, count: int) -> None:
    """Let every question to NVML about DEVICE fail with CODE; `clear` ends it."""
    with machine.Machine() as there:
        found = faults.break_nvml(there, device, code, after=after, count=count)
    click.echo(f"fault {found.place}: NVML answers {found.code} about device {device}")


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
