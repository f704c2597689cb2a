"""Processes of this machine, read from /proc: whose a slot is, when one started, which hand-overs they run under.

Called by the watcher (a slot's process) and by `handover` (who still uses a directory). Everything read here may vanish
between two lines: a process that has ended is None or left out, never an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.shm import Slot

_PROC: Final = Path("/proc")
_START_TIME: Final = 19  # position behind the name in /proc/<pid>/stat


def _all() -> Iterator[int]:
    """Return the numbers of all processes."""
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 -- names are all we want


def find_process(slot: Slot) -> int | None:
    """Return the pid, as this process counts, of the process that claims `slot`; None where it has ended.

    A process of another pid namespace is found by its innermost NSpid; either way the start time must agree, so that
    a number used again is not mistaken for its predecessor.
    """
    own = Path("/proc/self/ns/pid").stat().st_ino
    if slot.pid_ns == own:
        return slot.pid if slot.pid > 0 and start_time(slot.pid) == slot.start_time else None
    return next((pid for pid in _all() if _inner_pid(pid) == slot.pid and start_time(pid) == slot.start_time), None)


def _inner_pid(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
    except (OSError, StopIteration, ValueError):
        return None


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None where it has ended, threads and all."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold blanks and parentheses
    if len(fields) <= _START_TIME or fields[0] == "X" or (fields[0] == "Z" and not _other_threads(pid)):
        return None
    return int(fields[_START_TIME])


def _other_threads(pid: int) -> bool:
    """Whether threads go on although the first one has ended."""
    try:
        return any(name != str(pid) for name in os.listdir(_PROC / str(pid) / "task"))  # noqa: PTH208
    except OSError:
        return False


def directories_in_use() -> frozenset[Path]:
    """Return the hand-over directories that processes were started with, of those that we may look at."""
    start = f"{names.ENV_DIR}=".encode()
    return frozenset(
        Path(os.fsdecode(entry[len(start) :]))
        for pid in _all()
        for entry in _environment(pid)
        if entry.startswith(start)
    )


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; empty where it has ended or is not ours to look at."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
