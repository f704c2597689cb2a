"""Makes room for a pod that fits nowhere: plans, keeps the place in the books, evicts, until the pod is there.

The extender calls `wanted` when no node takes a pod; all else happens in `run`, so that no filter waits for it. A plan
(`preempt.py`) first becomes a claim in the books, so that nobody else gets what the victims leave; then the victims are
evicted through the API, which holds disruption budgets, and the pod's `nominatedNodeName` says where it will go. Of
several victims none goes before the API has said of each that it may, and a plan that needs more than budgets allow is
not begun: nobody ends in vain, time after time. Where pods of lower priority end anyway and that is enough, nobody is
evicted and the place that they leave is kept in the same way. The claim ends when the pod is bound or gone, when it
fits elsewhere first, or `KEEP_S` after the last victim has gone. What can go wrong: an eviction is refused, by a budget
or for good, or the place is lost (its node goes, a card fails, somebody else binds a pod there). The plan is then given
up at once, with an event on the pod, and another is made, without the victim that cannot go; where there is none,
`later.py` says when that is tried again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, cast

import structlog
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions
from lightkube.resources.core_v1 import PodEviction, PodStatus

from partage.kube.client import BUDGET
from partage.model import KubeError, ShareRefused, names
from partage.scheduler.answers import Placement
from partage.scheduler.budgets import Budgets
from partage.scheduler.fits import fit_plan, plan_of
from partage.scheduler.later import Later
from partage.scheduler.preempt import Preemption, Victim, choosing, cost_of, units_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from partage.kube import Client, Clock
    from partage.model.ask import PodAsk, Shape
    from partage.model.pod import PodView
    from partage.scheduler.cards import NodeState
    from partage.scheduler.later import Wanted
    from partage.scheduler.plan import Defaults, Plan
    from partage.scheduler.preempt import Unit
    from partage.scheduler.views import WatchedPod

KEEP_S: Final = 60.0  # the place, once the last victim has gone
PLAN_S: Final = 600.0  # a plan lives at most: a victim may take its time to end
NAMED: Final = 5  # victims in a message
AGAIN_S: Final = 2.0  # between tries of what the API server has no time for
STUCK: Final = timedelta(seconds=60)  # after all of its time to end: its driver hangs, or its node is lost
REST_S: Final = 5.0  # before the same pod, or one of its shape for the same nodes, is planned for again in vain
QUEUE_MAX: Final = 1000
TOO_MANY: Final = 429
DRY_RUN: Final = "All"
GONE: Final = frozenset({404, 409})
NEVER: Final = "Never"

EVICTING: Final = "PreemptionStarted"
KEPT: Final = "PlaceKept"
PREEMPTED: Final = "Preempted"
GIVEN_UP: Final = "PreemptionFailed"

log = structlog.get_logger("partage.scheduler")


_Kind = tuple["Shape", int, "frozenset[str] | None"]


class Claims(Protocol):
    """What of the books this needs."""

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """Every node."""

    @property
    def defaults(self) -> Defaults:
        """What applies where a pod says nothing."""

    def claim(self, ask: PodAsk, node: str, without: Sequence[str]) -> Placement:
        """Keep a place that will be free once these pods are gone; raises ShareRefused."""

    def unclaim(self, uid: str) -> None:
        """Give it back; nothing where there is none."""


class Told(Protocol):
    """Where people hear of it."""

    def pod_event(self, pod: PodView, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell on a pod."""


@dataclass(slots=True)
class Underway:
    """A plan that is being carried out."""

    pod: PodView
    ask: PodAsk
    plan: Preemption
    until: float
    nodes: tuple[str, ...] | None  # that were asked about
    left: dict[str, Victim] = field(default_factory=dict)  # victims that are still there
    evicted: set[str] = field(default_factory=set)  # or on their way out anyway

    @property
    def wanted(self) -> Wanted:
        """Who wants room, and where."""
        return self.pod, self.ask, self.nodes


