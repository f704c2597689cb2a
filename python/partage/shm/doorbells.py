"""The doorbells of many ledgers, listened to by few threads: a hundred containers cost one sleep.

Owned by the node agent's watchers (`partage_plugin.monitor.hub`); a ledger that is watched alone has a thread of its
own instead (`WatchedLedger.start_doorbell`). Each bell has an eventfd that becomes readable when it rings. A thread
listens to as many bells as one sleep takes, and is there while it has any. A tenant may ring for ever: after each ring
its bell is left alone for a moment, so that it neither keeps its thread awake nor the others from being heard. What can
go wrong: a kernel without futex_waitv (before 5.16): `add` says so, and the caller listens in a thread of its own; a
tenant that cuts its ledger (its event then stays ready, and it is listened to no more).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from partage._abi import ffi, lib

BELLS_MAX: Final = 127  # of one sleep, beside the word that wakes us
APART_S: Final = 0.02  # a bell that rang is listened to again after so long
_WAITV: Final = 449  # the same number on all machines
_SIZE_32: Final = 2
_MONOTONIC: Final = 1
_WORD: Final = struct.Struct("<I")
_WAITER: Final = struct.Struct("=QQII")  # struct futex_waitv: value, address, flags, reserved


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def waitv(words: list[tuple[int, int]], until: float | None) -> int:
    """Sleep until one of the words at these addresses is rung; return which, or -errno.

    -EAGAIN: one of them is not its value; -EFAULT: one lies in a page that is not there any more; -ETIMEDOUT: `until`,
    seconds of CLOCK_MONOTONIC (None: never), is past.
    """
    list_ = b"".join([_WAITER.pack(value, address, _SIZE_32, 0) for address, value in words])
    most = None if until is None else _Timespec(int(until), int(until % 1 * 1e9))
    result = _syscall(
        ctypes.c_long(_WAITV),
        list_,
        ctypes.c_uint(len(words)),
        ctypes.c_uint(0),
        None if most is None else ctypes.byref(most),
        ctypes.c_int(_MONOTONIC),
    )
    return int(result) if result >= 0 else -ctypes.get_errno()


def is_supported() -> bool:
    """Whether the kernel can sleep on many words at once."""
    return waitv([], None) != -errno.ENOSYS


@dataclass(slots=True)
class _Bell:
    """A bell: where it is in memory and in its file; `seen` is its value when it was looked at last."""

    address: int
    fd: int
    offset: int
    event: int
    seen: int
    quiet_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Handle:
    """What `add` gives for `remove`: who listens, and the bell's number there."""

    listener: _Listener
    number: int


def _value(fd: int, offset: int) -> int | None:
    """Return what a bell's word is now; None where the file is cut."""
    data = os.pread(fd, _WORD.size, offset)
    return int(_WORD.unpack(data)[0]) if len(data) == _WORD.size else None


class Doorbells:
    """Bells by handle. One thread at a time may `add`, `remove` and `close`."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._is_supported = is_supported()

    def add(self, address: int, fd: int, offset: int, event: int) -> Handle | None:
        """Let the bell at `address`, which is also at `offset` of `fd`, make `event` readable at each ring from now on.

        Return its handle for `remove`; None where it cannot be listened to here. Address and descriptors are the
        caller's and must stay until then.
        """
        seen = _value(fd, offset)
        if seen is None or not self._is_supported:
            return None
        listener = next((one for one in self._listeners if one.count < BELLS_MAX), None)
        if listener is None:
            listener = _Listener()
            self._listeners.append(listener)
        return Handle(listener, listener.add(_Bell(address, fd, offset, event, seen)))

    def remove(self, handle: Handle) -> None:
        """Listen to it no longer: when this returns, nothing of it is touched any more."""
        listener = handle.listener
        listener.remove(handle.number)
        if listener.count == 0 and listener in self._listeners:
            self._listeners.remove(listener)
            listener.close()

    def close(self) -> None:
        """End all threads."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


class _Listener:
    """A thread with the bells that it sleeps on."""

    def __init__(self) -> None:
        self._bells: dict[int, _Bell] = {}
        self._numbers = 0
        self._lock = threading.Lock()
        self._kick: Any = ffi.new("uint32_t *")
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="doorbells", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """How many bells it has."""
        with self._lock:
            return len(self._bells)

    def add(self, bell: _Bell) -> int:
        """Listen to one more; return its number."""
        with self._lock:
            self._numbers += 1
            self._bells[self._numbers] = bell
            number = self._numbers
        self._wake()
        return number

    def remove(self, number: int) -> None:
        """Listen to it no longer."""
        with self._lock:
            self._bells.pop(number, None)
        self._wake()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closing = True
            self._bells.clear()
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with self._lock:
            self._kick[0] = (self._kick[0] + 1) & 0xFFFFFFFF
        lib.ptg_futex_wake(self._kick)

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Sleep, and look at what woke us alone: a hundred bells are not read because one rang or came."""
        kick = int(ffi.cast("uintptr_t", self._kick))
        look_at: list[tuple[int, _Bell]] = []
        while True:
            with self._lock:
                if self._closing:
                    return
                now = time.monotonic()
                for handle, bell in look_at:
                    if self._bells.get(handle) is bell:
                        self._look(handle, bell, now)
                words = [(kick, int(self._kick[0]))]
                slept_on = [(handle, bell) for handle, bell in self._bells.items() if bell.quiet_until <= now]
                words += [(bell.address, bell.seen) for _, bell in slept_on]
                quiet = [bell.quiet_until for bell in self._bells.values() if bell.quiet_until > now]
            result = waitv(words, min(quiet, default=None))
            look_at = slept_on if result == -errno.EAGAIN else slept_on[result - 1 : result] if result > 0 else []
            if result == -errno.EFAULT:
                self._drop_cut()

    def _look(self, handle: int, bell: _Bell, now: float) -> None:
        """Tell of a bell if it rang."""
        value = _value(bell.fd, bell.offset)
        if value is None:
            self._end(handle, bell)
        elif value != bell.seen:
            bell.seen, bell.quiet_until = value, now + APART_S
            os.eventfd_write(bell.event, 1)

    def _drop_cut(self) -> None:
        """Find the bells whose page is gone."""
        with self._lock:
            for handle, bell in list(self._bells.items()):
                word = ffi.cast("void *", bell.address)
                if lib.ptg_futex_wait(word, (bell.seen + 1) & 0xFFFFFFFF, 0) == -errno.EFAULT:
                    self._end(handle, bell)

    def _end(self, handle: int, bell: _Bell) -> None:
        """Let the event stay ready: whoever waits for it looks at the ledger, and finds it cut."""
        os.eventfd_write(bell.event, 1)
        del self._bells[handle]
