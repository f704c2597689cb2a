"""Pods that were given less memory than before: confirmed once they use no more than that, by two witnesses.

A share may shrink below what its programs hold: they get no more, and keep what they have. The scheduler promises what
was given back to others once the condition `partage.io/Resized` says that this generation holds, so it says so only
where use is below the new limits by the container's ledger and by what the driver says of its processes. The ledger is
a tenant's word; the driver's is nobody's, and it sees processes that never loaded the library too. A process is a
container's by the hand-over among its mounts; one that is in the pod's cgroup and shows none of the pod's hand-overs
counts for each of its containers. Where the driver does not say (it hangs, lists no processes, or not how much one
holds, as in MIG mode), nothing is confirmed: the memory stays promised to this pod, and the condition says why.

Owned by the agent, told by the front of each pod's change. What can go wrong: a process ends while it is looked at (it
holds nothing then), a ledger cannot be read (nothing is confirmed).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage.model import DeviceError, LedgerError, PolicyError, format_memory, names
from partage.model.grant import condition_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partage.devices.backend import CardUse
    from partage.shm import PolicyDevice
    from partage_plugin.handover.desk import Desk, Held
    from partage_plugin.handover.grants import Grants
    from partage_plugin.monitor.whereabouts import Place
    from partage_plugin.ports import Clock, Pod, Pods, Reports

RESIZED: Final = "ShareResized"
STILL_USED: Final = "ShareStillUsed"
UNKNOWN: Final = "ShareUseUnknown"
EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why a pod is not confirmed: the condition's reason, and its message after the generation."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the driver said: use by card, where each process on one is; `trouble`: why it said nothing."""

    use: Mapping[str, CardUse]
    places: Mapping[int, Place]
    trouble: str = ""


class Shrinking:
    """All such pods of the node; used from one event loop. `use` waits for the driver, and is called in a thread."""

    def __init__(  # noqa: PLR0913 -- the world around it, all named
        self,
        *,
        desk: Desk,
        grants: Grants,
        pods: Pods,
        reports: Reports,
        use: Callable[[], Mapping[str, CardUse]],
        place_of: Callable[[int], Place],
    ) -> None:
        self._desk = desk
        self._grants = grants
        self._pods = pods
        self._reports = reports
        self._use = use
        self._place_of = place_of
        self._is_rebuilt = False
        self._waiting: dict[str, tuple[int, str]] = {}  # pod UID -> generation and reason as told
        self._wake = asyncio.Event()

    def saw(self, pod: Pod, changed: int | None = None) -> None:
        """Take note of a pod that has the limits of its grant; `changed`: its generation, where it is new."""
        _, is_held = self._grants.held(pod)
        if is_held:
            self._waiting.setdefault(pod.uid, (0, ""))
            self._wake.set()
            return
        self._waiting.pop(pod.uid, None)
        if changed is not None:
            self._resized(pod, changed)

    def rebuilt(self) -> None:
        """Take note that all hand-overs that are open are known: before, a pod may have more than is seen."""
        self._is_rebuilt = True

    async def run(self, clock: Clock) -> None:
        """Look after them until cancelled."""
        while True:
            await self._wake.wait()
            await self._round()
            if not self._waiting:
                self._wake.clear()
            await clock.sleep(EVERY_S)

    # ---- looking -------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Look at all once: by their ledgers, and where those say yes, by the driver."""
        below = [uid for uid in list(self._waiting) if self._judge(uid, None)]
        generations = {uid: self._generation(uid) for uid in below}
        if not below:
            return
        seen = await asyncio.to_thread(self._ask)
        for uid in below:
            if self._generation(uid) == generations[uid]:  # else it was asked too early
                self._judge(uid, seen)

    def _generation(self, uid: str) -> int:
        pod = self._pods.get(uid)
        return 0 if pod is None else self._grants.held(pod)[0]

    def _judge(self, uid: str, seen: _Seen | None) -> bool:
        """Confirm a pod, or say why not; without the driver's word only return whether that is to be asked for."""
        pod = self._pods.get(uid)
        generation, is_held = (0, False) if pod is None or pod.is_over else self._grants.held(pod)
        if pod is None or not is_held:
            self._waiting.pop(uid, None)
            return False
        given = self._desk.given(pod, generation) if self._is_rebuilt else None
        if given is None:
            return False  # not everywhere in force yet
        verdict = by_ledger(given) or (None if seen is None else by_driver(pod.uid, given, seen))
        if verdict is not None:
            self._tell(pod, generation, verdict)
            return False
        if seen is not None:
            self._waiting.pop(uid, None)
            self._resized(pod, generation)
        return True

    def _ask(self) -> _Seen:
        """Ask the driver, and look where each process is; waits for both."""
        try:
            use = self._use()
        except DeviceError as error:
            return _Seen({}, {}, str(error))
        pids = {pid for card in use.values() for pid in card.processes or ()}
        return _Seen(use, {pid: self._place_of(pid) for pid in pids})

    # ---- telling -------------------------------------------------------------------------------------------------

    def _tell(self, pod: Pod, generation: int, verdict: _Verdict) -> None:
        if self._waiting.get(pod.uid) == (generation, verdict.reason):
            return
        self._waiting[pod.uid] = (generation, verdict.reason)
        message = f"{condition_message(generation)}: {verdict.message}"
        self._reports.condition(pod, names.CONDITION_RESIZED, holds=False, reason=verdict.reason, message=message)

    def _resized(self, pod: Pod, generation: int) -> None:
        message = condition_message(generation)
        self._reports.condition(pod, names.CONDITION_RESIZED, holds=True, reason=RESIZED, message=message)


