"""What the parent of `partage run` does while programs run: watch their slots and correct the estimates.

A process rings the ledger's doorbell when it takes a slot; the watcher opens a pidfd for it and gives its charge back
when that fires, so peers have the memory again within 100 ms and nobody polls. NVML is asked what the processes really
hold: at once when one comes or goes, then at doubling intervals (a program makes its context and loads its code soon
after its slot): once a second while the ledger or NVML's answer changes, every eight where neither does. What the
ledger does not know (contexts, modules) becomes the policy's *overhead*; the smallest context seen alone and twice
becomes the estimate of all that follow. Watchers that have one NVML share its answers (usage.py).

Where the container takes turns, its use of the devices is compared with the arbiter's books (audit.py): once a second,
every four while it uses nothing.

The overhead is never negative. An estimate that was too high stands in the ledger until its context goes, and goes with
it at once; a negative overhead would stay behind until the next look, and for so long lift the limit by as much. So a
correction may push a container past its limit and never lifts it. With the last process it goes. What can go wrong:
the tenant truncates its ledger (its own loss: the watcher closes the policy), NVML does not answer (the last overhead
stays).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import DeviceError, LedgerError, PolicyError
from partage.run.audit import SECOND_NS, Auditor
from partage.run.processes import find_process, is_process_of
from partage.shm import LatePolicy, Ledger, Policy, PolicyFile, Slot, WatchedLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partage.devices.nvidia.nvml import Nvml
    from partage.devices.nvidia.usage import Reading
    from partage.run.handover import HandOver
    from partage.shm import Doorbells

CORRECT_FIRST_S: Final = 0.01  # after a process came or went
RUNG_APART_S: Final = 0.02  # a tenant may ring for ever
LOOK_EVERY_S: Final = 1.0  # a tenant that wipes its ledger wipes the doorbell too, and who execs does not ring
LOOK_LAST_S: Final = 4.0  # where nothing changes
LOOK_EMPTY_S: Final = 16.0  # and nobody is there who could exec or wipe
CORRECT_EVERY_S: Final = 1.0  # while something changes: NVML costs milliseconds on a busy card
CORRECT_LAST_S: Final = 8.0
# So old may NVML's answer be, where another watcher asked for it and nothing was heard since: half of the time since
# our last look, within these bounds.
FRESH_S: Final = 1.0
FRESH_LAST_S: Final = CORRECT_LAST_S / 2
AUDIT_EVERY_S: Final = 1.0  # NVML's figure stands for a second
AUDIT_LAST_S: Final = 4.0  # of a container that uses nothing: looks that are further apart are not compared
SHUT_AGAIN_S: Final = 1.0  # a policy that could not be closed: a tenant may hold a lease on it
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

    `sole`: nobody else can be watching it, whatever its tenant locks (WatchedLedger). `bells` listen to its doorbell
    and many others; without them it has a thread for it. `now` is CLOCK_MONOTONIC in seconds, the clock of `nvml` too.
    """

    def __init__(  # noqa: PLR0913 -- three are all that most need
        self,
        entry: HandOver,
        policy: PolicyFile | LatePolicy,
        nvml: Nvml | None,
        *,
        sole: bool = False,
        bells: Doorbells | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._usage = None if nvml is None else nvml.usage
        self._now = now
        with contextlib.ExitStack() as half_made:  # descriptors may be used up
            self.selector = half_made.enter_context(selectors.DefaultSelector())
            self._ledger = WatchedLedger(entry.ledger_path, sole=sole)
            half_made.callback(self._ledger.close)
            self._bell = self._ledger.start_doorbell(bells)
            half_made.callback(os.close, self._bell)
            self.selector.register(self._bell, selectors.EVENT_READ, self)
            half_made.pop_all()
        self._processes: dict[tuple[int, int, int, int], _Watched] = {}
        self._auditor = None if nvml is None else Auditor(entry, policy, nvml.usage)
        self._audit_at = 0.0
        self._audit_in = AUDIT_EVERY_S
        self._broken = False
        self._is_shut = False  # after that, its policy
        self.trouble = ""  # why the container was closed
        self._look_in = LOOK_EVERY_S
        self._look_at = now() + LOOK_EVERY_S
        self._heard_at = now()  # of something that may have changed what NVML says
        self._correct_in = CORRECT_FIRST_S
        self._correct_at = self._heard_at + self._correct_in
        self._corrected_at = 0.0
        self._fresh = FRESH_S
        self._compared: Ledger | None = None
        self._words: dict[str, tuple[int, float]] = {}  # by device: what it was, and since when for sure
        self._read_at: dict[str, float] = {}  # by device: when the reading that was used last was begun
        self._before: dict[str, tuple[int, int | None]] = {}  # the last reading: overhead, a context alone
        self._has_overhead = True  # in the policy, for all we know: it may be another watcher's

    def timeout(self) -> float | None:
        """Return the seconds until `step` has work even if nothing happens; None where only events matter."""
        if self._broken:
            return None if self._is_shut else SHUT_AGAIN_S
        times = [max(0.0, self._look_at - self._now())]
        if any(process.ended_at for process in self._processes.values()):
            times.append(RETRY_S)
        if self._processes and self._usage is not None:
            times.append(max(0.0, self._correct_at - self._now()))
            if self._policy.is_gated:
                times.append(max(0.0, self._audit_at - self._now()))
        return min(times)

    def handle(self, key: selectors.SelectorKey) -> None:
        """Take note of an event that `selector` reported for this watcher."""
        self._look_in = LOOK_EVERY_S
        if key.fd == self._bell:
            os.eventfd_read(self._bell)
            # What rings may have changed the card's use: seen at once, though not more often than is of any use.
            self._heard_at = self._now()
            self._correct_in = CORRECT_FIRST_S
            self._correct_at = min(self._correct_at, max(self._heard_at, self._corrected_at + RUNG_APART_S))
            return
        for process in self._processes.values():
            if process.pidfd == key.fd:
                process.ended_at = self._now()
                self.selector.unregister(key.fd)

    def step(self) -> None:
        """Do what is due: reclaim the dead, meet the new, correct the overhead."""
        if self._broken:
            self._shut()
            return
        try:
            self._reclaim_ended()
            snapshot = self._ledger.read()
            for index in snapshot.shared:  # refused by the kernel while any process holds the memory
                self._ledger.reclaim(index)
            news = self._meet(snapshot)
            if news:
                self._heard_at = self._now()
                self._correct_in = CORRECT_FIRST_S
            self._pace(snapshot)
            if not self._processes:
                self._end_overhead()
            elif news or self._now() >= self._correct_at:
                self._correct(snapshot)
            self._audit(snapshot)
        except LedgerError as error:
            self._broken, self.trouble = True, str(error)
            self.selector.unregister(self._bell)
            try:
                self._shut()
            finally:  # it is so by the time that it is said
                log.warning("ledger cannot be used; the container is closed", error=str(error))

    def _shut(self) -> None:
        """Close the container, once that can be."""
        if not self._is_shut:
            self._policy.shut()
            self._is_shut = True

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
            overdue = self._now() - process.ended_at > RETRY_S
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

    def _pace(self, snapshot: Ledger) -> None:
        """Note what changed in the ledger; while something does, it is read and NVML is asked once a second."""
        now = self._now()
        if snapshot is not self._compared or snapshot.shared:
            self._look_in = LOOK_EVERY_S
        elif now >= self._look_at:
            is_empty = not self._processes and not snapshot.slots
            self._look_in = min(2 * self._look_in, LOOK_EMPTY_S if is_empty else LOOK_LAST_S)
        self._look_at = now + self._look_in
        if snapshot is self._compared:
            return
        self._compared = snapshot
        before, self._words = self._words, {}  # of what is there alone: its tenant can name any number of devices
        for device in snapshot.devices:
            known = before.get(device.uuid)
            if known is not None and known[0] == device.word:
                self._words[device.uuid] = known
                continue
            self._words[device.uuid] = (device.word, now)
            self._hurry()

    def _hurry(self) -> None:
        self._correct_in = min(self._correct_in, CORRECT_EVERY_S)
        self._correct_at = min(self._correct_at, self._corrected_at + CORRECT_EVERY_S)

    def _correct(self, before: Ledger) -> None:
        """Bring overhead and context estimate up to what NVML sees; skipped where a charge came in between."""
        begin = self._now()
        self._fresh = min(max(FRESH_S, (begin - self._corrected_at) / 2), FRESH_LAST_S)
        self._corrected_at = begin
        self._correct_at = self._corrected_at + self._correct_in
        self._correct_in = min(2 * self._correct_in, CORRECT_LAST_S)
        if self._usage is None:
            return
        seen: dict[str, Reading] = {}
        for device in before.devices:
            try:
                seen[device.uuid] = self._usage.memory(device.uuid, self._young(device.uuid))
            except DeviceError as error:
                log.debug("overhead not corrected", error=str(error))
        after = self._ledger.read()
        for index, (device, now) in enumerate(zip(before.devices, after.devices, strict=False)):
            if device.uuid in seen and now.word == device.word:
                self._read_at[device.uuid] = seen[device.uuid].began_at
                self._correct_device(before, index, seen[device.uuid].memory)

    def _end_overhead(self) -> None:
        """Take the overhead away that the last process left: nobody holds anything, whatever NVML would say."""
        if not self._has_overhead or self._ledger.read().slots:  # who cannot be found may hold what it held
            return
        self._policy.update(
            lambda policy: replace(policy, devices=tuple(replace(device, overhead=0) for device in policy.devices))
        )
        self._before = {uuid: (0, context) for uuid, (_, context) in self._before.items()}
        self._has_overhead = False

    def _young(self, uuid: str) -> float:
        """Return the moment after which a reading must begin to tell us something new about the ledger as it is."""
        _, same_since = self._words[uuid]
        return max(same_since, self._heard_at, self._read_at.get(uuid, 0.0), self._corrected_at - self._fresh)

    def _audit(self, snapshot: Ledger) -> None:
        """Compare the use that NVML sees with what the arbiter charged, where the container takes turns."""
        now = self._now()
        if self._auditor is None or not self._processes or not self._policy.is_gated or now < self._audit_at:
            return
        pids = {process.slot.index: process.pid for process in self._processes.values()}
        in_use = self._auditor.look(int(now * SECOND_NS), snapshot, pids)
        self._audit_in = AUDIT_EVERY_S if in_use else min(2 * self._audit_in, AUDIT_LAST_S)
        self._audit_at = now + self._audit_in

    def _correct_device(self, snapshot: Ledger, index: int, seen: Mapping[int, int]) -> None:
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
        self._has_overhead = True

        def change(policy: Policy) -> Policy:
            present = policy.device(uuid)
            if present is None:
                return policy
            known = min((bytes_ for bytes_ in (present.context, alone) if bytes_ is not None), default=None)
            if (present.overhead, present.context) != (settled, known):
                changes.update(overhead=settled, context=known)
            return policy.changed(uuid, overhead=settled, context=known)

        if not self._is_said(uuid, settled, alone):
            self._policy.update(change)
        if changes or settled != overhead or alone != context:
            self._hurry()
        if changes:
            log.debug("corrected", device=uuid, **changes)

    def _is_said(self, uuid: str, overhead: int, alone: int | None) -> bool:
        """Whether the policy is whole and says that already: nothing then waits for its lock."""
        try:
            present = self._policy.read().device(uuid)
        except PolicyError:
            return False
        if present is None:
            return True
        smaller = alone is not None and (present.context is None or alone < present.context)
        return present.overhead == overhead and not smaller


def _context(snapshot: Ledger, index: int, real: dict[int, int]) -> int | None:
    """Return the bytes that one context takes, from the first process whose use holds nothing but one; else None."""
    for slot in snapshot.slots:
        share = slot.devices[index]
        if slot.index in real and share.context and share.used == share.context:
            return real[slot.index]
    return None
