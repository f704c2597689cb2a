"""The directories of hand-overs below /run/partage: minted in `Allocate`, made again after a reboot, then removed.

A hand-over name is 128 random bits, so it is never used twice, whatever was wiped in between. A new directory is whole
before kubelet learns its name: ledger and turns are there (a missing source of a mount would become a directory) and
the policy is closed until the container's owner is known. Everything here can be repeated: a directory whose maker was
killed half-way is completed by the next `ensure`. What can go wrong: no room, or no right to the root (HandOverError).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import struct
import time
from typing import TYPE_CHECKING, Final

from partage._abi import lib
from partage.model import PartageError, PolicyError, names
from partage.run.handover import HandOver
from partage.shm import OPEN_FLAGS, Policy, PolicyFile, create_ledger, create_turns, read_policy, read_turns
from partage.shm.ledger import SIZE as LEDGER_SIZE
from partage.shm.policy import MAX_DEVICES
from partage_plugin.kubelet.checkpoint import is_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD: Final = struct.Struct("<QII")  # of a ledger: magic, layout, size
_CLOSED: Final = Policy(devices=(), is_open=False)


class HandOverError(PartageError):
    """A hand-over's directory cannot be made or kept."""


def mint_name() -> str:
    """Return a name that was never used before."""
    return secrets.token_hex(16)


