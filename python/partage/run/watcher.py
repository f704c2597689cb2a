"""What the parent of `partage run` does while programs run: watch their slots and correct the estimates.

A process rings the ledger's doorbell when it takes a slot; the watcher opens a pidfd for it and gives its charge back
when that fires, so peers have the memory again within 100 ms and nobody polls. NVML is asked what the processes really
hold: at once when one comes or goes, then at doubling intervals (a program makes its context and loads its code soon
after its slot), in the end once a second. What the ledger does not know (contexts, modules) becomes the policy's
*overhead*; the smallest context seen alone and twice becomes the estimate of all that follow.

Once a second, where the container takes turns, its use of the devices is compared with the arbiter's books (audit.py).

The overhead is never negative. An estimate that was too high stands in the ledger until its context goes, and goes with
it at once; a negative overhead would stay behind until the next look, and for so long lift the limit by as much. So a
correction may push a container past its limit and never lifts it. What can go wrong: the tenant truncates its ledger
(its own loss: the watcher closes the policy), NVML does not answer (the last overhead stays).
"""

from __future__ import annotations

import os
import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import DeviceError, LedgerError
from partage.run.audit import Auditor
from partage.run.processes import find_process, is_process_of
from partage.shm import Ledger, Policy, PolicyFile, Slot, WatchedLedger

if TYPE_CHECKING:
    from partage.devices.nvidia.nvml import Nvml
    from partage.run.handover import HandOver

CORRECT_FIRST_S: Final = 0.01  # after a process came or went
RUNG_APART_S: Final = 0.02  # a tenant may ring for ever
LOOK_EVERY_S: Final = 1.0
CORRECT_EVERY_S: Final = 1.0  # NVML costs milliseconds on a busy card
AUDIT_EVERY_S: Final = 1.0  # NVML's figure stands for a second
RETRY_S: Final = 0.01  # a dead process's lock that is not free yet: somebody reclaims it, or a clone holds it

log = structlog.get_logger("partage.watcher")


@dataclass(slots=True)
class _Watched:
    """A process behind a slot and the descriptor that becomes readable at its death."""

    slot: Slot
    pid: int
    pidfd: int
    ended_at: float | None = None


