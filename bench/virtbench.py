#!/usr/bin/env python3
"""GPU-Virt-Bench's categories that make sense on a simulated card, by its IDs, with definitions that measure the thing.

GPU-Virt-Bench (arXiv 2512.22125) names 56 metrics; several of its programs measure something else than the name says
(a launch with a synchronisation behind it, fairness between the streams of one process, utilisation as a share). Here
the IDs stay, so that readers can line tables up, and every row says what it measures and what it does not show. Costs
of calls are those of bench/calls.py over the null driver, shares those of bench/shares.py; what needs a memory system,
a bus or arithmetic is not simulated and is named as left out. The run is void where the limits were not in force.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cells import matrix
from scenes import Plan, film
from shares import TOP, Bench, Book, Row, jain
from tenants import MEMORY, BenchError, Stage, System, partage, shares_between

if TYPE_CHECKING:
    from tenants import Look

GI: Final = 1 << 30
OURS: Final = System("ours")
NONE: Final = System("none")
#: Categories without a row, and why.
LEFT_OUT: Final = {
    "IS-005": "memory of another container cannot be named on the simulated card",
    "BW, CACHE, PCIE": "there is no memory system to share",
    "NCCL": "collectives take time and move nothing; a simulated figure would be made up",
    "FRAG": "the allocator is not the hardware's",
    "ERR": "covered by tests that compare every error code, not a time",
    "LLM-001..003, 005..010": "kernels do not compute",
}


@dataclass(frozen=True)
class Metric:
    """One row: what it is, ours beside none in `unit`, and what it leaves open."""

    id: str
    measures: str
    ours: float | None
    none: float | None
    unit: str
    not_shown: str


class Calls:
    """The rows of bench/calls.py."""

    def __init__(self, path: Path) -> None:
        self.rows = {row["op"]: row for row in json.loads(path.read_text())}

    def cost(self, op: str, library: str, what: str = "ns") -> float | None:
        """Return what a call costs with a library; None where it was not measured."""
        found = self.rows.get(op, {}).get("costs", {}).get(library, {}).get(what)
        return None if found is None else float(found)

    def added(self, op: str, what: str = "ns") -> float | None:
        """Return what ours adds to a call."""
        ours, none = self.cost(op, "ours", what), self.cost(op, "none", what)
        return None if ours is None or none is None else ours - none

    def metric(self, name: str, op: str, measures: str, not_shown: str, *, scale: float = 1.0) -> Metric:
        """Return a row of what a call takes with ours and without; `scale` ns make one unit."""
        ours, none = self.cost(op, "ours"), self.cost(op, "none")
        unit = {1.0: "ns", 1e6: "ms"}[scale]
        found = [None if value is None else value / scale for value in (ours, none)]
        return Metric(name, measures, found[0], found[1], unit, not_shown)


def overhead(calls: Calls) -> list[Metric]:
    """OH: what a call costs."""
    driver = "the driver's own time: it is a null driver"
    rows = [
        calls.metric("OH-001", "launch", "cuLaunchKernel alone, no synchronisation, unlimited", driver),
        calls.metric("OH-002", "pair-2MiB", "alloc and free of 2 MiB, one process", driver),
        calls.metric("OH-003", "free-100000", "free beside 100,000 live blocks of 4 KiB, random order", driver),
        calls.metric("OH-004", "first", "exec to the first allocation, whole process", driver, scale=1e6),
        calls.metric("OH-004p", "parallel-8", "8 of them at once, a context takes 150 ms", "contention", scale=1e6),
        calls.metric("OH-005", "info", "cuMemGetInfo", driver),
        calls.metric("OH-005p", "proc", "cuGetProcAddress_v2", driver),
        calls.metric("OH-006", "contend-4KiB", "alloc and free, two processes of one container contending", "threads"),
    ]
    few, many = calls.added("free-1000"), calls.added("free-100000")
    if few is not None and many is not None:
        slope = (many - few) / 2  # from 10^3 to 10^5 live blocks
        words = "ns that a free takes longer for each tenfold of live blocks (10^3 to 10^5)"
        rows.append(Metric("OH-007", words, slope, 0.0, "ns", "fragmentation"))
    if "launch-turn" in calls.rows:
        rows.append(calls.metric("OH-008", "launch-turn", "cuLaunchKernel while holding a turn", driver))
    return rows


class Shares:
    """The rows of bench/shares.py that this table needs, measured where the book does not have them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cells = {cell.name: cell for cell in matrix()}

    def row(self, name: str) -> Row:
        """Return a cell's row under ours."""
        return self.bench.measure(self.cells[name], OURS)

    def jain_of_none(self, row: Row) -> float:
        """Return Jain's index over got / asked where nothing enforces what was asked."""
        got = self.bench.bare(self.cells[row.cell].baseline())
        return jain([value / asked for value, asked in zip(got, row.asked, strict=True)])

    def step_ms(self, name: str, tenant: int = 0) -> tuple[float, float]:
        """Return P50 and P99 of a tenant's step in ms."""
        row = self.row(name)
        return row.p50_ms[tenant], row.p99_ms[tenant]

    def alone_ms(self, name: str) -> tuple[float, float]:
        """Return P50 and P99 of a step where the first tenant has the card for itself and no shim."""
        bare = self.cells[name].alone()[0]
        self.bench.bare(bare)
        found = self.bench.book.rows[bare.name, NONE.name]
        return found.p50_ms[0], found.p99_ms[0]


