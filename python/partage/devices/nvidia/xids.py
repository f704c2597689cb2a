"""XIDs as they happen, from NVML's event set, on a thread of its own: the wait is a call into the driver.

`XidThread` is told which cards to watch and tells what it sees through a callback on that thread. It waits in slices,
so that a stop or a change of the cards is noticed; whoever stops it need not wait, since it lets its session of NVML go
itself. What can go wrong: a card that is lost makes every wait fail, so the set is made anew of those that still
register, with a pause between failures that a change of the cards ends. Where one does not register, or a wait fails,
whoever listens is told to look at all of them (`Disturbed`): no event would.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pynvml

from partage.devices.nvidia.cards import text
from partage.devices.nvidia.nvml import Nvml, translated
from partage.model import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SLICE_MS: Final = 2000
SLICE_MISSING_MS: Final = 250  # while a card is not in the set: when it is back, its events count
PAUSE_S: Final = 1.0
PAUSE_LAST_S: Final = 30.0  # where it fails again and again: boards without events
_WANTED: Final = pynvml.nvmlEventTypeXidCriticalError
_RECOVERY: Final = getattr(pynvml, "nvmlEventTypeGpuRecoveryAction", 0)


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID on a card."""

    uuid: str
    number: int


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Something happened of which NVML does not say where: each card has to be asked; `reason` for the log."""

    reason: str


class XidThread:
    """Watches cards until stopped; `tell` is called on this thread, and returns False once nobody listens."""

    def __init__(self, libraries: Path | None, tell: Callable[[Xid | Disturbed], bool]) -> None:
        self._libraries = libraries
        self._tell = tell
        self._cards: frozenset[str] = frozenset()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partage-xids", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def watch(self, uuids: frozenset[str]) -> None:
        """Watch these cards from now on, those that can be watched."""
        self._cards = uuids
        self._changed.set()

    def stop(self) -> None:
        """Let it end; it does within a slice, without anybody waiting for it."""
        self._stopped.set()
        self._changed.set()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        pause = PAUSE_S
        while not self._stopped.is_set():
            begin = time.monotonic()
            try:
                with Nvml(self._libraries):
                    self._serve()
            except DeviceError as error:
                pause = PAUSE_S if time.monotonic() - begin > pause else min(2 * pause, PAUSE_LAST_S)
                self._say(Disturbed(str(error)))
                self._changed.wait(pause)  # a card that came back is not kept waiting

    def _say(self, what: Xid | Disturbed) -> None:
        if not self._tell(what):
            self._stopped.set()

    def _serve(self) -> None:
        """Watch with one set for as long as neither the cards change nor the wait fails."""
        self._changed.clear()
        with translated("NVML's events"):
            events = pynvml.nvmlEventSetCreate()
        try:
            uuids, refused = _register(events, self._cards)
            if refused:
                self._say(Disturbed(f"no events of {', '.join(refused)}"))
            while not self._changed.is_set():
                if uuids:
                    self._wait(events, uuids, SLICE_MISSING_MS if refused else SLICE_MS)
                else:
                    self._changed.wait(SLICE_MS / 1000)
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _wait(self, events: Any, uuids: dict[int, str], slice_ms: int) -> None:
        with translated("NVML's events"):
            try:
                event = pynvml.nvmlEventSetWait_v2(events, slice_ms)
            except pynvml.NVMLError_Timeout:
                return
            uuid = uuids.get(_address(event.device)) or _uuid(event.device, uuids.values())
            if uuid is None or event.eventType != _WANTED:
                self._say(Disturbed("an event of a card that is not known, or that NVML has an advice about"))
            else:
                self._say(Xid(uuid, int(event.eventData)))


def _register(events: Any, cards: frozenset[str]) -> tuple[dict[int, str], list[str]]:
    """Add the cards to a set; return those that could be, by the address of NVML's handle, and those that could not."""
    found: dict[int, str] = {}
    refused: list[str] = []
    for uuid in sorted(cards):
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            wanted = (_WANTED | _RECOVERY) & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
            found[_address(handle)] = uuid
        except pynvml.NVMLError:
            refused.append(uuid)
    return found, refused


def _address(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _uuid(handle: Any, known: Iterable[str]) -> str | None:
    """Return which of the known cards an event is of, whose handle is not the card's: NVML promises no one handle.

    None for an event of no card, and for a card that does not say.
    """
    if not handle:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        return uuid if uuid in known else None
    return None
