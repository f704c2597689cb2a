#!/usr/bin/env python3
"""What share of a card its tenants get, against what they asked for: the whole matrix, on the simulated machine.

One row a cell: asked and got in percent of the card's time, the error in points, Jain's index over got/asked, the use
of the card by all against the same programs without a shim, the longest of 99 of 100 steps, and the arbiter's CPU.
*got* is the simulated engine's own busy time of the tenant's processes over wall time; *asked* is the share, or what
the program keeps busy when it has the card for itself, if that is less (measured once a load). Going from one context
to another is part of the card's time and nobody's work. Where the programs themselves force that (several processes a
tenant, a pause behind each kernel), it is measured without a shim, and a share is asked of what it leaves; and of a
program that does not fill its share no more is asked beside others than it keeps busy beside them without a shim, since
no kernel is interrupted. ``--shim none`` runs the same cells without anything that enforces: 30/70 then comes out as
50/50, or the simulator would prove nothing.
``--check`` ends with 1 where a bound is missed; with ``--smoke`` not where other work had the processors: programs that
are not run launch nothing.
``--resume FILE`` writes a line a cell and skips what stands there, so that four hours can be run in pieces.
What it does not show: a real card. There kernels overlap, caches and clocks matter; see tests/gpu.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cells import SMOKE, SMOKE_NONE, Cell, alone_of, matrix
from scenes import SCENES, Plan, Seen, film
from tenants import BenchError, Stage, System, as_json

from partage.cli.others import BUSY, Processors

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).resolve().parent.parent
NONE = System("none")
WIDE = 2.5  # times the bounds, where a cell is short and the machine is not its own
SMOKE_PLAN = Plan(1.5, 7.0, WIDE)
FLAT = 8.0  # points from equal parts at which the simulator still does not enforce


@dataclass
class Row:
    """One measured cell. `asked`, `got`, `handed_over` in percent of the card, times in ms, `of_none` a ratio."""

    cell: str
    system: str
    seconds: float
    asked: list[float]
    got: list[float]
    jain: float | None = None
    of_none: float | None = None
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    arbiter_percent: float | None = None
    handed_over: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    binaries: str = ""
    others: float = 0.0

    @property
    def error(self) -> float:
        """The largest distance of got from asked, in points."""
        return max((abs(got - asked) for got, asked in zip(self.got, self.asked, strict=True)), default=0.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether other work took the processors from the programs, or from those that they are compared with."""
        return self.others > BUSY


def jain(parts: list[float]) -> float:
    """Return Jain's index of fairness: 1 where all parts are equal, 1/n where one has everything."""
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0


def fingerprint(build: Path, system: System) -> str:
    """Return a short hash of the binaries that a row depends on: rows of an older build are measured again."""
    files = [build / "sim" / "libcuda.so.1", build / "bench" / "loads"]
    if system.is_ours:
        files += [build / "lib" / "libvgpu.so", *sorted(build.rglob("partage-arbiter"))]
    elif system.path:
        files.append(system.path)
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes() if file.is_file() else b"")
    return total.hexdigest()[:12]


class Book:
    """Rows that have been measured, in memory and in the file of --resume."""

    def __init__(self, path: Path | None, build: Path) -> None:
        self.path, self.build = path, build
        self.rows: dict[tuple[str, str], Row] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                row = Row(**json.loads(line))
                self.rows[row.cell, row.system] = row

    def find(self, cell: str, system: System, seconds: float) -> Row | None:
        """Return the row of a cell that was measured for at least so long."""
        row = self.rows.get((cell, system.name))
        fits = row and row.seconds >= seconds and row.binaries == fingerprint(self.build, system)
        return row if fits else None

    def add(self, row: Row, system: System) -> None:
        """Keep a row."""
        row.binaries = fingerprint(self.build, system)
        self.rows[row.cell, row.system] = row
        if self.path:
            with self.path.open("a") as file:
                file.write(as_json(asdict(row)) + "\n")


