"""The policy file: one container's grant, as libvgpu.so reads it.

`Policy` is the content; `encode`/`decode` translate; `read_policy` reads a file; `PolicyFile` writes one in place.
Called by `partage run` and the agent (writers), by `partage top`, `resize` and `doctor` (readers). Several writers of
one machine (the watcher's correction, a resize) take turns by an OFD lock beside the hand-overs, out of every tenant's
reach, and each changes only its own fields, so none undoes the other. A writer killed half-way leaves an odd sequence
number; readers then keep their last good copy, and the next writer completes it.

Every defect of a file is a PolicyError; nothing in a file can raise anything else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from partage._abi import ffi, lib
from partage.locks import is_locked, locked
from partage.model import PolicyError, names
from partage.shm.files import OPEN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE: Final[int] = ffi.sizeof("struct ptg_policy")
MAX_DEVICES: Final[int] = lib.PTG_DEVICES
CLASSES: Final = ("fixed", "burst", "best-effort")  # position = PTG_CLASS_*
_ENFORCEMENT: Final = (
    (lib.PTG_ENFORCE_MIG, "mig"),
    (lib.PTG_ENFORCE_VENDOR, "vendor"),
    (lib.PTG_ENFORCE_DMEM, "dmem"),
    (lib.PTG_ENFORCE_MPS, "mps"),
    (lib.PTG_ENFORCE_SHIM, "shim"),
)
_RETRY_NS: Final = 1_000_000  # a reader's patience with what looks like a write in progress
_WRITER_NS: Final = 500_000_000  # and while there is a writer: a busy machine may not run it for that long
_AGAIN_S: Final = 0.0001
_WRITERS: Final = 1  # byte of the registry's lock file: whoever changes a policy beside it


@dataclass(frozen=True, slots=True)
class PolicyDevice:
    """One device of the grant. Memory, overhead, physical and context in bytes; cores and ceiling in permille."""

    uuid: str
    memory: int
    physical: int
    cores: int = 0
    ceiling: int = 1000
    weight: int = 100
    overhead: int = 0
    gated: bool = False
    turn: int = 0
    context: int | None = None  # None: nobody knows better than the library
    audit_ns: int = 0  # only grows: what NVML saw and the arbiter had not charged


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy; a device's position is its ordinal in the container."""

    devices: tuple[PolicyDevice, ...]
    is_open: bool = True
    share_class: str = "burst"
    priority: int = 1
    enforcement: int = lib.PTG_ENFORCE_SHIM
    flags: int = 0
    generation: int = 1

    @property
    def enforced_by(self) -> str:
        """What holds the limit, the strongest first, e.g. `shim`; `none` where nothing does."""
        return next((name for bit, name in _ENFORCEMENT if self.enforcement & bit), "none")

    def device(self, uuid: str) -> PolicyDevice | None:
        """Return the device with this UUID, or None."""
        return next((device for device in self.devices if device.uuid == uuid), None)

    def changed(self, uuid: str, /, **changes: Any) -> Policy:
        """Return a copy in which the device `uuid` has other values."""
        devices = tuple(replace(device, **changes) if device.uuid == uuid else device for device in self.devices)
        return replace(self, devices=devices)


def _defect(where: str, value: object, limit: str) -> PolicyError:
    return PolicyError(f"policy {where}", value, limit, "the container is closed until its writer repairs the file")


def _check(policy: Policy, where: str) -> None:
    """Raise PolicyError where a value is out of bounds: the same bounds that libvgpu.so holds a policy to."""
    if len(policy.devices) > MAX_DEVICES:
        raise _defect(where, f"{len(policy.devices)} devices", f"at most {MAX_DEVICES}")
    if policy.share_class not in CLASSES or policy.priority not in {0, 1, 2}:
        raise _defect(where, f"class {policy.share_class!r}, priority {policy.priority}", f"{CLASSES}, 0 to 2")
    if not 0 <= policy.generation < 1 << 64:
        raise _defect(where, f"generation {policy.generation}", "0 to 2^64 - 1")
    for device in policy.devices:
        name = device.uuid.encode("utf-8", "replace")
        if not 0 < len(name) < lib.PTG_UUID_SIZE or not device.uuid.isprintable():
            raise _defect(where, f"UUID {device.uuid!r}", f"1 to {lib.PTG_UUID_SIZE - 1} printable bytes")
        if not 0 < device.memory < 1 << 63 or not 0 <= device.physical < 1 << 63:
            raise _defect(where, f"memory {device.memory} of {device.physical} bytes", "1 byte to 2^63 - 1")
        if not 0 <= device.overhead < 1 << 63 or not 0 <= (device.context or 0) < 1 << 63:
            values = f"overhead {device.overhead}, context {device.context} bytes"
            raise _defect(where, values, "0 to 2^63 - 1: a negative overhead would outlive what it corrects")
        if not (device.cores <= 1000 and 1 <= device.ceiling <= 1000 and 1 <= device.weight <= 10000):
            values = f"cores {device.cores} ‰, ceiling {device.ceiling} ‰, weight {device.weight}"
            raise _defect(where, values, "cores up to 1000, ceiling 1 to 1000, weight 1 to 10000")
        if not 0 <= device.audit_ns < 1 << 64:
            raise _defect(where, f"audited time {device.audit_ns} ns", "0 to 2^64 - 1")
        if device.turn >= MAX_DEVICES:
            raise _defect(where, f"turn {device.turn}", f"an index below {MAX_DEVICES}")


