"""`partage demo`: two tenants on one simulated 80 GB card, each held to its own share; proves itself by its exit code.

The machine is private to the demo (its own directory), so nothing of the user's is touched and no GPU is needed. Each
tenant is an ordinary program of a third-party CUDA library (numba-cuda, cuda-bindings), started by `partage run` as a
user would; the demo tells it by pipe what to do, and reads the card's real use through NVML, outside all shares.

Steps: work and verify; fill one share while the other works, and the other way round; ask for a share that does not
fit; kill -9 a process that holds memory; resize both shares while they run; compute without a pause, resized while they
do (demo_compute.py). A counted promise that does not hold fails the demo, a timed one (memory of the dead back within
100 ms, a part of the device's time within two points) only where it is missed by more than five times.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from partage.cli.demo_compute import act_compute
from partage.cli.exit_codes import ExitCode
from partage.cli.others import BUSY, Processors
from partage.cli.played import Player, partage
from partage.devices.nvidia.nvml import Nvml
from partage.model import LaunchError, format_memory, names
from partage.model.units import GI, MI
from partage.run import handover
from partage.run.libraries import find_library, find_sim

if TYPE_CHECKING:
    from collections.abc import Callable

PROFILE: Final = "h100-80g"
GRANULE: Final = 2 * MI
FREED_WITHIN_MS: Final = 100
TOLERANCE: Final = 5
NONE: Final = "-"
SETTLE_S: Final = 5.0
OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"
TENANTS: Final = Path(__file__).with_name("tenants")


@dataclass(slots=True)
class Row:
    """One line of the final table; `error` is what the program was told, where it was refused.

    `held`: None where other work had the processors, and it cannot be told.
    """

    what: str
    asked: str
    got: str
    error: str
    held: bool | None

    @property
    def word(self) -> str:
        """Whether it held, in a word."""
        return "busy machine" if self.held is None else "yes" if self.held else "NO"


@dataclass(slots=True)
class Stage:
    """The card, who plays on it, and what was found so far."""

    nvml: Nvml
    uuid: str
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    players: list[Player] = field(default_factory=list)

    def promise(  # noqa: PLR0913 -- the columns of a row
        self, what: str, asked: str, got: str, *, held: bool, error: str | None = None, others: float = 0.0
    ) -> None:
        """Note a promise and whether it held; `others`: percent of the processors' time that other work had."""
        row = Row(what, asked, got, error or NONE, None if not held and others > BUSY else held)
        self.rows.append(row)
        word = {None: "?   ", True: "ok  ", False: "MISS"}[row.held]
        self.say(f"   {word} {what}: {got}{f', then {error}' if error else ''}")
        if row.held is None:
            self.say(f"        other work had {others:.0f} % of the processors: this proves nothing")

    def start(self, script: str, *share: str) -> Player:
        """Start a tenant through `partage run` and wait until it answers."""
        return self.meet(Player([*partage("run", *share), "--", sys.executable, str(TENANTS / script)]))

    def meet(self, player: Player) -> Player:
        """Wait until a started tenant answers."""
        self.players.append(player)
        player.greet()
        return player

    def real_use(self, player: Player) -> int:
        """Return the bytes that the card's driver says the tenant's process holds."""
        return self.nvml.processes(self.uuid).get(player.pid, 0)


def settle(stage: Stage, player: Player) -> None:
    """Wait until the watcher has seen what the driver keeps for itself (contexts, modules): at most a few seconds."""
    entry = handover.find(player.hand_over())
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        device = entry.policy().device(stage.uuid)
        known = entry.ledger().used(stage.uuid) + (device.overhead if device else 0)
        if known >= stage.real_use(player):
            return
        time.sleep(0.01)


