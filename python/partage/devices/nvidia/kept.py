"""The XIDs with which cards have failed, in a small file: a restart of the agent is no cure of a card.

Needed where the driver gives no advice, since such a card answers as if nothing had been; written and read by
`HealthWatch`. Forgotten with what a reset may have healed: after a reboot (another boot id), where the driver was
loaded anew (its directory in sysfs is another one), and where nobody has written for `GAP_S`: to reset a card the
agent has to be off, and a card that was reset then must come back. What can go wrong: no room, or no right (the log
says so, and the cards fail as before); a file that is not ours or spoilt says nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from partage.shm import OPEN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = ".failed-cards"
GAP_S: Final = 60.0
_SIZE_MAX: Final = 64 << 10  # bytes
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_DRIVER: Final = Path("/sys/module/nvidia")

log = structlog.get_logger("partage.nvidia")


class KeptXid(msgspec.Struct, frozen=True):
    """The XID with which a card failed, `since` when, and whether it was `away` after that (`health.py`)."""

    xid: int
    since: float
    away: bool = False


class _Kept(msgspec.Struct, frozen=True):
    era: str
    at: float  # of the clock that only goes forward, which goes on from one agent to the next
    cards: dict[str, KeptXid]


def era() -> str:
    """Return what is another after a reboot or where the driver was loaded anew; empty where that is not known."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    driver = 0
    with contextlib.suppress(OSError):
        driver = _DRIVER.stat().st_ino
    return f"{boot} {driver}"


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | OPEN_FLAGS)


class KeptXids:
    """The file in `directory`. Used from one thread."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._is_there = True  # for all we know
        self._said = ""

    def read(self, now: float) -> dict[str, KeptXid]:
        """Return card -> what it failed with before this agent began; nothing where that is not known or over."""
        try:
            with open(self._path, "rb", opener=_opener) as file:
                found = msgspec.json.decode(file.read(_SIZE_MAX), type=_Kept)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            log.warning("XIDs of before are not known", file=str(self._path), error=str(error))
            return {}
        if not found.era or found.era != era() or not 0 <= now - found.at <= GAP_S:
            return {}
        kept = {uuid: one for uuid, one in found.cards.items() if one.xid > 0 and math.isfinite(one.since)}
        if kept:
            log.warning("cards failed before this agent began", xids={uuid: one.xid for uuid, one in kept.items()})
        return kept

    def write(self, cards: Mapping[str, KeptXid], now: float) -> None:
        """Keep these; nothing is left where there are none."""
        if not cards and not self._is_there:
            return
        beside = self._path.with_name(f"{FILE}.new")
        try:
            if cards:
                fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPEN_FLAGS, 0o600)
                with open(fd, "wb") as file:  # noqa: PTH123 -- a descriptor
                    file.write(msgspec.json.encode(_Kept(era(), now, dict(cards))))
                beside.rename(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.warning("XIDs cannot be kept over a restart of the agent", file=str(self._path), error=str(error))
            return
        self._is_there, self._said = bool(cards), ""
