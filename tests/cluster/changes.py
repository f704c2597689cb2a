"""Waiting for files and processes by what the kernel says of them: inotify and pidfds, no looking again and again.

Used by `Process.until` and, through it, by tests. One that does not exist yet is waited for in the directory above it.
What can go wrong: something else made the change that is waited for, and nothing of it shows in these directories; then
the condition is looked at every SELDOM seconds, so that a test fails by its own limit and not by ours.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Final, Self

from asyncinotify import Inotify, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SELDOM: Final = 1.0  # seconds
WHAT: Final = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.MODIFY | Mask.ATTRIB


class Changes:
    """What happens to some files, in some directories, and to one process; a context."""

    def __init__(self, paths: Sequence[Path], pid: int | None = None) -> None:
        self._paths = paths
        self._pid = pid
        self._pidfd = -1

    def __enter__(self) -> Self:
        self._inotify = Inotify(sync_timeout=0)
        self._watched: set[Path] = set()
        self._watch()
        self._poll = select.poll()
        self._poll.register(self._inotify.fd, select.POLLIN)
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._pid)
                self._poll.register(self._pidfd, select.POLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._inotify.close()

    def _watch(self) -> None:
        """Watch each path, and while it does not exist the nearest directory above it."""
        for path in self._paths:
            there = next(place for place in (path, *path.parents) if place.exists())
            if there not in self._watched:
                with contextlib.suppress(FileNotFoundError):  # it went in between
                    self._inotify.add_watch(there, WHAT)
                    self._watched.add(there)

    def wait(self, seconds: float) -> None:
        """Return after a change, at the process's end, or after a while; the caller looks what it was."""
        self._poll.poll(max(0.0, min(seconds, SELDOM)) * 1000)
        while (event := self._inotify.sync_get()) is not None:
            if event.mask & Mask.IGNORED and event.path is not None:  # it was removed: another may come in its place
                self._watched.discard(event.path)
        self._watch()


def deadline(seconds: float) -> float:
    """Return when so much time is over, for `left`."""
    return time.monotonic() + seconds


def left(until: float) -> float:
    """Return the seconds until then; 0 or less: it is over."""
    return until - time.monotonic()
