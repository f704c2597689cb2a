"""The turns file: whose turn it is. The arbiter writes it; here it is made, before the policy becomes valid, and read.

`partage top` and `doctor` read it: who is charged how much, whether an arbiter answers.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from partage._abi import ffi, lib
from partage.shm.files import OPEN_FLAGS

if TYPE_CHECKING:
    from pathlib import Path

SIZE: Final[int] = ffi.sizeof("struct ptg_turns")


def create_turns(path: Path, ndev: int) -> None:
    """Make a turns file for `ndev` devices in which nobody holds a turn; the magic is written last."""
    image = ffi.new("struct ptg_turns *")
    image.layout, image.size, image.ndev = lib.PTG_TURNS_LAYOUT, SIZE, ndev
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, bytes(ffi.buffer(image)), 0)
        os.pwrite(fd, struct.pack("<Q", lib.PTG_TURNS_MAGIC), 0)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Turn:
    """A container's turn on one device. Moments are ns of CLOCK_MONOTONIC; `fallback` is permille, 0 = the policy's."""

    is_open: bool
    is_watched: bool
    is_short: bool
    serial: int
    deadline_ns: int
    heartbeat_ns: int
    outstanding_us: int
    fallback: int
    charged_ns: int

    def is_answered(self, now: int) -> bool:
        """Whether an arbiter has given a sign of life within its patience before `now` (it gives none while idle)."""
        return bool(self.heartbeat_ns) and now - self.heartbeat_ns <= lib.PTG_PATIENCE_NS


@dataclass(frozen=True, slots=True)
class Turns:
    """A snapshot of the file: the arbiter's pid in its own namespace (0: none came yet), a turn per device."""

    arbiter: int
    turns: tuple[Turn, ...]


def read_turns(path: Path) -> Turns | None:
    """Return the turns file at `path`; None where it is missing, short or foreign."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError:
        return None
    try:
        data = os.pread(fd, SIZE, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(data) < SIZE:
        return None
    image = ffi.from_buffer("struct ptg_turns *", data)
    head = (image.magic, image.layout, image.size)
    if head != (lib.PTG_TURNS_MAGIC, lib.PTG_TURNS_LAYOUT, SIZE) or image.ndev > lib.PTG_DEVICES:
        return None
    return Turns(image.arbiter, tuple(_turn(image.turn[i]) for i in range(image.ndev)))


def _turn(turn: Any) -> Turn:
    return Turn(
        is_open=bool(turn.word & 1),
        is_watched=bool(turn.flags & lib.PTG_TURN_WATCHED),
        is_short=bool(turn.flags & lib.PTG_TURN_SHORT),
        serial=turn.serial,
        deadline_ns=turn.deadline_ns,
        heartbeat_ns=turn.heartbeat_ns,
        outstanding_us=turn.outstanding_us,
        fallback=turn.fallback,
        charged_ns=turn.charged_ns,
    )


def read_turns_size(path: Path) -> int | None:
    """Return the number of devices in the turns file at `path`; None where it is missing, short or foreign."""
    found = read_turns(path)
    return None if found is None else len(found.turns)
