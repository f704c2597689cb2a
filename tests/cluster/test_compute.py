"""Shares of a card's time in pods: kept, and told the same by metrics, by `partage top` and the programs themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.agent import GI, MI, limits
from tests.cluster.images import BOX
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

AGENT: Final = {"pages": True}
SHARES: Final = {"low": 300, "high": 700}  # permille
MEMORY: Final = {"low": 4 * GI, "high": 6 * GI}
KERNEL_NS: Final = 2_000_000
WINDOW_NS: Final = 11_000_000_000  # the agent tells no figures that are older than 10 s
QUEUED_NS: Final = 50_000_000  # what may be done and not charged yet: a few kernels
OVER: Final = 0.1  # of the card: what a share may be exceeded by, as measured over seconds
LEAST: Final = 0.1  # of a share: what even a starved program gets
_BUSY: Final = re.compile(r"busy (\d+) (\d+) free (\d+) total (\d+)")


@dataclass(frozen=True)
class Told:
    """A line of the busy program: work done, when (CLOCK_MONOTONIC), and memory in use and in all."""

    done_ns: int
    at_ns: int
    used: int
    total: int


def lines_of(text: str) -> list[Told]:
    return [
        Told(int(done), int(at), int(total) - int(free), int(total)) for done, at, free, total in _BUSY.findall(text)
    ]


def work_until(namespace: Namespace, name: str, at_ns: int) -> list[Told]:
    """Follow the program's words until it has told something of this moment or a later one."""
    text = namespace.wait_line(name, lambda line: any(told.at_ns >= at_ns for told in lines_of(line)))
    return lines_of(text)


def share_of(told: list[Told], begin_ns: int, end_ns: int) -> float:
    """Return the part of the card's time that a program got between two moments, by its own count."""
    inside = [line for line in told if begin_ns <= line.at_ns <= end_ns]
    assert len(inside) > 4, told
    return (inside[-1].done_ns - inside[0].done_ns) / (inside[-1].at_ns - inside[0].at_ns)


def least_between(told: list[Told], begin_ns: int, end_ns: int) -> int:
    """Return what a program got of the card's time between two moments at least, by its own count, in ns.

    Its words begin before that and end after it; beside this, there can be no more than all of the time between.
    """
    first = next(line for line in reversed(told) if line.at_ns <= begin_ns)
    last = next(line for line in told if line.at_ns >= end_ns)
    apart = (last.at_ns - first.at_ns) - (end_ns - begin_ns)
    return last.done_ns - first.done_ns - apart - QUEUED_NS


def start(agent: NodeAgent, namespace: Namespace) -> None:
    for name, cores in SHARES.items():
        busy = container("app", BOX, ["/busy", "512", str(KERNEL_NS)], limits=limits(MEMORY[name] // MI, cores // 10))
        agent.bound(namespace, pod(name, busy), app=agent.part(agent.share(7, MEMORY[name], cores)))
    for name in SHARES:
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
        namespace.wait_log(name, "busy ")


def row_of(top: Json, namespace: Namespace, name: str) -> dict[str, Any]:
    rows = [row for row in top["shares"] if row["owner"] == f"{namespace.name}/{name}/app"]
    assert len(rows) == 1, top
    return dict(rows[0])


def test_compute_shares_hold_and_all_tell_the_same(agent: NodeAgent, namespace: Namespace) -> None:
    start(agent, namespace)
    first = agent.top()
    agent.metrics()  # from now on figures are read again and again
    work = {name: work_until(namespace, name, first["at_ns"] + WINDOW_NS) for name in SHARES}
    last, metrics, after = agent.top(), agent.metrics(), agent.top()
    for name, cores in SHARES.items():
        told = work_until(namespace, name, last["at_ns"])
        own = share_of(told, first["at_ns"], last["at_ns"])
        rows = [row_of(top, namespace, name) for top in (first, last, after)]
        grown = rows[1]["charged_ns"] - rows[0]["charged_ns"]
        charged = grown / (last["at_ns"] - first["at_ns"])
        ratio, share = metrics["partage_container_compute_ratio"][f"{name}/app"], cores / 1000
        print(
            f"{name}: {own:.3f} by its own count, {charged:.3f} charged, {ratio:.3f} by metrics", rows[1]["compute_got"]
        )
        # A starved program gets less, and may be charged for a turn that it had no processor to use; never more.
        assert share * LEAST < own < share + OVER, (own, share)
        assert least_between(told, first["at_ns"], last["at_ns"]) <= grown, (told, grown)
        now_ns = rows[1]["compute_got"] * last["interval_ns"] // 1000
        assert least_between(told, last["at_ns"] - last["interval_ns"], last["at_ns"]) <= now_ns, (told, now_ns)
        assert charged < share + OVER, (charged, share)
        assert 0 < ratio < share + OVER, (ratio, share)
        assert (
            metrics["partage_container_cores_guaranteed_ratio"][f"{name}/app"]
            == cores / 1000
            == rows[1]["cores"] / 1000
        )
        total = metrics["partage_container_compute_seconds_total"][f"{name}/app"]
        assert rows[0]["charged_ns"] / 1e9 <= total <= rows[2]["charged_ns"] / 1e9, "of a moment in between"
        assert work[name][-1].done_ns > 0


def test_memory_is_told_the_same(agent: NodeAgent, namespace: Namespace) -> None:
    """What programs see as theirs, what top shows, and what the agent's figures say: to the byte."""
    start(agent, namespace)
    top, metrics = agent.top(), agent.metrics()
    for name in SHARES:
        row = row_of(top, namespace, name)
        told = work_until(namespace, name, top["at_ns"])[-1]
        assert told.total == row["limit"] == metrics["partage_container_memory_limit_bytes"][f"{name}/app"]
        assert told.total == MEMORY[name]
        assert told.used == row["used"] == metrics["partage_container_memory_used_bytes"][f"{name}/app"]
        assert told.used > 512 * MI, "its context is in it"