class Bench:
    """Measures cells under a system, with what they are compared with."""

    def __init__(self, build: Path, book: Book, plan: Plan) -> None:
        self.build, self.book, self.plan = build, book, plan

    def play(self, cell: Cell, system: System, plan: Plan) -> Seen:
        """Run a cell once."""
        before = Processors.now()
        with (
            tempfile.TemporaryDirectory(prefix="shares-") as scratch,
            Stage(cell, system, self.build, Path(scratch)) as stage,
        ):
            seen = SCENES[cell.scene](stage, plan)
        seen.others = Processors.now().others_since(before)
        return seen

    def bare(self, cell: Cell) -> Row:
        """Return what the tenants of a cell without shares get; measured once and for a shorter time."""
        plan = Plan(min(2.0, self.plan.warmup), max(3.0, min(20.0, self.plan.seconds / 3)))
        row = self.book.find(cell.name, NONE, plan.seconds)
        if row is None or row.is_disturbed:
            seen = self.play(replace(cell, scene="steady"), NONE, plan)
            row = row_of(cell, NONE, plan, seen, seen.got)
            self.book.add(row, NONE)
        return row

    def asked(self, cell: Cell) -> list[float]:
        """Return what each tenant can ask for: its share, or what it keeps busy alone."""
        shares = (60.0, 40.0) if cell.scene == "step" else tuple(tenant.share for tenant in cell.tenants)
        alone = [self.bare(alone_of(tenant)).got[0] for tenant in cell.tenants]
        if not cell.handed_over and not cell.beside_none:
            return [min(pair) for pair in zip(shares, alone, strict=True)]
        beside = self.bare(cell.baseline())
        if cell.beside_none:
            return beside.got
        left = sum(beside.got) / (sum(beside.got) + beside.handed_over)
        return [
            share * left if share * left <= most else min(share * left, got)
            for share, most, got in zip(shares, alone, beside.got, strict=True)
        ]

    def measure(self, cell: Cell, system: System) -> Row:
        """Return the row of a cell, from the book where it stands there."""
        found = self.book.find(cell.name, system, self.plan.seconds)
        if found:
            return found
        asked = self.asked(cell)
        plain = sum(self.bare(cell.baseline()).got) if cell.aggregate is not None else None
        seen = self.play(cell, system, self.plan)
        row = row_of(cell, system, self.plan, seen, asked)
        if plain:
            row.of_none = sum(row.got) / min(plain, sum(asked))
        compared = [(one.name, NONE.name) for one in (cell.baseline(), *map(alone_of, cell.tenants))]
        row.others = max([row.others, *(self.book.rows[key].others for key in compared if key in self.book.rows)])
        judge(cell, row, self.plan.wide)
        self.book.add(row, system)
        return row


def row_of(cell: Cell, system: System, plan: Plan, seen: Seen, asked: list[float]) -> Row:
    """Return what a scene saw as a row."""
    row = Row(cell.name, system.name, plan.seconds, asked, seen.got)
    row.jain = jain([got / want for got, want in zip(seen.got, asked, strict=True) if want])
    row.p50_ms = [steps.get("p50_ns", 0) / 1e6 for steps in seen.steps]
    row.p99_ms = [steps.get("p99_ns", 0) / 1e6 for steps in seen.steps]
    row.steps = [steps.get("steps", 0) for steps in seen.steps]
    row.handed_over, row.others = seen.handed_over, seen.others
    seen.hold_to(asked)
    row.arbiter_percent, row.figures, row.missed = seen.arbiter_percent, seen.figures, seen.missed_by(plan.wide)
    row.missed += [
        f"tenant {number}: {steps['errors']} processes could not go on"
        for number, steps in enumerate(seen.steps)
        if steps.get("errors")
    ]
    return row


def judge(cell: Cell, row: Row, wide: float) -> None:
    """Add what a row missed of its cell's bounds, `wide` times as wide as they are."""
    for number, (got, asked) in enumerate(zip(row.got, row.asked, strict=True)):
        if abs(got - asked) > cell.points * wide:
            row.missed.append(f"tenant {number}: got {got:.1f}, asked {asked:.1f}")
    if cell.jain is not None and row.jain is not None and 1 - row.jain > (1 - cell.jain) * wide:
        row.missed.append(f"Jain {row.jain:.4f}, at least {cell.jain:g}")
    if cell.aggregate is not None and row.of_none is not None and 1 - row.of_none > (1 - cell.aggregate) * wide:
        row.missed.append(f"aggregate {100 * row.of_none:.1f} %, at least {100 * cell.aggregate:.0f} %")
    # Without a shim the pair gets 43.9 to 44.3, by how quickly this machine wakes it: 44 would leave a shim nothing.
    least = min(44.0, min(row.asked) - 1.0)
    if cell.beside_none and min(row.got) < least - cell.points * (wide - 1):
        row.missed.append(f"got {min(row.got):.1f}, never below {least:.1f}")


# ---- the table -------------------------------------------------------------------------------------------------------

HEADER = (
    f"{'cell':28}{'asked %':>22}{'got %':>26}{'error':>7}{'Jain':>8}{'of none':>9}{'P99 step':>11}{'arbiter':>9}"
    "  verdict"
)


def listed(values: list[float]) -> str:
    """Return values of tenants in few characters."""
    if len(values) <= 4:
        return " ".join(f"{value:.1f}" for value in values)
    low, high = min(values), max(values)
    return f"{len(values)}x {low:.1f}" + (f"..{high:.1f}" if high - low >= 0.05 else "")


