#!/usr/bin/env python3
"""What libvgpu.so adds to a driver call: times, instructions and system calls over the null driver.

One row a call: nanoseconds without and with the library, what it adds in nanoseconds, instructions (callgrind) and
system calls (ptrace), the bound, and the verdict. Times are the best of several rounds in which every library takes its
turn, in one run on one machine. ``--shim PATH`` measures any other library beside ours, in the same run. ``--check``
ends with 1 where instructions or system calls pass the bound of their row, or nanoseconds do while the null driver
itself is no slower than 1.5 times its usual (`usual` below): what a busy machine does to a clock is nobody's fault.
Two processes that contend are judged beside two bare compare-and-swaps by two processes on one line, which is what the
machine itself asks of them; those rows are the middle of the stretches in which both processes were running, and those
of threads are of rounds in which two processors were.
What it does not show: a real driver's own time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measure import Bench, Library, LibraryError, Timed

TOP = Path(__file__).resolve().parent.parent
BESIDE = 50  # stretches in which a neighbour was running too, or hundredths of a second processor: enough to tell
SLOWER = 1.5  # the null driver against its usual: beyond, a clock proves nothing
FEW = 1000  # calls under callgrind and ptrace
MANY = 100_000  # the same where one in hundreds is dearer
RUNS = 8  # at most, of what is counted
TURN = "launch-turn"  # under a gate, so in a process of its own
CONTEXT_MS = 150  # what making a context takes, where that is part of the row
MS = 1e6


@dataclass(frozen=True)
class Call:
    """One row: what bench/calls is asked to do, how often, and the most that a library may add.

    `ns` and `syscalls` are the design's bounds; `instructions` is the design's for launches, elsewhere what was
    measured when the row was last looked at and a tenth. None: shown, not bounded. `usual`: nanoseconds of the null
    driver on the machine that the bounds were measured on. `function`: of ops.c, for callgrind; "" where several
    processes or threads take part; `together`: the row is of no worth unless they ran at the same time. `apart`: of a
    row with a busy neighbour, what of `ns` is not the price of the line that both write: where the machine's own price
    is more than the rest, it takes the rest's place in the bound.
    """

    op: str
    title: str
    count: int
    usual: float
    ns: float | None
    instructions: int | None
    function: str = ""
    syscalls: float | None = 0
    smoke: bool = True
    together: bool = False
    apart: float | None = None


CALLS = (
    Call("launch", "cuLaunchKernel, unlimited", 1_000_000, 1.7, 5, 20, "launch"),
    Call("launch-turn", "... holding a turn", 1_000_000, 1.7, 10, 40, "launch", None),
    Call("launch-ptsz", "cuLaunchKernel_ptsz", 1_000_000, 1.7, 5, 20, "launch_ptsz"),
    Call("launch-ex", "cuLaunchKernelEx", 1_000_000, 1.4, 5, 20, "launch_ex"),
    Call("launch-cooperative", "cuLaunchCooperativeKernel", 1_000_000, 2.7, 5, 20, "launch_cooperative"),
    Call("launch-grid", "cuLaunchGrid", 1_000_000, 1.5, 5, 20, "launch_grid"),
    Call("launch-graph", "cuGraphLaunch", 1_000_000, 1.6, 5, 20, "launch_graph"),
    Call("pair-2MiB", "alloc + free, 2 MiB", 200_000, 7.6, 100, 1000, "pair_large"),
    Call("pair-4KiB", "alloc + free, 4 KiB", 200_000, 7.7, 100, 1150, "pair_small"),
    Call("contend-2MiB", "... two processes contending, 2 MiB", 400_000, 7.6, 150, None, together=True, apart=100),
    Call("contend-4KiB", "... two processes contending, 4 KiB", 400_000, 7.7, 150, None, together=True, apart=100),
    Call("threads-4", "... 4 threads, 4 KiB (CPU time)", 400_000, 8.1, None, None, "", None, together=True),
    Call("threads-8", "... 8 threads, 4 KiB (CPU time)", 400_000, 10.5, None, None, "", None, together=True),
    Call("free-1000", "free, 1,000 live 4 KiB blocks", 200_000, 1.5, 200, 350, "free_live"),
    Call("free-10000", "free, 10,000 live, random order", 200_000, 1.4, 200, None),
    Call("free-100000", "free, 100,000 live, random order", 200_000, 1.4, 200, None),
    Call("processes-1000", "alloc, 1,000 registered processes", 20_000, 11.5, 100, None, smoke=False),
    Call("refused", "refused allocation", 100_000, 8.9, 1000, 820, "refused"),
    Call("refused-3", "... with 3 other live slots", 20_000, 8.9, 2500, None, "", 6),
    Call("info", "cuMemGetInfo", 200_000, 1.4, 50, 480, "info"),
    Call("proc", "cuGetProcAddress_v2(cuMemAlloc)", 200_000, 4.2, 100, 100, "proc"),
    Call("dlsym-ours", "dlsym(cuMemAlloc_v2)", 50_000, 46, None, None, "look_up_ours"),
    Call("dlsym-foreign", "dlsym(strlen)", 50_000, 66, None, None, "look_up_foreign"),
    Call("async-4KiB", "async alloc + free, 4 KiB", 200_000, 15, 150, 1430, "pair_async"),
    Call("pool-4KiB", "... from an explicit pool", 200_000, 15, 200, 1510, "pair_pool"),
)
# What two processes pay where each adds to one word twice, and does nothing else.
SWAPS = Call("contend-swaps", "two processes, 2 bare compare-and-swaps", 400_000, 0, None, None, "", None)


@dataclass
class Cost:
    """What one library makes of a row: nanoseconds, instructions and system calls of a call, or why there are none."""

    ns: float | None = None
    instructions: float | None = None
    syscalls: float | None = None
    reason: str = ""


@dataclass
class Row:
    """One measured row; `costs` by the library's name, `none` among them."""

    op: str
    title: str
    bound: str
    costs: dict[str, Cost] = field(default_factory=dict)
    verdict: str = ""

    def added(self, library: str, what: str) -> float | None:
        """Return what a library adds; None where one of the two was not measured."""
        without, having = (getattr(self.costs[name], what) for name in ("none", library))
        return None if without is None or having is None else having - without


