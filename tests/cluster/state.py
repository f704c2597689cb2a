"""A cluster's directory, the lock that says who lives in it, and the one lock that every kubelet of this machine takes.

Called by whoever starts a cluster. The keeper process holds both locks with its owner and outlives it, so a lock is
free only after everything was undone. What can go wrong: the kubelet lock is held by another session; it waits and says
by whom, up to PARTAGE_KUBELET_WAIT seconds (default 3600).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tests.cluster.cleanup import DEVICE_PLUGINS, LOCK, PATIENCE, RECORD, clean_up

TOP: Final = Path(__file__).resolve().parents[2]
KUBELET_LOCK: Final = Path("/run/lock/partage-test-kubelet")


class BusyError(Exception):
    """Another session has the machine's one kubelet and did not give it up in time."""


def clusters() -> Path:
    """Return the directory of all clusters of this user; short, since socket paths below it may have 107 bytes."""
    place = Path(tempfile.gettempdir()) / f"partage-clusters-{os.getuid()}"
    place.mkdir(mode=0o755, exist_ok=True)
    return place


def sweep(*, nodes: bool) -> list[str]:
    """Undo every cluster whose owner and keeper are both gone; return what could not be undone.

    Those that had a node only with `nodes`, which the holder of the kubelet lock sets: undoing them touches kubelet's
    fixed directory.
    """
    left = []
    for directory in clusters().iterdir():
        if not directory.is_dir() or directory.name.startswith(".") or ((directory / RECORD).exists() and not nodes):
            continue  # still being made, or not for us
        with contextlib.suppress(FileNotFoundError), (directory / LOCK).open("r") as file:  # or it goes just now
            if try_lock(file):  # else somebody lives there, or undoes it
                left += clean_up(directory)
    return left


@dataclass
class State:
    """The directory of one cluster, and its keeper; `close` undoes everything."""

    directory: Path
    locks: list[IO[str]] = field(default_factory=list)
    keeper: subprocess.Popen[bytes] | None = None

    @staticmethod
    def make(*, node: bool) -> State:
        """Make a directory and start its keeper; with `node`, take the machine's kubelet lock first."""
        locks = [take_kubelet_lock()] if node else []
        sweep(nodes=node)
        if node:
            require_no_foreign_kubelet()
        making = Path(tempfile.mkdtemp(prefix=".", dir=clusters()))
        making.chmod(0o755)
        lock = (making / LOCK).open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = clusters() / secrets.token_hex(4)
        for name in ("logs", "run", "pki"):
            (making / name).mkdir()
        making.rename(directory)
        state = State(directory, [*locks, lock])
        state._keep()
        return state

    def _keep(self) -> None:
        descriptors = [lock.fileno() for lock in self.locks]
        self.keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.keeper", str(self.directory)],
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # or whoever reads the owner's output waits for the keeper
            pass_fds=descriptors,
            start_new_session=True,
        )

    def close(self) -> None:
        """Let the keeper undo everything, and wait for it; OSError names what is left where it could not."""
        for lock in self.locks:
            lock.close()
        if self.keeper is None:
            return
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        if self.keeper.wait(timeout=4 * PATIENCE):  # it settles three things
            raise OSError(f"{self.directory}: not everything could be undone; see above")


def require_no_foreign_kubelet() -> None:
    """Raise BusyError where this machine runs a kubelet that no test started; its state must not be touched."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        probe.connect(str(DEVICE_PLUGINS / "kubelet.sock"))
        raise BusyError(f"{DEVICE_PLUGINS}: a kubelet of this machine's own is running; only one can use it")


def take_kubelet_lock() -> IO[str]:
    """Take the lock that lets one kubelet run on this machine; BusyError with who has it after the waiting time.

    A session that was started by one which has the lock shares it: PARTAGE_KUBELET_LOCK names the descriptor.
    """
    inherited = os.environ.get("PARTAGE_KUBELET_LOCK")
    if inherited:
        return os.fdopen(os.dup(int(inherited)), "a+")
    seconds = float(os.environ.get("PARTAGE_KUBELET_WAIT", "3600"))
    KUBELET_LOCK.parent.mkdir(parents=True, exist_ok=True)
    file = KUBELET_LOCK.open("a+")
    if not try_lock(file):
        file.seek(0)
        holder = file.read().strip() or "an unknown session"
        print(f"cluster: waiting for the machine's one kubelet, taken by {holder}", file=sys.stderr, flush=True)
        if not lock_within(file, seconds):
            raise BusyError(f"{KUBELET_LOCK}: the machine's kubelet is taken by {holder}; waited {seconds:g} s")
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} in {TOP}: {' '.join(sys.argv)[:200]}\n")
    file.flush()
    return file


def try_lock(file: IO[str]) -> bool:
    """Take a lock now, or say no."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def lock_within(file: IO[str], seconds: float) -> bool:
    """Take a lock as soon as it is free; False, and the file closed, where it is not within the time.

    A thread waits in the kernel. Where it is not waited for any more, what it gets is let go at once: nobody else has
    the file open.
    """
    waiting = threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), name="lock", daemon=True)
    waiting.start()
    waiting.join(seconds)
    if waiting.is_alive():
        file.close()
        return False
    return True
