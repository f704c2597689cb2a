#!/usr/bin/env python3
"""GPU-Virt-Bench's categories that make sense on a simulated card, by its IDs, with definitions that measure the thing.

GPU-Virt-Bench (arXiv 2512.22125) names 56 metrics; several of its programs measure something else than the name says
(a launch with a synchronisation behind it, fairness between the streams of one process, utilisation as a share). Here
the IDs stay, so that readers can line tables up, and every row says what it measures and what it does not show. Costs
of calls are those of bench/calls.py over the null driver, shares those of bench/shares.py; what needs a memory system,
a bus or arithmetic is not simulated and is named as left out. A row's verdict is that of the bench and the cell that
it is from. ``--check`` ends with 1 where one was missed or has no value, or the limits were not in force: then every
other row is void. ``--smoke`` runs what is not in the files for some seconds, with shares.py's wider bounds.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from cells import matrix
from scenes import Plan, film
from shares import TOP, Bench, Book, Row, jain
from tenants import MEMORY, BenchError, Stage, System, partage, shares_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenants import Look

GI: Final = 1 << 30
OURS: Final = System("ours")
NONE: Final = System("none")
BLOCK: Final = 2 << 20  # bytes of an allocation that fills a limit
SMOKE_PLAN: Final = Plan(1.0, 3.0)
SETTLE_MS: Final = 500.0  # what is promised of a changed share
IN_FORCE: Final = "alone-30/1ms/1"  # a tenant that would have everything if nothing held it
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
    """One row: what it is, ours beside none in `unit`, what it leaves open, and the verdict of where it is from."""

    id: str
    measures: str
    ours: float | None
    none: float | None
    unit: str
    not_shown: str
    verdict: str = "-"

    def failed(self, *, clock: bool) -> bool:
        """Whether --check minds; `clock`: the run was long enough to judge nanoseconds by."""
        return self.verdict.startswith(("missed", "not run")) and (clock or self.verdict != "missed: time")


def judged(metric: Metric, row: Row, about: str = "") -> Metric:
    """Return a metric with the verdict of the cell that it is from; `about`: only what of it has this word."""
    if metric.ours is None:
        return replace(metric, verdict="not run")
    missed = "; ".join(words for words in row.missed if about in words or "could not go on" in words)
    return replace(metric, verdict=f"missed: {missed}" if missed else "ok")


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
        verdict = "not run" if ours is None else self.rows[op]["verdict"]
        return Metric(name, measures, found[0], found[1], unit, not_shown, verdict)


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

    def got_of_none(self, row: Row) -> list[float]:
        """Return what the tenants of a row get where nothing enforces what was asked."""
        return self.bench.bare(self.cells[row.cell].baseline()).got

    def jain_of_none(self, row: Row) -> float:
        """Return Jain's index over got / asked there."""
        return jain(list(map(truediv, self.got_of_none(row), row.asked)))

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
        none = 100 * (1 - abs(shares.got_of_none(row)[0] - row.asked[0]) / row.asked[0])
        rows.append(judged(Metric(f"IS-003{suffix}", words, value, none, "%", sim), row))
    half = shares.row("50-50/1ms/1")
    value, none = (100 * min(map(truediv, got, half.asked)) for got in (half.got, shares.got_of_none(half)))
    rows.append(judged(Metric("IS-006", "got / asked of the worse of two at 50/50", value, none, "%", sim), half))
    fair = shares.row("4x25/1ms/1")
    words = "Jain's index over got / asked of four containers at 25"
    rows.append(judged(Metric("IS-008", words, fair.jain, shares.jain_of_none(fair), "", sim), fair, "Jain"))
    unequal = shares.row("10-90/1ms/1")
    words = "the same at 10/90, where equal parts are unfair"
    both = unequal.jain, shares.jain_of_none(unequal)
    rows.append(judged(Metric("IS-008u", words, *both, "", "more than two unequal tenants"), unequal, "Jain"))
    p99 = shares.step_ms("50-50/gap/1")[1], shares.alone_ms("50-50/gap/1")[1]
    words = "P99 of 1 ms of work after a 1 ms pause, beside an equal neighbour at 50/50 (none: alone)"
    rows.append(Metric("IS-009", words, p99[0], p99[1], "ms", "bandwidth, allocation and PCIe aggressors"))
    killed = shares.row("killed-in-its-turn")
    pause = next((value for name, value in killed.figures.items() if "longest pause" in name), None)
    words = "a neighbour's longest pause after kill -9 in a turn"
    rows.append(judged(Metric("IS-010", words, pause, None, "ms", "XIDs"), killed, "longest pause"))
    return rows