class Store:
    """All hand-overs of this node. Used from one thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._whole: set[str] = set()  # whose policy and turns were good when looked into: only we write them
        self._has_failed = True  # to write, the last time; nothing was written yet

    def open(self) -> None:
        """Make the root: ours alone to write, for all to read. Raises HandOverError."""
        with self._translated(self.root):
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            found = self.root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                message = f"owned by uid {found.st_uid}, mode {found.st_mode:o}"
                raise OSError(0, message)
            self.root.chmod(0o755)

    def entry(self, name: str) -> HandOver:
        """Return the hand-over of this name, whether it is there or not."""
        return HandOver(self.root / name)

    def names(self) -> frozenset[str]:
        """Return the names of all directories there are."""
        with self._translated(self.root):
            return frozenset(filter(is_name, os.listdir(self.root)))  # noqa: PTH208 -- names are all we want

    def mint(self) -> HandOver:
        """Make a hand-over under a new name, whole and closed; raises HandOverError and leaves nothing then."""
        entry = self.entry(mint_name())
        try:
            self.ensure(entry.name)
        except HandOverError:
            entry.remove()
            raise
        return entry

    @property
    def is_doubted(self) -> bool:
        """Whether it has to be tried out if hand-overs can be made: nobody knows, or some could not."""
        return self._has_failed or not os.access(self.root, os.W_OK)

    def try_out(self) -> None:
        """Make a hand-over and remove it; raises HandOverError, and leaves nothing."""
        try:
            self.remove(self.mint().name)
        except HandOverError as error:
            raise HandOverError(str(self.root), error.value, error.limit, error.step) from error
        self._has_failed = False

    def ensure(self, name: str, *, may_run: bool = False) -> HandOver:
        """Make whatever of a hand-over is missing or spoilt, a closed policy included; raises HandOverError.

        `may_run`: its container may be running already, and what it has mounted is the ledger that is there.
        """
        entry = self.entry(name)
        with self._translated(entry.path):
            if not entry.path.is_dir():
                self._whole.discard(name)
                entry.path.mkdir(mode=0o755, exist_ok=True)
                entry.path.chmod(0o755)  # whatever the umask is
            self._ensure_ledger(entry, may_run=may_run)
            if name in self._whole and self.has_turns(name) and entry.policy_path.exists():
                return entry
            turns = entry.path / names.TURNS_FILE
            if read_turns(turns) is None:
                turns.unlink(missing_ok=True)
                create_turns(turns, MAX_DEVICES)
                turns.chmod(0o644)
            if self._policy_of(entry) is None:
                entry.policy_path.unlink(missing_ok=True)
                PolicyFile.create(entry.policy_path, _CLOSED).close()
                entry.policy_path.chmod(0o644)
            self._whole.add(name)
        return entry

    def _ensure_ledger(self, entry: HandOver, *, may_run: bool) -> None:
        """Keep the ledger there is: it is mounted over by its file, and a running container would lose a new one."""
        with contextlib.suppress(FileNotFoundError):
            found = entry.ledger_path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size >= LEDGER_SIZE and self._is_ledger(entry):
                return
            if entry.is_slot_held() or (may_run and self._was_opened(entry)):
                return  # its tenant spoilt it and runs: its own harm, which the watcher finds
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(entry.ledger_path)  # a container runtime made it where the source of a mount was missing
            else:
                entry.ledger_path.unlink()
        create_ledger(entry.ledger_path, [])
        entry.ledger_path.chmod(0o666)  # containers run as any user

    @staticmethod
    def _is_ledger(entry: HandOver) -> bool:
        try:
            fd = os.open(entry.ledger_path, os.O_RDONLY | OPEN_FLAGS)
        except (BlockingIOError, PermissionError):
            return False  # its tenant, as root of its container, holds a lease on it, or has taken it from us
        try:
            head = os.read(fd, _HEAD.size)
        finally:
            os.close(fd)
        return len(head) == _HEAD.size and _HEAD.unpack(head) == (
            lib.PTG_LEDGER_MAGIC,
            lib.PTG_LEDGER_LAYOUT,
            LEDGER_SIZE,
        )

    def _was_opened(self, entry: HandOver) -> bool:
        """Whether a container was let run under it: one that is half made is closed."""
        policy = self._policy_of(entry)
        return policy is not None and bool(policy.devices)

    @staticmethod
    def _policy_of(entry: HandOver) -> Policy | None:
        try:
            return read_policy(entry.policy_path)
        except PolicyError:
            return None

    def has_turns(self, name: str) -> bool:
        """Whether a hand-over has its turns file still."""
        return (self.entry(name).path / names.TURNS_FILE).exists()

    def put_back(self, name: str, policy: Policy | None) -> None:
        """Make the turns anew where they were removed, and the policy where one is given; raises HandOverError.

        Each has its name once it is whole: a container may look there meanwhile.
        """
        entry = self.entry(name)
        with self._translated(entry.path):
            if not self.has_turns(name):
                with self._beside(entry.path / names.TURNS_FILE) as path:
                    create_turns(path, MAX_DEVICES)
            if policy is not None:
                with self._beside(entry.policy_path) as path:
                    PolicyFile.create(path, policy).close()

    @staticmethod
    @contextlib.contextmanager
    def _beside(path: Path) -> Iterator[Path]:
        """Yield where to make what lies at `path` afterwards, for all to read."""
        beside = path.with_name(f".{path.name}")
        beside.unlink(missing_ok=True)
        yield beside
        beside.chmod(0o644)
        beside.rename(path)

    def ledger_inode(self, name: str) -> int:
        """Return what tells a hand-over's ledger from one that was made in its place; 0 where there is none."""
        try:
            return self.entry(name).ledger_path.lstat().st_ino
        except OSError:
            return 0

    def remove(self, name: str) -> None:
        """Remove a directory; programs that have its files mapped keep them."""
        self._whole.discard(name)
        self.entry(name).remove()

    def age(self, name: str) -> float:
        """Return the seconds since a directory was made or last changed; 0 where that lies ahead or it is gone."""
        with contextlib.suppress(OSError):
            return max(0.0, time.time() - self.entry(name).path.stat().st_mtime)
        return 0.0

    @contextlib.contextmanager
    def _translated(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._has_failed = True
            limit = "a directory that its owner, root, can write"
            step = "free space or memory (`df`), or remount it writable; kubelet asks again"
            raise HandOverError(str(path), error.strerror or error, limit, step) from error
        except PolicyError as error:
            self._has_failed = True  # no room for what it maps is told so
            raise HandOverError(error.subject, error.value, error.limit, error.step) from error