def accuracy(shares: Shares) -> list[Metric]:
    """IS: whether shares are kept."""
    sim = "a real card's caches, clocks and overlap"
    rows = []
    for name, suffix in (("alone-30/1ms/1", ""), ("alone-30/20us/1", "t")):
        row = shares.row(name)
        value = 100 * (1 - abs(row.got[0] - row.asked[0]) / row.asked[0])
        words = f"100 (1 - |got - asked| / asked), {name}: unsynchronised launches, engine time"
        none = 100 * (1 - abs(100 - row.asked[0]) / row.asked[0])
        rows.append(Metric(f"IS-003{suffix}", words, value, none, "%", sim))
    half = shares.row("50-50/1ms/1")
    ratio = 100 * min(got / asked for got, asked in zip(half.got, half.asked, strict=True))
    rows.append(Metric("IS-006", "got / asked of the worse of two at 50/50", ratio, None, "%", sim))
    fair = shares.row("4x25/1ms/1")
    words = "Jain's index over got / asked of four containers at 25"
    rows.append(Metric("IS-008", words, fair.jain, shares.jain_of_none(fair), "", sim))
    unequal = shares.row("10-90/1ms/1")
    words = "the same at 10/90, where equal parts are unfair"
    rows.append(
        Metric("IS-008u", words, unequal.jain, shares.jain_of_none(unequal), "", "more than two unequal tenants")
    )
    p99 = shares.step_ms("50-50/gap/1")[1], shares.alone_ms("50-50/gap/1")[1]
    words = "P99 of a 4 ms step beside an equal neighbour at 50/50 (none: alone)"
    rows.append(Metric("IS-009", words, p99[0], p99[1], "ms", "bandwidth, allocation and PCIe aggressors"))
    killed = shares.row("killed-in-its-turn")
    pause = next((value for name, value in killed.figures.items() if "longest pause" in name), None)
    rows.append(Metric("IS-010", "a neighbour's longest pause after kill -9 in a turn", pause, None, "ms", "XIDs"))
    return rows


def scheduling(shares: Shares) -> list[Metric]:
    """SCHED and the totals: what turns cost."""
    sim = "a real card's own context switch"
    row = shares.row("50-50/1ms/1")
    loss = None if row.of_none is None else 100 * (1 - row.of_none)
    idle = shares.row("idle-8x12.5").figures
    wait = shares.row("priority-P0-beside-P2").figures
    p50 = shares.step_ms("50-50/graph/1")[0], shares.alone_ms("50-50/graph/1")[0]
    token = shares.step_ms("50-50/graph/1")[1], shares.alone_ms("50-50/graph/1")[1]
    return [
        Metric("OH-009", "CPU of the arbiter, 8 idle tenants", idle.get("idle: arbiter, % of a core"), 0.0, "%", ""),
        Metric(
            "OH-009t", "CPU of those tenants", idle.get("idle: tenants, % of a core"), 0.0, "%", "the program's own"
        ),
        Metric("OH-010", "use of the card lost to turns, 50/50, 1 ms kernels", loss, 0.0, "%", "arithmetic"),
        Metric(
            "SCHED-004",
            "P95 of P0's wait beside a P2 neighbour of 1 ms kernels",
            wait.get("P95 of the wait, ms"),
            None,
            "ms",
            sim,
        ),
        Metric("LLM-004", "P50 of a decode step (graph of 40 x 25 us) at 50/50 (none: alone)", *p50, "ms", "attention"),
        Metric("LLM-004w", "P99 of it", *token, "ms", "attention"),
    ]


# ---- rows of this file's own -----------------------------------------------------------------------------------------

#: A tenant that fills its limit by 2 MiB and says how far it came and what it was told.
FILL: Final = """
import ctypes, json, time
cuda = ctypes.CDLL("libcuda.so.1")
context, block, took = ctypes.c_void_p(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
code = 0
while code == 0 and took < 1 << 38:
    code = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(2 << 20))
    took += (2 << 20) * (code == 0)
print(json.dumps({"bytes": took, "code": code}))
"""


