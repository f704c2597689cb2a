"""The agent behind kubelet's calls: mints, finds owners, opens, rebuilds. One for each resource.

Called by the device plugin service (`Front`), by the registrar (`rebuild`) and by the follower of pods (`pod_changed`).
Every refusal that has a pod goes onto it as event and condition; a reason that passes is taken back by the condition.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import PartageError, names
from partage_plugin.handover.desk import NOT_WRITTEN, Claim
from partage_plugin.handover.store import HandOverError
from partage_plugin.handover.sums import OVERPROMISED
from partage_plugin.kubelet import seats as seating
from partage_plugin.kubelet.checkpoint import Checkpoint, CheckpointError
from partage_plugin.owners import check_bound
from partage_plugin.refusal import Refused
from partage_plugin.safe import GENERATION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from partage_plugin.calls import Calls
    from partage_plugin.cards import Cards
    from partage_plugin.delivery import Delivery
    from partage_plugin.handover.desk import Desk, Held
    from partage_plugin.handover.grants import Grants
    from partage_plugin.handover.store import Store
    from partage_plugin.kubelet.checkpoint import CheckpointFile, Entry
    from partage_plugin.kubelet.minted import Minted
    from partage_plugin.owners import Owners
    from partage_plugin.ports import Pod, Pods, Reports
    from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2
    from partage_plugin.safe import SafeMode
    from partage_plugin.shrinking import Shrinking

LEDGER_SPOILT: Final = "LedgerSpoilt"
SYNC_S: Final = 5.0  # without the API server kubelet still gets its seats: containers then wait, pods do not fail

log = structlog.get_logger("partage.agent")


async def _nothing() -> frozenset[str]:
    """Clean up nothing; no card is cordoned."""
    return frozenset()


class SharesFront:
    """What kubelet and pods ask, answered from the desk. Used from one loop."""

    def __init__(  # noqa: PLR0913 -- it ties the rooms together
        self,
        *,
        cards: Cards,
        store: Store,
        desk: Desk,
        grants: Grants,
        owners: Owners,
        checkpoint: CheckpointFile,
        minted: Minted,
        delivery: Delivery,
        pods: Pods,
        reports: Reports,
        calls: Calls,
        shrinking: Shrinking,
        safe: SafeMode | None = None,
        cordoned: Callable[[], Awaitable[Collection[str]]] = _nothing,
        tells_numa: bool = True,
    ) -> None:
        self._cards = cards
        self._store = store
        self._desk = desk
        self._grants = grants
        self._owners = owners
        self._checkpoint = checkpoint
        self._minted = minted
        self._delivery = delivery
        self._pods = pods
        self._reports = reports
        self._shrinking = shrinking
        self._safe = safe
        self._cordoned = cordoned
        self._tells_numa = tells_numa
        self._spoilt: dict[str, str] = {}  # hand-over -> why it was closed, while its pod is not known
        self._is_behind = False  # it was rebuilt without kubelet's checkpoint
        self._calls = calls
        self.has_strays = False  # among the seats: ids that are held and named after no card that is known
        self.on_handed_over: Callable[[], None] = lambda: None
        self.clean_up: Callable[[], Awaitable[frozenset[str]]] = _nothing

    # ---- kubelet's calls -----------------------------------------------------------------------------------------

    def seats(self) -> tuple[seating.Seat, ...]:
        """Return the seats as they are now."""
        try:
            entries = self._checkpoint.read().entries
        except CheckpointError:
            entries = ()
        taken = frozenset(seat for entry in entries for seat in entry.ids)
        kept = frozenset(seat for entry in entries if self._is_served(entry) for seat in entry.ids)
        cards = self._cards.by_uuid.values()
        listed = seating.seats(cards, self._desk.granted_on(), taken, kept, tells_numa=self._tells_numa)
        self.has_strays = len(listed) > sum(card.seats for card in cards)
        return listed

    def _is_served(self, entry: Entry) -> bool:
        """Whether a container has a share of cards that are all there."""
        held = self._desk.held.get(entry.name or "")
        return held is not None and all(device.uuid in self._cards.by_uuid for device in held.policy.devices)

    def planned_cards(self, size: int) -> Sequence[str] | None:
        """Return the cards of the one container with `size` shares that can be meant now; None where not known."""
        pending = [pod for pod in self._pods.all() if not pod.is_over and self._missing(pod)]
        if len(pending) != 1:
            return None
        planned = {cards for cards in self._missing(pending[0]) if len(cards) == size}
        return planned.pop() if len(planned) == 1 else None

    def _missing(self, pod: Pod) -> list[tuple[str, ...]]:
        """Return the cards of each container of a pod that was not handed over yet."""
        try:
            grant = self._grants.of(pod)
        except Refused:
            return []
        there = {held.container for held in self._desk.held.values() if held.pod_uid == pod.uid}
        return [
            tuple(share.uuid for share in container.shares)
            for name, container in grant.containers.items()
            if name not in there
        ]

    def allocate(self, ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """Mint a hand-over for a container that gets these ids; raises HandOverError, LaunchError."""
        with self._calls.call():
            entry = self._store.mint()
            self._minted.add(entry.name, ids)
            log.info("minted", hand_over=entry.name, seats=sorted(ids))
            return self._delivery.answer(entry)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Open what was handed over with these ids; raises Refused.

        Kubelet gives an init container's ids to another one of the pod again, and only one of those that have them
        starts now. Where some can be opened, the others are closed instead: an init container whose card has failed
        since it ended does not keep its pod's containers from starting again, nor can it start itself.
        """
        with self._calls.call():
            if self._is_behind:
                self._catch_up()
            opened: list[tuple[Claim, Held]] = []
            refused: list[tuple[Claim, Refused]] = []
            for claim in await self._owners.of(ids):
                try:
                    opened.append((claim, await self._open(claim)))
                except Refused as refusal:
                    refused.append((claim, refusal))
            if not opened:
                raise refused[0][1]
            for claim, _ in refused:
                self._desk.shut(claim.name)
                last, held = opened[-1]
                self._enforced(last.pod, held)  # is the last word on the pod

    async def _open(self, claim: Claim) -> Held:
        try:
            check_bound(claim)
            if not claim.may_run:
                self._delivery.check(claim)
            await self._give_whole_cards(claim.pod)
            held = await self._hand_over(claim)
        except Refused as refusal:
            self._refused(claim.pod, refusal)
            raise
        log.info(
            "handed over",
            hand_over=claim.name,
            pod=claim.pod.full_name,
            uid=claim.pod.uid,
            container=claim.container,
            cards=[share.uuid for share in held.policy.devices],
            generation=held.generation,
        )
        self._enforced(claim.pod, held)
        self.on_handed_over()
        now = self._pods.get(claim.pod.uid)
        if now is not None and now is not claim.pod:
            self.pod_changed(now)  # resized while its devices were prepared
        return held

    def _enforced(self, pod: Pod, held: Held) -> None:
        """Say on its pod what holds a container's limits."""
        word = held.policy.enforced_by
        self._reports.condition(
            pod,
            names.CONDITION_ENFORCED,
            holds=word != "none" or held.grant is None or held.grant.mode == "whole",
            reason=word,
            message=f"what holds the limits of its containers: {word}",
        )

    async def _hand_over(self, claim: Claim) -> Held:
        """Open; where a card is full, once more after looking who has ended: a refusal costs kubelet's back-off.

        Also where that look removed nothing: another one beside it may have been first.
        """
        try:
            return await self._desk.hand_over(claim)
        except Refused as refusal:
            if refusal.reason != OVERPROMISED:
                raise
        await self.clean_up()
        return await self._desk.hand_over(claim)

    def _refused(self, pod: Pod, refusal: Refused) -> None:
        self._reports.event(pod, refusal.reason, str(refusal), warning=True)
        self._reports.condition(pod, names.CONDITION_ENFORCED, holds=False, reason=refusal.reason, message=str(refusal))

    def _safe_for(self, pod: Pod) -> SafeMode | None:
        """Return who gives a pod whole cards, where it has nothing yet and that is wanted."""
        is_wanted = self._safe is not None and self._safe.applies(pod) and not self._has_grant(pod)
        return self._safe if is_wanted else None

    async def _give_whole_cards(self, pod: Pod) -> None:
        cordoned = await self._cordoned() if self._safe_for(pod) is not None else ()
        safe = self._safe_for(pod)  # another of its containers may have asked meanwhile
        if safe is None:
            return
        busy = set(cordoned)
        busy |= {share.uuid for held in self._desk.held.values() for share in held.policy.devices}
        for other in self._pods.all():
            promise = None if other.uid == pod.uid or other.is_over else self._grants.promise(other, held=False)
            busy |= set() if promise is None else set(promise.need)
        self._grants.give(pod, safe.grant(pod, self._cards.by_uuid, busy))
        log.warning("a pod without a grant gets whole cards", pod=pod.full_name, uid=pod.uid)

    def _has_grant(self, pod: Pod) -> bool:
        try:
            self._grants.of(pod)
        except Refused:
            return False
        return True

    def safe_grants(self) -> dict[str, tuple[str, ...]]:
        """Return pod -> whole cards that were given without a grant: what the node's annotation says."""
        given: dict[str, list[str]] = {}
        for held in self._desk.held.values():
            if held.generation == GENERATION:
                given.setdefault(held.pod, []).extend(share.uuid for share in held.policy.devices)
        return {pod: tuple(dict.fromkeys(uuids)) for pod, uuids in sorted(given.items())}

    # ---- rebuild -------------------------------------------------------------------------------------------------

    async def rebuild(self) -> None:
        """Make whole what kubelet's checkpoint names, before it is told of us; adopt what runs.

        Where that cannot be read, kubelet writes it anew with its next answer of ours, and what runs is met then.
        """
        try:
            checkpoint = self._checkpoint.read()
        except CheckpointError as error:
            log.info("nothing to rebuild from", error=str(error))
            checkpoint = Checkpoint((), frozenset())
            self._is_behind = True
        if checkpoint.entries:
            await self._known_pods()
        claims = list(self._claims(checkpoint))
        for claim in claims:  # what runs keeps its room, whatever comes before it by its grant
            self._desk.adopt(claim.name, pod_uid=claim.pod.uid, pod=claim.pod.full_name, container=claim.container)
        for claim in sorted(claims, key=lambda claim: self._order(claim.pod)):
            try:
                await self._open(claim)
            except Refused as refusal:
                log.warning("not rebuilt", hand_over=claim.name, pod=claim.pod.full_name, error=str(refusal))
            except Exception:  # a pod that has found a defect of ours keeps no other from its devices: logged in full
                log.exception("not rebuilt", hand_over=claim.name, pod=claim.pod.full_name)
        self._adopt_strays()
        if self._is_behind:
            self._catch_up()
        if not self._is_behind:
            self._shrinking.rebuilt()
        self.on_handed_over()

    async def _known_pods(self) -> None:
        """Wait for the list of pods, though not for ever: kubelet fails pods that want seats while we are not there."""
        try:
            async with asyncio.timeout(SYNC_S):
                await self._pods.wait_synced()
        except TimeoutError:
            log.warning("pods are not known yet; what kubelet names is rebuilt when its containers start")

    def _claims(self, checkpoint: Checkpoint) -> Iterable[Claim]:
        """Return what is to be opened; all directories are made whole on the way."""
        for entry in checkpoint.entries:
            if entry.name is None or entry.name in self._desk.held:
                continue
            pod = self._pods.get(entry.pod_uid)
            if self._is_no_more(pod, entry.name):
                continue
            try:
                self._store.ensure(entry.name, may_run=True)
            except HandOverError as error:
                if pod is not None:
                    self._refused(pod, Refused(NOT_WRITTEN, error))
                log.warning("a hand-over cannot be made again", hand_over=entry.name, error=str(error))
                continue
            if pod is None:
                self._desk.adopt(entry.name, pod_uid=entry.pod_uid, pod=entry.pod_uid, container=entry.container)
                continue
            self._restore_whole_cards(pod, checkpoint)
            yield Claim(entry.name, pod, entry.container, len(entry.ids), may_run=True)

    def _is_no_more(self, pod: Pod | None, name: str) -> bool:
        """Whether nothing is to be made whole: the pod has ended, or is gone and a reboot took what it had here."""
        if pod is not None:
            return pod.is_over
        return self._pods.is_synced and not self._store.entry(name).path.exists()

    def _restore_whole_cards(self, pod: Pod, checkpoint: Checkpoint) -> None:
        """Remember from its policies which whole cards a pod without a grant has."""
        safe = self._safe_for(pod)
        if safe is None:
            return
        given: dict[str, list[tuple[str, int]]] = {}
        for entry in checkpoint.entries:
            if entry.pod_uid != pod.uid or entry.name is None:
                continue
            try:
                policy = self._store.entry(entry.name).policy()
            except PartageError:
                continue
            if policy.is_open and policy.generation == GENERATION:
                given[entry.container] = [(device.uuid, device.memory) for device in policy.devices]
        if given:  # cards that are gone too: what runs on one is not moved, and its next start is refused
            self._grants.give(pod, safe.granted(pod.uid, given))

    def _order(self, pod: Pod) -> tuple[int, int, str]:
        try:
            return self._grants.of(pod).order
        except Refused:
            return (1 << 63, 0, pod.uid)

    def _adopt_strays(self) -> None:
        """Go on with what runs although kubelet's checkpoint does not name it."""
        for name in self._store.names() - set(self._desk.held):
            if self._store.entry(name).is_slot_held():
                log.warning("a container runs that kubelet's checkpoint does not name", hand_over=name)
                self._desk.adopt(name, pod_uid="", pod="", container="")

    def _catch_up(self) -> None:
        """Go on with what runs, and under its pod, once kubelet's checkpoint says so; what is closed stays closed."""
        try:
            entries = self._checkpoint.read().entries
        except CheckpointError:
            return
        self._is_behind = False
        for entry in entries:
            pod = self._pods.get(entry.pod_uid)
            if entry.name is None or (pod is not None and pod.is_over):
                continue
            self._desk.own(
                entry.name,
                pod_uid=entry.pod_uid,
                pod=entry.pod_uid if pod is None else pod.full_name,
                container=entry.container,
            )
            if pod is not None:
                self.pod_changed(pod)
        self._shrinking.rebuilt()

    # ---- pods ----------------------------------------------------------------------------------------------------

    def pod_changed(self, pod: Pod) -> None:
        """Bring what runs up to the pod's grant, where that is another one now."""
        self._tell_spoilt()
        trouble = self._grants.twin_trouble(pod)
        if trouble is not None:
            self._reports.event(pod, trouble.reason, str(trouble), warning=True)
        try:
            generation = self._desk.resize(pod)
        except Refused as refusal:
            log.warning("not resized", pod=pod.full_name, error=str(refusal))
            self._reports.event(pod, refusal.reason, str(refusal), warning=True)
            self._reports.condition(
                pod, names.CONDITION_RESIZED, holds=False, reason=refusal.reason, message=str(refusal)
            )
            return
        self._shrinking.saw(pod, generation)

    def ledger_spoilt(self, hand_over: str, why: str) -> None:
        """Say on its pod, once that is known, that a container gets no more memory: it wrote over its ledger itself."""
        self._spoilt[hand_over] = why
        self._tell_spoilt()

    def _tell_spoilt(self) -> None:
        for hand_over, why in list(self._spoilt.items()):
            owner = self._desk.owner_of(hand_over)
            if owner is None:  # it has ended
                del self._spoilt[hand_over]
                continue
            uid, container = owner
            pod = self._pods.get(uid)
            if pod is None:
                continue
            del self._spoilt[hand_over]
            value = f"closed: {why}"
            limit, step = "a ledger is written by the library alone", "restart the container: it gets a new one"
            subject = f"container {container!r} of {pod.full_name}"
            self._refused(pod, Refused(LEDGER_SPOILT, (subject, value, limit, step)))

    def damaged(self, held: Held, refusal: Refused | None) -> None:
        """Say on its pod what a container's hand-over lacks, or, with None, that it lacks nothing any more."""
        pod = self._pods.get(held.pod_uid)
        if pod is None:
            return
        if refusal is not None:
            self._refused(pod, refusal)
        elif held.policy.is_open:
            self._enforced(pod, held)

    def forget(self, uids: Iterable[str]) -> None:
        """Forget the grants of pods that are no more."""
        self._grants.forget(list(uids))