def encode(policy: Policy) -> Any:
    """Return the policy as `struct ptg_policy *`, checksum included, sequence number 0."""
    _check(policy, "to be written")
    image = ffi.new("struct ptg_policy *")
    image.magic, image.layout, image.size = lib.PTG_POLICY_MAGIC, lib.PTG_POLICY_LAYOUT, SIZE
    image.generation, image.flags, image.priority = policy.generation, policy.flags, policy.priority
    image.state = lib.PTG_STATE_OPEN if policy.is_open else lib.PTG_STATE_CLOSED
    image.share_class, image.enforcement = CLASSES.index(policy.share_class), policy.enforcement
    image.ndev = len(policy.devices)
    image.gated = sum(1 << index for index, device in enumerate(policy.devices) if device.gated)
    for target, device in zip(image.device, policy.devices, strict=False):
        target.uuid = device.uuid.encode()
        target.memory, target.overhead, target.physical = device.memory, device.overhead, device.physical
        target.cores, target.ceiling, target.weight = device.cores, device.ceiling, device.weight
        target.gated, target.turn = device.gated, device.turn
        target.context = lib.PTG_CONTEXT_UNKNOWN if device.context is None else device.context
        target.audit_ns = device.audit_ns
    image.crc32c = lib.ptg_policy_crc(image)
    return image


def decode(data: bytes, where: str = "in memory") -> Policy:
    """Return the policy in `data`; raises PolicyError where it is short, foreign, being written, torn or absurd."""
    if len(data) < SIZE:
        raise _defect(where, f"{len(data)} bytes", f"a policy has {SIZE}")
    image = ffi.new("struct ptg_policy *")
    ffi.memmove(image, data, SIZE)
    if image.magic != lib.PTG_POLICY_MAGIC or image.layout != lib.PTG_POLICY_LAYOUT or image.size != SIZE:
        found = f"magic {image.magic:#x}, layout {image.layout}, size {image.size}"
        raise _defect(where, found, f"{lib.PTG_POLICY_MAGIC:#x}, {lib.PTG_POLICY_LAYOUT}, {SIZE}")
    if image.seq & 1 or image.crc32c != lib.ptg_policy_crc(image):
        found = f"sequence {image.seq}, checksum {image.crc32c:#010x}"
        raise _defect(where, found, f"an even sequence, checksum {lib.ptg_policy_crc(image):#010x}")
    if image.ndev > MAX_DEVICES or image.share_class >= len(CLASSES) or image.state > lib.PTG_STATE_OPEN:
        found = f"{image.ndev} devices, class {image.share_class}, state {image.state}"
        raise _defect(where, found, f"at most {MAX_DEVICES}, {len(CLASSES) - 1}, {lib.PTG_STATE_OPEN}")
    policy = Policy(
        devices=tuple(_decode_device(image.device[i]) for i in range(image.ndev)),
        is_open=image.state == lib.PTG_STATE_OPEN,
        share_class=CLASSES[image.share_class],
        priority=image.priority,
        enforcement=image.enforcement,
        flags=image.flags,
        generation=image.generation,
    )
    _check(policy, where)
    return policy


def _decode_device(source: Any) -> PolicyDevice:
    return PolicyDevice(
        uuid=ffi.string(source.uuid).decode("utf-8", "replace"),
        memory=source.memory,
        physical=source.physical,
        cores=source.cores,
        ceiling=source.ceiling,
        weight=source.weight,
        overhead=source.overhead,
        gated=bool(source.gated),
        turn=source.turn,
        context=None if source.context == lib.PTG_CONTEXT_UNKNOWN else source.context,
        audit_ns=source.audit_ns,
    )


def read_policy(path: Path) -> Policy:
    """Return the policy at `path`, waiting for a write in progress; raises PolicyError.

    That is for 1 ms, and where a writer has the lock for half a second at most: it may be one that stands still.
    """
    begin, was_free = time.monotonic_ns(), False
    while True:
        data = _read(path)
        try:
            return decode(data, str(path))
        except PolicyError:
            waited, is_free = time.monotonic_ns() - begin, not _is_written(path)
            if waited >= _WRITER_NS or (waited >= _RETRY_NS and was_free and is_free):
                raise
        was_free = is_free
        time.sleep(_AGAIN_S)


