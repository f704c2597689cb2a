"""Runs bench/calls over the null driver and reads what it cost: times, instructions (callgrind), system calls (ptrace).

Called by bench/calls.py. A *library* is what stands before the driver: nothing, ours, or any other that is preloaded.
What can go wrong: a library that cannot be preloaded (LibraryError, with the loader's own words), a call that cannot be
made under it (then the reason stands in the result), no valgrind, a system that lets nobody trace.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CALLGRIND_NAME = re.compile(r"c?fn=\((\d+)\)(?: (.*))?$")


class LibraryError(Exception):
    """A library that cannot be preloaded; the text is for the user."""


@dataclass(frozen=True)
class Library:
    """What stands before the driver: its column's name and its path, None for nothing."""

    name: str
    path: Path | None


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of one call, or why it could not be made.

    `beside`: stretches in which a busy neighbour was running too; of several threads, hundredths of a second processor
    that they had.
    """

    ns: float | None
    reason: str = ""
    beside: int = 0


class Bench:
    """Starts programs of a build over the null driver, with a library before it and a runtime directory of its own."""

    def __init__(self, build: Path, scratch: Path) -> None:
        self.build = build
        self.programs = build / "bench"
        self.scratch = scratch
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PARTAGE_", "CUDA_", "LD_", "NULL_DRIVER"))}
        self.environment = {
            **kept,
            "LD_LIBRARY_PATH": str(self.programs / "null"),
            "XDG_RUNTIME_DIR": str(scratch),
            "CUDA_DEVICE_MEMORY_LIMIT": "40g",
            "PARTAGE_CONTEXT_MEMORY": "0",
        }

    def _preload(self, library: Library) -> list[str]:
        return [f"LD_PRELOAD={library.path}"] if library.path else ["CALLS_UNLIMITED=1"]

    def _start(self, library: Library, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = self.environment | dict(setting.split("=", 1) for setting in self._preload(library))
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def check_library(self, library: Library) -> None:
        """See that a library is really loaded: a preload that fails is only a line on stderr. Raises LibraryError."""
        if library.path is None:
            return
        if not library.path.is_file():
            raise LibraryError(f"{library.path}: no such file; give the path of a shared library")
        done = self._start(library, [str(self.programs / "calls"), "launch", "1"])
        if "cannot be preloaded" in done.stderr or done.returncode:
            raise LibraryError(f"{library.path} cannot be measured: {(done.stderr or done.stdout).strip()[-500:]}")

    def time(self, library: Library, op: str, count: int) -> Timed:
        """Nanoseconds of a call in one run."""
        done = self._start(library, [str(self.programs / "calls"), op, str(count)])
        return _timed(done)

    def instructions(self, library: Library, ops: Sequence[str], count: int) -> dict[str, float]:
        """Instructions of a call by the name of its function in ops.c; empty without valgrind."""
        if not shutil.which("valgrind"):
            return {}
        out = self.scratch / "callgrind"
        out.unlink(missing_ok=True)
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--log-file=/dev/null"]
        self._start(library, [*tool, str(self.programs / "calls"), ",".join(ops), str(count)])
        if not out.is_file():
            return {}
        return {name: cost / count for name, cost in callees(out.read_text(), "measured").items()}

    def syscalls(self, library: Library, op: str, count: int) -> float | None:
        """System calls of one call (of the whole program for `first`); None where this system lets nobody trace."""
        command = [str(self.programs / "syscalls"), *self._preload(library), str(self.programs / "calls")]
        done = subprocess.run(
            [*command, op, str(count)], env=self.environment, capture_output=True, text=True, check=False
        )
        lines = done.stderr.split()
        if done.returncode or not lines or not lines[-1].isdecimal():
            return None
        return int(lines[-1]) / count

    def processes(
        self, library: Library, program: Sequence[str], *, rounds: int, copies: int, settings: Sequence[str] = ()
    ) -> Timed:
        """Nanoseconds of the quickest round of whole programs, that many copies at once."""
        command = [str(self.programs / "spawn"), str(rounds), str(copies), *self._preload(library), *settings, *program]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return Timed(None, done.stderr.strip()[-200:])
        return Timed(float(done.stdout))


def _timed(done: subprocess.CompletedProcess[str]) -> Timed:
    first = done.stdout.strip().partition("\n")[0]  # a neighbour's own reason may follow
    name, _, rest = first.partition(" ")
    if done.returncode or not rest:
        return Timed(None, f"{name or 'calls'} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    if rest.startswith("!"):
        return Timed(None, rest.removeprefix("! "))
    ns, _, beside = rest.partition(" ")
    return Timed(float(ns), beside=int(beside or 0))


def callees(profile: str, caller: str) -> dict[str, int]:
    """Inclusive cost of each function that one function called, from the text of a callgrind file."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    function = callee = ""
    counts = False
    for line in profile.splitlines():
        match = _CALLGRIND_NAME.match(line)
        if match:
            name = names.setdefault(match[1], (match[2] or "").partition(".")[0])  # compilers add .isra.0 and such
            if line.startswith("c"):
                callee = name
            else:
                function = name
        elif line.startswith("calls="):
            counts = True
        elif counts:
            counts = False
            if function == caller:
                found[callee] = found.get(callee, 0) + int(line.split()[1])
    return found
