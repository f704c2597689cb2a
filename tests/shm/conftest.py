"""A ledger as a tenant leaves it, written through the same C structures that the library maps."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partage import locks
from partage._abi import ffi, lib
from partage.shm import create_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

UUID = "GPU-00000000-0000-0000-0000-000000000001"
LINE = ffi.sizeof("struct ptg_slot_turn")


class Tenant:
    """Plays a container's processes on a ledger: takes slots, charges, dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self.fd, ffi.sizeof("struct ptg_ledger"))
        self.ledger = ffi.from_buffer("struct ptg_ledger *", self._map)
        self.held: dict[int, int] = {}

    def take(self, index: int, *, pid: int | None = None, name: bytes = b"tenant", start: int = 0) -> Any:
        """Take a slot as a process does: its lock on a description of its own, then its identity."""
        self.held[index] = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        assert locks.try_lock(self.held[index], index)
        slot = self.ledger.slot[index]
        self.ledger.high = max(self.ledger.high, index + 1)
        slot.generation += 1
        slot.pid, slot.start_time = pid or os.getpid(), start
        slot.pid_ns = Path("/proc/self/ns/pid").stat().st_ino
        slot.name = name
        slot.state = lib.PTG_SLOT_USED
        self.ledger.doorbell += 1
        lib.ptg_futex_wake(ffi.addressof(self.ledger, "doorbell"))
        return slot

    def charge(self, index: int, units: int, *, complete: bool = True, device: int = 0) -> None:
        """Charge by the protocol of ledger.h; `complete=False` is a process killed before its last step."""
        target = self.ledger.device[device]
        word = target.word
        used, last, number = word >> 32, (word >> 22) & 0x3FF, word & 0x3FFFFF
        before = self.ledger.slot[last].device[device]
        if before.done & 0x3FFFFF != number and before.next & 0x3FFFFF == number:
            before.done = before.next
        mine = self.ledger.slot[index].device[device]
        following = (number + 1) & 0x3FFFFF
        mine.next = ((mine.done >> 32) + units) << 32 | following
        target.word = (used + units) << 32 | index << 22 | following
        if complete:
            mine.done = mine.next

    def die(self, index: int) -> None:
        """Drop the slot's lock, as the kernel does at death."""
        os.close(self.held.pop(index))

    def close(self) -> None:
        for index in list(self.held):
            self.die(index)
        ffi.release(self.ledger)
        self._map.close()
        os.close(self.fd)


def write_line(path: Path, device: int, slot: int, **values: Any) -> None:
    """Write what a process says to the arbiter on one device."""
    line = ffi.new("struct ptg_slot_turn *", values)
    with path.open("r+b") as file:
        file.seek(ffi.offsetof("struct ptg_ledger", "turn") + (device * lib.PTG_SLOTS + slot) * LINE)
        file.write(bytes(ffi.buffer(line)))


def write_turn(path: Path, index: int, arbiter: int, **values: Any) -> None:
    """Change one container's turn on one device, as an arbiter does."""
    image = ffi.new("struct ptg_turns *")
    data = bytearray(path.read_bytes())
    ffi.memmove(image, bytes(data), len(data))
    image.arbiter = arbiter
    for name, value in values.items():
        setattr(image.turn[index], name, value)
    path.write_bytes(bytes(ffi.buffer(image)))


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Tenant]:
    """A tenant on a fresh ledger of one device."""
    path = tmp_path / "ledger"
    create_ledger(path, [UUID])
    player = Tenant(path)
    yield player
    player.close()
