"""`partage run`: start any program with a share of a device."""

from __future__ import annotations

import click

from partage.cli import completed
from partage.cli.types import CLASSES, CORES, MEMORY, PRIORITY, WEIGHT
from partage.model import ShareClass, Wish
from partage.run.runner import Request
from partage.run.runner import run as run_program


def split_devices(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices of all options, each of which may name several."""
    return tuple(device for option in given for device in option.split(","))


@click.command(
    short_help="Start a program with a share of a device.", context_settings={"allow_interspersed_args": False}
)
@click.option(
    "--device",
    "-d",
    "devices",
    multiple=True,
    default=("0",),
    callback=split_devices,
    metavar="DEVICE[,DEVICE]...",
    help="Index or UUID; may be repeated.",
)
@click.option("--memory", "-m", type=MEMORY, required=True, help="Memory per device, e.g. 24Gi. A hard limit.")
@click.option("--cores", "-c", type=CORES, help="Part of the device's time, e.g. 30%.")
@click.option("--class", "share_class", type=CLASSES, help="Default: fixed with --cores; burst without.")
@click.option("--priority", "-p", type=PRIORITY, default="P1", show_default=True, help="P0 (first), P1 or P2.")
@click.option(
    "--weight", "-w", type=WEIGHT, help="Part of the surplus, 1 to 10000. Default: the cores in permille, or 100."
)
@click.option(
    "--sim", shell_complete=completed.profiles, help="Profile of the simulated machine to use, see `partage sim list`."
)
@click.argument(
    "program",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=completed.program,
    metavar="[--] PROGRAM [ARGUMENT]...",
)
def run(  # noqa: PLR0913 -- one parameter an option
    *,
    devices: tuple[str, ...],
    memory: int,
    cores: int | None,
    share_class: str | None,
    priority: int,
    weight: int | None,
    sim: str | None,
    program: tuple[str, ...],
) -> int:
    """Start PROGRAM with a share of a device and return its exit code.

    Without a real driver the simulated one is used. Several runs share a card; what the card cannot hold is refused.
    """
    wish = Wish(cores, ShareClass(share_class) if share_class else None, priority, weight)
    wish.resolved_class()
    return run_program(Request(program[0], program[1:], devices, memory, wish, sim))
