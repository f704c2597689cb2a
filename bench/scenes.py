"""What happens in a cell of bench/shares.py while its tenants run, and what of it is written down.

Each scene gets a stage whose containers stand before their first launch, and returns what was seen: percent of the card
that each tenant got, its steps, what it cost the arbiter, and figures of its own with what they missed. What tenants
got is judged by shares.py, which knows what was asked.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tenants import BenchError, cpu_ns, shares_between

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenants import Look, Stage, Tenancy

MS: Final = 1_000_000
SETTLE_S: Final = 0.5  # after a change of shares
PAUSE_MS: Final = 100  # a neighbour's longest wait after a tenant died in its turn
STALL_MS: Final = 1000  # anybody's longest wait while no arbiter answers
LOSS: Final = 5.0  # points that neighbours of a stopped tenant may lose over the next 2 s
POINTS: Final = 2.0  # from what was asked, without an arbiter and when there is a new one
WAIT_MS: Final = 3.0  # P0's: one launch of a 1 ms neighbour and 2 ms
BUSY_PERCENT: Final = 2.0  # of one core, the arbiter with 8 tenants
IDLE_PERCENT: Final = 0.1


@dataclass(frozen=True)
class Plan:
    """Seconds of warm-up and of the measured window, and by how much bounds are wider than they stand."""

    warmup: float = 10.0
    seconds: float = 60.0
    wide: float = 1.0


@dataclass(frozen=True)
class Window:
    """Percent per tenant in a window of its own; `points`: how far that may be from asked, or only above it."""

    name: str
    got: list[float]
    points: float
    only_above: bool = False

    def error(self, number: int, asked: float) -> float:
        """Return how far a tenant's got is from what it asked, in points."""
        difference = self.got[number] - asked
        return difference if self.only_above else abs(difference)


