"""A running pod's share changed by annotation: checked against quota and card, then written as its next grant.

    metadata: {annotations: {partage.io/resize: '{"app": {"memory": "12Gi", "cores": "60%"}}'}}

Whoever may patch the pod may ask; the limits are the same as for a new pod. What fits is written at once (generation
one higher) and the node's agent confirms it by the condition `partage.io/Resized`; what does not fit is refused by the
same condition with the reason, and tried again every `AGAIN_S` while the annotation stands, since room may come. Before
the grant is written the books count the larger of old and new of each amount, so nothing is promised twice whatever
becomes of the write. Memory that is given back may be in use still: the grant says so (`held`), and everybody counts
it until the agent says that use is below the new limit; then the grant is written once more, without it. Cards never
change. What can go wrong: the API server does not answer, or refuses; the pod is read again until it is known what it
has, and what was refused is tried again `AGAIN_S` later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog
from lightkube.resources.core_v1 import PodStatus

from partage.kube import PatchType
from partage.model import GrantError, KubeError, PartageError, ShareRefused, names, parse_cores, parse_memory
from partage.model.grant import ContainerGrant, Grant, GrantShare, condition_message, encode_grant, parse_grant
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.hami_twin import encode_twin
from partage.model.need import Need, granted_need
from partage.model.reasons import Code, remedy
from partage.model.share import CORES_MAX, ShareClass, default_weight
from partage.model.units import format_cores, format_memory
from partage.scheduler.facts_of import pod_facts
from partage.scheduler.views import WatchedPod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.kube import Client, Clock
    from partage.scheduler.books import Books
    from partage.scheduler.cards import NodeState
    from partage.scheduler.facts import PodFacts
    from partage.scheduler.quota.feed import QuotaFeed

AGAIN_S: Final = 30.0
GONE: Final = 404
CONFLICT: Final = 409
INVALID: Final = "ResizeInvalid"
FORM: Final = 'accepted: {"container": {"memory": "12Gi", "cores": "60%"}}, either amount or both'

log = structlog.get_logger("partage.scheduler")


class ResizeRefused(ShareRefused):
    """A wish that cannot be had; `code` is the condition's reason."""

    def __init__(self, code: str, parts: tuple[str, object, str, str]) -> None:
        self.code = code
        super().__init__(*parts)


class Told(Protocol):
    """Where people hear of it."""

    async def resize_refused(self, pod: WatchedPod, code: str, message: str) -> None:
        """Set the condition `partage.io/Resized` to False; KubeError where that cannot be written."""


class _Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wished for one container, as written."""

    memory: str | None = None
    cores: str | int | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wished for one container: bytes and permille, None where it stays."""

    memory: int | None
    cores: int | None


# ---- what is wished --------------------------------------------------------------------------------------------------


def read_wishes(text: str, subject: str) -> dict[str, Wish]:
    """Return container -> wish; raises ResizeRefused for what has no meaning."""
    where = f"annotation {names.RESIZE} of {subject}"
    try:
        found = msgspec.json.decode(text, type=dict[str, _Amounts])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ResizeRefused(INVALID, (where, str(error), FORM, "write one of these forms")) from error
    try:
        return {name: _wish(amounts) for name, amounts in found.items()}
    except PartageError as error:
        parts = (f"{where}, {error.subject}", error.value, error.limit, error.step)
        raise ResizeRefused(INVALID, parts) from error


def _wish(amounts: _Amounts) -> Wish:
    memory = None if amounts.memory is None else int(parse_memory(amounts.memory))
    cores = None if amounts.cores is None else int(parse_cores(str(amounts.cores)))
    return Wish(memory, cores)


def resized(grant: Grant, wishes: Mapping[str, Wish], subject: str) -> Grant:
    """Return the next grant, or the same one where nothing changes; raises ResizeRefused."""
    containers = dict(grant.containers)
    for name, wish in wishes.items():
        part = containers.get(name)
        if part is None:
            there = ", ".join(containers) or "none"
            limit = f"containers with shares: {there}"
            parts = (f"annotation {names.RESIZE} of {subject}", f"container {name!r}", limit, "name one of these")
            raise ResizeRefused(INVALID, parts)
        changed = msgspec.structs.replace(part, shares=tuple(_share(part, share, wish) for share in part.shares))
        if changed != part and part.mode != "shim":
            limit = "only shares that the library enforces change while the pod runs"
            parts = (f"container {name!r} of {subject}", f"mode {part.mode}", limit, "delete the pod and ask anew")
            raise ResizeRefused(str(Code.CARD_MODE), parts)
        containers[name] = changed
    if containers == grant.containers:
        return grant
    return msgspec.structs.replace(grant, gen=grant.gen + 1, containers=containers)


