"""Open hand-overs of which a file was removed on the host, by hand or by a cleaner of temporary files, put back.

Looked for at each clean-up. What was lost goes on for the processes that have it mapped, and what is written to it
reaches them; those that come later find nothing and are closed. So a new file is put in its place only where no process
of the container is left: one that went on with the old file would hear of no resize and of no turns of others, and its
neighbours would pay for that. Where its container runs, its pod is told what to do; its next start puts all back.
What can go wrong: no room, or a policy that cannot be opened (said on the pod too, and tried again at the next look).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import PartageError, names
from partage_plugin.handover.desk import NOT_WRITTEN
from partage_plugin.refusal import Refused
from partage_plugin.sweep import in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage_plugin.handover.desk import Desk, Held

DAMAGED: Final = "HandOverDamaged"
_MEANS: Final = {
    names.POLICY_FILE: "programs that run keep their limits, new ones get no memory",
    names.TURNS_FILE: "its programs keep to their share of time by themselves, without turns",
}

log = structlog.get_logger("partage.handover")


class Mender:
    """Looks for lost files; `tell` puts onto a pod what its hand-over lacks, or that it lacks nothing any more."""

    def __init__(self, desk: Desk, tell: Callable[[Held, Refused | None], None]) -> None:
        self._desk = desk
        self._tell = tell
        self._told: dict[str, str] = {}  # hand-over -> what was said

    async def look(self) -> None:
        """Put back what can be; say once what cannot."""
        damaged = [held for name, held in self._desk.held.items() if self._desk.is_damaged(name)]
        self._told = {held.entry.name: said for held in damaged if (said := self._told.get(held.entry.name))}
        used = await asyncio.to_thread(in_use, [held.entry for held in damaged]) if damaged else set()
        for before in damaged:
            name = before.entry.name
            held = self._desk.held.get(name)
            if held is None or not self._desk.is_damaged(name):
                continue  # ended, or started anew since
            refusal = self._lacks(held) if name in used else self._put_back(name)
            if refusal is not None:
                self._say(held, refusal)
            elif self._told.pop(name, None) is not None:
                self._tell(held, None)

    def _put_back(self, name: str) -> Refused | None:
        try:
            self._desk.put_back(name)
        except PartageError as error:
            return Refused(NOT_WRITTEN, error)
        log.warning("files of a hand-over that somebody removed are there again", hand_over=name)
        return None

    def _lacks(self, held: Held) -> Refused:
        lost = self._desk.missing(held)
        subject = f"container {held.container!r} of {held.pod}"
        value = f"somebody removed its file {held.entry.path / lost} on the node"
        step = f"restart the container, and let nothing on the node clean {names.HOST_ROOT}"
        return Refused(DAMAGED, (subject, value, _MEANS[lost], step))

    def _say(self, held: Held, refusal: Refused) -> None:
        if self._told.get(held.entry.name) == str(refusal):
            return
        self._told[held.entry.name] = str(refusal)
        log.warning("a hand-over lacks a file", hand_over=held.entry.name, pod=held.pod, error=str(refusal))
        self._tell(held, refusal)
