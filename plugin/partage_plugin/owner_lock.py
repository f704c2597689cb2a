"""One agent a root: who holds the lock serves, who comes later waits and takes over the moment it is free.

So a rolling update may start the new agent beside the old one: it is ready to take over, the old one goes on serving
until it ends, and never do two write the same hand-overs. The kernel drops the lock at death. What can go wrong: the
holder is stopped (SIGSTOP): it is named in the log, and waited for. Somebody removes the file (what cleans /run does):
whoever opens the next one would not meet us there, so the holder looks now and then (`keep`), and takes that too.

And one agent a kubelet: two with roots of their own (one that a person starts beside the DaemonSet's) would take the
registration from each other for ever, and open hand-overs of which kubelet told the containers other directories. They
meet at the directory in which they register, on which the one that serves has an flock: files in it go with kubelet's
start. Who cannot lock it goes on: what is wrong with it, registering tells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

import structlog

from partage import locks
from partage.model import PartageError

if TYPE_CHECKING:
    from pathlib import Path

    from partage_plugin.ports import Clock

LOCK_FILE: Final = ".agent"
AGAIN_S: Final = 0.1
_TEXT_MAX: Final = 200  # bytes

log = structlog.get_logger("partage.agent")


class OwnerLockError(PartageError):
    """The lock file cannot be used."""


class OwnerLock:
    """The right to serve the hand-overs below a root, and to register in kubelet's directory `plugins`."""

    def __init__(self, root: Path, clock: Clock, name: str, plugins: Path | None = None) -> None:
        self._path = root / LOCK_FILE
        self._clock = clock
        self._name = name
        self._plugins = plugins
        self._plugins_fd = -1
        self._fd = -1

    @property
    def is_ours(self) -> bool:
        """Whether we serve."""
        return self._fd >= 0

    async def take(self) -> None:
        """Return once the lock is ours; raises OwnerLockError."""
        told = False
        while self._plugins is not None and not self._take_plugins(self._plugins):
            if not told:
                log.warning("another agent serves; waiting for its end", lock=str(self._plugins))
            told = True
            await self._clock.sleep(AGAIN_S)
        while True:
            fd = self._open()
            with contextlib.ExitStack() as not_ours:
                not_ours.callback(os.close, fd)
                if locks.try_lock(fd, 0) and self._is_there(fd):
                    self._sign(fd)
                    not_ours.pop_all()
                    self._fd = fd
                    return
                if not told:
                    log.warning("another agent serves; waiting for its end", lock=str(self._path), owner=_owner(fd))
                told = True
            await self._clock.sleep(AGAIN_S)

    def _take_plugins(self, plugins: Path) -> bool:
        """Lock kubelet's directory; False where another agent has."""
        with contextlib.ExitStack() as not_ours, contextlib.suppress(OSError):
            plugins.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd = os.open(plugins, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            not_ours.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            not_ours.pop_all()
            self._plugins_fd = fd
        return True

    def keep(self) -> None:
        """Hold the file there is now, at which who comes meets us; raises OwnerLockError where another serves."""
        if self._is_there(self._fd):
            return
        fd = self._open()
        if not locks.try_lock(fd, 0):
            owner = _owner(fd)
            os.close(fd)
            step = "none: this agent ends"
            raise OwnerLockError(str(self._path), f"removed, and made anew by {owner}", "one agent serves", step)
        log.warning("the lock file was removed; it is there again", lock=str(self._path))
        self._sign(fd)
        os.close(self._fd)
        self._fd = fd

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            step = "let the directory be writable for the agent"
            raise OwnerLockError(str(self._path), error.strerror or error, "a lock file is kept there", step) from error

    def _is_there(self, fd: int) -> bool:
        """Whether this is the file that others find."""
        with contextlib.suppress(OSError):
            return os.path.samestat(self._path.lstat(), os.fstat(fd))
        return False

    def _sign(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} {self._name}\n".encode(), 0)

    def let_go(self) -> None:
        """Let a waiting successor serve."""
        for fd in (self._fd, self._plugins_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._plugins_fd = -1


def _owner(fd: int) -> str:
    return os.pread(fd, _TEXT_MAX, 0).decode("utf-8", "replace").strip()