@dataclass
class Seen:
    """What a scene saw: percent per tenant, steps per tenant, figures, and what they missed."""

    got: list[float]
    steps: list[dict[str, int]]
    arbiter_percent: float | None = None
    handed_over: float = 0.0  # percent of the card's time that went into going from one context to another
    others: float = 0.0  # percent of all processors' time that other work had
    figures: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    bounds: list[tuple[str, float, float]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    def hold_to(self, asked: list[float]) -> None:
        """Bound what was got in each window by what was asked."""
        for window in self.windows:
            for number, percent in enumerate(asked):
                self.bound(f"tenant {number} {window.name}", window.error(number, percent), window.points)

    def bound(self, name: str, value: float, most: float) -> None:
        """Write a figure down, and the bound that it is held to."""
        self.figures[name] = round(value, 3)
        self.bounds.append((name, value, most))

    def missed_by(self, wide: float) -> list[str]:
        """Return what was missed where bounds are `wide` times as wide."""
        above = [f"{name} {value:.2f}, at most {most:g}" for name, value, most in self.bounds if value > most * wide]
        return self.missed + above


def window(stage: Tenancy, seconds: float) -> Seen:
    """Look at the tenants, wait, look again."""
    arbiter = stage.arbiter()
    spent = cpu_ns(arbiter) if arbiter else 0
    stage.say("mark")
    before, handed_over = stage.look(), stage.handed_over_ns()
    time.sleep(seconds)
    after = stage.look()
    handed_over = stage.handed_over_ns() - handed_over
    seen = Seen(shares_between(before, after), [container.report() for container in stage.containers])
    seen.handed_over = 100.0 * handed_over / (after.at - before.at)
    if arbiter:
        seen.arbiter_percent = 100.0 * (cpu_ns(arbiter) - spent) / (after.at - before.at)
    return seen


def steady(stage: Stage, plan: Plan) -> Seen:
    """Nothing happens."""
    stage.say("go")
    time.sleep(plan.warmup)
    seen = window(stage, plan.seconds)
    if seen.arbiter_percent is not None and len(stage.containers) == 8:
        seen.bound("arbiter % of a core", seen.arbiter_percent, BUSY_PERCENT)
    return seen


def wait(stage: Stage, plan: Plan) -> Seen:
    """How long the first tenant waits for its turn: from its launch to its end, less what the kernel takes."""
    seen = steady(stage, plan)
    own = stage.cell.tenants[0].load.kernel_ns
    seen.bound("P95 of the wait, ms", (seen.steps[0]["p95_ns"] - own) / MS, WAIT_MS)
    seen.figures["P99 of the wait, ms"] = round((seen.steps[0]["p99_ns"] - own) / MS, 3)
    return seen


def step(stage: Tenancy, plan: Plan) -> Seen:
    """30/70 becomes 60/40 while they run; the window begins half a second after the change."""
    stage.say("go")
    time.sleep(plan.warmup)
    before = window(stage, plan.seconds / 2)
    change(stage)
    time.sleep(SETTLE_S)
    seen = window(stage, min(10.0, plan.seconds / 2))
    for number, (got, asked) in enumerate(zip(before.got, (30.0, 70.0), strict=True)):
        seen.figures[f"before the change, tenant {number}"] = round(got, 2)
        if stage.system.is_ours:
            seen.bound(f"error before, tenant {number}", abs(got - asked), stage.cell.points)
    return seen


def change(stage: Tenancy) -> int:
    """Make 60/40 of 30/70, the smaller first: together they are never more than the card. Returns when it was done."""
    if stage.system.is_ours:
        stage.resize(1, 40)
        stage.resize(0, 60)
    return time.monotonic_ns()


def film(stage: Tenancy, plan: Plan) -> tuple[list[Look], int]:
    """Run the step and look every 50 ms, for a picture; returns the looks and when the change was done."""
    stage.say("go")
    time.sleep(plan.warmup)
    looks: list[Look] = []
    with ThreadPoolExecutor(1) as other:
        begin = time.monotonic()
        changed: Future[int] | None = None
        while time.monotonic() < begin + plan.seconds:
            looks.append(stage.look())
            time.sleep(0.05)
            if changed is None and time.monotonic() > begin + plan.seconds / 2:
                changed = other.submit(change, stage)
        assert changed is not None
        return looks, changed.result()


def idle(stage: Stage, plan: Plan) -> Seen:
    """Run, then let all pause, and see what it costs that they are there."""
    seen = steady(stage, plan)
    stage.pause()
    time.sleep(1.0)
    arbiter = stage.arbiter()
    workers = [pid for container in stage.containers for pid in container.pids]
    parents = [container.pid for container in stage.containers]
    named = {"arbiter": [arbiter] if arbiter else [], "tenants": workers, "partage run": parents}
    before = {name: sum(map(cpu_ns, pids)) for name, pids in named.items()}
    begin = time.monotonic_ns()
    time.sleep(min(5.0, plan.seconds))
    wall = time.monotonic_ns() - begin
    for name, pids in named.items():
        percent = 100.0 * (sum(map(cpu_ns, pids)) - before[name]) / wall
        if name == "partage run":
            seen.figures[f"idle: {name}, % of a core"] = round(percent, 3)
        else:
            seen.bound(f"idle: {name}, % of a core", percent, IDLE_PERCENT)
    return seen


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def watch(stage: Stage, seconds: float) -> tuple[list[float], list[float]]:
    """Return each tenant's longest time without progress in ms, and the percent it got."""
    looks = [stage.look()]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)
        looks.append(stage.look())
    last = [looks[0].at] * len(stage.containers)
    longest = [0] * len(stage.containers)
    for before, after in pairwise(looks):
        for number in range(len(longest)):
            longest[number] = max(longest[number], after.at - last[number])
            if after.busy[number] > before.busy[number]:
                last[number] = after.at
    return [ns / MS for ns in longest], shares_between(looks[0], looks[-1])


def await_turn(stage: Stage, number: int) -> None:
    """Return as soon as a tenant has work on the device."""
    before = stage.look().busy[number]
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        time.sleep(0.001)
        if stage.look().busy[number] > before:
            return
    raise BenchError(f"tenant {number} had no turn for 5 s")


