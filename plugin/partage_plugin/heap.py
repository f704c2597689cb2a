"""How the C library's heap keeps memory: the agent is one process on every node, and what it once used is not kept.

`share` is called by `main` before anything is loaded, `give_back` by the program now and then. A hundred containers
that came and went leave some megabytes of free pieces, which malloc would keep for the next hundred. Nothing can go
wrong: a C library without these calls keeps its own ways.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from partage_plugin.calls import Calls
    from partage_plugin.ports import Clock

EVERY_S: Final = 60.0
HEAPS: Final = 2
LARGE: Final = 1 << 17  # bytes

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def share() -> None:
    """Let all threads share two heaps: each of our many threads would get one of its own, and keep it.

    What is large (a page of metrics, a list of pods) is given back when it is let go: by default malloc takes the size
    of such a piece for usual from then on, and keeps as much.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_M_ARENA_MAX, HEAPS), (_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, LARGE)):
            mallopt(parameter, value)


def give_back() -> None:
    """Give whole free pages back to the machine; takes a millisecond or two."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def keep_small(clock: Clock, calls: Calls) -> None:
    """Give back now and then, while no container's start waits for us, until cancelled."""
    while True:
        await clock.sleep(EVERY_S)
        await calls.until_quiet()
        give_back()