def scheduling(shares: Shares) -> list[Metric]:
    """SCHED and the totals: what turns cost."""
    row, idle, wait = map(shares.row, ("50-50/1ms/1", "idle-8x12.5", "priority-P0-beside-P2"))
    loss = None if row.of_none is None else 100 * (1 - row.of_none)
    arbiter, tenants = (idle.figures.get(f"idle: {who}, % of a core") for who in ("arbiter", "tenants"))
    p95 = wait.figures.get("P95 of the wait, ms")
    under, alone = shares.step_ms("50-50/graph/1"), shares.alone_ms("50-50/graph/1")
    words = "P50 of a decode step (graph of 40 x 25 us) at 50/50 (none: alone)"
    lost = "use of the card lost to turns, 50/50, 1 ms kernels"
    behind = "P95 of P0's wait beside a P2 neighbour of 1 ms kernels"
    return [
        judged(Metric("OH-009", "CPU of the arbiter, 8 idle tenants", arbiter, 0.0, "%", ""), idle, "idle: arbiter"),
        judged(
            Metric("OH-009t", "CPU of those tenants", tenants, 0.0, "%", "the program's own"), idle, "idle: tenants"
        ),
        judged(Metric("OH-010", lost, loss, 0.0, "%", "arithmetic"), row, "aggregate"),
        judged(Metric("SCHED-004", behind, p95, None, "ms", "a real card's own context switch"), wait, "P95"),
        Metric("LLM-004", words, under[0], alone[0], "ms", "attention"),
        Metric("LLM-004w", "P99 of it", under[1], alone[1], "ms", "attention"),
    ]


# ---- rows of this file's own -----------------------------------------------------------------------------------------

#: A tenant that fills its limit and says how far it came, what it was told, and what was free then.
FILL: Final = f"""
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
context, block, took = ctypes.c_void_p(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
code = 0
while code == 0 and took < 1 << 38:
    code = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t({BLOCK}))
    took += {BLOCK} * (code == 0)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(json.dumps({{"bytes": took, "code": code, "free": free.value}}))
"""


def fill(bench: Bench) -> dict[str, int]:
    """Let a tenant fill its limit; returns what it printed."""
    cell = next(cell for cell in matrix() if cell.name == IN_FORCE)
    with (
        tempfile.TemporaryDirectory(prefix="virtbench-") as scratch,
        Stage(cell, OURS, bench.build, Path(scratch)) as stage,
    ):
        command = partage("run", "--memory", MEMORY, "--", sys.executable, "-c", FILL)
        done = subprocess.run(command, env=stage.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"IS-001: {done.stderr.strip()[-300:]}")
    found: dict[str, int] = json.loads(done.stdout)
    return found


def memory(found: dict[str, int]) -> Metric:
    """IS-001: bytes of the last success against the limit."""
    limit = int(MEMORY.removesuffix("Gi")) * GI
    words = f"bytes of the last success / limit of {MEMORY}, 2 MiB blocks, until refused; the rest is the context"
    verdict = "ok"
    if found["code"] != 2:
        verdict = f"missed: allocations ended with {found['code']}, not CUDA_ERROR_OUT_OF_MEMORY"
    elif found["bytes"] > limit or found["free"] >= BLOCK:
        verdict = f"missed: refused after {found['bytes']} bytes of {limit}, with {found['free']} free"
    value = 100 * found["bytes"] / limit
    return Metric("IS-001", words, value, None, "%", "kinds other than cuMemAlloc: see tests/c", verdict)


def step(bench: Bench) -> tuple[list[Look], int]:
    """Watch two tenants whose shares are changed; returns the looks and when that was done."""
    cell = next(cell for cell in matrix() if cell.scene == "step")
    with (
        tempfile.TemporaryDirectory(prefix="virtbench-") as scratch,
        Stage(cell, OURS, bench.build, Path(scratch)) as stage,
    ):
        return film(stage, Plan(min(2.0, bench.plan.warmup), max(8.0, min(20.0, bench.plan.seconds))))


def response(looks: list[Look], changed: int, *, wide: float = 1.0) -> list[Metric]:
    """IS-004 and IS-007: how fast a changed share is there, and how steady one is."""
    after = [look for look in looks if look.at >= changed]
    words = "from the end of `partage resize` (30/70 to 60/40) until shares stay within 3 points for 1 s"
    took = settled_ms(after, changed, (60.0, 40.0))
    verdict = f"missed: never within {(after[-1].at - changed) / 1e9:.1f} s" if took is None else "ok"
    if took is not None and took > SETTLE_MS * wide:
        verdict = f"missed: {SETTLE_MS:g} ms are promised"
    rows = [Metric("IS-004", words, took, None, "ms", "resolution: 50 ms", verdict)]
    steady = [shares_between(a, b)[0] for a, b in zip(after[20:], after[40:], strict=False)]
    spread = statistics.pstdev(steady) / statistics.fmean(steady) if steady else None
    words = "CV of a tenant's share over windows of 1 s, beside a saturating neighbour"
    return [*rows, Metric("IS-007", words, spread, None, "", "latency of single kernels: see IS-009")]


