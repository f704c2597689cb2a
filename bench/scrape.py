#!/usr/bin/env python3
"""What a scrape of the node agent costs: so many containers with real ledgers, read over HTTP as Prometheus does.

One row a figure: reading all hand-overs (which the agent does in the background while somebody asks), and a scrape as
the client sees it, ours alone and with HAMi's names. ``--check`` ends with 1 where the middle one of the scrapes passes
the bound; the 99th percentile beside it is that of an idle machine only. With ``--smoke`` it is processor time, of
client and agent together: other work on the machine stretches every other. What it does not show: NVML's own time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import ClientSession

from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage_plugin.figures import CardFigures, Figures
from partage_plugin.http import HttpServer
from partage_plugin.monitor.reader import Held, Reader
from partage_plugin.monitor.sampler import Sampler
from partage_plugin.ports import MonotonicClock
from partage_plugin.web import Answers, Pages

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND_MS = 50.0
GIB = 1 << 30
CARDS = 8


def hand_overs(root: Path, count: int) -> list[Held]:
    """Make so many hand-overs with policy, ledger and turns, spread over the cards."""
    made = []
    for number in range(count):
        path = root / f"{number:032x}"
        path.mkdir()
        uuid = f"GPU-{number % CARDS:08x}-0000-4000-8000-000000000000"
        create_ledger(path / "ledger", [uuid])
        create_turns(path / "turns", 1)
        device = PolicyDevice(uuid, 8 * GIB, 80 * GIB, cores=100)
        PolicyFile.create(path / "policy", Policy(devices=(device,))).close()
        made.append(Held(HandOver(path), f"team-{number % 7}", f"training-{number}-worker-0", "app"))
    return made


def cards() -> list[CardFigures]:
    """Return the node's cards."""
    return [
        CardFigures(
            uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000",
            index=index,
            kind="NVIDIA H100 80GB HBM3",
            backend="nvidia",
            mode="shim",
            physical=80 * GIB,
            allocatable=80 * GIB,
            seats=100,
            used=GIB,
            busy=500,
            memory_busy=100,
        )
        for index in range(CARDS)
    ]


async def scrapes(read: Reader, count: int, clock: Callable[[], float], *, hami_names: bool) -> tuple[list[float], int]:
    """Return the milliseconds of so many scrapes, and a scrape's bytes."""
    sampler = Sampler(read.read, MonotonicClock())
    answers = Answers("node-1", sampler, not_alive=list, not_ready=list, hami_names=hami_names)
    times: list[float] = []
    server, listening, body = HttpServer(Pages(answers).page), asyncio.Event(), b""
    running = asyncio.create_task(server.run("127.0.0.1", 0, listening.set))
    await listening.wait()
    async with ClientSession() as session:
        for _ in range(count + 1):  # the first one reads
            begin = clock()
            async with session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
                body = await answer.read()
            times.append((clock() - begin) * 1e3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return times[1:], len(body)


def reading(read: Reader, count: int, clock: Callable[[], float]) -> list[float]:
    """Return the milliseconds of so many readings of everything."""
    times = []
    for _ in range(count):
        begin = clock()
        figures: Figures = read.read()
        times.append((clock() - begin) * 1e3)
        assert not figures.failures
    return times


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--containers", type=int, default=100)
    parser.add_argument("--scrapes", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="few scrapes, in processor time")
    options = parser.parse_args()
    count, clock = (20, time.process_time) if options.smoke else (options.scrapes, time.perf_counter)
    with tempfile.TemporaryDirectory(prefix="partage-scrape-") as root:
        held = hand_overs(Path(root), options.containers)
        reader = Reader(lambda: held, cards)
        rows = {"reading, in the background": (reading(reader, min(count, 20), clock), 0)}
        rows["scrape, ours"] = asyncio.run(scrapes(reader, count, clock, hami_names=False))
        rows["scrape, with HAMi's names"] = asyncio.run(scrapes(reader, count, clock, hami_names=True))
    print(f"{options.containers} containers on {CARDS} cards, milliseconds{' of processors' if options.smoke else ''}")
    print(f"{'':28} {'p50':>8} {'p99':>8} {'KiB':>8} {'bound':>8}")
    worst, found = 0.0, {}
    for name, (times, size) in rows.items():
        p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
        bound = f"{BOUND_MS:g}" if size else ""
        print(f"{name:28} {p50:8.2f} {p99:8.2f} {format(size / 1024, '.0f') if size else '':>8} {bound:>8}")
        found[name] = {"p50_ms": p50, "p99_ms": p99, "bytes": size}
        worst = max(worst, p50 if size else 0.0)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    verdict = "ok" if worst <= BOUND_MS else "too slow"
    print(f"scrape: p50 {worst:.1f} ms of {BOUND_MS:g} ms: {verdict}")
    return int(options.check and verdict != "ok")


if __name__ == "__main__":
    sys.exit(main())