def kill(stage: Stage, plan: Plan) -> Seen:
    """Kill the first tenant's processes in its turns, one after the other; the second must go on."""
    stage.say("go")
    time.sleep(plan.warmup)
    pauses = []
    for pid in stage.containers[0].pids:
        await_turn(stage, 0)
        os.kill(pid, signal.SIGKILL)
        longest, _ = watch(stage, 0.5)
        pauses.append(longest[1])
    before = stage.look()
    time.sleep(1.0)
    seen = Seen(shares_between(before, stage.look()), [{}, stage.containers[1].report()])
    seen.bound("neighbour's longest pause after a kill, ms", max(pauses), PAUSE_MS)
    return seen


def stop(stage: Stage, plan: Plan) -> Seen:
    """Stop the first tenant in its turn; it goes on two seconds later."""
    stage.say("go")
    time.sleep(plan.warmup)
    usual = window(stage, min(plan.seconds, 5.0)).got
    await_turn(stage, 0)
    for pid in stage.containers[0].pids:
        os.kill(pid, signal.SIGSTOP)
    longest, got = watch(stage, 2.0)
    for pid in stage.containers[0].pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    seen = window(stage, min(plan.seconds, 10.0))
    seen.bound("neighbour's longest pause after a stop, ms", longest[1], PAUSE_MS)
    seen.bound("neighbour's loss over 2 s, points", usual[1] - got[1], LOSS)
    for number, percent in enumerate(seen.got):
        seen.bound(f"tenant {number} against before, points", abs(percent - usual[number]), LOSS)
    return seen


def arbiter(stage: Stage, plan: Plan) -> Seen:
    """Kill the arbiter under load: shares hold without it, nobody stalls, and again when there is one."""
    stage.say("go")
    time.sleep(plan.warmup)
    first = stage.arbiter()
    if first is None:
        return window(stage, plan.seconds)
    os.kill(first, signal.SIGKILL)
    longest, _ = watch(stage, 1.0)
    seen = window(stage, min(plan.seconds, 10.0))
    for number, stall in enumerate(longest):
        seen.bound(f"tenant {number} longest stall, ms", stall, STALL_MS)
    seen.windows.append(Window("above its share without an arbiter, points", seen.got, POINTS, only_above=True))
    second = _new_arbiter(stage, first)
    seen.figures["a new arbiter came"] = float(second is not None)
    if second is not None:
        time.sleep(1.0)
        seen.windows.append(Window("error after", window(stage, min(plan.seconds, 10.0)).got, POINTS))
    return seen


def _new_arbiter(stage: Stage, old: int) -> int | None:
    """Wait for the next arbiter: whoever watches the tenants starts one."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        found = stage.arbiter()
        if found is not None and found != old:
            return found
        time.sleep(0.02)
    return None


def collective(stage: Stage, plan: Plan) -> Seen:
    """See that collectives of the first tenant go on beside neighbours on both devices, in every second."""
    stage.say("go")
    time.sleep(plan.warmup)
    before, least, total = stage.look(), None, 0
    until = time.monotonic() + plan.seconds
    while time.monotonic() < until:
        stage.say("mark")
        time.sleep(1.0)
        steps = stage.containers[0].report()["steps"]
        least, total = steps if least is None else min(least, steps), total + steps
    seen = Seen(shares_between(before, stage.look()), [container.report() for container in stage.containers])
    seen.figures["collectives"] = total
    seen.figures["collectives in the worst second"] = least or 0
    if not least:
        seen.missed.append("a second without a collective")
    return seen


SCENES: Final[dict[str, Callable[[Stage, Plan], Seen]]] = {
    "steady": steady,
    "wait": wait,
    "step": step,
    "idle": idle,
    "kill": kill,
    "stop": stop,
    "arbiter": arbiter,
    "collective": collective,
}
