"""Clean-up: hand-overs that nobody has any more, with their CDI specs.

A hand-over stays while a process uses it, while its pod may still start containers, and for a minute after it was
minted (kubelet writes down an answer of ours a moment after it got it). Kubelet keeps entries of ended pods in its
checkpoint until it hands out devices again, so the pod decides and not the entry alone. Nothing is removed while the
list of pods is not whole or the checkpoint cannot be read. A name removed too early is made again by the next
`PreStartContainer`, so nothing can be lost.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from partage_plugin.kubelet.checkpoint import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from partage.run.handover import HandOver
    from partage_plugin.handover.cdi import CdiDirectory
    from partage_plugin.handover.desk import Desk
    from partage_plugin.handover.store import Store
    from partage_plugin.kubelet.checkpoint import CheckpointFile, Entry
    from partage_plugin.kubelet.minted import Minted
    from partage_plugin.ports import Pods

YOUNG_S: Final = 60.0
_PROC: Final = Path("/proc")

log = structlog.get_logger("partage.sweep")


async def _at_once() -> None:
    """Let others go on that can: a container that starts meanwhile does not wait for all that is removed."""
    await asyncio.sleep(0)


class Sweeper:
    """Removes what is left over. Called when pods end and when kubelet writes its checkpoint."""

    def __init__(  # noqa: PLR0913 -- what says that a hand-over is needed
        self, *, store: Store, cdi: CdiDirectory, desk: Desk, checkpoint: CheckpointFile, minted: Minted, pods: Pods
    ) -> None:
        self._store = store
        self._cdi = cdi
        self._desk = desk
        self._checkpoint = checkpoint
        self._minted = minted
        self._pods = pods

    async def sweep(self, between: Callable[[], Awaitable[None]] = _at_once) -> frozenset[str]:
        """Remove all leftovers, each after what `between` waits for; return their names."""
        if not self._pods.is_synced:
            return frozenset()
        try:
            entries = self._checkpoint.read().entries
        except CheckpointError:
            return frozenset()
        candidates = self._candidates(entries)
        used = await asyncio.to_thread(in_use, [self._store.entry(name) for name in candidates])
        try:  # what was asked for meanwhile is needed
            left_over = candidates & self._candidates(self._checkpoint.read().entries) - used
        except CheckpointError:
            return frozenset()
        removed: set[str] = set()
        opened = {name: self._desk.held.get(name) for name in left_over}
        for name, before in opened.items():
            await between()
            if self._desk.held.get(name) is not before:
                continue  # opened anew since
            log.info("removed a hand-over that nobody has any more", hand_over=name)
            await self._desk.close(name)
            self._minted.forget(name)
            removed.add(name)
        return frozenset(removed)

    def _candidates(self, entries: Iterable[Entry]) -> set[str]:
        """Return what no pod needs that may still start a container, and nobody was just given."""
        there = self._store.names() | self._cdi.names() | frozenset(self._desk.held)
        needed = {entry.name for entry in entries if entry.name is not None and self._may_start(entry.pod_uid)}
        return {name for name in there - needed if not self._is_young(name)}

    def _may_start(self, uid: str) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and not pod.is_over

    def _is_young(self, name: str) -> bool:
        if name in self._desk.held:
            return False  # its owner is known
        return self._minted.is_young(name, YOUNG_S) or (
            self._store.entry(name).path.exists() and self._store.age(name) < YOUNG_S
        )


def in_use(entries: Collection[HandOver]) -> set[str]:
    """Return those with a process: one that holds a slot, or one in whose mounts the directory is."""
    used = {entry.name for entry in entries if entry.is_slot_held()}
    rest = {entry.name for entry in entries} - used
    return used | mounted(rest)


def mounted(names: Iterable[str]) -> set[str]:
    """Return the hand-overs that are mounted for any process of this machine."""
    wanted = {os.fsencode(name) for name in names}
    found: set[bytes] = set()
    spaces: set[str] = set()
    for pid in os.listdir(_PROC) if wanted else ():  # noqa: PTH208 -- names are all we want
        if not pid.isdigit():
            continue
        try:
            space = os.readlink(f"{_PROC}/{pid}/ns/mnt")  # noqa: PTH115 -- a Path costs more than the call
            if space in spaces:
                continue
            text = Path(f"{_PROC}/{pid}/mountinfo").read_bytes()
        except OSError:
            continue  # it has ended
        spaces.add(space)
        found |= {name for name in wanted - found if name in text}
    return {os.fsdecode(name) for name in found}
