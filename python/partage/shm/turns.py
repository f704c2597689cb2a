"""The turns file: whose turn it is. The arbiter writes it; here it is only made, before the policy becomes valid."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

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


def read_turns_size(path: Path) -> int | None:
    """Return the number of devices in the turns file at `path`; None where it is missing, short or foreign."""
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
    return int(image.ndev)
