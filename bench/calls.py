#!/usr/bin/env python3
"""What libvgpu.so adds to a driver call: times, instructions and system calls over the null driver.

Prints one row a call: without a shim, with ours under a limit, the difference, and what the design aims at. Times are
the best of several rounds, in one run on one machine; instructions (callgrind) and system calls (strace) are
differences between two counts, so that start-up is not in them. ``--check`` fails where instructions or system calls
pass the bound of the row, which is what was measured when the row was last looked at and a tenth; times are shown only,
since these machines are noisy. What it does not show: a real driver's own time, contention between processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
COUNTS = (1000, 11000)  # a tenth more each runs as warm-up, so that the difference is 11,000 calls


@dataclass(frozen=True)
class Call:
    """One row: the operation of bench/calls, repetitions, the most it may add (None: shown, not bounded), the aim."""

    op: str
    title: str
    count: int
    instructions: int | None
    target: str
    syscalls: float | None = 0


CALLS = (
    Call("pair-2MiB", "cuMemAlloc + cuMemFree, 2 MiB", 200_000, 1000, "100 ns, no syscall"),
    Call("pair-4KiB", "cuMemAlloc + cuMemFree, 4 KiB", 200_000, 1200, "100 ns, no syscall"),
    Call("async-4KiB", "cuMemAllocAsync + cuMemFreeAsync, 4 KiB", 200_000, 3900, "no syscall"),
    Call("live-100k", "free + alloc, 100,000 live 4 KiB blocks", 200_000, 1300, "200 ns for the free"),
    Call("info", "cuMemGetInfo", 200_000, 500, "50 ns"),
    Call("launch", "cuLaunchKernel (not gated yet)", 1_000_000, 20, "5 ns, 20 instructions"),
    Call("proc", "cuGetProcAddress_v2(cuMemAlloc)", 200_000, 100, "100 ns"),
    Call("refused", "refused allocation", 20_000, None, "", None),
)
FIRST = "exec to first cuMemAlloc, whole process"


@dataclass(frozen=True)
class Row:
    """Measured cost of one call: nanoseconds, instructions and system calls, without and with the shim."""

    op: str
    title: str
    ns_without: float
    ns_with: float
    instructions: float | None
    syscalls: float | None
    target: str = ""


class Bench:
    """Runs build/bench/calls over the null driver, with or without a shim, in a runtime directory of its own."""

    def __init__(self, build: Path, shim: Path, scratch: Path) -> None:
        self.program = build / "bench" / "calls"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PARTAGE_", "CUDA_", "LD_"))},
            "LD_LIBRARY_PATH": str(build / "bench" / "null"),
            "XDG_RUNTIME_DIR": str(scratch),
        }
        self.limited = {**self.environment, "LD_PRELOAD": str(shim), "CUDA_DEVICE_MEMORY_LIMIT": "40g"}
        self.scratch = scratch

    def run(self, op: str, count: int, *, shim: bool, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run the program once; RuntimeError with its message where it fails."""
        environment = dict(self.limited if shim else {**self.environment, "CALLS_UNLIMITED": "1"})
        if under and under[0] == "strace" and shim:  # the tracer itself must not carry the shim
            under = (*under, "-E", f"LD_PRELOAD={environment.pop('LD_PRELOAD')}")
        done = subprocess.run(
            [*under, str(self.program), op, str(count)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"calls {op} {count} ({'with' if shim else 'without'} shim) failed: {done.stderr[-500:]}"
            )
        return done

    def nanoseconds(self, op: str, count: int, rounds: int, *, shim: bool) -> float:
        """Best of several rounds, in CPU nanoseconds a call."""
        return min(float(self.run(op, count, shim=shim).stdout) for _ in range(rounds))

    def whole_process(self, rounds: int, *, shim: bool) -> float:
        """Best of several rounds, in nanoseconds from before the start of a process to after its end."""

        def once() -> int:
            began = time.monotonic_ns()
            self.run("first", 1, shim=shim)
            return time.monotonic_ns() - began

        return min(once() for _ in range(rounds))

    def instructions(self, op: str, *, shim: bool) -> float | None:
        """Instructions a call by callgrind; None where valgrind is not installed."""
        if not shutil.which("valgrind"):
            return None
        totals = []
        for count in COUNTS:
            done = self.run(
                op, count, shim=shim, under=("valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}")
            )
            match = re.search(r"Collected : (\d+)", done.stderr)
            if match is None:
                raise RuntimeError(f"callgrind printed no total: {done.stderr[-500:]}")
            totals.append(int(match[1]))
        return (totals[1] - totals[0]) / per_call(op)

    def traced(self, op: str, count: int, *, shim: bool) -> int:
        """System calls of one run, as strace sees them."""
        log = self.scratch / "strace"
        self.run(op, count, shim=shim, under=("strace", "-f", "-qq", "-o", str(log)))
        return sum(1 for line in log.read_text(errors="replace").splitlines() if "(" in line)

    def syscalls(self, op: str, *, shim: bool) -> float | None:
        """System calls a call; None where strace is not installed."""
        if not shutil.which("strace"):
            return None
        few, many = (self.traced(op, count, shim=shim) for count in COUNTS)
        return (many - few) / per_call(op)


def per_call(op: str) -> int:
    """How many more calls the second of COUNTS makes."""
    more = COUNTS[1] - COUNTS[0]
    return more if op == "live-100k" else more + more // 10


def measure(bench: Bench, call: Call, *, smoke: bool) -> Row:
    """Measure one row; smoke runs a tenth of the count, once."""
    count, rounds = (call.count // 10, 1) if smoke else (call.count, 5)
    with_shim, without = (bench.instructions(call.op, shim=s) for s in (True, False))
    sys_with, sys_without = (bench.syscalls(call.op, shim=s) for s in (True, False))
    return Row(
        call.op,
        call.title,
        bench.nanoseconds(call.op, count, rounds, shim=False),
        bench.nanoseconds(call.op, count, rounds, shim=True),
        None if with_shim is None or without is None else with_shim - without,
        None if sys_with is None or sys_without is None else sys_with - sys_without,
        call.target,
    )


def measure_first(bench: Bench, *, smoke: bool) -> Row:
    """Measure what the set-up costs a process that allocates once."""
    rounds = 5 if smoke else 40
    traced = bool(shutil.which("strace"))
    added = bench.traced("first", 1, shim=True) - bench.traced("first", 1, shim=False) if traced else None
    without, with_shim = (bench.whole_process(rounds, shim=s) for s in (False, True))
    return Row("first", FIRST, without, with_shim, None, added)


def missed(call: Call, row: Row) -> list[str]:
    """Say which bounds of the row were passed."""
    found = []
    if call.instructions is not None and row.instructions is not None and row.instructions > call.instructions:
        found.append(f"{row.title}: adds {row.instructions:.0f} instructions, at most {call.instructions}")
    if call.syscalls is not None and row.syscalls is not None and row.syscalls > call.syscalls + 0.01:
        found.append(f"{row.title}: adds {row.syscalls:.2f} system calls, at most {call.syscalls:g}")
    return found


def amount(nanoseconds: float) -> str:
    """Return a time with its unit."""
    return f"{nanoseconds / 1e6:.2f} ms" if abs(nanoseconds) >= 10_000 else f"{nanoseconds:.1f} ns"


def line_of(row: Row) -> str:
    """Return a row of the table."""
    instructions = "-" if row.instructions is None else f"{row.instructions:.0f}"
    syscalls = "-" if row.syscalls is None else f"{row.syscalls:.2f}"
    times = (row.ns_without, row.ns_with, row.ns_with - row.ns_without)
    return (
        f"{row.title:41}{''.join(f'{amount(value):>11}' for value in times)}{instructions:>7}{syscalls:>10}  "
        f"{row.target}"
    ).rstrip()


def main() -> int:
    """Print the table; 1 where --check finds a bound missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--shim", type=Path, help="another library to measure (default: BUILD/lib/libvgpu.so)")
    parser.add_argument("--smoke", action="store_true", help="a tenth of the counts, one round")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    shim = arguments.shim or arguments.build / "lib" / "libvgpu.so"
    for tool in ("valgrind", "strace"):
        if not shutil.which(tool):
            print(f"no {tool} on this machine: its column stays empty (sudo apt-get install {tool})")
    rows, failures = [], []
    print(f"{'call':41}{'without':>11}{'with':>11}{'added':>11}{'instr':>7}{'syscalls':>10}  design's aim (added)")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments.build, shim, Path(scratch))
        for call in CALLS:
            row = measure(bench, call, smoke=arguments.smoke)
            rows.append(row)
            failures += missed(call, row)
            print(line_of(row), flush=True)
        rows.append(measure_first(bench, smoke=arguments.smoke))
        print(line_of(rows[-1]))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    for failure in failures:
        print(f"missed: {failure}")
    print(f"calls: {len(rows)} rows, {len(failures)} bounds missed")
    return 1 if failures and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