def better(old: Timed | None, new: Timed) -> Timed:
    """Return the quicker of two results; where a neighbour belongs to the row, one during which it was running."""
    if old is None or old.ns is None or new.ns is None:
        return new
    if min(old.beside, BESIDE) != min(new.beside, BESIDE):
        return old if old.beside > new.beside else new
    return new if new.ns < old.ns else old


class Table:
    """All rows of one run."""

    def __init__(self, bench: Bench, libraries: list[Library], *, smoke: bool) -> None:
        self.bench = bench
        self.libraries = libraries
        self.smoke = smoke
        self.callgrind: dict[str, dict[str, float]] = {}
        self.line = 0.0  # nanoseconds of SWAPS

    def count_instructions(self) -> None:
        """Count under callgrind what each library makes of all calls that have a function of their own."""
        ops = [call.op for call in CALLS if call.function and call.op != TURN]
        for library in self.libraries:
            self.callgrind[library.name] = self._counted(library, ops, FEW, self.callgrind.get("none", {}))
            none = self.callgrind.get(f"none {TURN}", {})
            self.callgrind[f"{library.name} {TURN}"] = self._counted(library, [TURN], MANY, none)

    def _counted(self, library: Library, ops: list[str], count: int, none: dict[str, float]) -> dict[str, float]:
        """Count ours again where a bound is passed: the clock makes some calls dearer, more where a machine is busy."""
        bounds = {call.function: call.instructions for call in CALLS if call.op in ops and call.instructions}
        least: dict[str, float] = {}
        for _ in range(RUNS if library.name == "ours" else 1):
            found = self.bench.instructions(library, ops, count)
            least |= {name: min(cost, least.get(name, cost)) for name, cost in found.items()}
            if all(least.get(name, 0.0) - none.get(name, 0.0) <= most for name, most in bounds.items()):
                break
        return least

    def measure(self, call: Call) -> Row:
        """Measure one row; once more, up to three times, where its nanoseconds pass the bound."""
        most = self.most(call)
        row = Row(call.op, call.title, bound_of(call, most))
        best: dict[str, Timed] = {}
        for _ in range(4):
            self._time(call, self.libraries, best)
            ours, none = best["ours"].ns, best["none"].ns
            alone = call.together and self._alone(call, best)
            if not alone and (most is None or ours is None or none is None or ours - none <= most):
                break
        for library in self.libraries:
            timed = best[library.name]
            run = f"{library.name} {TURN}" if call.op == TURN else library.name
            cost = Cost(timed.ns, self.callgrind.get(run, {}).get(call.function), None, timed.reason)
            if timed.ns is not None and call.syscalls is not None:
                cost.syscalls = self.bench.syscalls(library, call.op, FEW)
            row.costs[library.name] = cost
        row.verdict = "busy machine" if alone and ours is not None else verdict(call, row, most)
        return row

    def _alone(self, call: Call, best: dict[str, Timed]) -> bool:
        """Whether nobody else was running, or it is not known what the machine asks of two who are."""
        return min(best[name].beside for name in ("none", "ours")) < BESIDE or (
            call.apart is not None and not self.line
        )

    def _time(self, call: Call, libraries: list[Library], best: dict[str, Timed]) -> None:
        """Add some rounds, in which every library takes its turn; `best` by the library's name."""
        rounds, count = (2, call.count // 10) if self.smoke else (5, call.count)
        for _ in range(rounds):
            for library in libraries:
                timed = self.bench.time(library, call.op, max(count, FEW))
                best[library.name] = better(best.get(library.name), timed)

    def swaps(self) -> Row:
        """Measure what the machine itself asks of two processes that write one line; no library takes part."""
        best: dict[str, Timed] = {}
        for _ in range(4):
            self._time(SWAPS, self.libraries[:1], best)
            if best["none"].beside >= BESIDE:
                break
        told = best["none"].ns if best["none"].beside >= BESIDE else None
        self.line = told or 0.0
        costs = {library.name: Cost() for library in self.libraries}
        costs["none"].ns = told
        reason = f"not run: {best['none'].reason}" if best["none"].ns is None else "busy machine"
        return Row(SWAPS.op, SWAPS.title, "", costs, "-" if told else reason)

    def most(self, call: Call) -> float | None:
        """Return the nanoseconds that a row may add on this machine."""
        if call.ns is None or call.apart is None:
            return call.ns
        return max(call.ns, call.apart + self.line)

    def first(self) -> Row:
        """From exec to the first allocation, whole process."""
        row = Row("first", "exec to first cuMemAlloc, whole process", "0.5 ms")
        self._whole(row, self._first_program(), settings=[], rounds=20 if self.smoke else 60, copies=1)
        for library in self.libraries:
            row.costs[library.name].syscalls = self.bench.syscalls(library, "first", 1)
        added = row.added("ours", "ns")
        row.verdict = within(None if added is None else added / MS, 0.5, quiet=self._quiet(row, 1.1))
        return row

    def parallel(self) -> Row:
        """Eight of them at once, with a context that takes its time: nobody waits for anybody or makes a second one."""
        row = Row("parallel-8", "8 of them at once, a context takes 150 ms", "1.1 x without")
        settings = [f"NULL_DRIVER_CONTEXT_MS={CONTEXT_MS}"]
        self._whole(row, self._first_program(), settings=settings, rounds=2 if self.smoke else 5, copies=8)
        ours, none = row.costs["ours"].ns, row.costs["none"].ns
        ratio = ours / none if ours and none else None
        row.verdict = within(ratio, 1.1, quiet=self._quiet(row, CONTEXT_MS + 10))
        return row

    def _first_program(self) -> list[str]:
        return [str(self.bench.programs / "calls"), "first", "1"]

    def nothing(self) -> Row:
        """Measure a program that has nothing to do with a device."""
        row = Row("true", "/bin/true, whole process", "0.3 ms")
        program = shutil.which("true") or "/bin/true"
        self._whole(row, [program], settings=[], rounds=20 if self.smoke else 100, copies=1)
        added = row.added("ours", "ns")
        row.verdict = within(None if added is None else added / MS, 0.3, quiet=self._quiet(row, 0.8))
        return row

    def _whole(self, row: Row, program: list[str], *, settings: list[str], rounds: int, copies: int) -> None:
        best: dict[str, Timed] = {}
        for _ in range(2):
            for library in self.libraries:
                timed = self.bench.processes(library, program, rounds=rounds, copies=copies, settings=settings)
                best[library.name] = better(best.get(library.name), timed)
        row.costs = {name: Cost(ns=timed.ns, reason=timed.reason) for name, timed in best.items()}

    def _quiet(self, row: Row, usual_ms: float) -> bool:
        none = row.costs["none"].ns
        return none is not None and none <= SLOWER * usual_ms * MS


def bound_of(call: Call, most: float | None) -> str:
    """Return the bounds of a row in words."""
    parts = [] if most is None else [f"{most:.0f} ns" + (" (a dear line)" if most != call.ns else "")]
    parts += [] if call.instructions is None else [f"{call.instructions} instr"]
    return ", ".join(parts)


def within(value: float | None, most: float, *, quiet: bool) -> str:
    """Return the verdict on a time."""
    if value is None:
        return "not run"
    if value <= most:
        return "ok"
    return "missed: time" if quiet else "busy machine"


def verdict(call: Call, row: Row, most: float | None) -> str:
    """Return the verdict on a row of ours: what was missed, if anything."""
    ours, none = row.costs["ours"], row.costs["none"]
    if ours.ns is None or none.ns is None:
        return f"not run: {ours.reason or none.reason}"
    instructions, syscalls = row.added("ours", "instructions"), row.added("ours", "syscalls")
    missed = []
    if call.instructions is not None and instructions is not None and instructions > call.instructions:
        missed.append("instructions")
    if call.syscalls is not None and syscalls is not None and syscalls > call.syscalls + 0.01:
        missed.append("system calls")
    if missed:
        return f"missed: {', '.join(missed)}"
    if most is None:
        return "-"
    return within(ours.ns - none.ns, most, quiet=none.ns <= SLOWER * call.usual)


def amount(nanoseconds: float | None) -> str:
    """Return a time with its unit."""
    if nanoseconds is None:
        return "-"
    return f"{nanoseconds / MS:.2f} ms" if abs(nanoseconds) >= 10_000 else f"{nanoseconds:.1f} ns"


def number(value: float | None, digits: int = 0) -> str:
    """Return a count, `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def header(others: list[str]) -> str:
    """Return the first line of the table."""
    line = (
        f"{'call':42}{'without':>11}{'with':>11}{'added':>11}{'instr':>7}{'syscalls':>9}  {'at most':22}{'verdict':14}"
    )
    return line + "".join(f"{name + ' adds':>14}{'instr':>8}{'syscalls':>9}" for name in others)


def line_of(row: Row, others: list[str]) -> str:
    """Return a row of the table."""
    line = f"{row.title:42}{amount(row.costs['none'].ns):>11}{amount(row.costs['ours'].ns):>11}"
    line += f"{amount(row.added('ours', 'ns')):>11}{number(row.added('ours', 'instructions')):>7}"
    line += f"{number(row.added('ours', 'syscalls'), 1):>9}  {row.bound:22}{row.verdict:14}"
    for name in others:
        if row.costs[name].reason:
            line += f"  cannot be run: {row.costs[name].reason}"
        else:
            line += f"{amount(row.added(name, 'ns')):>14}{number(row.added(name, 'instructions')):>8}"
            line += f"{number(row.added(name, 'syscalls'), 1):>9}"
    return line.rstrip()


def run(table: Table, others: list[str]) -> list[Row]:
    """Measure and print all rows."""
    rows: list[Row] = []
    print(header(others))
    table.count_instructions()
    for call in CALLS:
        if table.smoke and not call.smoke:
            continue
        if call.apart is not None and not any(row.op == SWAPS.op for row in rows):
            rows.append(table.swaps())
            print(line_of(rows[-1], others), flush=True)
        rows.append(table.measure(call))
        print(line_of(rows[-1], others), flush=True)
    for measure in (table.first, table.parallel, table.nothing):
        rows.append(measure())
        print(line_of(rows[-1], others), flush=True)
    return rows


def main() -> int:
    """Print the table; 1 where --check finds a bound missed, 2 where a library cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--shim", type=Path, metavar="PATH", help="another library to measure beside ours")
    parser.add_argument("--smoke", action="store_true", help="a tenth of the counts; times decide nothing")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound is missed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    libraries = [Library("none", None), Library("ours", (arguments.build / "lib" / "libvgpu.so").resolve())]
    if arguments.shim:
        libraries.append(Library("other", arguments.shim.resolve()))
    if not shutil.which("valgrind"):
        print("no valgrind on this machine: no instructions (sudo apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments.build.resolve(), Path(scratch))
        try:
            for library in libraries:
                bench.check_library(library)
        except LibraryError as error:
            print(f"calls: {error}", file=sys.stderr)
            return 2
        rows = run(Table(bench, libraries, smoke=arguments.smoke), [library.name for library in libraries[2:]])
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    missed = [row for row in rows if row.verdict.startswith("missed")]
    for row in missed:
        print(f"{row.title}: {row.verdict}; at most {row.bound}")
    if arguments.smoke:  # too short a run to judge a clock by: instructions and system calls decide
        missed = [row for row in missed if row.verdict != "missed: time"]
    kept = sum(row.verdict == "ok" for row in rows)
    busy = sum(row.verdict == "busy machine" for row in rows)
    print(
        f"calls: {len(rows)} rows, {kept} within their bounds, {len(missed)} missed, {busy} not judged (busy machine)"
    )
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