def settled_ms(looks: list[Look], changed: int, asked: tuple[float, ...]) -> float | None:
    """Return ms after the change from which a second's shares are within 3 points; None: never."""
    for number, begin in enumerate(looks):
        later = next((look for look in looks[number:] if look.at - begin.at >= 1_000_000_000), None)
        if later is None:
            return None
        got = shares_between(begin, later)
        if all(abs(a - b) <= 3.0 for a, b in zip(got, asked, strict=True)):
            return (begin.at - changed) / 1e6
    return None


# ---- the table -------------------------------------------------------------------------------------------------------


def table(
    calls: Calls, shares: Shares, filled: Callable[[], dict[str, int]], filmed: Callable[[], tuple[list[Look], int]]
) -> Iterator[Metric]:
    """Yield all rows in their order; what is not in the books yet is measured when its row comes."""
    yield from overhead(calls)
    yield memory(filled())
    yield calls.metric("IS-002", "refused", "a refused allocation; the driver is not called", "")
    yield from accuracy(shares)
    yield from response(*filmed(), wide=shares.bench.plan.wide)
    yield from scheduling(shares)


HEADER: Final = f"{'ID':10}{'ours':>12}{'none':>12}  {'verdict':13}what it measures"


def line_of(metric: Metric) -> str:
    """Return a row of the table, with what it misses and does not show below."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g} {metric.unit}".strip()

    verdict, _, why = metric.verdict.partition(": ")
    line = f"{metric.id:10}{number(metric.ours):>12}{number(metric.none):>12}  {verdict:13}{metric.measures}"
    if why:
        line += f"\n{'':49}{verdict}: {why}"
    return f"{line}\n{'':49}not shown: {metric.not_shown}" if metric.not_shown else line


def summary(metrics: list[Metric], *, clock: bool, in_force: bool) -> str:
    """Return the last line."""
    failed = [metric.id for metric in metrics if metric.failed(clock=clock)]
    words = f"{len(failed)} missed" + (f" ({', '.join(failed)})" if failed else "")
    state = "in force" if in_force else "NOT in force: the run is VOID"
    return f"virtbench: {len(metrics)} rows, {words}; limits were {state}"


def calls_of(path: Path | None, build: Path) -> Calls:
    """Return the rows of bench/calls.py, from a short run where no file is given."""
    if path is not None:
        if not path.is_file():
            raise BenchError(f"{path}: no such file; bench/calls.py --json writes it, without --calls it is run")
        return Calls(path)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "calls.json")
        program = [sys.executable, str(TOP / "bench" / "calls.py"), "--smoke"]
        command = [*program, "--build", str(build), "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not file.is_file():
            raise BenchError(f"bench/calls.py ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return Calls(file)


def arguments_of() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--calls", type=Path, metavar="FILE", help="what bench/calls.py --json wrote")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="what bench/shares.py --resume wrote")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the measured window")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds before it")
    parser.add_argument("--smoke", action="store_true", help="windows of some seconds, bounds 2.5 times as wide")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound is missed or a value is wanting")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> int:
    """Print the table; 1 where --check finds something missed, 2 where something cannot be run."""
    arguments = arguments_of()
    build = arguments.build.resolve()
    plan = SMOKE_PLAN if arguments.smoke else Plan(arguments.warmup, arguments.seconds)
    bench = Bench(build, Book(arguments.resume, build), plan)
    clock = arguments.calls is not None and not arguments.smoke
    metrics: list[Metric] = []
    try:
        calls, shares = calls_of(arguments.calls, build), Shares(bench)
        print(HEADER)
        for metric in table(calls, shares, lambda: fill(bench), lambda: step(bench)):
            metrics.append(metric)
            print(line_of(metric), flush=True)
        in_force = shares.row(IN_FORCE).got[0] < 35.0
    except BenchError as error:
        print(f"virtbench: {error}", file=sys.stderr)
        return 2
    for names, why in LEFT_OUT.items():
        print(f"left out: {names}: {why}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(metric) for metric in metrics], indent=1) + "\n")
    print(summary(metrics, clock=clock, in_force=in_force))
    missed = not in_force or any(metric.failed(clock=clock) for metric in metrics)
    return 1 if arguments.check and missed else 0


def _leave(*_: object) -> NoReturn:
    raise SystemExit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)  # containers are ended on the way out
    sys.exit(main())
