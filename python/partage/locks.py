"""OFD locks: byte ranges that the kernel drops when the last descriptor of an open file goes away.

Used for the writers of policies, the watcher of a ledger, the registry of hand-overs, the simulated machine, and to
ask whether a slot's process lives. A lock belongs to the *open file*, not to the process: a file opened anew never
shares it. Whoever can open a file for reading can lock its bytes against a writer, so nothing waits for a lock on a
file that a tenant can open.

A wait can be interrupted: Ctrl-C is heard at once, however long another process holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import threading
from typing import TYPE_CHECKING, Final

from partage.signalfd import open_signalfd

if TYPE_CHECKING:
    from collections.abc import Iterator

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for OFD locks)
_FLOCK: Final = "hhqqi4x"
_FAULTS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_HELD_BACK: Final = signal.valid_signals() - _FAULTS


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


def owner(fd: int, start: int) -> int | None:
    """Return whose *traditional* lock is on the byte at `start`, as this pid namespace counts; None: nobody's.

    0 where the owner is in no namespace that this one contains. A process never sees its own lock.
    """
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, _flock(fcntl.F_WRLCK, start, 1)))
    return None if kind == fcntl.F_UNLCK else int(pid)


@contextlib.contextmanager
def locked(fd: int, start: int, length: int = 1) -> Iterator[None]:
    """Hold the write lock for the block; waits for its holder, which only ever does bounded work (or dies).

    In the main thread, a signal whose handler raises ends the wait (other threads must leave signals to it).
    """
    if try_lock(fd, start, length):
        try:
            yield
        finally:
            unlock(fd, start, length)
        return
    wait = _Wait(fd, start, length)
    try:
        wait.until_held()
        yield
    finally:
        wait.let_go()


class _Wait:
    """Waits for a lock in a thread of its own, so that the main thread can wait for its signals as well.

    The kernel's call that waits cannot do that: Python looks for signals before it, and one that comes between the look
    and the call would only be heard once the lock comes. Meanwhile signals are held back, and act where we let them: no
    handler raises where it would do harm or be swallowed. The thread locks an open file of its own: given up, it takes
    nothing from the caller's file when the lock comes after all, and closes its own, which lets the lock go.
    """

    def __init__(self, fd: int, start: int, length: int) -> None:
        self._wanted = _flock(fcntl.F_WRLCK, start, length)
        self._file = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._mutex = threading.Lock()  # for the two below: who comes last closes the file
        self._is_over = False
        self._is_unwanted = False
        self._error: OSError | None = None

    def until_held(self) -> None:
        """Wait; raises what a signal's handler raises, and OSError."""
        if threading.current_thread() is not threading.main_thread():  # signals are none of its business
            self._lock()
        else:
            self._lock_in_thread()
        if self._error is not None:
            raise self._error

    def let_go(self) -> None:
        """Let the lock go, or wait for it no longer."""
        self._end(unwanted=True)

    def _end(self, *, over: bool = False, unwanted: bool = False) -> None:
        with self._mutex:
            self._is_over |= over
            self._is_unwanted |= unwanted
            if self._is_over and self._is_unwanted:
                os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, self._wanted)
        except OSError as error:
            self._error = error
        self._end(over=True)

    def _lock_in_thread(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with contextlib.ExitStack() as stack:
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
            signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)  # what came until now acts in here
            heard = open_signalfd(_HELD_BACK.difference(before))
            stack.callback(os.close, heard)
            ended, end = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, ended)

            def lock_and_tell() -> None:
                self._lock()
                os.close(end)

            thread = threading.Thread(target=lock_and_tell, name="lock", daemon=True)  # the process may end meanwhile
            thread.start()
            while not _is_readable(ended, or_else=heard):
                signal.pthread_sigmask(signal.SIG_SETMASK, before)  # they act, in here
                signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
            thread.join()


def _is_readable(fd: int, *, or_else: int) -> bool:
    """Wait until one of two descriptors is readable; return whether `fd` is."""
    poll = select.poll()
    for one in (fd, or_else):
        poll.register(one, select.POLLIN)
    return any(ready == fd for ready, _ in poll.poll())
