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
_PATIENCE_S: Final = 1.0  # execve waits for file systems, and a tenant has its own
_LISTS: Final = 1000  # where thousands start in a second, each brings new ones
_START: Final = f"{names.ENV_DIR}=".encode()


def _all() -> Iterator[int]:
    """Return the numbers of all processes."""
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 -- names are all we want


def find_process(slot: Slot) -> int | None:
    """Return the pid, as this process counts, of the process that claims `slot`; None where it has ended.

    A process of another pid namespace is found by that and its innermost NSpid; either way the start time must agree,
    so that a number used again is not mistaken for its predecessor.
    """
    own = (_PROC / "self" / "ns" / "pid").stat().st_ino
    pids = _all() if slot.pid_ns != own else [slot.pid] if slot.pid > 0 else []
    return next((pid for pid in pids if is_process_of(slot, pid)), None)


def is_process_of(slot: Slot, pid: int) -> bool:
    """Whether this is the process that claims `slot`, and not another one that has its number by now, or elsewhere.

    The first program of every container is number 1, and many begin within one tick of the clock.
    """
    numbers = _status(pid, "NSpid:")
    if not numbers or int(numbers[-1]) != slot.pid or start_time(pid) != slot.start_time:
        return False
    return _is_of_namespace(slot, pid, is_inner=len(numbers) > 1)


def _is_of_namespace(slot: Slot, pid: int, *, is_inner: bool) -> bool:
    """Whether a process counts in the slot's pid namespace; where we may not look, whether it counts below ours."""
    own = (_PROC / "self" / "ns" / "pid").stat().st_ino
    try:
        return slot.pid_ns in {0, (_PROC / str(pid) / "ns" / "pid").stat().st_ino}
    except FileNotFoundError:
        return False
    except OSError:
        return slot.pid_ns == 0 or is_inner == (slot.pid_ns != own)


def _status(pid: int, name: str) -> list[str]:
    """Return what stands in one line of /proc/<pid>/status; nothing where the process has ended."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith(name)), [])


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None where it has ended, threads and all.

    A number that by now is a thread's has files in /proc too, but is no process.
    """
    if _status(pid, "Tgid:") != [str(pid)]:
        return None
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
    until a list brings nothing new. A child's number is above its parent's and the kernel lists them in order. Where
    new ones never cease to come, or one does not come out of execve for a second, all are taken to be used.
    """
    missing = set(directories)
    seen: set[int] = set()
    until = time.monotonic() + _PATIENCE_S
    for _ in range(_LISTS):
        new = set(_all()) - seen if missing else set()
        if not new:
            return frozenset(directories) - missing
        seen |= new
        if not _look(new, missing, until):
            break
    return frozenset(directories)


def _look(pids: set[int], missing: set[Path], until: float) -> bool:
    """Strike out what these processes were started with; False where one does not come out of execve until then."""
    while pids := {pid for pid in pids if missing and not _strike(pid, missing)}:
        if time.monotonic() > until:
            return False
        time.sleep(_EXEC_S)
    return True


def _strike(pid: int, missing: set[Path]) -> bool:
    """Strike out what one process was started with; False where it is between two programs.

    Of thousands of processes nearly all have nothing to do with a device, so that is what costs little to find out.
    """
    text = _environment(pid)
    if text is not None and _START in text:
        entries = (entry for entry in text.split(b"\0") if entry.startswith(_START))
        missing.difference_update(Path(os.fsdecode(entry.removeprefix(_START))) for entry in entries)
    return text is not None


def _environment(pid: int) -> bytes | None:
    """Return the environment that a process was started with; None inside of execve.

    It is empty where the process has ended or is not ours to look at.
    """
    try:
        text = _read(f"{_PROC}/{pid}/environ")
        if text or _flags_and_end(f"{_PROC}/{pid}")[0] & _PF_KTHREAD:
            return text
    except PermissionError:
        return b""
    except OSError:
        pass
    for task in (f"{_PROC}/{pid}", *_threads(pid)):  # where the first thread has ended, the others know it still
        with contextlib.suppress(OSError):
            if text := _read(f"{task}/environ"):
                return text
            if _is_between_programs(task):
                return None
    return b""


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- a Path costs more than the file
        return file.read()


def _threads(pid: int) -> Iterator[str]:
    directory = f"{_PROC}/{pid}/task"
    with contextlib.suppress(OSError):
        yield from (f"{directory}/{name}" for name in os.listdir(directory))  # noqa: PTH208


def _flags_and_end(task: str) -> tuple[int, int]:
    """Return a task's flags and where its environment ends; raises OSError where it has ended."""
    fields = _read(f"{task}/stat").rpartition(b")")[2].split()
    return int(fields[_FLAGS]), int(fields[_ENVIRONMENT_END])


def _is_between_programs(task: str) -> bool:
    """Whether a task is inside of execve, where the old environment is gone and the new one not yet in place.

    Its memory then has no end of the environment (field 51 of stat, 0), as neither kernel threads nor the dead have.
    """
    flags, end = _flags_and_end(task)
    return end == 0 and not flags & (_PF_KTHREAD | _PF_EXITING)
