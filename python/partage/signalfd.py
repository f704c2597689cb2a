"""A descriptor that is readable while signals wait: Linux's signalfd, which Python does not offer.

Used by the parent of `partage run` and by waits for locks. The signals must be blocked, or they are delivered instead.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

INFO_BYTES: Final = 128  # what a read returns for each signal: struct signalfd_siginfo
_SIGSET_BYTES: Final = 128


def open_signalfd(signals: Iterable[int]) -> int:
    """Return a new descriptor for these signals, not inherited and never blocking; raises OSError."""
    mask = sum(1 << (number - 1) for number in signals).to_bytes(_SIGSET_BYTES, "little")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd
