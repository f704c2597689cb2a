"""The desk where shares are handed over: from a container whose owner is known to an open policy and a CDI spec.

One `Desk` per resource knows every hand-over that was opened and is the only one that opens, changes and closes them.
Called by the device plugin's `PreStartContainer`, by the rebuild before a registration and by the follower of pods. All
checks and the taking of room on a card happen without a pause in between, so that two containers cannot both get the
last gigabyte. What can go wrong is Refused, with the reason for the pod; whatever fails half-way leaves the policy
closed and nothing reserved.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from partage.model import DeviceError, PolicyError, format_memory, names
from partage.model.guarded import guarded
from partage.model.need import Need
from partage.shm import Policy, PolicyFile
from partage_plugin.handover.gates import Gates
from partage_plugin.handover.policies import carried_over, policy_of
from partage_plugin.handover.store import HandOverError
from partage_plugin.handover.sums import Promise, check_sums
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partage.devices.backend import Backend, Card, ContainerEdits, Enforcement
    from partage.model.grant import ContainerGrant, Grant, GrantShare
    from partage.run.handover import HandOver
    from partage_plugin.cards import Cards
    from partage_plugin.handover.cdi import CdiDirectory
    from partage_plugin.handover.grants import Grants
    from partage_plugin.handover.store import Store
    from partage_plugin.ports import Pod, Pods

NOT_GRANTED: Final = "ContainerNotGranted"
SEATS_DIFFER: Final = "SeatsDiffer"
CARD_MISSING: Final = "CardMissing"
CARD_FAILED: Final = "CardUnhealthy"
TOO_MANY: Final = "TooManyShares"
TOO_LARGE: Final = "ShareTooLarge"
MODE: Final = "ModeNotEnforced"
NOT_READY: Final = "DeviceNotReady"
NOT_WRITTEN: Final = "HandOverNotWritten"
MOVED: Final = "ResizeMovesCards"
OF_ANOTHER: Final = "HandOverOfAnother"
COVERED: Final = "LimitCovered"

_SLICED: Final = frozenset({"mig", "vendor"})

log = structlog.get_logger("partage.handover")


class Watch(Protocol):
    """Who watches what runs under open hand-overs."""

    def add(self, entry: HandOver) -> None:
        """Watch a hand-over from now on; one that is watched already stays so."""

    def remove(self, name: str) -> None:
        """Watch it no longer."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A hand-over and whose it is; `seats`: how many ids kubelet gave for it; `may_run`: its container, already.

    `files`: what else of the host is mounted into it.
    """

    name: str
    pod: Pod
    container: str
    seats: int
    may_run: bool = False
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class Held:
    """An open hand-over."""

    entry: HandOver
    file: PolicyFile
    policy: Policy  # as written last; the watcher's corrections are in the file alone
    pod_uid: str
    pod: str  # namespace/name
    container: str
    grant: ContainerGrant | None  # None: adopted, and its pod's grant is not known
    generation: int


@dataclass(frozen=True, slots=True)
class _Late:
    """What runs by this policy, whose file cannot be opened for changes now."""

    policy: Policy
    pod_uid: str
    pod: str
    container: str


class Desk:
    """All open hand-overs of one resource. Used from one thread."""

    def __init__(  # noqa: PLR0913 -- everything that a hand-over touches
        self,
        *,
        store: Store,
        cdi: CdiDirectory,
        cards: Cards,
        backend: Backend,
        grants: Grants,
        pods: Pods,
        watch: Watch,
        oversub: int = 1000,
        one_card: bool = False,
        context_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._cdi = cdi
        self._cards = cards
        self._backend = backend
        self._grants = grants
        self._pods = pods
        self._watch = watch
        self._oversub = oversub
        self._one_card = one_card
        self._context_of = context_of
        self._gates = Gates()
        self._held: dict[str, Held] = {}
        self._late: dict[str, _Late] = {}  # what runs and could not be adopted yet
        self._reserved: dict[object, str] = {}  # request -> pod UID, while its devices are prepared

    @property
    def held(self) -> Mapping[str, Held]:
        """The open hand-overs by name."""
        return self._held

    def owner_of(self, name: str) -> tuple[str, str] | None:
        """Return the pod's UID and the container of what runs by a hand-over; None where nothing does."""
        found = self._held.get(name) or self._late.get(name)
        return None if found is None else (found.pod_uid, found.container)

    def granted_on(self) -> dict[str, int]:
        """Return card -> how many shares of it are handed over."""
        count: dict[str, int] = {}
        for held in self._held.values():
            for share in held.policy.devices:
                count[share.uuid] = count.get(share.uuid, 0) + 1
        return count

    # ---- opening -------------------------------------------------------------------------------------------------

    async def hand_over(self, claim: Claim) -> Held:
        """Open a hand-over for its container; raises Refused. Asking again for the same is no change."""
        self._check_owner(claim)
        self._check_mounts(claim)
        grant = self._grants.of(claim.pod)
        part = self._part(claim, grant)
        enforcement = self._enforcement(part, f"container {claim.container!r} of {claim.pod.full_name}")
        self._check_room(claim.pod, held=any(held.pod_uid == claim.pod.uid for held in self._held.values()))
        request = object()  # kubelet asks again where it waited too long: two for one name
        self._reserved[request] = claim.pod.uid
        try:
            edits = await self._prepare(part)
            return self._open(claim, grant, part, edits, enforcement)
        finally:
            del self._reserved[request]

    def _check_owner(self, claim: Claim) -> None:
        """Refuse a hand-over that was opened for another pod: it never changes hands, whatever names say."""
        held = self._held.get(claim.name)
        if held is not None and held.pod_uid not in {"", claim.pod.uid}:
            whose, limit = (
                f"pod {held.pod_uid}, container {held.container!r}",
                "a hand-over is one container's for ever",
            )
            step = "kubelet asks again; delete the pod if this stays"
            raise Refused(OF_ANOTHER, (f"hand-over {claim.name} for {claim.pod.full_name}", f"of {whose}", limit, step))

    @staticmethod
    def _check_mounts(claim: Claim) -> None:
        """Refuse a container with a mount over what holds its limits; one that runs already is not looked at."""
        container = None if claim.may_run else claim.pod.container(claim.container)
        for path in () if container is None else container.mounts:
            place = guarded(path)
            if place is not None:
                subject = f"container {claim.container!r} of {claim.pod.full_name}"
                limit, step = f"{place} is the library's", "create the pod again with that mounted elsewhere"
                raise Refused(COVERED, (subject, f"has its own mounted at {path}", limit, step))

    def _part(self, claim: Claim, grant: Grant) -> ContainerGrant:
        subject = f"container {claim.container!r} of {claim.pod.full_name}"
        step = "delete the pod and let its controller make a new one"
        part = grant.containers.get(claim.container)
        if part is None:
            there = ", ".join(grant.containers) or "no container"
            raise Refused(NOT_GRANTED, (subject, "has no share", f"the pod's grant lists {there}", step))
        if len(part.shares) != claim.seats:
            value, limit = f"{claim.seats} seats from kubelet", f"its grant has {len(part.shares)} shares"
            raise Refused(SEATS_DIFFER, (subject, value, limit, step))
        if self._one_card and claim.seats > 1:
            limit = "one share a container on this node (nvidia.failRequestsGreaterThanOne)"
            raise Refused(TOO_MANY, (subject, f"asks for {claim.seats} shares", limit, "ask for one"))
        for share in part.shares:
            card = self._card_of(share, subject)
            if not card.healthy:
                value, limit = f"a share of {share.uuid}", f"the card failed: {card.reason or 'no reason known'}"
                raise Refused(CARD_FAILED, (subject, value, limit, "wait for the card, or " + step))
        return part

    def _card_of(self, share: GrantShare, subject: str) -> Card:
        """Return the card of a share; raises Refused where there is none, or where it is smaller than the share."""
        step = "delete the pod and let its controller make a new one"
        card = self._cards.by_uuid.get(share.uuid)
        if card is None or share.backend != self._backend.name:
            there = ", ".join(self._cards.by_uuid) or "no card"
            raise Refused(CARD_MISSING, (subject, f"a share of {share.uuid}", f"this node has {there}", step))
        if share.memory > card.physical:
            value = f"{format_memory(share.memory)} of {share.uuid}"
            raise Refused(TOO_LARGE, (subject, value, f"the card has {format_memory(card.physical)}", step))
        return card

    def _check_room(self, pod: Pod, *, held: bool) -> None:
        wanted = self._grants.promise(pod, held=held)
        if wanted is not None:
            check_sums(wanted, self._promises(pod.uid), self._cards.by_uuid, oversub=self._oversub)

    def _promises(self, without: str) -> list[Promise]:
        """Return what all other pods of the node are promised, and what runs whose grant nobody knows any more."""
        holders = {held.pod_uid for held in self._held.values()} | set(self._reserved.values())
        holders |= {late.pod_uid for late in self._late.values()}
        found: list[Promise] = []
        known: set[str] = {without}
        for pod in self._pods.all():
            if pod.uid == without or (pod.is_over and pod.uid not in holders):
                continue
            promise = self._grants.promise(pod, held=pod.uid in holders)
            if promise is not None:
                found.append(promise)
                known.add(pod.uid)
        found += [_promise_of(held) for held in self._held.values() if held.pod_uid not in known]
        found += [_promise_of(late) for late in self._late.values() if late.pod_uid not in known]
        return found

    def _enforcement(self, part: ContainerGrant, subject: str) -> Enforcement:
        """Return what will hold its limits; raises Refused for a mode that the backend cannot hold.

        A slice is of the hardware: where nothing makes one, the container would have the card and not its part.
        """
        sliced = next((share for share in part.shares if share.slice is not msgspec.UNSET), None)
        if sliced is not None and part.mode not in _SLICED:
            value = f"a slice of {sliced.uuid} in mode {part.mode}"
            limit = f"slices are of the modes {', '.join(sorted(_SLICED))}"
            raise Refused(MODE, (subject, value, limit, "place the pod anew, without a slice or in such a mode"))
        try:
            return self._backend.enforcement(part.mode)
        except DeviceError as error:
            raise Refused(MODE, (subject, f"{error.subject}: {error.value}", error.limit, error.step)) from error

    async def _prepare(self, part: ContainerGrant) -> ContainerEdits:
        try:
            return await self._backend.prepare(part.shares)
        except DeviceError as error:
            raise Refused(NOT_READY, error) from error

    def _open(
        self, claim: Claim, grant: Grant, part: ContainerGrant, edits: ContainerEdits, enforcement: Enforcement
    ) -> Held:
        policy = policy_of(
            part,
            generation=grant.gen,
            cards=self._cards.by_uuid,
            enforcement=enforcement,
            context_of=self._context_of,
        )
        if claim.name in self._held and not self._store.entry(claim.name).path.is_dir():
            self._drop(claim.name)  # somebody removed it: what we have open of it reaches nobody
        ledger = self._store.ledger_inode(claim.name)
        was_open = True

        def carry(present: Policy) -> Policy:
            nonlocal was_open
            was_open = present.is_open
            return carried_over(policy, present)

        try:
            if self.is_damaged(claim.name):  # a container that starts has nothing of it mapped
                self.put_back(claim.name)
            entry = self._store.ensure(claim.name, may_run=claim.may_run)
            self._cdi.write(claim.name, edits, entry.path)
            held = self._held.get(claim.name)
            file = PolicyFile.open(entry.policy_path) if held is None else held.file
            try:
                written = file.update(carry)
            except PolicyError:
                if held is None:
                    file.close()
                raise
        except (HandOverError, PolicyError) as error:
            raise Refused(NOT_WRITTEN, error) from error
        is_new = claim.name not in self._held
        if not is_new and (not was_open or self._store.ledger_inode(claim.name) != ledger):
            self._watch.remove(claim.name)  # its tenant spoilt the ledger: it is another one now, or is found so anew
        held = Held(entry, file, written, claim.pod.uid, claim.pod.full_name, claim.container, part, grant.gen)
        ungated = self._take_up(held)
        if ungated is not None:  # it would launch past the turns of others
            if is_new:
                self._take_back(held)
            raise Refused(NOT_WRITTEN, ungated)
        return held

    def _take_back(self, held: Held) -> None:
        """Close what was opened a moment ago: nobody runs under it."""
        with contextlib.suppress(PolicyError):
            held.file.shut()
        self._drop(held.entry.name)
        self._cdi.remove(held.entry.name)

    def _take_up(self, held: Held) -> PolicyError | None:
        """Hold it from now on; return why its gates could not be written."""
        self._late.pop(held.entry.name, None)
        self._held[held.entry.name] = held
        ungated = self._gates.put(held.entry, held.file, held.policy)
        self._watch.add(held.entry)
        return ungated

    def mend(self) -> bool:
        """Try again what could not be adopted, and gates that could not be written; return whether any is left."""
        for name, late in list(self._late.items()):
            del self._late[name]
            if self.adopt(name, pod_uid=late.pod_uid, pod=late.pod, container=late.container) is not None:
                log.info("adopted at last", hand_over=name, pod=late.pod)
        self._gates.mend()
        return self.is_behind

    def is_damaged(self, name: str) -> bool:
        """Whether somebody removed the policy or the turns of an open hand-over, though not all of it."""
        held = self._held.get(name)
        return held is not None and held.entry.path.is_dir() and self.missing(held) != ""

    def missing(self, held: Held) -> str:
        """Return which file of an open hand-over was removed, the graver one first; empty for none."""
        if not held.file.is_in_place:
            return names.POLICY_FILE
        return "" if self._store.has_turns(held.entry.name) else names.TURNS_FILE

    def put_back(self, name: str) -> None:
        """Put back what was removed of an open hand-over, as it was; raises HandOverError or PolicyError.

        For those alone in which nobody runs: a process that has the lost file mapped would follow no change any more,
        and its neighbours would be given what it still takes.
        """
        held = self._held[name]
        if held.file.is_in_place:
            self._store.put_back(name, None)
            return
        with contextlib.suppress(PolicyError):  # torn: as we wrote it last
            held.policy = held.file.read()
        self._store.put_back(name, held.policy)
        file = PolicyFile.open(held.entry.policy_path)
        self._watch.remove(name)
        held.file.close()
        held.file = file
        self._gates.put(held.entry, file, held.policy)
        self._watch.add(held.entry)

    @property
    def is_behind(self) -> bool:
        """Whether some container has other gates than it should, or could not be adopted yet."""
        return self._gates.behind > 0 or bool(self._late)

    def adopt(self, name: str, *, pod_uid: str, pod: str, container: str) -> Held | None:
        """Go on with an open hand-over whose pod or grant is not known: what runs keeps the limits it has.

        None where its policy is closed or cannot be read: then nothing runs under it that has any. Also where it cannot
        be opened for changes now (a tenant may hold a lease on it, for as long as the kernel lets it); it keeps its
        room then, and `mend` adopts it.
        """
        entry = self._store.entry(name)
        with contextlib.suppress(PolicyError):
            policy = entry.policy()
            if policy.is_open and name not in self._held:
                self._late[name] = _Late(policy, pod_uid, pod, container)
                self._watch.add(entry)  # its dead are found whether or not its policy can be changed
                file = PolicyFile.open(entry.policy_path)
                del self._late[name]
                held = Held(entry, file, policy, pod_uid, pod, container, None, policy.generation)
                self._take_up(held)
                return held
        return None

    def own(self, name: str, *, pod_uid: str, pod: str, container: str) -> None:
        """Go on with an open hand-over as `adopt` does, where nobody could tell whose it is before this."""
        held = self._held.get(name)
        if held is None:
            self.adopt(name, pod_uid=pod_uid, pod=pod, container=container)
        elif not held.pod_uid:
            held.pod_uid, held.pod, held.container = pod_uid, pod, container

    # ---- changing and closing ------------------------------------------------------------------------------------

    def resize(self, pod: Pod) -> int | None:
        """Bring a pod's open hand-overs up to its grant as it is now; return its generation, None for no change.

        Raises Refused, and then nothing has changed. Where a running container cannot be brought up to it (a card that
        it has not), none of the pod's is.
        """
        mine = [held for held in self._held.values() if held.pod_uid == pod.uid]
        if not mine:
            return None
        for held in mine:
            held.pod = pod.full_name  # one that was adopted before its pod was known has none
        try:
            grant = self._grants.of(pod)
        except Refused:
            if all(held.grant is None for held in mine):
                return None  # what was adopted goes on with the limits it has
            raise
        behind = [held for held in mine if held.generation < grant.gen and held.container in grant.containers]
        if not behind:
            return None
        enforcements: list[Enforcement] = []
        for held in behind:
            subject = f"container {held.container!r} of {pod.full_name}"
            before = [share.uuid for share in held.policy.devices]
            after = [share.uuid for share in grant.containers[held.container].shares]
            if before != after:
                value, limit = f"cards {', '.join(after)}", f"it runs on {', '.join(before)}"
                raise Refused(MOVED, (subject, value, limit, "a running container stays on its cards: start it anew"))
            for share in grant.containers[held.container].shares:
                self._card_of(share, subject)
            enforcements.append(self._enforcement(grant.containers[held.container], subject))
        self._check_room(pod, held=False)
        for held, enforcement in zip(behind, enforcements, strict=True):
            self._rewrite(held, grant, enforcement)
        return grant.gen

    def given(self, pod: Pod, generation: int) -> tuple[Held, ...] | None:
        """Return a pod's open hand-overs; None where the limits of this generation are not in force everywhere."""
        mine = tuple(held for held in self._held.values() if held.pod_uid == pod.uid)
        is_late = any(late.pod_uid == pod.uid for late in self._late.values())
        return None if is_late or not mine or any(held.generation < generation for held in mine) else mine

    def _rewrite(self, held: Held, grant: Grant, enforcement: Enforcement) -> None:
        part = grant.containers[held.container]
        policy = policy_of(
            part,
            generation=grant.gen,
            cards=self._cards.by_uuid,
            enforcement=enforcement,
            context_of=self._context_of,
        )
        try:
            held.policy = held.file.update(
                lambda present: replace(carried_over(policy, present), is_open=present.is_open)  # closed ones stay so
            )
        except PolicyError as error:
            raise Refused(NOT_WRITTEN, error) from error
        held.grant, held.generation = part, grant.gen
        self._gates.put(held.entry, held.file, held.policy)
        log.info("resized", hand_over=held.entry.name, pod=held.pod, container=held.container, generation=grant.gen)

    def shut(self, name: str) -> None:
        """Let no container start under a hand-over until it is opened again; none runs under it."""
        self._cdi.remove(name)
        held = self._held.get(name)
        if held is not None:
            with contextlib.suppress(PolicyError):  # without its spec it does not start either
                held.file.shut()

    async def close(self, name: str) -> None:
        """End a hand-over and remove all that it has on this node; one that is not open is removed just the same."""
        held = self._drop(name)
        self._cdi.remove(name)
        self._store.remove(name)
        if held is not None and held.grant is not None:
            try:
                await self._backend.release(held.grant.shares)
            except DeviceError as error:
                log.warning("a backend did not take devices back", hand_over=name, error=str(error))

    def _drop(self, name: str) -> Held | None:
        if self._late.pop(name, None) is not None:
            self._watch.remove(name)
        held = self._held.pop(name, None)
        if held is not None:
            self._watch.remove(name)
            self._gates.drop(name)
            held.file.close()
        return held

    def let_go(self) -> None:
        """Close all files: the agent ends, the containers go on."""
        for name, held in self._held.items():
            self._watch.remove(name)
            held.file.close()
        for name in self._late:
            self._watch.remove(name)
        self._held.clear()


def _promise_of(held: Held | _Late) -> Promise:
    """Return what an adopted hand-over takes, by its policy: it came before anything that is asked for now."""
    need = {share.uuid: Need(share.memory, share.cores, 1) for share in held.policy.devices}
    return Promise((0, 0, held.pod_uid), held.pod, need, held=True)