def _share(part: ContainerGrant, share: GrantShare, wish: Wish) -> GrantShare:
    """Return a share with what is wished; its times by the rules of its class."""
    memory = share.memory if wish.memory is None else wish.memory
    share = msgspec.structs.replace(share, held=share.counted if share.counted > memory else 0)
    if wish.cores is None:
        return msgspec.structs.replace(share, memory=memory)
    if part.share_class is ShareClass.BEST_EFFORT:
        return msgspec.structs.replace(share, memory=memory, ceiling=wish.cores)
    ceiling = wish.cores if part.share_class is ShareClass.FIXED else max(share.ceiling, wish.cores)
    is_default = share.weight == default_weight(share.cores)
    weight = default_weight(wish.cores) if is_default else share.weight
    return msgspec.structs.replace(share, memory=memory, cores=wish.cores, ceiling=ceiling, weight=weight)


def is_confirmed(pod: WatchedPod, grant: Grant) -> bool:
    """Whether the node says that the pod uses no more than this generation gives it."""
    condition = pod.condition(names.CONDITION_RESIZED)
    return condition is not None and condition.status == "True" and condition.message == condition_message(grant.gen)


def let_go(grant: Grant) -> Grant:
    """Return the grant without what was held of larger shares before."""
    containers = {
        name: msgspec.structs.replace(
            part, shares=tuple(msgspec.structs.replace(share, held=0) for share in part.shares)
        )
        for name, part in grant.containers.items()
    }
    return grant if containers == grant.containers else msgspec.structs.replace(grant, containers=containers)


def larger(old: Grant, new: Grant) -> Grant:
    """Return the new grant with the larger of both amounts everywhere: what to count until it is known which holds."""
    containers = {}
    for name, part in new.containers.items():
        before = {share.uuid: share for share in old.containers[name].shares}
        shares = tuple(
            msgspec.structs.replace(
                share,
                memory=max(share.memory, before[share.uuid].memory),
                cores=max(share.cores, before[share.uuid].cores),
                ceiling=max(share.ceiling, before[share.uuid].ceiling),
            )
            for share in part.shares
        )
        containers[name] = msgspec.structs.replace(part, shares=shares)
    return msgspec.structs.replace(new, containers=containers)


# ---- whether it fits -------------------------------------------------------------------------------------------------


def check_fit(node: NodeState, uid: str, old: Mapping[str, Need], new: Mapping[str, Need], subject: str) -> None:
    """Raise ResizeRefused where a card has not what more is wished of it; less is always possible."""
    others = node.without((uid,))
    for uuid, need in new.items():
        at, before = others.place.get(uuid), old.get(uuid, Need())
        where = f"{subject} on card {uuid} of node {node.name}"
        if need == before:
            continue
        if at is None:
            parts = (where, "the card is gone", "cards that the node has", remedy(Code.CARD_NOT_HEALTHY))
            raise ResizeRefused(str(Code.CARD_NOT_HEALTHY), parts)
        is_more = need.memory > before.memory or need.cores > before.cores
        if is_more and uuid in others.closed:
            parts = (where, "more is wished", others.closed[uuid], remedy(Code.CARD_UNKNOWN_USE))
            raise ResizeRefused(str(Code.CARD_UNKNOWN_USE), parts)
        memory = min(others.memory[at], others.kinds[at].physical)
        if need.memory > max(before.memory, memory):
            parts = (where, f"{format_memory(need.memory)} wished", f"{format_memory(max(0, memory))} there", _STEP)
            raise ResizeRefused(str(Code.CARD_MEMORY), parts)
        cores = others.cores[at]
        if need.cores > max(before.cores, cores):
            parts = (where, f"{format_cores(need.cores)} wished", f"{format_cores(max(0, cores))} there", _STEP)
            raise ResizeRefused(str(Code.CARD_CORES), parts)
        if need.cores == CORES_MAX != before.cores and others.tenants[at]:
            parts = (where, "all cores wished", f"{others.tenants[at]} other pods are on the card", _STEP)
            raise ResizeRefused(str(Code.CARD_NOT_EMPTY), parts)


