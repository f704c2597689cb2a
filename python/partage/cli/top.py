"""`partage top`: who uses what, live; `--once` for one look, `--json` for programs.

A row is a hand-over (a container or a `partage run`) on one device, with its processes under it. What a share got and
waited is of the time between two looks, so even one look takes two where a share is in use, half a second apart.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partage.cli.look import WHOLE, ProcessRow, ShareRow, View, look
from partage.cli.owners import AGENT, with_owners
from partage.model import SHORT_UUID, format_memory

WIDE = 120
APART_S: Final = 0.5  # the two looks of one
_AMOUNT = {"USED": 9, "LIMIT": 9, "PROMISED": 9, "MEMORY": 9, "WAITED": 8}
NONE = "–"  # noqa: RUF001 -- the sign for "no value" in every table
_BARS: Final = "▁▂▃▄▅▆▇█"


def render(view: View, width: int) -> Group:
    """Return the tables of one look for a terminal of `width` columns; UUIDs are cut short where it is narrow."""
    parts: list[Table | Text] = [_device_table(view, wide=width >= WIDE), _share_table(view, wide=width >= WIDE)]
    of_shares = (f"{row.title}: {row.note}" for row in view.shares if row.note)  # one note for all its devices
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


def trend(frames: tuple[int | None, ...]) -> str:
    """Return the permille of each look as a row of bars, the latest at the right."""
    return "".join(" " if got is None else _BARS[min(got * len(_BARS) // WHOLE, len(_BARS) - 1)] for got in frames)


def percent(permille: int | None) -> str:
    """Return a share of a device as people write it."""
    return NONE if permille is None else f"{permille / 10:.0f}%"


def _waited(row: ShareRow) -> str:
    """Return how long the share waited in each second, all its processes together."""
    return NONE if row.waited is None or not row.gated else f"{row.waited / 1e6:.0f} ms/s"


def _enforced(row: ShareRow) -> Text:
    if row.state != "open":
        return Text("closed")
    return Text(f"{row.enforcement} degraded", style="yellow") if row.degraded else Text(row.enforcement)


def _share_table(view: View, *, wide: bool) -> Table:
    amounts = ("USED", "LIMIT", "GOT", "ASKED", "WAITED", "REFUSED")
    last = ("CLASS", "BY", "TREND") if wide else ("CLASS", "BY")
    table = _table("Shares", ("SHARE", "DEV"), amounts, last)
    index_of = {device.uuid: str(device.index) for device in view.devices}

    def add(*cells: str | Text) -> None:
        table.add_row(*cells[: len(table.columns)])

    for row in view.shares:
        used = NONE if row.used is None else format_memory(row.used)
        asked = f"{row.cores / 10:g}%" if row.cores else NONE
        refused = str(sum(process.refused for process in row.processes))
        device = index_of.get(row.uuid, row.uuid[:SHORT_UUID])
        cells = (used, format_memory(row.limit), percent(row.compute_got), asked, _waited(row), refused)
        add(row.title, device, *cells, f"{row.share_class} P{row.priority}", _enforced(row), trend(row.trend))
        for process in row.processes:
            add(*_process_cells(process))
    if not view.shares:
        add("no share in use", *[""] * 10)
    return table


def _process_cells(process: ProcessRow) -> tuple[str | Text, ...]:
    mark = Text("degraded", style="yellow") if process.degraded else Text("waits" if process.want else "")
    used = format_memory(process.used)
    return (f"  {process.pid} {process.name}", "", used, "", "", "", "", str(process.refused), "", mark, "")


def to_json(view: View) -> str:
    """Return one look as JSON: sorted keys, bytes and permille."""
    return msgspec.json.encode(asdict(view), order="sorted").decode()


def look_twice() -> View:
    """Return a look that knows what was got and waited: where a share is in use, half a second after another one."""
    first = look()
    if not any(row.processes for row in first.shares):
        return first
    time.sleep(APART_S)
    return look(first)


@click.command(short_help="Show who uses what, live.")
@click.option("--once", "-1", is_flag=True, help="One look, then end.")
@click.option("--json", "as_json", is_flag=True, help="One look as JSON.")
@click.option("--node", is_flag=True, help="Name shares by pod and container, as the node's agent knows them.")
@click.option("--agent", metavar="URL", default=AGENT, show_default=True, help="Where it answers, for --node.")
@click.option("--interval", "-n", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds.")
def top(*, once: bool, as_json: bool, node: bool, agent: str, interval: float) -> None:
    """Show devices and shares: memory used and limit, compute got, asked and waited for, what enforces them.

    GOT is the part of the device's time since the look before, WAITED the time that processes stood at the gate.
    Live on a terminal (end with Ctrl-C); one look where the output is a file or pipe. NO_COLOR is honoured.
    """

    def told(view: View) -> View:
        return with_owners(view, agent) if node else view

    if as_json:
        click.echo(to_json(told(look_twice())))
        return
    # A pipe gets whole lines whatever their length; a terminal has its own width.
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 200, no_color="NO_COLOR" in os.environ or None)
    if once or not terminal:
        console.print(render(told(look_twice()), console.width))
        return
    view = look()
    with Live(render(told(view), console.width), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            view = look(view)
            live.update(render(told(view), console.width), refresh=True)