def memory(bench: Bench) -> Metric:
    """IS-001: bytes of the last success against the limit."""
    limit = int(MEMORY.removesuffix("Gi")) * GI
    cell = next(cell for cell in matrix() if cell.name == "alone-30/1ms/1")
    with (
        tempfile.TemporaryDirectory(prefix="virtbench-") as scratch,
        Stage(cell, OURS, bench.build, Path(scratch)) as stage,
    ):
        command = partage("run", "--memory", MEMORY, "--", sys.executable, "-c", FILL)
        done = subprocess.run(command, env=stage.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"IS-001: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    if found["code"] != 2:
        raise BenchError(f"IS-001: allocations ended with {found['code']}, not CUDA_ERROR_OUT_OF_MEMORY")
    words = f"bytes of the last success / limit of {MEMORY}, 2 MiB blocks, until refused"
    return Metric("IS-001", words, 100 * found["bytes"] / limit, None, "%", "kinds other than cuMemAlloc: see tests/c")


def response(bench: Bench) -> list[Metric]:
    """IS-004 and IS-007: how fast a changed share is there, and how steady one is."""
    cell = next(cell for cell in matrix() if cell.scene == "step")
    with (
        tempfile.TemporaryDirectory(prefix="virtbench-") as scratch,
        Stage(cell, OURS, bench.build, Path(scratch)) as stage,
    ):
        looks, changed = film(stage, Plan(2.0, max(8.0, min(20.0, bench.plan.seconds))))
    after = [look for look in looks if look.at >= changed]
    words = "from the end of `partage resize` (30/70 to 60/40) until shares stay within 3 points for 1 s"
    rows = [Metric("IS-004", words, settled_ms(after, (60.0, 40.0)), None, "ms", "resolution: 50 ms")]
    steady = [shares_between(a, b)[0] for a, b in zip(after[20:], after[40:], strict=False)]
    spread = statistics.pstdev(steady) / statistics.fmean(steady) if steady else None
    words = "CV of a tenant's share over windows of 1 s, beside a saturating neighbour"
    return [*rows, Metric("IS-007", words, spread, None, "", "latency of single kernels: see IS-009")]


def settled_ms(looks: list[Look], asked: tuple[float, ...]) -> float | None:
    """Return ms after the first look from which a second's shares are within 3 points; None: never."""
    for number, begin in enumerate(looks):
        later = next((look for look in looks[number:] if look.at - begin.at >= 1_000_000_000), None)
        if later is None:
            return None
        got = shares_between(begin, later)
        if all(abs(a - b) <= 3.0 for a, b in zip(got, asked, strict=True)):
            return (begin.at - looks[0].at) / 1e6
    return None


# ---- the table -------------------------------------------------------------------------------------------------------


def line_of(metric: Metric) -> str:
    """Return a row of the table: two lines."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g} {metric.unit}".strip()

    line = f"{metric.id:10}{number(metric.ours):>14}{number(metric.none):>14}  {metric.measures}"
    return f"{line}\n{'':40}not shown: {metric.not_shown}" if metric.not_shown else line


def calls_of(path: Path | None, build: Path) -> Calls:
    """Return the rows of bench/calls.py, from a short run where no file is given."""
    if path is not None and path.is_file():
        return Calls(path)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "calls.json")
        command = [
            sys.executable,
            str(TOP / "bench" / "calls.py"),
            "--smoke",
            "--build",
            str(build),
            "--json",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not file.is_file():
            raise BenchError(f"bench/calls.py ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return Calls(file)


def main() -> int:
    """Print the table; 1 where the limits were not in force, 2 where something cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--calls", type=Path, metavar="FILE", help="what bench/calls.py --json wrote")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="what bench/shares.py --resume wrote")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=3.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    bench = Bench(
        arguments.build.resolve(),
        Book(arguments.resume, arguments.build.resolve()),
        Plan(arguments.warmup, arguments.seconds),
    )
    metrics: list[Metric] = []
    print(f"{'ID':10}{'ours':>14}{'none':>14}  what it measures")
    try:
        calls = calls_of(arguments.calls, bench.build)
        shares = Shares(bench)
        parts: tuple[Any, ...] = (
            lambda: overhead(calls),
            lambda: [memory(bench)],
            lambda: [
                calls.metric("IS-002", "refused", "a refused allocation; the driver is not called", "", scale=1.0)
            ],
            lambda: accuracy(shares),
            lambda: response(bench),
            lambda: scheduling(shares),
        )
        for part in parts:
            for metric in part():
                metrics.append(metric)
                print(line_of(metric), flush=True)
    except BenchError as error:
        print(f"virtbench: {error}", file=sys.stderr)
        return 2
    for names, why in LEFT_OUT.items():
        print(f"left out: {names}: {why}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(metric) for metric in metrics], indent=1) + "\n")
    in_force = shares.row("alone-30/1ms/1").got[0] < 35.0
    print(f"virtbench: {len(metrics)} rows; limits were {'in force' if in_force else 'NOT in force: the run is VOID'}")
    return 0 if in_force else 1


if __name__ == "__main__":
    sys.exit(main())
