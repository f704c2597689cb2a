"""The ledger: what a container's processes have charged, read from outside.

Every byte of it is a tenant's claim. Readers use pread, so a truncated file is an error and never a SIGBUS; each index
is bounds-checked; names are reduced to printable text before they can reach a terminal. Called by the watcher of
`partage run` and the agent (`WatchedLedger`), by `partage top` and `resize` (`read_ledger`). What processes say to the
arbiter lies behind the slots and is not read here, but by `partage.shm.turn_lines`.

Every defect is a LedgerError; nothing in a file can raise anything else.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from partage import locks
from partage._abi import ffi, lib
from partage.model.errors import LedgerBusyError, LedgerError
from partage.shm.files import OPEN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.shm.doorbells import Doorbells, Handle

SIZE: Final[int] = ffi.sizeof("struct ptg_ledger")
UNIT: Final[int] = lib.PTG_UNIT
SLOTS: Final[int] = lib.PTG_SLOTS
_HEADER: Final[int] = ffi.offsetof("struct ptg_ledger", "slot")
_SLOT: Final[int] = ffi.sizeof("struct ptg_slot")
_HIGH: Final[int] = ffi.offsetof("struct ptg_ledger", "high")
_FEW: Final = 8  # slots that are read at once; seldom are more in use
READ_SIZE: Final[int] = _HEADER + _FEW * _SLOT  # what a look reads, as a rule
_BELL: Final[int] = ffi.offsetof("struct ptg_ledger", "doorbell")
_AGAIN: Final = "end what holds it, or free descriptors and memory; the node agent tries again"
_FAREWELLS: Final = 100  # rings to end the listener, 10 ms apart


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """What one process claims of one device: bytes charged, bytes of them that are context estimates, refusals."""

    used: int
    context: int
    refused: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One process's place. `host_pid` is 0 until a watcher has found it."""

    index: int
    generation: int
    pid: int
    host_pid: int
    start_time: int
    pid_ns: int
    name: str
    devices: tuple[SlotDevice, ...]

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What tells this process from any other that may have had the slot."""
        return (self.index, self.pid, self.start_time, self.pid_ns)


@dataclass(frozen=True, slots=True)
class LedgerDevice:
    """One device of the container: total bytes charged and its raw word (changes with every charge)."""

    uuid: str
    used: int
    word: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """A snapshot. Not atomic: a charge in between shows as a sum that differs from the total for one reading."""

    devices: tuple[LedgerDevice, ...]
    slots: tuple[Slot, ...]
    doorbell: int
    reclaimed: int
    shared: tuple[int, ...] = ()  # slots of memory that several processes may hold

    def used(self, uuid: str) -> int:
        """Return the bytes charged on the device with this UUID; 0 where the ledger does not know it."""
        return next((device.used for device in self.devices if device.uuid == uuid), 0)


def _defect(where: str, value: object, limit: str) -> LedgerError:
    return LedgerError(f"ledger {where}", value, limit, "restart the container's program; its use cannot be read")


def printable(raw: bytes) -> str:
    """Return a tenant's bytes as text that is safe on a terminal."""
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)


def create_ledger(path: Path, uuids: Sequence[str]) -> None:
    """Make an empty ledger whose devices are `uuids`, in the policy's order."""
    header = ffi.new("char[]", _HEADER)  # all that is not zero lies in it
    image = ffi.cast("struct ptg_ledger *", header)
    image.layout, image.size = lib.PTG_LEDGER_LAYOUT, SIZE
    image.ndev, image.nslots = len(uuids), SLOTS
    for target, uuid in zip(image.uuid, uuids, strict=False):
        ffi.buffer(target)[: len(uuid)] = uuid.encode()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, SIZE)
        os.pwrite(fd, bytes(ffi.buffer(header)), 0)
        os.pwrite(fd, struct.pack("<Q", lib.PTG_LEDGER_MAGIC), 0)  # last: what it names is now complete
    finally:
        os.close(fd)


