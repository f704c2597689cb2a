"""The arbiter of a user's programs: started when one of them has to take turns, and again if it dies under them.

It is a program of its own (`partage-arbiter`, C): no Python is on the path of a turn, and it outlives the `partage run`
that happened to start it. Whether one serves a root is told by the lock on `.arbiter` there, whose text says who it is.
Starting one happens under the registry's lock, and an idle one leaves under it, so there is never a moment in which
both sides think that the other has it. What can go wrong: no program to start, or it cannot serve (LaunchError; at a
restart a warning, and programs go on by their private buckets).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import stat
import time
from pathlib import Path
from typing import Final

import structlog

from partage import locks
from partage.model import LaunchError, PolicyError, names
from partage.run import gates, handover, libraries
from partage.shm import OPEN_FLAGS
from partage.sim.machine import machine_path

IDLE_EXIT_S: Final = 2  # nobody was gated for so long
_READY_S: Final = 10.0
_LIVES_S: Final = 1.0  # one that ends sooner is started again only after a pause
_RESTART_FIRST_S: Final = 0.05  # the pause, doubled each time
_RESTART_LAST_S: Final = 5.0

log = structlog.get_logger("partage.arbiter")


def lock_directory(*, simulated: bool) -> Path:
    """Return where the arbiters of this machine lock its devices; raises LaunchError where there is no such place.

    Real devices: a directory that all users of the machine share, in which none can remove what another made.
    Simulated ones belong to the simulated machine, so their locks lie beside it.
    """
    if simulated:
        return machine_path().absolute().parent
    for name in names.LOCK_DIRECTORIES:
        with contextlib.suppress(OSError):
            found = Path(name).stat()
            if found.st_uid == 0 and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and found.st_mode & 2:
                return Path(name)
    places, limit = " or ".join(names.LOCK_DIRECTORIES), "a directory of root with mode 1777"
    raise LaunchError("locks of devices", f"neither {places} fits", limit, "ask the administrator")


def serving(root: Path) -> int | None:
    """Return the pid of the arbiter that serves `root`, 0 where it does not say, None where there is none."""
    try:
        fd = os.open(root / names.ARBITER_LOCK, os.O_RDONLY | OPEN_FLAGS)
    except OSError:
        return None
    try:
        if not locks.is_locked(fd, 0):
            return None
        found = re.match(rb"pid (\d{1,9}) ", os.pread(fd, 64, 0))
        return int(found[1]) if found else 0
    finally:
        os.close(fd)


def start(root: Path, lock_dir: Path) -> int:
    """Start an arbiter and return its pid once it gives turns; 0 where another one serves already.

    Callers hold the registry's lock. Raises LaunchError.
    """
    program = libraries.find_arbiter()
    reader, writer = os.pipe()
    try:
        pid = _spawn(program, root, lock_dir, writer)
        os.close(writer)
        writer = -1
        words = _first_line(reader)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if words == "ready":
        log.info("arbiter started", pid=pid, root=str(root))
        return pid
    _reap(pid)
    if words.startswith("served by"):
        return 0
    step = f"see {root / names.ARBITER_LOG}"
    raise LaunchError(str(program), words or "ended before it was ready", "it gives turns to programs", step)


def _spawn(program: Path, root: Path, lock_dir: Path, writer: int) -> int:
    """Start the program in a session of its own, with nothing of ours but the pipe."""
    log_file = root / names.ARBITER_LOG
    options = ["--root", str(root), "--lock-dir", str(lock_dir), "--log", str(log_file)]
    argv = [str(program), *options, "--idle-exit", str(IDLE_EXIT_S), "--ready-fd", "3"]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    try:
        return os.posix_spawn(
            program,
            argv,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, writer, 3), *null],
            setsid=True,
            setsigmask=[],
            setsigdef=[number for number in signal.valid_signals() if number not in {signal.SIGKILL, signal.SIGSTOP}],
        )
    except OSError as error:
        limit, step = "a program that this machine can run", "run `make build`"
        raise LaunchError(str(program), error.strerror or error, limit, step) from error


def _first_line(reader: int) -> str:
    """Return what the arbiter says first; empty where it ends, or says nothing for too long."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    text = b""
    until = time.monotonic() + _READY_S
    while b"\n" not in text and poll.poll(max(0.0, until - time.monotonic()) * 1000):
        more = os.read(reader, 1024)
        if not more:
            break
        text += more
    return text.partition(b"\n")[0].decode("utf-8", "replace")


def _reap(pid: int) -> None:
    """Take note of a child's end, if it was one of ours and has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class Keeper:
    """Sees to it that an arbiter serves `root` while our program takes turns.

    Owned by the loop of one `partage run`; its descriptor is registered with the loop's selector, `data` is the keeper.
    """

    def __init__(self, root: Path, lock_dir: Path) -> None:
        self._root = root
        self._lock_dir = lock_dir
        self._pid = 0
        self._pidfd = -1
        self._selector: selectors.BaseSelector | None = None
        self._followed_at = 0.0
        self._again_at = 0.0
        self._again_after = _RESTART_FIRST_S

    def ensure(self) -> None:
        """Start the arbiter unless one serves, and follow it. Callers hold the registry's lock; raises LaunchError."""
        self._pid = serving(self._root) or 0
        if not self._pid and serving(self._root) is None:
            self._pid = start(self._root, self._lock_dir) or serving(self._root) or 0
        self._follow()

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Let the loop's selector report the arbiter's death from now on."""
        self._selector = selector
        if self._pidfd >= 0:
            selector.register(self._pidfd, selectors.EVENT_READ, self)

    def ended(self) -> None:
        """Take note that the arbiter has ended: `step` looks whether another one is needed."""
        self._unfollow()
        if time.monotonic() - self._followed_at > _LIVES_S:
            self._again_at, self._again_after = 0.0, _RESTART_FIRST_S

    def timeout(self, *, is_gated: bool) -> float | None:
        """Return the seconds until `step` has work; None where only the arbiter's death can make some."""
        return max(0.0, self._again_at - time.monotonic()) if is_gated and self._pidfd < 0 else None

    def step(self, *, is_gated: bool) -> None:
        """Bring an arbiter back where our program takes turns and none is known to us."""
        now = time.monotonic()
        if not is_gated or self._pidfd >= 0 or now < self._again_at:
            return
        self._again_at = now + self._again_after
        self._again_after = min(2 * self._again_after, _RESTART_LAST_S)
        try:
            with handover.registry(self._root):
                if gates.decide(self._root):
                    self.ensure()
        except (LaunchError, PolicyError) as error:  # also: somebody removed the directory of the hand-overs
            log.warning("no arbiter: programs that share a device go by their private buckets", error=str(error))

    def close(self) -> None:
        """Follow no longer; the arbiter goes on while anybody needs it."""
        self._unfollow()

    def _follow(self) -> None:
        self._unfollow()
        if not self._pid:
            return
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:
            return  # it has just ended, or counts in another pid namespace
        self._followed_at = time.monotonic()
        if self._selector is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ, self)

    def _unfollow(self) -> None:
        if self._pidfd < 0:
            return
        if self._selector is not None:
            self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        _reap(self._pid)
