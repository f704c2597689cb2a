"""Signals of the parent of `partage run`, as a descriptor that its loop can wait on together with everything else.

A terminal sends Ctrl-C to the whole foreground group, so the program has it already; what somebody sends to the parent
alone is passed on. Python's own handlers do not tell the two apart, a signalfd does (`ssi_code`).
"""

from __future__ import annotations

import os
import signal
import struct
from typing import Final

from partage.signalfd import INFO_BYTES, open_signalfd

PASSED_ON: Final = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGWINCH,
    }
)
_SI_KERNEL: Final = 0x80


class Signals:
    """Blocks the signals that are passed on and offers them as `fd`; `close` restores the mask.

    Make it before any thread starts: threads inherit the mask, and a signal would end up in one that does not block it.
    """

    def __init__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self.fd = open_signalfd(PASSED_ON)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            raise

    def take(self) -> list[tuple[int, bool]]:
        """Return the signals that came, each with whether the program has it already from the terminal."""
        found: list[tuple[int, bool]] = []
        while True:
            try:
                info = os.read(self.fd, INFO_BYTES)
            except BlockingIOError:
                return found
            number, _, code = struct.unpack_from("<Iii", info)
            found.append((number, code == _SI_KERNEL))

    def close(self) -> None:
        """Let signals act as before."""
        os.close(self.fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