class Watcher:
    """Watches one hand-over. Owned by one thread: register `selector` users by `data`, call `step` in a loop.

    `sole`: nobody else can be watching it, whatever its tenant locks (WatchedLedger).
    """

    def __init__(self, entry: HandOver, policy: PolicyFile, nvml: Nvml | None, *, sole: bool = False) -> None:
        self.selector = selectors.DefaultSelector()
        self._policy = policy
        self._nvml = nvml
        self._ledger = WatchedLedger(entry.ledger_path, sole=sole)
        self._bell = self._ledger.start_doorbell()
        self.selector.register(self._bell, selectors.EVENT_READ, self)
        self._processes: dict[tuple[int, int, int, int], _Watched] = {}
        self._auditor = None if nvml is None else Auditor(entry, policy, nvml)
        self._audit_at = 0.0
        self._broken = False
        self._correct_in = CORRECT_FIRST_S
        self._correct_at = time.monotonic() + self._correct_in
        self._corrected_at = 0.0
        self._before: dict[str, tuple[int, int | None]] = {}  # the last reading: overhead, a context alone

    def timeout(self) -> float | None:
        """Return the seconds until `step` has work even if nothing happens; None where only events matter."""
        if self._broken:
            return None
        # A tenant that wipes its ledger wipes the doorbell too: it is looked at even if nobody rings.
        times = [LOOK_EVERY_S]
        if any(process.ended_at for process in self._processes.values()):
            times.append(RETRY_S)
        if self._processes and self._nvml is not None:
            times.append(max(0.0, self._correct_at - time.monotonic()))
            if self._policy.is_gated:
                times.append(max(0.0, self._audit_at - time.monotonic()))
        return min(times)

    def handle(self, key: selectors.SelectorKey) -> None:
        """Take note of an event that `selector` reported for this watcher."""
        if key.fd == self._bell:
            os.eventfd_read(self._bell)
            # What rings may have changed the card's use: seen at once, though not more often than is of any use.
            self._correct_in = CORRECT_FIRST_S
            self._correct_at = min(self._correct_at, max(time.monotonic(), self._corrected_at + RUNG_APART_S))
            return
        for process in self._processes.values():
            if process.pidfd == key.fd:
                process.ended_at = time.monotonic()
                self.selector.unregister(key.fd)

    def step(self) -> None:
        """Do what is due: reclaim the dead, meet the new, correct the overhead."""
        if self._broken:
            return
        try:
            self._reclaim_ended()
            snapshot = self._ledger.read()
            for index in snapshot.shared:  # refused by the kernel while any process holds the memory
                self._ledger.reclaim(index)
            news = self._meet(snapshot)
            if news:
                self._correct_in = CORRECT_FIRST_S
            if news or time.monotonic() >= self._correct_at:
                self._correct()
            self._audit()
        except LedgerError as error:
            self._broken = True
            self.selector.unregister(self._bell)
            self._policy.shut()
            log.warning("ledger cannot be used; the container is closed", error=str(error))

    def settle(self) -> None:
        """Reclaim all that has ended by now, including what is not readable on its pidfd for another moment."""
        until = time.monotonic() + 10 * RETRY_S
        while time.monotonic() < until and not self._broken:
            for key, _ in self.selector.select(0):
                self.handle(key)
            self.step()
            if not any(process.ended_at for process in self._processes.values()):
                return
            self.selector.select(RETRY_S)

    def close(self) -> None:
        """Let everything go."""
        for process in self._processes.values():
            os.close(process.pidfd)
        self._processes.clear()
        self._ledger.close()
        os.close(self._bell)
        self.selector.close()

    def _reclaim_ended(self) -> None:
        for key, process in list(self._processes.items()):
            if process.ended_at is None:
                continue
            overdue = time.monotonic() - process.ended_at > RETRY_S
            if self._reclaim(process.slot, dead=overdue):
                self._forget(key)

    def _reclaim(self, slot: Slot, *, dead: bool) -> bool:
        """Give a dead process's charge back; True once the slot is its no more."""
        present = {other.index: other.identity for other in self._ledger.read().slots}
        if present.get(slot.index) != slot.identity:
            return True  # a peer was faster
        done = self._ledger.reclaim(slot.index, dead=dead)
        if done:
            log.debug("reclaimed", slot=slot.index, pid=slot.pid, name=slot.name)
        return done

    def _meet(self, snapshot: Ledger) -> bool:
        """Open a pidfd for each process not met before; True where there was one or one had died unseen."""
        news = self._reclaim_replaced(snapshot)
        for slot in snapshot.slots:
            if slot.identity in self._processes:
                continue
            news = True
            pid = find_process(slot)
            if pid is None:
                self._reclaim(slot, dead=False)
                continue
            self._watch(slot, pid)
        return news

    def _reclaim_replaced(self, snapshot: Ledger) -> bool:
        """Give back what a process held before exec: the lock went with the old image, the process lives on."""
        owners: dict[tuple[int, int, int], int] = {}
        for slot in snapshot.slots:
            owners[slot.identity[1:]] = owners.get(slot.identity[1:], 0) + 1
        gone = [
            slot
            for slot in snapshot.slots
            if not self._ledger.is_alive(slot.index)
            and (owners[slot.identity[1:]] > 1 or self._is_without_ledger(slot))
            and self._reclaim(slot, dead=False)
        ]
        for slot in gone:
            self._forget(slot.identity)
        return bool(gone)

    def _is_without_ledger(self, slot: Slot) -> bool:
        """Whether a process that we know has become a program that does not use the ledger (yet)."""
        process = self._processes.get(slot.identity)
        return process is not None and process.ended_at is None and not self._ledger.is_mapped_by(process.pid)

    def _forget(self, identity: tuple[int, int, int, int]) -> None:
        """Let the pidfd of a slot go that its process has no more."""
        process = self._processes.pop(identity, None)
        if process is not None:
            if process.ended_at is None:
                self.selector.unregister(process.pidfd)
            os.close(process.pidfd)

    def _watch(self, slot: Slot, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._reclaim(slot, dead=False)
            return
        if not is_process_of(slot, pid):  # the number was given to another process in between
            os.close(pidfd)
            self._reclaim(slot, dead=False)
            return
        self._processes[slot.identity] = _Watched(slot, pid, pidfd)
        self.selector.register(pidfd, selectors.EVENT_READ, self)
        self._ledger.set_host_pid(slot.index, pid)

    def _correct(self) -> None:
        """Bring overhead and context estimate up to what NVML sees; skipped where a charge came in between."""
        self._corrected_at = time.monotonic()
        self._correct_at = self._corrected_at + self._correct_in
        self._correct_in = min(2 * self._correct_in, CORRECT_EVERY_S)
        if self._nvml is None or not self._processes:
            return
        before = self._ledger.read()
        seen: dict[str, dict[int, int]] = {}
        for device in before.devices:
            try:
                seen[device.uuid] = self._nvml.processes(device.uuid)
            except DeviceError as error:
                log.debug("overhead not corrected", error=str(error))
        after = self._ledger.read()
        for index, (device, now) in enumerate(zip(before.devices, after.devices, strict=False)):
            if device.uuid in seen and now.word == device.word:
                self._correct_device(before, index, seen[device.uuid])

    def _audit(self) -> None:
        """Compare the use that NVML sees with what the arbiter charged, where the container takes turns."""
        now = time.monotonic()
        if self._auditor is None or not self._processes or not self._policy.is_gated or now < self._audit_at:
            return
        self._audit_at = now + AUDIT_EVERY_S
        pids = {process.slot.index: process.pid for process in self._processes.values()}
        self._auditor.look(time.monotonic_ns(), self._ledger.read(), pids)

    def _correct_device(self, snapshot: Ledger, index: int, seen: dict[int, int]) -> None:
        uuid = snapshot.devices[index].uuid
        pids = {process.slot.index: process.pid for process in self._processes.values()}
        real = {slot.index: seen[pids[slot.index]] for slot in snapshot.slots if pids.get(slot.index) in seen}
        overhead = max(0, sum(real.values()) - snapshot.devices[index].used)
        context = _context(snapshot, index, real)
        # What makes room must be seen twice: one reading may have met a free or a context half-way.
        overhead_before, context_before = self._before.get(uuid, (overhead, None))
        settled = max(overhead, overhead_before)
        alone = context if context == context_before else None
        self._before[uuid] = (overhead, context)

        changes: dict[str, int | None] = {}

        def change(policy: Policy) -> Policy:
            present = policy.device(uuid)
            if present is None:
                return policy
            known = min((bytes_ for bytes_ in (present.context, alone) if bytes_ is not None), default=None)
            if (present.overhead, present.context) != (settled, known):
                changes.update(overhead=settled, context=known)
            return policy.changed(uuid, overhead=settled, context=known)

        self._policy.update(change)
        if changes:
            log.debug("corrected", device=uuid, **changes)


def _context(snapshot: Ledger, index: int, real: dict[int, int]) -> int | None:
    """Return the bytes that one context takes, from the first process whose use holds nothing but one; else None."""
    for slot in snapshot.slots:
        share = slot.devices[index]
        if slot.index in real and share.context and share.used == share.context:
            return real[slot.index]
    return None