def check_fill(stage: Stage, player: Player, limit: int, name: str) -> None:
    """Let a tenant fill its share; it must be refused at its own limit, by the driver's own count and by its view."""
    settle(stage, player)
    found = player.ask("fill", timeout_s=40)
    real = stage.real_use(player)
    exact = limit - GRANULE < real <= limit and found["total"] == limit and found["free"] < GRANULE
    refused = found["error"] == OUT_OF_MEMORY
    what, asked, got = f"{name} is refused at its limit", format_memory(limit), format_memory(real)
    stage.promise(what, asked, got, held=exact and refused, error=str(found["error"]))


def check_work(stage: Stage, player: Player, name: str) -> None:
    """Let a tenant work; every byte must come back and nothing be refused."""
    found = player.ask("work")
    launched = f", {found['launches']} kernel" if found.get("launches") else ""
    got = f"{found.get('verified', 0)} bytes verified{launched}" if "verified" in found else str(found)
    stage.promise(f"{name} works", f"{MI} bytes verified", got, held=found.get("verified") == MI)


def act_neighbours(stage: Stage, numba: Player, bindings: Player) -> None:
    """Each fills its own share while the other goes on."""
    stage.say("2. Each asks for too much while the other goes on")
    for greedy, limit, name, other, other_name in (
        (numba, 24 * GI, "tenant 1", bindings, "tenant 2"),
        (bindings, 48 * GI, "tenant 2", numba, "tenant 1"),
    ):
        check_fill(stage, greedy, limit, name)
        check_work(stage, other, f"{other_name}, beside a full {name},")
        greedy.ask("drop")


def act_overbooking(stage: Stage) -> None:
    """Ask for a share that does not fit beside the two."""
    stage.say("3. A third share of 24 GiB does not fit on the card")
    player = Player([*partage("run", "--memory", "24Gi"), "--", sys.executable, "-c", "pass"])
    code, words = player.finish()
    got, held = ("refused", True) if code == ExitCode.REFUSED else (f"exit code {code}", False)
    stage.promise("a third share does not fit", "refused", got, held=held, error=words.strip())


def act_kill(stage: Stage) -> None:
    """Kill -9 a process that holds half a share; its peer in the container must get the memory."""
    stage.say("4. kill -9 of a process that holds memory")
    first = stage.start("bindings_tenant.py", "--memory", "6Gi")
    second = stage.meet(first.join(sys.executable, str(TENANTS / "bindings_tenant.py")))
    first.ask("hold", bytes=GI)
    second.ask("hold", bytes=3 * GI)
    refused = first.ask("hold", bytes=3 * GI)["error"]
    entry = handover.find(first.hand_over())
    before = entry.ledger()
    peers = [slot for slot in before.slots if slot.pid != second.pid]
    own = sum(slot.devices[0].used for slot in peers)
    processors, killed = Processors.now(), time.monotonic()
    second.kill()
    while entry.ledger().used(stage.uuid) > own and time.monotonic() - killed < 5:
        time.sleep(0.0005)
    took_ms = (time.monotonic() - killed) * 1000
    others = Processors.now().others_since(processors)
    freed, held_by_it = before.used(stage.uuid) - entry.ledger().used(stage.uuid), before.used(stage.uuid) - own
    stage.promise(
        f"the dead process's {format_memory(held_by_it)} return",
        f"within {FREED_WITHIN_MS} ms",
        f"{format_memory(freed)} in {took_ms:.1f} ms",
        held=freed == held_by_it and took_ms <= FREED_WITHIN_MS * TOLERANCE,
        others=others if freed == held_by_it else 0.0,  # late, at most
    )
    granted = first.ask("hold", bytes=3 * GI)["error"]
    held = refused == OUT_OF_MEMORY and granted is None
    stage.promise("its peer gets 3 GiB of them", "after, not before", granted or "after", held=held, error=refused)
    first.finish()


def act_resize(stage: Stage, numba: Player, bindings: Player) -> None:
    """Move memory from one running tenant to the other."""
    stage.say("5. Resize both while they run: 48 -> 40 GiB, 24 -> 30 GiB")
    for player, limit, name in ((bindings, 40 * GI, "tenant 2"), (numba, 30 * GI, "tenant 1")):
        resizing = Player(partage("resize", player.hand_over(), "--memory", str(limit)))
        code, words = resizing.finish()
        stage.say(f"   {words.strip()}")
        stage.promise(f"{name} is resized", "exit code 0", f"exit code {code}", held=code == 0)
        check_fill(stage, player, limit, f"{name}, resized,")
        player.ask("drop")
        check_work(stage, player, f"{name}, resized,")


