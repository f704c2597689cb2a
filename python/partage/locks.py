"""OFD locks: byte ranges that the kernel drops when the last descriptor of an open file goes away.

Used for the writers of policies, the watcher of a ledger, the registry of hand-overs, the simulated machine, and to
ask whether a slot's process lives. A lock belongs to the *open file*, not to the process: a file opened anew never
shares it. Whoever can open a file for reading can lock its bytes against a writer, so nothing waits for a lock on a
file that a tenant can open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for OFD locks)
_FLOCK: Final = "hhqqi4x"


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)


def try_lock(fd: int, start: int, length: int = 1) -> bool:
    """Take the write lock on the bytes at `start` if nobody holds it; say whether we have it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, length))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(fd: int, start: int, length: int = 1) -> None:
    """Let the bytes go."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, start, length))


def is_locked(fd: int, start: int, length: int = 1) -> bool:
    """Whether some other open file holds a lock in the range."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, start, length))
    kind = struct.unpack(_FLOCK, answer)[0]
    return bool(kind != fcntl.F_UNLCK)


@contextlib.contextmanager
def locked(fd: int, start: int, length: int = 1) -> Iterator[None]:
    """Hold the write lock for the block; waits for its holder, which only ever does bounded work (or dies)."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, start, length))
    try:
        yield
    finally:
        unlock(fd, start, length)