# ---- the two witnesses -----------------------------------------------------------------------------------------------


def by_ledger(given: Sequence[Held]) -> _Verdict | None:
    """Return what containers use beyond their limits as their ledgers say; None: nothing."""
    try:
        for held in given:
            ledger = held.entry.ledger()
            for device in held.entry.policy().devices:
                used = ledger.used(device.uuid) + device.overhead
                if used > device.memory:
                    return _above(held, device, used, "")
    except (LedgerError, PolicyError) as error:
        return _unknown(str(error))
    return None


def by_driver(pod_uid: str, given: Sequence[Held], seen: _Seen) -> _Verdict | None:
    """Return what containers use beyond their limits as the driver says, or that it does not say; None: nothing."""
    hand_overs = frozenset(held.entry.name for held in given)
    for held in given:
        for device in held.policy.devices:
            card = seen.use.get(device.uuid)
            if card is None or card.processes is None:
                why = seen.trouble or "the driver does not answer for it, or lists no processes"
                return _unknown(f"what container {held.container!r} uses of card {device.uuid} is not known: {why}")
            used = 0
            for pid, amount in card.processes.items():
                if not _is_its(seen.places[pid], pod_uid, held.entry.name, hand_overs):
                    continue
                if amount is None:
                    where = f"process {pid} of container {held.container!r}"
                    return _unknown(f"the driver does not say what {where} holds of card {device.uuid}")
                used += amount
            if used > device.memory:
                return _above(held, device, used, " by the driver's word")
    return None


def _is_its(place: Place, pod_uid: str, name: str, hand_overs: frozenset[str]) -> bool:
    """Whether a process counts for a container: its own, or one of its pod of which nobody can tell."""
    return name in place.hand_overs or (pod_uid in place.pods and hand_overs.isdisjoint(place.hand_overs))


def _above(held: Held, device: PolicyDevice, used: int, word: str) -> _Verdict:
    has, may = format_memory(used), format_memory(device.memory)
    what = f"container {held.container!r} uses {has} of card {device.uuid}{word}, its share is {may}"
    return _Verdict(STILL_USED, f"{what}; what is beyond it can be used until it is freed")


def _unknown(why: str) -> _Verdict:
    return _Verdict(UNKNOWN, f"{why}; what it had before stays promised to it until that is known, or it ends")
