"""`partage top`: who uses what, live; `--once` for one look, `--json` for programs.

A row is a hand-over (a container or a `partage run`) on one device, with its processes under it. Compute columns stay
empty until an arbiter gives turns. Ledgers are a tenant's claim: what cannot be read shows as a note in its row
and never stops the table.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partage.cli.devices import devices_of_machine
from partage.model import SHORT_UUID, Device, PartageError, format_memory
from partage.run import handover

if TYPE_CHECKING:
    from partage.run.handover import HandOver
    from partage.shm import Ledger, Policy

WIDE = 120
_AMOUNT = {"USED": 9, "LIMIT": 9, "PROMISED": 9, "MEMORY": 9}
NONE = "–"  # noqa: RUF001 -- the sign for "no value" in every table


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of a share: bytes charged and refusals on this device."""

    pid: int
    name: str
    used: int
    refused: int


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One hand-over on one device. Memory in bytes, cores in permille; `note` says why `used` is not known."""

    name: str
    uuid: str
    used: int | None
    limit: int
    cores: int
    share_class: str
    priority: int
    enforcement: str
    state: str
    processes: tuple[ProcessRow, ...] = ()
    compute_got: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that one look shows."""

    devices: tuple[Device, ...]
    shares: tuple[ShareRow, ...]
    notes: tuple[str, ...] = field(default=())


def look() -> View:
    """Take one look at devices and hand-overs; what cannot be read becomes a note."""
    notes: list[str] = []
    devices: list[Device] = []
    try:
        devices, faults = devices_of_machine()
        notes += map(str, faults)
    except PartageError as error:
        notes.append(str(error))
    rows: list[ShareRow] = []
    for entry in handover.living():
        try:
            rows += _rows(entry, entry.policy())
        except PartageError as error:
            notes.append(str(error))
    return View(tuple(devices), tuple(rows), tuple(notes))


def _rows(entry: HandOver, policy: Policy) -> list[ShareRow]:
    ledger, note = None, ""
    try:
        ledger = entry.ledger()
    except PartageError as error:
        note = str(error)
    return [
        ShareRow(
            name=entry.name,
            uuid=device.uuid,
            used=ledger.used(device.uuid) + device.overhead if ledger else None,
            limit=device.memory,
            cores=device.cores,
            share_class=policy.share_class,
            priority=policy.priority,
            enforcement=policy.enforced_by,
            state="open" if policy.is_open else "closed",
            processes=_processes(ledger, device.uuid) if ledger else (),
            note=note,
        )
        for device in policy.devices
    ]


def _processes(ledger: Ledger, uuid: str) -> tuple[ProcessRow, ...]:
    index = next((i for i, device in enumerate(ledger.devices) if device.uuid == uuid), None)
    if index is None:
        return ()
    return tuple(
        ProcessRow(slot.host_pid or slot.pid, slot.name, slot.devices[index].used, slot.devices[index].refused)
        for slot in ledger.slots
    )


def render(view: View, width: int) -> Group:
    """Return the tables of one look for a terminal of `width` columns; UUIDs are cut short where it is narrow."""
    parts: list[Table | Text] = [_device_table(view, wide=width >= WIDE), _share_table(view)]
    of_shares = (f"{row.name}: {row.note}" for row in view.shares if row.note)  # one note for all its devices
    parts += [Text(note, style="yellow") for note in dict.fromkeys((*view.notes, *of_shares))]
    return Group(*parts)


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...], last: tuple[str, ...] = ()) -> Table:
    """Return an empty table; only its first column gives way where the terminal is narrow."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, no_wrap=True, min_width=None if name == left[0] else len(name))
    for name in right:
        table.add_column(name, no_wrap=True, justify="right", min_width=max(len(name), _AMOUNT.get(name, 0)))
    for name in last:
        table.add_column(name, no_wrap=True, min_width=len(name))
    return table


def _device_table(view: View, *, wide: bool) -> Table:
    table = _table("Devices", ("NAME", "DEV", "UUID"), ("USED", "PROMISED", "MEMORY"))
    for device in view.devices:
        promised = sum(row.limit for row in view.shares if row.uuid == device.uuid)
        amounts = map(format_memory, (device.used, promised, device.physical))
        uuid = device.uuid if wide else device.short_uuid
        table.add_row(device.name, str(device.index), uuid, *amounts)
    if not view.devices:
        table.add_row("no device", *[NONE] * 5)
    return table


def _share_table(view: View) -> Table:
    table = _table("Shares", ("SHARE", "DEV"), ("USED", "LIMIT", "GOT", "ASKED", "REFUSED"), ("CLASS", "BY"))
    index_of = {device.uuid: str(device.index) for device in view.devices}
    for row in view.shares:
        asked = f"{row.cores / 10:g}%" if row.cores else NONE
        refused = str(sum(process.refused for process in row.processes))
        enforced = row.enforcement if row.state == "open" else "closed"
        used = NONE if row.used is None else format_memory(row.used)
        amounts = (used, format_memory(row.limit), NONE, asked, refused)
        device = index_of.get(row.uuid, row.uuid[:SHORT_UUID])
        table.add_row(row.name, device, *amounts, f"{row.share_class} P{row.priority}", enforced)
        for process in row.processes:
            used = format_memory(process.used)
            table.add_row(f"  {process.pid} {process.name}", "", used, "", "", "", str(process.refused), "", "")
    if not view.shares:
        table.add_row("no share in use", *[""] * 8)
    return table


def to_json(view: View) -> str:
    """Return one look as JSON: sorted keys, bytes and permille."""
    return msgspec.json.encode(asdict(view), order="sorted").decode()


@click.command(short_help="Show who uses what, live.")
@click.option("--once", "-1", is_flag=True, help="One look, then end.")
@click.option("--json", "as_json", is_flag=True, help="One look as JSON.")
@click.option("--interval", "-n", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds.")
def top(*, once: bool, as_json: bool, interval: float) -> None:
    """Show devices and shares: memory used and limit, compute, what enforces them.

    Live on a terminal (end with Ctrl-C); one look where the output is a file or pipe. NO_COLOR is honoured.
    """
    if as_json:
        click.echo(to_json(look()))
        return
    # A pipe gets whole lines whatever their length; a terminal has its own width.
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 200, no_color="NO_COLOR" in os.environ or None)
    if once or not terminal:
        console.print(render(look(), console.width))
        return
    with Live(render(look(), console.width), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(render(look(), console.width), refresh=True)