class Evictor:
    """All preemptions of one term; owned by one event loop.

    `pod`: as the watch has it, by UID; `members`: all pods of a gang, by namespace/name; `budgets`: as they are now.
    """

    def __init__(  # noqa: PLR0913 -- the world around it, all named
        self,
        client: Client,
        books: Claims,
        clock: Clock,
        *,
        pod: Callable[[str], WatchedPod | None],
        budgets: Callable[[], Budgets],
        told: Told,
        members: Callable[[str], Iterable[WatchedPod]] = lambda _gang: (),
    ) -> None:
        self._client = client
        self._books = books
        self._clock = clock
        self._pod = pod
        self._budgets = budgets
        self._told = told
        self._members = members
        self._queue: dict[str, Wanted] = {}
        self._later = Later(clock)
        self._tried_at: dict[str, float] = {}
        self._in_vain: dict[_Kind, float] = {}
        self._barred: dict[str, float] = {}  # pods whose eviction was refused for good: until when they are left alone
        self._kept: dict[str, float] = {}  # by a budget: likewise, unless it allows more
        self._underway: dict[str, Underway] = {}
        self._wake = asyncio.Event()
        self.evictions = 0

    # ---- what others say ---------------------------------------------------------------------------------------------

    def wanted(self, pod: PodView, ask: PodAsk, nodes: Sequence[str] | None) -> None:
        """Note that none of these nodes (None: of all) takes a pod; kube-scheduler's own filters passed them."""
        if pod.spec.preemption_policy == NEVER or ask.uid in self._underway or len(self._queue) >= QUEUE_MAX:
            return
        if self._clock.now() - self._tried_at.get(ask.uid, float("-inf")) < REST_S:
            return
        self._queue[ask.uid] = (pod, ask, None if nodes is None else tuple(nodes))
        self._wake.set()

    def saw(self, pod: WatchedPod) -> None:
        """Take note of a pod: the one for which room was made has its place, or needs none any more."""
        if not pod.waits:
            self._later.forget(pod.uid)
        if not pod.waits and (pod.uid in self._underway or pod.uid in self._queue):
            self._end(pod.uid)

    def gone(self, uid: str) -> None:
        """Take note that a pod is gone: a victim, or the one for which room was made."""
        self._later.forget(uid)
        self._end(uid)
        for underway in self._underway.values():
            self._is_gone(underway, uid)

    def budget_grew(self) -> None:
        """Take note that some disruption budget allows more than before."""
        self._kept.clear()
        self._in_vain.clear()
        self._later.budget_grew()

    def node_of(self, uid: str) -> str | None:
        """Return where room is being made for a pod."""
        underway = self._underway.get(uid)
        return underway.plan.node if underway else None

    # ---- carrying it out ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Plan and evict until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    uid = max(self._queue, key=lambda uid: self._queue[uid][1].priority)
                    underway = await self._start(*self._queue[uid])
                    self._queue.pop(uid, None)
                    if underway is not None:
                        tasks.create_task(self._carry_out(underway))

    async def _look_after(self) -> None:
        """End plans whose time or place is up, and nominate for the others: kube-scheduler takes that back."""
        while True:
            await self._clock.sleep(AGAIN_S)
            for underway in list(self._underway.values()):
                if not self._is_on(underway) or not self._keep(underway):
                    continue
                pod = self._pod(underway.ask.uid)
                if pod is not None and not pod.node and pod.status.nominated_node_name != underway.plan.node:
                    await self._nominate(underway)
            now = self._clock.now()
            for uid in [uid for uid, one in self._underway.items() if one.until <= now]:
                log.info("a place is given back", uid=uid, node=self._underway[uid].plan.node)
                self._end(uid)
            self._tried_at = {uid: at for uid, at in self._tried_at.items() if now - at < REST_S}
            self._in_vain = {shape: at for shape, at in self._in_vain.items() if now - at < REST_S}
            self._barred = {uid: until for uid, until in self._barred.items() if until > now}
            self._kept = {uid: until for uid, until in self._kept.items() if until > now}
            for wanted in self._later.take_due():
                ask = wanted[1]
                if ask.uid not in self._underway:
                    self._in_vain.pop(_kind(ask, wanted[2]), None)
                    self._queue[ask.uid] = wanted
                    self._wake.set()

    async def _start(self, pod: PodView, ask: PodAsk, nodes: tuple[str, ...] | None) -> Underway | None:
        """Plan for one pod, and claim the place; None where nobody's end would help."""
        self._tried_at[ask.uid] = now = self._clock.now()
        shape = _kind(ask, nodes)
        if now - self._in_vain.get(shape, float("-inf")) < REST_S:
            self._later.put_off((pod, ask, nodes))
            return None
        known = self._books.nodes
        states = [known[name] for name in (known if nodes is None else nodes) if name in known]
        needs_nobody, plan = await self._comes_free(ask, states)
        if not needs_nobody:
            plan = await self._planned(pod, ask, states)
            if plan is None:
                self._in_vain[shape] = now
                self._later.in_vain((pod, ask, nodes))
        if plan is None or ask.uid not in self._queue:  # it is bound or gone by now
            return None
        left = {victim.uid: victim for victim in plan.victims if self._pod(victim.uid) is not None}
        try:
            self._claim(ask, plan.node, left)
        except ShareRefused as error:
            log.info("a plan is out of date", pod=ask.subject, node=plan.node, error=str(error))
            return None
        until = self._clock.now() + (PLAN_S if left else KEEP_S)
        underway = self._underway[ask.uid] = Underway(pod, ask, plan, until, nodes, left)
        who = ", ".join(f"{victim.namespace}/{victim.name}" for victim in plan.victims[:NAMED])
        who += f" and {len(plan.victims) - NAMED} more" if len(plan.victims) > NAMED else ""
        if needs_nobody:
            underway.evicted.update(left)
            self._told.pod_event(pod, KEPT, f"a place on node {plan.node} is kept for it until {who} has ended")
        else:
            self._told.pod_event(pod, EVICTING, f"room is being made on node {plan.node}: {who} must go")
        return underway

    def _claim(self, ask: PodAsk, name: str, left: Iterable[str]) -> None:
        """Keep the place on a node that a pod has without these victims and all that ends there anyway."""
        node = self._books.nodes.get(name)
        self._books.claim(ask, name, [*left, *(self._ending(node) if node is not None else ())])

    def _keep(self, underway: Underway) -> bool:
        """Claim the place again, as things are now; where it is lost plan anew and return False."""
        try:
            self._claim(underway.ask, underway.plan.node, underway.left)
        except ShareRefused as error:
            self._give_up(underway, f"the place on node {underway.plan.node} is lost: {error}")
            return False
        return True

    async def _comes_free(self, ask: PodAsk, states: Iterable[NodeState]) -> tuple[bool, Preemption | None]:
        """Return whether a pod that fitted nowhere needs nobody's end, and the place that is to be kept for it.

        None has to be kept where it fits by now and is tried again. Where it will fit once those are gone that end
        anyway, it is, unless they are as important as the pod: of such everybody who waits may have what they leave.
        """
        plan = plan_of(ask.shape, self._books.defaults)
        needs_nobody, kept = False, None
        for state in states:
            before = state.without((ask.uid,))
            if isinstance(fit_plan(before, plan), Placement):
                return True, None
            ending = self._ending(before)
            if ending and isinstance(fit_plan(before.without(ending), plan), Placement):
                needs_nobody = True
                kept = kept or self._left_by(before, ending, ask, plan)
            await asyncio.sleep(0)
        return needs_nobody, kept

    def _left_by(self, node: NodeState, ending: Iterable[str], ask: PodAsk, plan: Plan) -> Preemption | None:
        """Return the place that a pod has once less important ones have ended, and no more of them than it needs."""
        needed = [uid for uid in ending if node.pods[uid].priority < ask.priority]
        placement = fit_plan(node.without(needed), plan)
        if not isinstance(placement, Placement):
            return None
        for uid in tuple(needed):
            found = fit_plan(node.without([other for other in needed if other != uid]), plan)
            if isinstance(found, Placement):
                placement = found
                needed.remove(uid)
        pods = ((self._pod(uid), node.pods[uid].order) for uid in needed)
        victims = (self._victim(pod, order, Budgets(), node.name) for pod, order in pods if pod is not None)
        return Preemption(node.name, tuple(victims), placement, cost_of(()))

    async def _planned(self, pod: PodView, ask: PodAsk, states: Iterable[NodeState]) -> Preemption | None:
        """Return a plan that budgets allow as they are now, None where there is none."""
        plan = await self._cheapest(ask, states)
        beyond = 0 if plan is None else plan.cost[0]
        if plan is None or not beyond:
            return plan
        message = f"room on node {plan.node} needs {beyond} more of its pods to go than disruption budgets allow now"
        self._told.pod_event(pod, GIVEN_UP, f"{message}; tried again when they allow more", warning=True)
        return None

    async def _cheapest(self, ask: PodAsk, states: Iterable[NodeState]) -> Preemption | None:
        """Plan, and let filters have their turn after every node."""
        budgets = self._budgets()
        members = cache(lambda gang: tuple(self._members(gang)))
        steps = choosing(
            states, ask, lambda node: self._units(node, ask, budgets, members), self._ending, self._books.defaults
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("Preemption | None", end.value)
            await asyncio.sleep(0)

    async def _carry_out(self, underway: Underway) -> None:
        """Evict the victims; of several none before it is known that each may go."""
        to_go = underway.left.keys() - underway.evicted
        for is_trial in (True, False) if len(to_go) > 1 else (False,):
            if not await self._evict_all(underway, is_trial=is_trial):
                return

    async def _evict_all(self, underway: Underway, *, is_trial: bool) -> bool:
        """Evict all, or ask whether each may go; return whether that is done and the plan still holds."""
        done = set(underway.evicted) if is_trial else underway.evicted
        while waiting := [victim for uid, victim in underway.left.items() if uid not in done]:
            for victim in waiting:
                if not self._is_on(underway):
                    return False
                if not await self._try(underway, victim, is_trial=is_trial):
                    break
                done.add(victim.uid)
            else:
                break
            if not self._is_on(underway):
                return False
            await self._clock.sleep(AGAIN_S)
        return self._is_on(underway)

    def _is_on(self, underway: Underway) -> bool:
        return self._underway.get(underway.ask.uid) is underway

    async def _try(self, underway: Underway, victim: Victim, *, is_trial: bool) -> bool:
        """Evict one victim; return whether the next one may follow at once; else the plan is off, or it is repeated."""
        pod = self._pod(victim.uid)  # it may be gone by the time that the eviction is answered
        try:
            await self._evict(victim, is_trial=is_trial)
        except KubeError as error:
            if error.status in GONE:
                self._is_gone(underway, victim.uid)
                return True
            self._not_evicted(underway, victim, error)
            return False
        if not is_trial:
            self.evictions += 1
            self._tell_victim(victim, pod, underway)
        return True

    def _not_evicted(self, underway: Underway, victim: Victim, error: KubeError) -> None:
        """Give the plan up where a budget keeps a victim or it cannot go at all; else the API server has no time."""
        who = f"{victim.namespace}/{victim.name} on node {underway.plan.node}"
        if BUDGET in error.causes:
            wait = self._later.refused(underway.wanted)
            self._kept[victim.uid] = self._clock.now() + wait
            self._give_up(underway, f"{who} is kept by its disruption budget, for {wait:g} s or until that allows more")
        elif error.status != TOO_MANY:
            self._barred[victim.uid] = self._clock.now() + PLAN_S
            self._give_up(underway, f"{who} cannot be evicted: {error}")

    async def _nominate(self, underway: Underway) -> None:
        """Say on the pod where it will go: kube-scheduler then keeps cpu and memory for it there, too."""
        ask = underway.ask
        body = {"metadata": {"uid": ask.uid}, "status": {"nominatedNodeName": underway.plan.node}}
        try:
            await self._client.patch(PodStatus, ask.name, body, namespace=ask.namespace)
        except KubeError as error:
            log.warning("not nominated", pod=ask.subject, node=underway.plan.node, error=str(error))

    async def _evict(self, victim: Victim, *, is_trial: bool) -> None:
        options = DeleteOptions(preconditions=Preconditions(uid=victim.uid), dryRun=[DRY_RUN] if is_trial else None)
        meta = ObjectMeta(name=victim.name, namespace=victim.namespace)
        eviction = PodEviction(metadata=meta, deleteOptions=options)
        await self._client.create(eviction, name=victim.name, namespace=victim.namespace)

    def _tell_victim(self, victim: Victim, pod: WatchedPod | None, underway: Underway) -> None:
        ask = underway.ask
        log.info("evicted", pod=f"{victim.namespace}/{victim.name}", for_pod=ask.subject, node=underway.plan.node)
        if pod is not None:
            message = f"ends for {ask.subject} of priority {ask.priority} on node {underway.plan.node}"
            self._told.pod_event(pod, PREEMPTED, message)

    def _is_gone(self, underway: Underway, uid: str) -> None:
        """Take note that a victim is gone; after the last one the place is kept a little."""
        if underway.left.pop(uid, None) is not None and not underway.left:
            underway.until = self._clock.now() + KEEP_S

    def _give_up(self, underway: Underway, message: str) -> None:
        """End a plan that cannot be carried out, and make another: kube-scheduler may not ask again for minutes."""
        ask = underway.ask
        log.warning("a plan is given up", pod=ask.subject, node=underway.plan.node, problem=message)
        self._told.pod_event(underway.pod, GIVEN_UP, message, warning=True)
        self._end(ask.uid)
        self._queue[ask.uid] = underway.wanted
        self._wake.set()

    def _end(self, uid: str) -> None:
        self._queue.pop(uid, None)
        if self._underway.pop(uid, None) is not None:
            self._books.unclaim(uid)

    # ---- who may go --------------------------------------------------------------------------------------------------

    def _units(
        self, node: NodeState, ask: PodAsk, budgets: Budgets, members: Callable[[str], Iterable[WatchedPod]]
    ) -> list[Unit]:
        """Return what may go of a node: bound pods of lower priority, each gang whole."""
        victims: dict[str, Victim] = {}
        for uid, use in node.pods.items():
            if use.reserved or use.priority >= ask.priority:
                continue
            pod = self._pod(uid)
            if pod is None or pod.is_ending or not pod.node:
                continue
            victims[uid] = self._victim(pod, use.order, budgets, node.name)
            for other in members(victims[uid].gang) if victims[uid].gang else ():
                if other.uid not in node.pods and other.node and not (other.is_ending or other.is_finished):
                    victims[other.uid] = self._victim(other, use.order, budgets, node.name)
        units = list(units_of(victims.values()))
        return [unit for unit in units if all(self._may_go(victim, ask) for victim in unit.pods)]

    def _may_go(self, victim: Victim, ask: PodAsk) -> bool:
        return victim.priority < ask.priority and victim.uid not in self._barred and victim.uid not in self._kept

    def _victim(self, pod: WatchedPod, order: tuple[int, int, str], budgets: Budgets, node: str) -> Victim:
        meta = pod.metadata
        labels, namespace = meta.labels or {}, meta.namespace or ""
        gang = pod.annotations.get(names.GANG) or labels.get(names.GANG, "")
        return Victim(
            uid=pod.uid,
            namespace=namespace,
            name=meta.name or "",
            priority=pod.spec.priority or 0,
            order=order,
            budgets=budgets.covering(namespace, labels),
            gang=f"{namespace}/{gang}" if gang else "",
            elsewhere=pod.node != node,
        )

    def _ending(self, node: NodeState) -> list[str]:
        """Return the pods of a node that end anyway; one that should have long ended is not waited for."""
        found = ((uid, self._pod(uid)) for uid in node.pods)
        since = self._clock.date() - STUCK
        return [uid for uid, pod in found if pod is not None and pod.overdue_at is not None and pod.overdue_at > since]


def _kind(ask: PodAsk, nodes: Sequence[str] | None) -> _Kind:
    """Return what pods have in common for which the same plan is made."""
    return ask.shape, ask.priority, None if nodes is None else frozenset(nodes)
