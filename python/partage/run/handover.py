"""Hand-overs on this machine: one directory per running container (or `partage run`) with policy, turns and ledger.

`HandOver` is one directory; `user_root` is where `partage run` makes them; `find` and `living` serve `top` and
`resize`. A hand-over lives while its ledger is watched, one of its slots is held, or a process runs under it that has
not touched a device yet; what is dead is swept away by the next `partage run`. Shares of a card are added up over the
living (`check_room`), under the registry's lock, so that two runs started at once cannot both get the last gigabyte.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from partage import locks
from partage._abi import lib
from partage.model import (
    DeviceError,
    LaunchError,
    NotFoundError,
    PolicyError,
    ShareRefused,
    format_cores,
    format_memory,
    names,
)
from partage.run.processes import used_of
from partage.shm import OPEN_FLAGS, Ledger, Policy, PolicyFile, create_ledger, create_turns, read_ledger, read_policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partage.model import Device

log = structlog.get_logger("partage.handover")


@dataclass(frozen=True, slots=True)
class HandOver:
    """One hand-over directory; `name` is its last component and never used twice."""

    path: Path

    @property
    def name(self) -> str:
        """The hand-over name."""
        return self.path.name

    @property
    def policy_path(self) -> Path:
        """Where the policy lies."""
        return self.path / names.POLICY_FILE

    @property
    def ledger_path(self) -> Path:
        """Where the ledger lies."""
        return self.path / names.LEDGER_FILE

    def policy(self) -> Policy:
        """Return the policy; raises PolicyError."""
        return read_policy(self.policy_path)

    def ledger(self) -> Ledger:
        """Return a snapshot of the ledger; raises LedgerError."""
        return read_ledger(self.ledger_path)

    def is_locked(self) -> bool:
        """Whether somebody watches the ledger or a process holds a slot of it."""
        return self._holds(lib.PTG_LOCK_WATCH) or self.is_slot_held()

    def is_slot_held(self) -> bool:
        """Whether a process holds a slot of the ledger."""
        return self._holds(0, lib.PTG_SLOTS)

    def is_watched(self) -> bool:
        """Whether somebody watches the ledger from outside."""
        return self._holds(lib.PTG_LOCK_WATCH)

    def _holds(self, start: int, length: int = 1) -> bool:
        """Whether a process holds a lock on these bytes of the ledger."""
        try:
            fd = os.open(self.ledger_path, OPEN_FLAGS)
        except OSError:
            return False
        try:
            return locks.is_locked(fd, start, length)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the directory; processes that have mapped its files keep them."""
        shutil.rmtree(self.path, ignore_errors=True)


def user_root() -> Path:
    """Return the directory of this user's hand-overs, made with mode 0700.

    Raises LaunchError where somebody else made it first: in /tmp anybody can.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        root = Path(runtime, names.USER_DIRECTORY)
    else:
        root = Path(f"/tmp/{names.USER_DIRECTORY}-{os.geteuid()}")  # noqa: S108 -- owner and mode are checked below
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        value = f"owned by uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        raise LaunchError(
            str(root), value, f"a directory of uid {os.geteuid()} alone", "remove it or set XDG_RUNTIME_DIR"
        )
    return root


def living(roots: Iterable[Path] | None = None) -> list[HandOver]:
    """Return the hand-overs in use, by name: this user's and, where readable, the agent's."""
    found: list[HandOver] = []
    for root in roots if roots is not None else (user_root(), Path(names.HOST_ROOT)):
        with contextlib.suppress(OSError):
            found += [HandOver(path) for path in root.iterdir() if (path / names.POLICY_FILE).exists()]
    return sorted(alive(found), key=lambda entry: entry.name)


def alive(entries: Iterable[HandOver]) -> list[HandOver]:
    """Return those in use: watched, with a slot that is held, or with a process that was started under them."""
    found = [(entry, entry.is_locked()) for entry in entries]
    named = used_of([entry.path for entry, locked in found if not locked])
    return [entry for entry, locked in found if locked or entry.path in named]


def find(name: str) -> HandOver:
    """Return the living hand-over with this name or the only one whose name starts so; raises NotFoundError."""
    there = living()
    fitting = [entry for entry in there if entry.name == name] or [
        entry for entry in there if entry.name.startswith(name)
    ]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(entry.name for entry in there) or "none"
    value = "not running" if not fitting else f"means {len(fitting)} of them"
    raise NotFoundError(f"hand-over '{name}'", value, f"running: {known}", "see `partage top --once`")


@contextlib.contextmanager
def registry(root: Path) -> Iterator[None]:
    """Hold the lock under which shares are added up and promised; raises PolicyError where it is not ours to take."""
    path = root / names.REGISTRY_LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        step = "only the owner of the hand-overs may change them"
        raise PolicyError(str(path), error.strerror or error, "a file that we may change", step) from error
    try:
        if not locks.try_lock(fd, 0):
            log.info("waiting for another command that adds up the shares", lock=str(path))
        with locks.locked(fd, 0):
            yield
    finally:
        os.close(fd)


def sweep(root: Path) -> None:
    """Remove what nobody uses any more; callers hold the registry's lock."""
    there = [HandOver(path) for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    for entry in set(there).difference(alive(there)):
        entry.remove()


def check_room(wanted: Policy, devices: dict[str, Device], root: Path, *, instead_of: HandOver | None = None) -> None:
    """Refuse a policy whose shares the cards cannot keep beside all others; callers hold the registry's lock.

    `instead_of` is the hand-over that the policy would change. Raises ShareRefused with the sums, and PolicyError
    where a living neighbour's policy cannot be read: what it holds is then unknown.
    """
    others = [entry for entry in living([root]) if instead_of is None or entry.path != instead_of.path]
    policies = {entry.name: entry.policy() for entry in others}
    for share in wanted.devices:
        beside = {name: held for name, policy in policies.items() if (held := policy.device(share.uuid))}
        who = ", ".join(beside) or "nobody"
        if share.uuid not in devices:
            raise DeviceError(
                f"device {share.uuid}", "not on this machine", "a share needs its card", "run `partage doctor`"
            )
        card = devices[share.uuid].allocatable
        room = card - sum(held.memory for held in beside.values())
        if share.memory > room:
            raise ShareRefused(
                f"share of {share.uuid}",
                f"memory {format_memory(share.memory)} asked",
                f"{format_memory(max(room, 0))} of {format_memory(card)} is free (held by {who})",
                "ask for less, use another device, or end one of them",
            )
        promised = sum(held.cores for held in beside.values())
        if share.cores > 1000 - promised:
            raise ShareRefused(
                f"share of {share.uuid}",
                f"cores {format_cores(share.cores)} asked, {format_cores(promised + share.cores)} with all promised",
                f"{format_cores(max(1000 - promised, 0))} is free (held by {who})",
                "ask for less, use another device, or end one of them",
            )


def create(root: Path, stem: str, policy: Policy, devices: dict[str, Device]) -> tuple[HandOver, PolicyFile]:
    """Make a hand-over for `policy` and return it with its writer; raises ShareRefused where there is no room.

    The new ledger has no watcher yet: the caller takes the watch before it lets the registry's lock go.
    """
    sweep(root)
    check_room(policy, devices, root)
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip("-.")[:32] or "program"
    entry = HandOver(root / f"{readable}-{secrets.token_hex(3)}")
    entry.path.mkdir(mode=0o700)
    create_turns(entry.path / names.TURNS_FILE, len(policy.devices))
    create_ledger(entry.ledger_path, [device.uuid for device in policy.devices])
    return entry, PolicyFile.create(entry.policy_path, policy)