_STEP: Final = "wish for less, or wait for other pods of the card to end"


# ---- doing it --------------------------------------------------------------------------------------------------------


_HELD: Final = '"held":'  # in the text of a grant


def _seen(pod: WatchedPod) -> tuple[str, ...]:
    """Return what of a pod decides what is to be done."""
    condition = pod.condition(names.CONDITION_RESIZED)
    said = ("", "") if condition is None else (condition.status, condition.message or "")
    return (pod.annotations.get(names.RESIZE, ""), pod.annotations[names.GRANT], *said)


class Resizer:
    """All wishes of one term, by its number; owned by one event loop."""

    def __init__(  # noqa: PLR0913 -- the world around it
        self, client: Client, books: Books, quotas: QuotaFeed, clock: Clock, told: Told, *, term: int
    ) -> None:
        self._term = term
        self._client = client
        self._books = books
        self._quotas = quotas
        self._clock = clock
        self._told = told
        self._pods: dict[str, WatchedPod] = {}  # bound pods with a wish, as last seen
        self._due: set[str] = set()
        self._said: dict[str, tuple[str, str]] = {}  # uid -> wish and refusal as told
        self._wake = asyncio.Event()
        self.written = 0

    def saw(self, pod: WatchedPod) -> None:
        """Take note of a pod as the watch shows it; called after the books were told."""
        grant = pod.annotations.get(names.GRANT, "")
        is_ours = bool(grant) and (names.RESIZE in pod.annotations or _HELD in grant)
        if not pod.node or not is_ours or pod.is_finished:
            self.gone(pod.uid)
            return
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if before is None or _seen(pod) != _seen(before):
            self._due.add(pod.uid)
            self._wake.set()

    def gone(self, uid: str) -> None:
        """Forget a pod."""
        self._pods.pop(uid, None)
        self._due.discard(uid)
        self._said.pop(uid, None)

    async def run(self) -> None:
        """See to wishes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._due:
                    pod = self._pods.get(self._due.pop())
                    if pod is not None:
                        await self._see_to(pod)

    async def _again(self) -> None:
        while True:
            await self._clock.sleep(AGAIN_S)
            self._due |= self._said.keys() & self._pods.keys()
            if self._due:
                self._wake.set()

    async def _see_to(self, pod: WatchedPod) -> None:
        """Bring one pod's grant to what is wished, or say why not."""
        facts = self._books.pods.get(pod.uid)
        if facts is None or facts.grant != pod.annotations.get(names.GRANT):
            return  # the watch has it soon, and then it is seen again
        try:
            grant = parse_grant(facts.grant, uid=pod.uid, node=facts.node, pod=pod.subject)
        except GrantError as error:
            log.warning("not resized", pod=pod.subject, error=str(error))
            return
        free = let_go(grant) if is_confirmed(pod, grant) else grant
        if free is not grant:
            self._said.pop(pod.uid, None)  # the condition says something else by now
            if await self._write(pod, facts, free, grant):
                self._due.add(pod.uid)  # what else is wished
            return
        try:
            change = self._change(pod, facts, grant)
        except ShareRefused as error:
            await self._refuse(pod, str(getattr(error, "code", INVALID)), str(error))
            return
        self._said.pop(pod.uid, None)
        if change is not None:
            await self._write(pod, facts, *change)

    def _change(self, pod: WatchedPod, facts: PodFacts, grant: Grant) -> tuple[Grant, Grant] | None:
        """Return the grant to write and what to count meanwhile; None where all is as wished."""
        after = resized(grant, read_wishes(pod.annotations.get(names.RESIZE, "{}"), pod.subject), pod.subject)
        if after is grant:
            return None
        most = larger(grant, after)
        node = self._books.nodes.get(facts.node)
        if node is None:
            parts = (pod.subject, f"node {facts.node} is not known", "a node with cards", remedy(Code.NODE_UNKNOWN))
            raise ResizeRefused(str(Code.NODE_UNKNOWN), parts)
        check_fit(node, pod.uid, granted_need(grant, facts.order), granted_need(after, facts.order), pod.subject)
        self._quotas.check_grant(pod, after)
        return after, most

    async def _write(self, pod: WatchedPod, facts: PodFacts, after: Grant, most: Grant) -> bool:
        """Write a grant, only onto the version of the pod that it was made from; say whether that was done."""
        after = msgspec.structs.replace(after, resized_in=self._term)
        text = encode_grant(after)
        annotations = {names.GRANT: text}
        if TWIN in pod.annotations:
            annotations[TWIN] = encode_twin(after, [name for name, _ in facts.order])
        meta = pod.metadata
        version = {"uid": pod.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": {**version, "annotations": annotations}}
        self._count(replace(facts, grant=encode_grant(most)), most)
        try:
            done = await self._client.patch(WatchedPod, meta.name or "", body, namespace=meta.namespace)
        except KubeError as error:
            log.info("a grant is not written", pod=pod.subject, error=str(error))
            await self._find_out(pod, is_old=error.status == CONFLICT)
            return False
        self.written += 1
        log.info("resized", pod=pod.subject, generation=after.gen)
        self._take(done, before=pod)
        return True

    async def _find_out(self, pod: WatchedPod, *, is_old: bool) -> None:
        """Read the pod until it is known what it has, and count that; an old version's wish is seen to at once."""
        meta = pod.metadata
        while pod.uid in self._pods:
            try:
                found = await self._client.get(WatchedPod, meta.name or "", namespace=meta.namespace)
            except KubeError as error:
                if error.status == GONE:
                    return  # the watch says so in a moment
                await self._clock.sleep(1.0)
                continue
            if found.uid == pod.uid:
                self._take(found, before=pod)
                if is_old:
                    self._due.add(pod.uid)
                    self._wake.set()
                else:  # an answer that is the same each time must not be asked for without a pause
                    self._said[pod.uid] = (found.annotations.get(names.RESIZE, ""), "")
            return

    def _take(self, pod: WatchedPod, *, before: WatchedPod) -> None:
        """Count a pod as the API server has it; `before`: as it was when it was asked.

        Where the watch has shown another version meanwhile, that stays the one whose wish is seen to. Where it has
        another grant, the books were told of it; of other changes they were not, and still count what was tried.
        """
        facts, now = pod_facts(pod), self._pods.get(pod.uid)
        if now is None or facts is None:
            return
        if now.metadata.resource_version == before.metadata.resource_version:
            self._pods[pod.uid] = pod
        elif now.annotations.get(names.GRANT) != before.annotations.get(names.GRANT):
            return
        self._books.set_pod(facts)
        self._quotas.recount(pod)

    def _count(self, facts: PodFacts, grant: Grant) -> None:
        self._books.set_pod(facts)
        self._quotas.count_grant(self._pods[facts.uid], grant)

    async def _refuse(self, pod: WatchedPod, code: str, message: str) -> None:
        said = (pod.annotations.get(names.RESIZE, ""), message)
        if self._said.get(pod.uid) == said:
            return
        log.info("resize refused", pod=pod.subject, code=code, reason=message)
        try:
            await self._told.resize_refused(pod, code, message)
        except KubeError as error:
            log.warning("a refusal is not told", pod=pod.subject, error=str(error))
            self._said[pod.uid] = (said[0], "")
            return
        self._said[pod.uid] = said


class Conditions:
    """Writes the condition; what `Resizer` tells."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def resize_refused(self, pod: WatchedPod, code: str, message: str) -> None:
        """Set the condition `partage.io/Resized` to False; KubeError where that cannot be written."""
        before, meta = pod.condition(names.CONDITION_RESIZED), pod.metadata
        condition: dict[str, object] = {"type": names.CONDITION_RESIZED, "status": "False"}
        condition |= {"reason": code, "message": message}
        if before is None or before.status != "False":
            condition["lastTransitionTime"] = self._clock.date().replace(microsecond=0)
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        await self._client.patch(PodStatus, meta.name or "", body, namespace=meta.namespace, kind=PatchType.STRATEGIC)
