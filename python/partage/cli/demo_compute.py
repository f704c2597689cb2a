"""The demo's acts about compute: two tenants that never pause, each held to its part of the device's time.

What a tenant got is the simulated engine's own count of its kernels' time, not what anybody says of himself. A share is
measured over a window that begins half a second after something changed; it is promised to within two points, and the
demo fails where it is missed by five times as much. A window in which other work had the processors is measured again,
a few times: programs that are not run launch nothing. If that goes on, the demo says that it cannot tell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage.cli.others import BUSY, Processors
from partage.cli.played import Player, partage
from partage.model import LaunchError
from partage.sim.machine import Machine
from partage.sim.state import read_state

if TYPE_CHECKING:
    from partage.cli.demo import Stage

POINTS: Final = 2.0
TOLERANCE: Final = 5
CHANGE_S: Final = 0.5  # after a start or a resize, before it counts
WINDOW_S: Final = 4.0
WINDOWS: Final = 5  # at most, for one look
_START_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Part:
    """A tenant, its name in the demo, and the percent of the device's time that it asked for."""

    player: Player
    name: str
    asked: int


def busy_ns(machine: Machine, parts: tuple[Part, ...]) -> list[int]:
    """Return the time of the compute engine that each tenant has used, by the engine's own count."""
    used = {client.pid: client.busy_ns[0] for client in read_state(machine).clients}
    return [used.get(part.player.pid, 0) for part in parts]


def start(machine: Machine, parts: tuple[Part, ...]) -> None:
    """Let tenants compute, and wait until the engine has seen each of them; raises LaunchError where it does not."""
    before = busy_ns(machine, parts)
    for part in parts:
        part.player.tell("compute")
    until = time.monotonic() + _START_S
    while any(now <= past for now, past in zip(busy_ns(machine, parts), before, strict=True)):
        if time.monotonic() > until:
            step = "see `partage doctor`"
            raise LaunchError("demo", f"a tenant computed nothing in {_START_S:.0f} s", "each gets its share", step)
        time.sleep(0.01)


def check(stage: Stage, machine: Machine, parts: tuple[Part, ...], what: str, seconds: float = WINDOW_S) -> None:
    """Measure what each tenant gets and note whether it is what it asked for."""
    for _ in range(WINDOWS):
        got, others = measure(machine, parts, seconds)
        held = [abs(percent - part.asked) <= POINTS * TOLERANCE for part, percent in zip(parts, got, strict=True)]
        if all(held) or others <= BUSY:
            break
    for part, percent, is_held in zip(parts, got, held, strict=True):
        asked, said = f"{part.asked} % of the time", f"{percent:.1f} %"
        stage.promise(f"{part.name} {what}", asked, said, held=is_held, others=others)


def measure(machine: Machine, parts: tuple[Part, ...], seconds: float) -> tuple[list[float], float]:
    """Return the percent of the device's time that each tenant gets, and that of the processors' that others have."""
    time.sleep(CHANGE_S)
    pids = [part.player.pid for part in parts]
    processors, began, before = Processors.now(pids), time.monotonic_ns(), busy_ns(machine, parts)
    time.sleep(seconds)
    took, after = time.monotonic_ns() - began, busy_ns(machine, parts)
    got = [100 * (now - past) / took for past, now in zip(before, after, strict=True)]
    return got, Processors.now(pids).others_since(processors)


def resize(stage: Stage, part: Part, cores: int) -> Part:
    """Give a running tenant another part of the device's time."""
    resizing = Player(partage("resize", part.player.hand_over(), "--cores", f"{cores}%"))
    code, words = resizing.finish()
    stage.say(f"   {words.strip()}")
    if code != 0:
        stage.promise(f"{part.name} is resized", "exit code 0", f"exit code {code}", held=False)
    return Part(part.player, part.name, cores)


def stop(part: Part) -> None:
    """Let a tenant compute no longer."""
    part.player.ask("stop")


def act_compute(stage: Stage, numba: Player, bindings: Player) -> None:
    """Both compute without a pause; their parts are changed while they do; then one is alone."""
    stage.say("6. Both compute without a pause: 30 % and 70 % of the device's time")
    first, second = Part(numba, "tenant 1", 30), Part(bindings, "tenant 2", 70)
    with Machine() as machine:
        start(machine, (first, second))
        check(stage, machine, (first, second), "computes")
        stage.say("7. Resize both while they compute: 70 -> 40 %, 30 -> 60 %")
        second = resize(stage, second, 40)
        first = resize(stage, first, 60)
        check(stage, machine, (first, second), "computes, resized,")
        stop(second)
        check(stage, machine, (first,), "computes alone, and gets no more,", WINDOW_S / 2)
        stop(first)