def decode(data: bytes, where: str = "in memory") -> Ledger:
    """Return the snapshot in `data`, the file's beginning: its header and at least the slots that were ever taken.

    Raises LedgerError where it is short, foreign or absurd.
    """
    if len(data) < _HEADER:
        raise _defect(where, f"{len(data)} bytes", f"the header has {_HEADER}")
    source = ffi.from_buffer("struct ptg_ledger *", data)
    if (source.magic, source.layout, source.size) != (lib.PTG_LEDGER_MAGIC, lib.PTG_LEDGER_LAYOUT, SIZE):
        found = f"magic {source.magic:#x}, layout {source.layout}, size {source.size}"
        raise _defect(where, found, f"{lib.PTG_LEDGER_MAGIC:#x}, {lib.PTG_LEDGER_LAYOUT}, {SIZE}")
    if source.ndev > lib.PTG_DEVICES or source.nslots != SLOTS:
        raise _defect(where, f"{source.ndev} devices, {source.nslots} slots", f"at most {lib.PTG_DEVICES}, {SLOTS}")
    there = _slots_in(data)
    if there < min(source.high, SLOTS):
        raise _defect(where, f"{there} slots", f"{min(source.high, SLOTS)} were taken")
    count = source.ndev
    states = memoryview(data)[_HEADER : _HEADER + there * _SLOT].cast("I")[:: _SLOT // 4].tolist()
    used = [index for index, state in enumerate(states) if state == lib.PTG_SLOT_USED]
    return Ledger(
        devices=tuple(_decode_device(source, i) for i in range(count)),
        slots=tuple(_decode_slot(source, index, count) for index in used),
        doorbell=source.doorbell,
        reclaimed=source.reclaimed,
        shared=tuple(index for index, state in enumerate(states) if state == lib.PTG_SLOT_SHARED),
    )


def _slots_in(data: bytes) -> int:
    """Return how many whole slots lie behind the header."""
    return max(0, min(SLOTS, (len(data) - _HEADER) // _SLOT))


def _decode_device(source: Any, index: int) -> LedgerDevice:
    device = source.device[index]
    return LedgerDevice(
        uuid=printable(bytes(ffi.buffer(source.uuid[index]))),
        used=(device.word >> lib.PTG_USED_SHIFT) * UNIT,
        word=device.word,
    )


def _decode_slot(source: Any, index: int, count: int) -> Slot:
    slot = source.slot[index]
    return Slot(
        index=index,
        generation=slot.generation,
        pid=slot.pid,
        host_pid=slot.host_pid,
        start_time=slot.start_time,
        pid_ns=slot.pid_ns,
        name=printable(bytes(ffi.buffer(slot.name))),
        devices=tuple(_decode_share(source, index, device) for device in range(count)),
    )


def _decode_share(source: Any, index: int, device: int) -> SlotDevice:
    """Return one process's part, a last change that nobody has completed yet included."""
    share = source.slot[index].device[device]
    word, mine = source.device[device].word, share.done
    is_last = (word >> lib.PTG_SLOT_SHIFT) & lib.PTG_SLOT_MASK == index
    if is_last and (word ^ share.next) & lib.PTG_SEQ_MASK == 0 and (word ^ mine) & lib.PTG_SEQ_MASK:
        mine = share.next
    return SlotDevice((mine >> lib.PTG_USED_SHIFT) * UNIT, share.context * UNIT, share.refused)


def _read(fd: int, path: Path, least: int = 0) -> bytes:
    """Return the header and the slots that were ever taken, at least the first `least`; raises LedgerError.

    A ledger has a megabyte of slots, and as a rule a handful is in use.
    """
    try:
        size = os.fstat(fd).st_size
        if size < SIZE:
            raise _defect(str(path), f"{size} bytes", f"a ledger has {SIZE}")
        data = os.pread(fd, READ_SIZE, 0)
        high = struct.unpack_from("<I", data, _HIGH)[0] if len(data) == READ_SIZE else 0
        wanted = _HEADER + min(SLOTS, max(high, least)) * _SLOT
        return data + os.pread(fd, wanted - len(data), len(data)) if wanted > len(data) else data
    except OSError as error:
        raise _defect(str(path), error.strerror or error, "a regular file") from error


def read_ledger(path: Path) -> Ledger:
    """Return a snapshot of the ledger at `path`; raises LedgerError."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError as error:
        raise _defect(str(path), error.strerror or error, "a readable file") from error
    try:
        return decode(_read(fd, path), str(path))
    finally:
        os.close(fd)


class WatchedLedger:
    """A ledger that this process watches: reclaims dead slots, names host pids, waits at the doorbell.

    Holds the byte PTG_LOCK_WATCH; raises LedgerBusyError where somebody else watches already or the file cannot be
    opened for now, LedgerError where it is not a ledger, or not ours any more: root in a container may give it away.
    `sole`: the caller knows by other means that nobody else watches, as the agent does, whose tenants could hold the
    byte themselves; it then goes on without.
    """

    def __init__(self, path: Path, *, sole: bool = False) -> None:
        self.path = path
        self._sole = sole
        try:
            self._fd = os.open(path, os.O_RDWR | OPEN_FLAGS)
        except PermissionError as error:
            raise _defect(str(path), error.strerror or error, "owner and mode as they were made") from error
        except OSError as error:
            value = error.strerror or error
            raise LedgerBusyError(f"ledger {path}", value, "a file that we may change", _AGAIN) from error
        self._data = b""  # that was read last, and what it says
        self._snapshot: Ledger | None = None
        with contextlib.ExitStack() as half_made:
            half_made.callback(os.close, self._fd)
            self._open()
            half_made.pop_all()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._bells: tuple[Doorbells, Handle] | None = None  # who listens for us, under which handle

    def _open(self) -> None:
        if not locks.try_lock(self._fd, lib.PTG_LOCK_WATCH) and not self._sole:
            raise LedgerBusyError(f"ledger {self.path}", "watched by another process", "one watcher a ledger", _AGAIN)
        self.read()
        if lib.ptg_guard_install() < 0:
            raise LedgerBusyError(f"ledger {self.path}", "no SIGBUS guard", "a handler that can be installed", _AGAIN)
        try:
            self._map = mmap.mmap(self._fd, SIZE)
        except ValueError as error:  # cut since it was read
            raise _defect(str(self.path), f"cannot be mapped ({error})", f"{SIZE} bytes") from error
        except OSError as error:
            value = f"cannot be mapped ({error})"
            raise LedgerBusyError(f"ledger {self.path}", value, f"room for {SIZE} bytes", _AGAIN) from error
        self._shared = ffi.from_buffer(self._map)

    def read(self) -> Ledger:
        """Return a snapshot, the same object as long as nothing changes; raises LedgerError.

        What its tenant says was never taken is read where it was before. What lies behind the ledger's end is taken
        away: a tenant could fill a disk.
        """
        data = _read(self._fd, self.path, _slots_in(self._data))
        if self._snapshot is None or data != self._data:
            self._snapshot = decode(data, str(self.path))
            self._data = data
        if os.fstat(self._fd).st_size > SIZE:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, SIZE)
        return self._snapshot

    def is_alive(self, index: int) -> bool:
        """Whether the slot's lock is held: by its process, or for a moment by whoever reclaims it."""
        return locks.is_locked(self._fd, index)

    def is_mapped_by(self, pid: int) -> bool:
        """Whether a process has the ledger in its address space; True where that cannot be told."""
        inode = str(os.fstat(self._fd).st_ino)
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            return True
        return not lines or any(line.split(None, 5)[4:5] == [inode] for line in lines)

    def reclaim(self, index: int, *, dead: bool = False) -> bool:
        """Give back what a dead process had charged; False where its lock is still held.

        `dead`: the caller saw the process end (pidfd), so a lock that some raw clone's child still holds is no proof
        of life. Raises LedgerError where the tenant truncated the file or changes it for ever.
        """
        result = lib.ptg_slot_reclaim(self._fd, self._shared, index, dead)
        if result == -errno.EAGAIN and not dead:
            return False
        if result < 0:
            raise _defect(str(self.path), os.strerror(-result), "a ledger that its tenant leaves whole")
        return True

    def set_host_pid(self, index: int, pid: int) -> None:
        """Write down which process of this host a slot is; a truncated file is left for `read` to report."""
        lib.ptg_slot_set_host_pid(self._shared, index, pid)

    def start_doorbell(self, bells: Doorbells | None = None) -> int:
        """Return an eventfd that becomes readable whenever a tenant rings (and at once, for what came before).

        `bells` listen where they can, else a thread of our own does.
        """
        bell = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if bells is not None:
            address = int(ffi.cast("uintptr_t", self._shared)) + _BELL
            handle = bells.add(address, self._fd, _BELL, bell)
            if handle is not None:
                self._bells = (bells, handle)
                return bell
        self._thread = threading.Thread(target=self._listen, args=(bell,), name="doorbell", daemon=True)
        self._thread.start()
        return bell

    def _listen(self, event: int) -> None:
        """Sleep on the doorbell; ends when the ledger is closed or truncated (the event then stays ready)."""
        seen: int | None = None
        while not self._closing:
            data = os.pread(self._fd, 4, _BELL)
            if len(data) < 4:
                os.eventfd_write(event, 1)
                return
            now = struct.unpack("<I", data)[0]
            if now != seen:
                seen = now
                os.eventfd_write(event, 1)
            if lib.ptg_futex_wait(self._shared + _BELL, seen, -1) == -errno.EFAULT:
                os.eventfd_write(event, 1)
                return

    def _wake(self) -> None:
        """Ring our own bell. Where the tenant has cut the file, the page that the sleeper waits on is made again."""
        if lib.ptg_doorbell_ring(self._shared) == -errno.EFAULT:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, SIZE)

    def close(self) -> None:
        """Stop listening, let the watcher's lock go; bounded, whatever the tenant does to the file meanwhile."""
        self._closing = True
        if self._bells is not None:
            bells, handle = self._bells
            bells.remove(handle)
        if self._thread is not None:
            for _ in range(_FAREWELLS):
                self._wake()
                self._thread.join(0.01)
                if not self._thread.is_alive():
                    break
            else:
                return  # its tenant cuts the file again and again: the sleeper keeps what it sleeps on
        ffi.release(self._shared)
        self._map.close()
        os.close(self._fd)
