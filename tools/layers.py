#!/usr/bin/env python3
"""Run layers of tests and say at the end, layer by layer, what ran, what was skipped and why: layers.py BUILD NAME...

Called by `make test` and its parts. Every layer runs, also after one that failed; the exit code is 1 where any failed.
A layer on a cluster mostly waits, for kubelet and for watches: it runs beside the others, which leave it the processor
where both want it, and what it prints comes when they are done. The last lines are ctest's and pytest's own totals.
Reports (JUnit) stay in BUILD/reports. What can go wrong: a layer's runner ends without a report, which counts as a
failure.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TOP = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "--color=no")
WAITING = ("cluster", "control", "rounds")  # layers that leave the processor idle most of their time


@dataclass
class Outcome:
    """What a layer's report says; `total` is its runner's own last line, `skipped` reasons with how often."""

    name: str
    seconds: float
    ran: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    total: str = "no total was printed"


def command_of(name: str, build: Path, report: Path) -> list[str]:
    """Return the command that runs a layer and writes its report; SystemExit with the known names for another."""
    ctest = str(Path(sys.executable).with_name("ctest"))
    jobs = str(len(os.sched_getaffinity(0)))
    commands = {
        "c": [ctest, "--test-dir", str(build), "--output-on-failure", "-j", jobs, "--output-junit", str(report)],
        "python": [*PYTEST, "tests", "-n", jobs, "--dist=loadfile", f"--junitxml={report}"],
        "clients": [*PYTEST, "tests/clients", f"--junitxml={report}"],
        "cluster": [*PYTEST, "tests/cluster", "-m", "kubelet", f"--junitxml={report}"],
        "control": [*PYTEST, "tests/cluster", "-m", "not kubelet", f"--junitxml={report}"],
        "gpu": [*PYTEST, "tests/gpu", "-s", f"--junitxml={report}"],
        "soak": [*PYTEST, "tests/soak", "--ignore=tests/soak/cluster", "-s", f"--junitxml={report}"],
        "rounds": [*PYTEST, "tests/soak/cluster", "-s", f"--junitxml={report}"],
    }
    if name not in commands:
        raise SystemExit(f"layers: no layer named {name!r}; known: {', '.join(commands)}")
    return commands[name]


def run(name: str, build: Path, say: Callable[[str], None], polite: tuple[str, ...] = ()) -> Outcome:
    """Run one layer, say each line of its output, and read its report; `polite` precedes its command."""
    report = build / "reports" / f"{name}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    say(f"== layer {name}\n")
    began = time.monotonic()
    outcome = Outcome(name, 0)
    command = [*polite, *command_of(name, build, report)]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as runner:
        assert runner.stdout is not None
        for line in runner.stdout:
            say(line)
            if "tests passed" in line or (line.startswith("=") and " in " in line):
                outcome.total = line.strip()
    outcome.seconds = time.monotonic() - began
    if report.exists():
        read_report(report, outcome)
    if runner.returncode and not outcome.failed:
        outcome.failed = 1
        outcome.total += f" but its runner ended with {runner.returncode}"
    return outcome


def read_report(report: Path, outcome: Outcome) -> None:
    """Add up a JUnit report. A C test says why it skipped in its last line of output."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 -- our own runner has just written it
        skipped = case.find("skipped")
        if skipped is not None:
            reason = skipped.get("message") or "no reason given"
            if reason.startswith("SKIP_"):
                said = (case.findtext("system-out") or "").strip().splitlines()
                reason = f"{case.get('name')}: {said[-1] if said else 'no reason given'}"
            outcome.skipped[reason.removeprefix("Skipped: ")] += 1
            continue
        outcome.ran += 1
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1


def summary(outcomes: list[Outcome]) -> str:
    """Return the closing table, the reasons of what was skipped, and the runners' own totals."""
    lines = ["", f"{'layer':10}{'ran':>6}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for outcome in outcomes:
        skipped = sum(outcome.skipped.values())
        lines.append(f"{outcome.name:10}{outcome.ran:6}{outcome.failed:8}{skipped:9}{outcome.seconds:9.0f}")
        lines += [f"{'':10}skipped {times}: {reason}" for reason, times in outcome.skipped.items()]
    lines += [f"{outcome.name}: {outcome.total}" for outcome in outcomes]
    return "\n".join(lines)


def run_beside(name: str, build: Path, lines: queue.SimpleQueue[str]) -> Outcome:
    """Run one layer, put each line of its output into the queue, and an empty one after the last."""
    try:
        return run(name, build, lines.put)
    finally:
        lines.put("")


def run_all(names: list[str], build: Path) -> list[Outcome]:
    """Run the named layers: those that wait beside the others, the others in order."""
    show = partial(print, end="", flush=True)
    waiting = [name for name in names if name in WAITING and len(names) > 1]
    polite = ("nice", "-n", "5") if waiting else ()
    lines: dict[str, queue.SimpleQueue[str]] = {name: queue.SimpleQueue() for name in waiting}
    with ThreadPoolExecutor(len(names)) as pool:
        beside = {name: pool.submit(run_beside, name, build, lines[name]) for name in waiting}
        outcomes = {name: run(name, build, show, polite) for name in names if name not in beside}
        for name, runner in beside.items():
            for line in iter(lines[name].get, ""):
                show(line)
            outcomes[name] = runner.result()
    return [outcomes[name] for name in names]


def main(build: Path, names: list[str]) -> int:
    """Run the named layers; 1 where one failed."""
    outcomes = run_all(names, build)
    text = summary(outcomes)
    (build / "reports" / "summary.txt").write_text(text + "\n")
    print(text)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
