"""Processes of this machine, read from /proc: whose a slot is, when one started, which hand-overs they run under.

Called by the watcher (a slot's process) and by `handover` (who still uses a directory). Everything read here may vanish
between two lines: a process that has ended is None or left out, never an error.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.model import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from partage.shm import Slot

_PROC: Final = Path("/proc")
_FLAGS: Final = 6  # positions behind the name in /proc/<pid>/stat
_START_TIME: Final = 19
_ENVIRONMENT_END: Final = 48
_PF_EXITING: Final = 0x4  # flags of a task, as in the kernel's sched.h
_PF_KTHREAD: Final = 0x200000
_EXEC_S: Final = 0.0005


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


def used_of(directories: Collection[Path]) -> frozenset[Path]:
    """Return those of these hand-over directories that processes were started with, as far as we may look at them.

    A process that ends while we look may have left a child that the list does not have yet: so processes are listed
    until a list brings nothing new. A child's number is above its parent's and the kernel lists them in order.
    """
    start = f"{names.ENV_DIR}=".encode()
    missing = set(directories)
    seen: set[int] = set()
    while missing and (new := set(_all()) - seen):
        seen |= new
        entries = (entry for pid in new for entry in _environment(pid))
        missing -= {Path(os.fsdecode(entry[len(start) :])) for entry in entries if entry.startswith(start)}
    return frozenset(directories) - missing


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; empty where it has ended or is not ours to look at."""
    for task in (_PROC / str(pid), *_threads(pid)):  # where the first thread has ended, the others know it still
        with contextlib.suppress(OSError):
            while not (text := (task / "environ").read_bytes()) and _is_between_programs(task):
                time.sleep(_EXEC_S)
            if text:
                return text.split(b"\0")
    return []


def _threads(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (_PROC / str(pid) / "task").iterdir()


def _is_between_programs(task: Path) -> bool:
    """Whether a task is inside of execve, where the old environment is gone and the new one not yet in place.

    Its memory then has no end of the environment (field 51 of stat, 0), as neither kernel threads nor the dead have.
    """
    fields = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()
    flags, end = int(fields[_FLAGS]), int(fields[_ENVIRONMENT_END])
    return end == 0 and not flags & (_PF_KTHREAD | _PF_EXITING)