def _is_written(path: Path) -> bool:
    """Whether somebody changes a policy beside this one or this one; False where the lock is not ours to look at."""
    try:
        fd = os.open(_lock_of(path), os.O_RDONLY | OPEN_FLAGS)
    except OSError:
        return False
    try:
        return is_locked(fd, _WRITERS)
    finally:
        os.close(fd)


def _lock_of(path: Path) -> Path:
    return path.absolute().parent.parent / names.REGISTRY_LOCK


def _open_lock(path: Path) -> int:
    """Open the lock file beside the hand-over in which the policy at `path` lies; raises PolicyError."""
    lock = _lock_of(path)
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _defect(str(path), f"{lock}: {error.strerror}", "a lock file that its writer may change") from error


def _read(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError as error:
        raise _defect(str(path), error.strerror or error, "a readable file") from error
    try:
        return os.pread(fd, SIZE, 0)
    except OSError as error:
        raise _defect(str(path), error.strerror or error, "a regular file") from error
    finally:
        os.close(fd)


class PolicyFile:
    """A policy that we write: changed in place, so that every process that maps it sees the change at once."""

    def __init__(self, path: Path, fd: int) -> None:
        """Take a descriptor of the file over; it is closed where this fails."""
        self.path = path
        self._fd = fd
        with contextlib.ExitStack() as half_made:
            half_made.callback(os.close, fd)
            self._lock = _open_lock(path)
            half_made.callback(os.close, self._lock)
            if lib.ptg_guard_install() < 0:
                raise _defect(str(path), "no SIGBUS guard", "a handler that can be installed")
            try:
                self._map = mmap.mmap(fd, SIZE)
            except (OSError, ValueError) as error:
                raise _defect(str(path), f"cannot be mapped ({error})", f"room for {SIZE} bytes") from error
            half_made.pop_all()
        self._shared = ffi.from_buffer("struct ptg_policy *", self._map)
        self._last: Policy | None = None
        self._seen: tuple[bytes, Policy] | None = None

    @classmethod
    def create(cls, path: Path, policy: Policy) -> Self:
        """Make the file with this content (readable for everyone who can reach its directory)."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with contextlib.ExitStack() as half_made:
            half_made.callback(os.close, fd)
            os.ftruncate(fd, SIZE)
            half_made.pop_all()
            file = cls(path, fd)
            half_made.callback(file.close)
            file.update(lambda _: policy)
            half_made.pop_all()
        return file

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing file for changes; raises PolicyError where it is missing, short or not ours to change."""
        try:
            fd = os.open(path, os.O_RDWR | OPEN_FLAGS)
        except OSError as error:
            raise _defect(str(path), error.strerror or error, "a file that we may change") from error
        size = os.fstat(fd).st_size
        if size < SIZE:
            os.close(fd)
            raise _defect(str(path), f"{size} bytes", f"a policy has {SIZE}")
        return cls(path, fd)

    def update(self, change: Callable[[Policy], Policy]) -> Policy:
        """Apply `change` to what the file says now and return the result.

        Where the file is torn (a writer was killed), the content this object wrote or read last is the base; raises
        PolicyError where there is none.
        """
        with locked(self._lock, _WRITERS):
            before, intact = self._current()
            after = change(before)
            if after != before or not intact:
                result = lib.ptg_policy_publish(self._shared, encode(after))
                if result < 0:
                    raise _defect(str(self.path), os.strerror(-result), f"a policy of {SIZE} bytes")
            self._last = after
        return after

    def read(self) -> Policy:
        """Return what the file says, the same object as long as that does not change; raises PolicyError."""
        data = os.pread(self._fd, SIZE, 0)
        if self._seen is None or self._seen[0] != data:
            self._seen = (data, decode(data, str(self.path)))
        return self._seen[1]

    def _current(self) -> tuple[Policy, bool]:
        """Return what the file says, or what it said last, and whether it is intact."""
        data = os.pread(self._fd, SIZE, 0)
        if not any(data):
            return Policy(devices=(), is_open=False), False  # just made
        try:
            return decode(data, str(self.path)), True
        except PolicyError:
            if self._last is None:
                raise
            return self._last, False

    @property
    def is_in_place(self) -> bool:
        """Whether this is the file at its path still: one that was removed reaches only who has it mapped."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    @property
    def is_gated(self) -> bool:
        """Whether the container takes turns on any device, as the file says now."""
        return bool(lib.ptg_policy_gated(self._shared))

    def shut(self) -> None:
        """Put the container into the closed state: every further allocation is refused."""
        self.update(lambda policy: replace(policy, is_open=False))

    def close(self) -> None:
        """Unmap and close; the file stays."""
        ffi.release(self._shared)
        self._map.close()
        os.close(self._fd)
        os.close(self._lock)