def line_of(row: Row) -> str:
    """Return a row of the table."""
    p99 = max(row.p99_ms, default=0.0)
    line = f"{row.cell:28}{listed(row.asked):>22}{listed(row.got):>26}{row.error:>7.1f}"
    line += f"{row.jain:>8.4f}" if row.jain is not None else f"{'-':>8}"
    line += f"{100 * row.of_none:>8.1f}%" if row.of_none is not None else f"{'-':>9}"
    line += f"{p99:>8.1f} ms" if p99 else f"{'-':>11}"
    line += f"{row.arbiter_percent:>8.2f}%" if row.arbiter_percent is not None else f"{'-':>9}"
    line += f"  {'ok' if not row.missed else 'busy machine' if row.is_disturbed else 'missed'}"
    for name, value in row.figures.items():
        line += f"\n{'':28}{name}: {value:g}"
    for words in row.missed:
        line += f"\n{'':28}missed: {words}"
    return line


def chosen(cells: list[Cell], pattern: str) -> list[Cell]:
    """Return the cells whose name fits one of the patterns, which commas separate."""
    return [cell for cell in cells if any(fnmatch.fnmatch(cell.name, part) for part in pattern.split(","))]


def smoke(bench: Bench, system: System) -> Iterator[Row]:
    """Measure the twelve short cells; the first shows that nothing but the library under test enforces."""
    cells = {cell.name: cell for cell in matrix()}
    row = bench.measure(cells[SMOKE_NONE], NONE)
    flat = 100.0 / len(row.got)
    row.missed = [f"without a shim: {got:.1f} of {flat:.0f}" for got in row.got if abs(got - flat) > FLAT]
    yield row
    for name in SMOKE:
        yield bench.measure(cells[name], system)


def system_of(shim: str | None) -> System:
    """Return what holds the shares."""
    if shim is None:
        return System("ours")
    if shim == "none":
        return NONE
    path = Path(shim).resolve()
    if not path.is_file():
        raise BenchError(f"{path}: no such file; give the path of a shared library, or none")
    return System(str(path), path)


def picture(bench: Bench, system: System, path: Path) -> int:
    """Write the picture of 30/70 that becomes 60/40."""
    from plot import draw  # noqa: PLC0415 -- needs matplotlib, which nothing else here does

    cell = next(cell for cell in matrix() if cell.scene == "step")
    with (
        tempfile.TemporaryDirectory(prefix="shares-") as scratch,
        Stage(cell, system, bench.build, Path(scratch)) as stage,
    ):
        looks, changed_at = film(stage, Plan(2.0, min(20.0, bench.plan.seconds)))
    draw(looks, changed_at, ((30.0, 60.0), (70.0, 40.0)), path)
    print(f"shares: wrote {path}")
    return 0


def arguments_of() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--shim", metavar="PATH|none", help="another library than ours, or none")
    parser.add_argument("--cells", metavar="PATTERN[,PATTERN]", default="*", help="names of cells, * and ? allowed")
    parser.add_argument("--list", action="store_true", help="print the names of all cells")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the measured window")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before it")
    parser.add_argument("--smoke", action="store_true", help="twelve cells of some seconds, bounds 2.5 times as wide")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound is missed")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a line a cell; what stands there is not run again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="only draw 30/70 that becomes 60/40, as PNG")
    return parser.parse_args()


def counted(rows: list[Row], *, smoke: bool) -> list[Row]:
    """Return the rows that missed a bound and are no short ones that other work disturbed."""
    return [row for row in rows if row.missed and not (smoke and row.is_disturbed)]


def summary(rows: list[Row]) -> str:
    """Return the last line."""
    missed = [row for row in rows if row.missed]
    worst = max(rows, key=lambda row: row.error, default=None)
    words = f"; largest error {worst.error:.1f} points ({worst.cell})" if worst else ""
    busy = f", {sum(row.is_disturbed for row in missed)} of these on a busy machine"
    told = f"{len(rows) - len(missed)} within their bounds, {len(missed)} missed{busy if missed else ''}"
    return f"shares: {len(rows)} cells, {told}{words}"


def main() -> int:
    """Print the table; 1 where --check finds a bound missed, 2 where a cell cannot be run."""
    arguments = arguments_of()
    if arguments.list:
        print("\n".join(cell.name for cell in matrix()))
        return 0
    plan = SMOKE_PLAN if arguments.smoke else Plan(arguments.warmup, arguments.seconds)
    bench = Bench(
        arguments.build.resolve(),
        Book(arguments.resume, arguments.build.resolve()),
        plan,
    )
    rows: list[Row] = []
    try:
        system = system_of(arguments.shim)
        if arguments.plot:
            return picture(bench, system, arguments.plot)
        cells = chosen(matrix(), arguments.cells)
        print(f"shares: {system.name}, {plan.seconds:g} s a cell after {plan.warmup:g} s\n{HEADER}", flush=True)
        measured = smoke(bench, system) if arguments.smoke else (bench.measure(cell, system) for cell in cells)
        for row in measured:
            rows.append(row)
            print(line_of(row), flush=True)
    except BenchError as error:
        print(f"shares: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(summary(rows))
    return 1 if arguments.check and counted(rows, smoke=arguments.smoke) else 0


def _leave(*_: object) -> NoReturn:
    raise SystemExit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)  # containers are ended on the way out
    sys.exit(main())
