#!/usr/bin/env python3
"""The cells of bench/shares.py on a real card: nothing, ours, ours without an arbiter, MPS, or another library.

On a real card nobody can ask the engine how long it worked for whom, and utilisation is no share. So *got* is work: the
launches that the device itself counted per second, against the same program alone on the card without a shim, in
percent. Kernels are loops of a fixed length, calibrated once. Only programs that could use the whole card take part:
plain launches of 1 and 80 ms and a decode loop of graphs. Each cell needs its tenants' rate alone, measured first.
What can go wrong: no real driver, MPS that cannot be started (the cell is not run, with the reason).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cells import GRAPH, LONG, PLAIN, SPLITS, Cell, Tenant, alone_of
from scenes import Plan, Seen, step, window
from shares import HEADER, TOP, Row, judge, line_of, row_of
from tenants import BenchError, Look, System, Tenancy

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE: Final = System("none")
NAMES: Final = ("10-90", "30-70", "50-50", "4x25", "alone-30", "alone-50")


class Card(Tenancy):
    """A real card with the containers of a cell; looks at what the device counted."""

    def __init__(self, cell: Cell, system: System, build: Path, scratch: Path, loops_per_ms: int) -> None:
        super().__init__(cell, system, build, scratch)
        self._loops_per_ms = loops_per_ms

    def settings(self) -> dict[str, str]:
        """Return where MPS listens, if it does."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.scratch / "mps")}

    def outside(self, tenant: Tenant, number: int) -> dict[str, str]:
        """Return the limits of a foreign library, or the part of the threads under MPS."""
        settings = super().outside(tenant, number)
        if self.system.name == "mps":
            settings["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{tenant.cores or 100:g}"
        return settings

    def loops(self, tenant: Tenant) -> int:
        """Return the loops that take as long as the tenant's kernel shall."""
        return self._loops_per_ms * tenant.load.kernel_ns // 1_000_000

    def look(self) -> Look:
        """Return the work counted since the mark, as the ns that it takes a card alone."""
        reports = [container.report() for container in self.containers]
        loads = [tenant.load for tenant in self.cell.tenants]
        counted = [report["counted"] * load.kernel_ns for report, load in zip(reports, loads, strict=True)]
        return Look(time.monotonic_ns(), tuple(counted))


@contextlib.contextmanager
def stopped_arbiter(card: Card, *, wanted: bool) -> Iterator[None]:
    """Stop the arbiter for a while, so that containers hold their shares by themselves."""
    arbiter = card.arbiter() if wanted else None
    if wanted and arbiter is None:
        raise BenchError("there is no arbiter to do without")
    if arbiter is not None:
        os.kill(arbiter, signal.SIGSTOP)
    try:
        yield
    finally:
        if arbiter is not None:
            os.kill(arbiter, signal.SIGCONT)


@contextlib.contextmanager
def mps(scratch: Path, *, wanted: bool) -> Iterator[None]:
    """Run NVIDIA's MPS control daemon for a while; raises BenchError where there is none."""
    if not wanted:
        yield
        return
    pipe = scratch / "mps"
    pipe.mkdir()
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    control = "nvidia-cuda-mps-control"
    try:
        subprocess.run([control, "-d"], env=environment, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchError(f"{control} cannot be started: {error}") from error
    try:
        yield
    finally:
        subprocess.run([control], env=environment, input=b"quit\n", check=False, capture_output=True)


class Real:
    """Measures cells on the card; rates alone are kept."""

    def __init__(self, build: Path, plan: Plan) -> None:
        self.build, self.plan = build, plan
        found = subprocess.run([build / "bench" / "loads", "calibrate"], capture_output=True, text=True, check=False)
        if found.returncode:
            raise BenchError(f"the card cannot be used: {found.stderr.strip()}")
        self.loops = int(found.stdout)
        self._alone: dict[str, float] = {}

    def play(self, cell: Cell, system: System, plan: Plan, *, degraded: bool = False) -> Seen:
        """Run a cell once."""
        with (
            tempfile.TemporaryDirectory(prefix="real-") as name,
            mps(Path(name), wanted=system.name == "mps"),
            Card(cell, system, self.build, Path(name), self.loops) as card,
        ):
            if cell.scene == "step":
                return step(card, plan)
            card.say("go")
            with stopped_arbiter(card, wanted=degraded):
                time.sleep(plan.warmup)
                return window(card, plan.seconds)

    def alone(self, tenant: Tenant) -> float:
        """Return the nominal percent that a tenant's program reaches alone."""
        cell = alone_of(tenant)
        if cell.name not in self._alone:
            self._alone[cell.name] = self.play(cell, NONE, Plan(1.0, min(10.0, self.plan.seconds))).got[0]
        return self._alone[cell.name]

    def measure(self, cell: Cell, system: System, *, degraded: bool = False) -> Row:
        """Return the row of a cell."""
        rates = [self.alone(tenant) for tenant in cell.tenants]
        seen = self.play(cell, system, self.plan, degraded=degraded)
        seen.got = [100.0 * got / rate for got, rate in zip(seen.got, rates, strict=True)]
        shares = [60.0, 40.0] if cell.scene == "step" else [tenant.share for tenant in cell.tenants]
        row = row_of(cell, system, self.plan, seen, shares)
        row.of_none = sum(row.got) / 100.0 if len(row.got) > 1 else None
        judge(cell, row, 1.0)
        return row


def cells() -> list[Cell]:
    """Return the cells for a real card; what is free of the simulator's exactness gets 3 points."""
    found = [
        Cell(f"{name}/{load.name}", tuple(Tenant(load, share) for share in SPLITS[name]), points=3.0, aggregate=0.97)
        for load in (PLAIN, LONG, GRAPH)
        for name in NAMES
    ]
    step_cell = Cell("step-30-70-to-60-40", (Tenant(PLAIN, 30), Tenant(PLAIN, 70)), scene="step", points=3.0)
    return [*found, step_cell]


def main() -> int:
    """Print the table; 1 where --check finds a bound missed, 2 where there is no card or a system cannot run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--system", default="ours", metavar="none|ours|degraded|mps|PATH")
    parser.add_argument("--cells", default="", help="only cells whose name contains this")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=10.0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    degraded = arguments.system == "degraded"
    name = "ours" if degraded else arguments.system
    system = System(name) if name in {"none", "ours", "mps"} else System(name, Path(name).resolve())
    rows: list[Row] = []
    try:
        real = Real(arguments.build.resolve(), Plan(arguments.warmup, arguments.seconds))
        print(
            f"real: {arguments.system}, {arguments.seconds:g} s a cell; got is work against alone\n{HEADER}", flush=True
        )
        for cell in cells():
            if arguments.cells in cell.name and not (degraded and cell.scene == "step"):
                rows.append(replace(real.measure(cell, system, degraded=degraded), system=arguments.system))
                print(line_of(rows[-1]), flush=True)
    except BenchError as error:
        print(f"real: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    missed = [row for row in rows if row.missed]
    print(f"real: {arguments.system}: {len(rows)} cells, {len(missed)} missed")
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
