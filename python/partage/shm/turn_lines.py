"""What each process of a container says to the arbiter: its line per device in the ledger (struct ptg_slot_turn).

Only the lines of slots in use are read, by pread, at most once a device, so that a look costs microseconds with few
processes and never the whole megabyte. Every value is a tenant's claim. Called by `partage top` and `doctor`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage._abi import ffi, lib
from partage.model.errors import LedgerError
from partage.shm.files import OPEN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TURNS: Final[int] = ffi.offsetof("struct ptg_ledger", "turn")
_LINE: Final = struct.Struct("<QQIIQQQQQ")  # in the order of struct ptg_slot_turn
_SIZE: Final[int] = ffi.sizeof("struct ptg_slot_turn")
_FIELDS: Final = ("busy_ns", "idle_ns", "want", "degraded", "want_ns", "flight_ns", "waited_ns", "waits", "launches")
if [name for name, _ in ffi.typeof("struct ptg_slot_turn").fields] != list(_FIELDS) or _LINE.size != _SIZE:
    message = "struct ptg_slot_turn is not what this reader knows"
    raise ImportError(message)


@dataclass(frozen=True, slots=True)
class SlotTurn:
    """One process on one device. Moments are ns of CLOCK_MONOTONIC, 0 for "not now"; sums are ns since it started."""

    busy_ns: int
    idle_ns: int
    want: int
    degraded: bool
    want_ns: int
    flight_ns: int
    waited_ns: int
    waits: int
    launches: int

    def flight_at(self, now: int) -> int:
        """Return the ns with work in flight until `now`, the present period included."""
        return self.flight_ns + (max(0, now - self.busy_ns) if self.busy_ns else 0)

    def waited_at(self, now: int) -> int:
        """Return the ns that it waited for turns until `now`, the present wait included."""
        return self.waited_ns + (max(0, now - self.want_ns) if self.want and self.want_ns else 0)


def read_turn_lines(path: Path, slots: Iterable[int], ndev: int) -> dict[int, tuple[SlotTurn, ...]]:
    """Return for each slot its line on each of the ledger's first `ndev` devices; raises LedgerError."""
    wanted = sorted({slot for slot in slots if 0 <= slot < lib.PTG_SLOTS})
    if not wanted:
        return {}
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError as error:
        raise _defect(path, error.strerror or error) from error
    try:
        lines = [_read_device(fd, device, wanted) for device in range(min(ndev, lib.PTG_DEVICES))]
    except OSError as error:
        raise _defect(path, error.strerror or error) from error
    except struct.error as error:
        raise _defect(path, "cut short") from error
    finally:
        os.close(fd)
    return {slot: tuple(line[i] for line in lines) for i, slot in enumerate(wanted)}


def _read_device(fd: int, device: int, slots: list[int]) -> list[SlotTurn]:
    first = slots[0]
    start = _TURNS + (device * lib.PTG_SLOTS + first) * _SIZE
    data = os.pread(fd, (slots[-1] - first + 1) * _SIZE, start)
    found = [_LINE.unpack_from(data, (slot - first) * _SIZE) for slot in slots]
    return [SlotTurn(busy, idle, want, bool(degraded), *rest) for busy, idle, want, degraded, *rest in found]


def _defect(path: Path, value: object) -> LedgerError:
    return LedgerError(f"ledger {path}", value, "a readable ledger", "restart the container's program")
