"""What a term does beside placing pods: quotas and their status, room for pods of high priority, resizing.

Made and run by the term, asked by the extender. It watches what the term's own watch does not (quotas, disruption
budgets) and hears of pods and nodes from that one. What can go wrong is each part's own and told where that is; the
API server's silence is ridden out by the informers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import ResourceQuota
from lightkube.resources.policy_v1 import PodDisruptionBudget

from partage.devices.ask import read_ask
from partage.kube import EventRecorder, Informer, Rate
from partage.model import names
from partage.scheduler.budgets import Budgets, allows_more, read_budgets
from partage.scheduler.evict import Evictor
from partage.scheduler.quota.book import QuotaBook
from partage.scheduler.quota.feed import QuotaFeed, QuotaRefused, reads
from partage.scheduler.quota.status import StatusWriter
from partage.scheduler.resize import Conditions, Resizer
from partage.scheduler.wake import Waker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.devices.requests import AskOptions
    from partage.kube import Change, Client, Clock
    from partage.model.ask import PodAsk
    from partage.model.pod import PodView
    from partage.scheduler.books import Books
    from partage.scheduler.cards import CardKind
    from partage.scheduler.views import WatchedNode, WatchedPod
    from partage.scheduler.watch import Watch

COMPONENT: Final = "partage.io/scheduler"
BAD_QUOTA: Final = "QuotaKeyUnknown"

log = structlog.get_logger("partage.scheduler")


class Duties:
    """Quotas, preemption and resize of one term; owned by one event loop."""

    def __init__(  # noqa: PLR0913 -- the world around it
        self, client: Client, books: Books, watch: Watch, clock: Clock, *, options: AskOptions, instance: str, term: int
    ) -> None:
        self._books = books
        self._watch = watch
        self._events = EventRecorder(client, COMPONENT, instance=instance, rate=Rate(), clock=clock)
        self._quota_objects: Informer[ResourceQuota] = Informer(client, ResourceQuota, clock=clock)
        self._budget_objects: Informer[PodDisruptionBudget] = Informer(client, PodDisruptionBudget, clock=clock)
        self._sizes: frozenset[int] = frozenset()
        self.quotas = QuotaFeed(
            QuotaBook(),
            read=reads(lambda pod: read_ask(pod, options)),
            pods=lambda: watch.pods,
            card=self._card,
            sizes=books.sizes,
            warn=self._warn,
        )
        self.status = StatusWriter(client, self.quotas.book, clock, seen=self._quota_objects.named)
        self.evictor = Evictor(
            client, books, clock, pod=watch.pod, budgets=self._budgets, told=self, members=self._members
        )
        self.waker = Waker(client, clock, self._fits)
        self.resizer = Resizer(client, books, self.quotas, clock, Conditions(client, clock), term=term)
        books.promises = self.quotas
        self._quota_objects.subscribe(self._quota)
        self._budget_objects.subscribe(self._budget)
        watch.pods.subscribe(self.quotas.pod_changed)
        watch.nodes.subscribe(self._node)

    async def run(self) -> None:
        """Watch and write until cancelled; nothing is written before everything is known."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._quota_objects.run(), name="quotas")
            tasks.create_task(self._budget_objects.run(), name="budgets")
            tasks.create_task(self._events.run(), name="events")
            await self._watch.wait_synced()
            await self.wait_synced()
            self.quotas.recount_all()
            tasks.create_task(self.status.run(), name="quota status")
            tasks.create_task(self.waker.run(), name="waker")
            await self._budget_objects.wait_synced()
            tasks.create_task(self.evictor.run(), name="evictor")
            tasks.create_task(self.resizer.run(), name="resizer")

    async def wait_synced(self) -> None:
        """Return once all quotas are known: before, nobody may be placed."""
        await self._quota_objects.wait_synced()

    # ---- from the watch ----------------------------------------------------------------------------------------------

    def saw(self, pod: WatchedPod) -> None:
        """Take note of a pod as the watch shows it; called after the books were told."""
        self.evictor.saw(pod)
        if not pod.waits:
            self.waker.forget(pod.uid)
        self.resizer.saw(pod)

    def gone(self, uid: str) -> None:
        """Take note that a pod is gone."""
        self.evictor.gone(uid)
        self.waker.forget(uid)
        self.resizer.gone(uid)

    def _node(self, change: Change[WatchedNode]) -> None:
        """Charge parts of cards anew where cards are others than before."""
        sizes = frozenset(self._books.sizes())
        if sizes != self._sizes:
            self._sizes = sizes
            self.quotas.recount_all()
            return
        before = change.old.annotations.get(names.DEVICES) if change.old is not None else None
        state = self._books.nodes.get(change.object.name)
        if state is not None and change.object.annotations.get(names.DEVICES) != before:
            for uid in tuple(state.pods):
                pod = self._watch.pod(uid)
                if pod is not None:
                    self.quotas.recount(pod)

    def _quota(self, change: Change[ResourceQuota]) -> None:
        self.quotas.quota_changed(change)
        self.status.look_again(change.key.namespace, change.key.name)

    def _budget(self, change: Change[PodDisruptionBudget]) -> None:
        gone = change.kind == "deleted"
        if allows_more(change.object if gone else change.old, None if gone else change.object):
            self.evictor.budget_grew()

    # ---- what the parts ask for --------------------------------------------------------------------------------------

    def _fits(self, pod: PodView, ask: PodAsk) -> bool:
        """Whether a pod that was refused has a place by now and nobody is about to give it one."""
        if self._books.reservation(ask.uid) is not None:
            return False
        try:
            return bool(self._books.filter(self.quotas.narrowed(pod, ask)).fitting)
        except QuotaRefused:
            return False

    def _card(self, node: str, uuid: str) -> CardKind | None:
        state = self._books.nodes.get(node)
        return state.kinds[state.place[uuid]] if state is not None and uuid in state.place else None

    def _budgets(self) -> Budgets:
        return read_budgets(self._budget_objects)

    def _members(self, gang: str) -> Iterable[WatchedPod]:
        namespace, _, name = gang.partition("/")
        for pod in self._watch.pods:
            own = pod.annotations.get(names.GANG) or (pod.metadata.labels or {}).get(names.GANG)
            if own == name and pod.metadata.namespace == namespace:
                yield pod

    # ---- telling -----------------------------------------------------------------------------------------------------

    def pod_event(self, pod: PodView, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell on a pod."""
        meta = pod.metadata
        about = ObjectReference("v1", None, "Pod", meta.name, meta.namespace, None, meta.uid)
        self._events.event(about, reason, message, warning=warning, action="Preempting")

    def _warn(self, quota: ResourceQuota, problem: str) -> None:
        """Tell on a quota what of it nobody counts."""
        meta = quota.metadata
        if meta is not None:
            log.warning("a quota names what nobody counts", quota=f"{meta.namespace}/{meta.name}", problem=problem)
            about = ObjectReference("v1", None, "ResourceQuota", meta.name, meta.namespace, None, meta.uid)
            self._events.event(about, BAD_QUOTA, problem, warning=True, action="Counting")