def play(stage: Stage) -> None:
    """Run all acts."""
    stage.say("1. Two tenants on one card: 24 GiB / 30 % and 48 GiB / 70 %")
    numba = stage.start("numba_tenant.py", "--memory", "24Gi", "--cores", "30%")
    bindings = stage.start("bindings_tenant.py", "--memory", "48Gi", "--cores", "70%")
    for player, name in ((numba, "tenant 1"), (bindings, "tenant 2")):
        stage.say(f"   {name}: {player.library}, pid {player.pid}, share {player.hand_over()}")
        check_work(stage, player, name)
    act_neighbours(stage, numba, bindings)
    act_overbooking(stage)
    act_kill(stage)
    act_resize(stage, numba, bindings)
    act_compute(stage, numba, bindings)
    for player, name in ((numba, "tenant 1"), (bindings, "tenant 2")):
        code, _ = player.finish()
        stage.promise(f"{name} ends", "exit code 0", f"exit code {code}", held=code == 0)


def table_of(rows: list[Row]) -> Table:
    """Return the final table."""
    table = Table(title="asked and got", title_justify="left", box=None, pad_edge=False)
    for name in ("PROMISE", "ASKED", "GOT", "ERROR", "HELD"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row.what, row.asked, row.got, row.error, row.word)
    return table


def verdict_on(rows: list[Row]) -> str:
    """Return the last line."""
    missed, untold = sum(row.held is False for row in rows), sum(row.held is None for row in rows)
    if missed:
        return f"{missed} of {len(rows)} promises did NOT hold"
    if untold:
        return f"{untold} of {len(rows)} promises cannot be told on a busy machine, the others held"
    return "all promises held"


def prepare(directory: Path) -> None:
    """Point this process and all it starts at a private simulated machine; raises LaunchError where parts lack."""
    missing = [name for name in ("numba", "cuda.bindings") if not _importable(name)]
    if missing:
        value, limit = f"{', '.join(missing)} cannot be imported", "the tenants are third-party programs"
        raise LaunchError("demo", value, limit, "run `make demo`, or pip install 'partage[demo]'")
    find_library()
    sim = find_sim()
    if sim is None:
        raise LaunchError("demo", "no simulated driver", "it plays the card", "run `make build`")
    for name in ("runtime", "machine"):
        (directory / name).mkdir(mode=0o700)
    os.environ |= {
        "XDG_RUNTIME_DIR": str(directory / "runtime"),
        names.ENV_SIM_DIR: str(directory / "machine"),
        names.ENV_SIM: PROFILE,
        names.ENV_SIM_FORCE: "1",  # its own card, also where a real one is
    }


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@click.command(short_help="Two tenants on one simulated card, proved.")
def demo() -> int:
    """Show two tenants on one simulated 80 GB card, each held to its own share. Needs no GPU; under a minute."""
    began = time.monotonic()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    directory = Path(tempfile.mkdtemp(prefix="partage-demo-"))
    stage: Stage | None = None
    try:
        prepare(directory)
        with Nvml(find_sim()) as nvml:
            (card,) = nvml.devices()
            console.print(f"One card: {card.name}, {format_memory(card.physical)}, {card.uuid}")
            stage = Stage(nvml, card.uuid, lambda text: console.print(text, markup=False))
            play(stage)
    finally:
        for player in stage.players if stage else ():
            player.stop()
        shutil.rmtree(directory, ignore_errors=True)
    console.print(table_of(stage.rows))
    console.print(f"{verdict_on(stage.rows)}; {time.monotonic() - began:.0f} s")
    return ExitCode.OK if all(row.held for row in stage.rows) else ExitCode.FAILED
