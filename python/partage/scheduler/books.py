"""The books: which pod has what of which card. The one place in which cards are promised.

Filled by the scheduler's watch, asked by the extender, by preemption, resize, quota and `partage explain`. A pure
function of the pods and nodes that it was told of, in whatever order, plus reservations: so a restart rebuilds them
identically and `recount` can prove them. No I/O and no clock; for one thread. What can go wrong: what is asked for does
not fit (ShareRefused), or a grant is asked for that was never promised (GrantError).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Final, Protocol

from partage.model.errors import GrantError, ShareRefused
from partage.model.reasons import Code
from partage.scheduler.adopt import use_of
from partage.scheduler.answers import Filtered, NodeVerdict, Placement, Unfit, Verdicts
from partage.scheduler.cards import NodeState, PodUse
from partage.scheduler.fits import card_verdicts, fit_plan, fits, plan_of
from partage.scheduler.granting import grant_of
from partage.scheduler.index import Index, Refusals, unique
from partage.scheduler.kinds import Kinds
from partage.scheduler.plan import Defaults
from partage.scheduler.rank import steps
from partage.scheduler.recount import Difference, Overpromise, differences, overpromised
from partage.scheduler.reservations import Reservation, Reservations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.model.ask import PodAsk
    from partage.model.grant import Grant
    from partage.scheduler.facts import NodeFacts, PodFacts
    from partage.scheduler.index import Entry

RESERVED_S: Final = 30.0  # how long a reservation waits for its bind
_LAST: Final = 1 << 62  # what is reserved has no grant yet and goes after all that have one


class Promises(Protocol):
    """Who counts what is promised beside the cards: the quotas."""

    def hold(self, ask: PodAsk, placement: Placement) -> None:
        """Count what is about to be reserved; raises ShareRefused where that is not allowed."""

    def release(self, ask: PodAsk) -> None:
        """Take note that a reservation was given back."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """What `filter` returned last, for `rank`: the list itself, and the nodes that fit and were not asked about."""

    names: list[str]
    entry: Entry
    seen: int
    rest: set[str]


class Books:
    """All nodes and pods. `promises` hears of every reservation, and may refuse it."""

    def __init__(self, *, defaults: Defaults | None = None, reserved_s: float = RESERVED_S) -> None:
        self._defaults = defaults or Defaults()
        self._reserved_s = reserved_s
        self._kinds = Kinds()
        self._nodes: dict[str, NodeState] = {}
        self._pods: dict[str, PodFacts] = {}
        self._at: dict[str, str] = {}  # pod -> node on which it is counted
        self._reservations = Reservations()
        self._claims: set[str] = set()
        self._index = Index(self._nodes)
        self._passed: _Passed | None = None
        self.promises: Promises | None = None

    # ---- what the API says ----

    def set_node(self, node: NodeFacts) -> None:
        """Take over a node as it is now; one that is as before costs nothing."""
        state = self._node(node.name)
        if state.facts != node:
            state.set_facts(node)
            self._index.changed(node.name)

    def drop_node(self, name: str) -> None:
        """Forget a node that is gone; what its pods have is remembered as long as the pods are."""
        state = self._nodes.get(name)
        if state is None:
            return
        state.set_facts(None)
        if not state.pods:
            del self._nodes[name]
        self._index.changed(name)

    def set_pod(self, pod: PodFacts) -> None:
        """Take over a pod as it is now; once it is bound or finished, that counts and no reservation."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        self._pods[pod.uid] = pod
        if not pod.node and not pod.finished:
            return  # what is reserved for it stays
        self._reservations.pop(pod.uid)
        self.unclaim(pod.uid)
        self._put(pod.uid, pod.node, use_of(pod))

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and what was reserved for it."""
        self._pods.pop(uid, None)
        self._reservations.pop(uid)
        self.unclaim(uid)
        self._put(uid, "", None)

    # ---- questions ----

    def filter(self, ask: PodAsk, names: Sequence[str] | None = None) -> Filtered:
        """Return which of these nodes (None: of all) take the pod, and why the others do not; promises nothing."""
        plan = plan_of(ask.shape, self._defaults)
        entry = self._index.entry(plan)
        fitting, known = entry.fitting, {}
        for name in self._own_nodes(ask.uid):  # there it does not stand in its own way
            found = self._fit(ask, name)
            if isinstance(found, Unfit):
                known[name] = found
            if isinstance(found, Placement) is not (name in fitting):
                fitting = fitting ^ {name}
        passed = list(self._nodes if names is None else names)
        rest = fitting.difference(passed)
        count = len(fitting) - len(rest)
        refused: list[str] = []
        if len(passed) > count:
            fits_there = fitting.__contains__
            refused, passed = list(filterfalse(fits_there, passed)), list(filter(fits_there, passed))
        if len(passed) > count:
            passed = unique(passed)
        self._passed = _Passed(passed, entry, entry.seen, rest) if fitting is entry.fitting else None
        return Filtered(passed, Refusals(self._index, entry, refused, known))

    def rank(self, ask: PodAsk, names: Sequence[str], most: int | None = None) -> list[tuple[str, int]]:
        """Return those of these nodes that fit with 0 to 10 points, the best, which alone has 10, first.

        `most`: only so many of them.
        """
        plan = plan_of(ask.shape, self._defaults)
        entry = self._index.entry(plan)
        wanted = self._wanted(names, entry)
        own = self._own_nodes(ask.uid)
        if own:
            order = [key for key in entry.ranked(self._nodes) if key[-1] not in own]
            for name in own:
                if isinstance(self._fit(ask, name), Placement):
                    insort(order, entry.ranker.key(self._nodes[name].without(self._own(ask.uid))))
            best = [name for _, name in order if name in wanted]
            return steps(best[:most], len(best))
        best = list(islice((name for name in self._index.ordered(entry) if name in wanted), most))
        if most is None or len(best) < most:
            return steps(best, len(best))
        return steps(best, len(wanted if wanted is entry.fitting else wanted & entry.fitting))

    def _wanted(self, names: Sequence[str], entry: Entry) -> set[str]:
        """Return names as a set, not to be changed; those that `filter` returned just now are known as one."""
        last = self._passed
        if last is None or last.names is not names or last.entry is not entry or last.seen != entry.seen:
            return set(names)
        return entry.fitting - last.rest if last.rest else entry.fitting

    def why(self, ask: PodAsk) -> Verdicts:
        """Return what every node and every card says to the pod."""
        plan = plan_of(ask.shape, self._defaults)
        ranked = dict(self.rank(ask, list(self._nodes)))
        verdicts = []
        for name in self._nodes:
            state = self._nodes[name].without(self._own(ask.uid))
            found = fit_plan(state, plan)
            cards = {want.name: card_verdicts(state, plan, place) for place, want in enumerate(plan.wants)}
            placement = found if isinstance(found, Placement) else None
            unfit = found if isinstance(found, Unfit) else None
            verdicts.append(NodeVerdict(name, placement, unfit, ranked.get(name, 0), cards))
        order = {name: place for place, name in enumerate(ranked)}
        verdicts.sort(key=lambda one: (order.get(one.node, len(order)), -_nearness(one), one.node))
        return Verdicts(tuple(verdicts))

    # ---- promises ----

    def reserve(self, ask: PodAsk, node: str, now: float) -> Placement:
        """Promise the pod its cards on this node until they are bound or time is up, in place of an earlier promise.

        Raises ShareRefused where it does not fit, or is bound already; an earlier promise then stays.
        """
        pod = self._pods.get(ask.uid)
        if pod is not None and (pod.node or pod.finished):
            value = f"bound to node {pod.node}" if pod.node else "finished"
            raise ShareRefused(ask.subject, value, "only a pod that waits gets a place", "nothing: it has its own")
        held = self._reservations.get(ask.uid)
        state = self._nodes.get(node)
        is_same = held is not None and state is not None and held.holds(ask, node, state.stamp)
        found = held.placement if held is not None and is_same else self._fit(ask, node)
        if isinstance(found, Unfit):
            raise found.error(ask.subject)
        if self.promises is not None:
            self.promises.hold(ask, found)
        is_binding = held is not None and held.is_binding and held.node == node
        if not is_same:
            self._put(ask.uid, node, _reserved(ask, found))
        self._reservations.put(
            Reservation(ask, found, now + self._reserved_s, is_binding, stamp=self._nodes[node].stamp)
        )
        return found

    def inherit(self, held: Reservation) -> None:
        """Keep a place that earlier books had promised, whatever else is promised there by now."""
        self._reservations.put(replace(held, stamp=-1))  # its stamp was of those books' node
        self._put(held.ask.uid, held.node, _reserved(held.ask, held.placement))

    def release(self, uid: str) -> None:
        """Give back what is reserved for a pod; nothing where nothing is, or where it is bound."""
        held = self._reservations.pop(uid)
        if held is not None:
            self._put(uid, "", None)
            if self.promises is not None:
                self.promises.release(held.ask)

    def expire(self, now: float) -> list[str]:
        """Give back what waited too long for its bind, and return whose that was."""
        late = self._reservations.expired(now)
        for uid in late:
            self.release(uid)
        return late

    def claim(self, ask: PodAsk, node: str, without: Sequence[str]) -> Placement:
        """Keep the place that a pod has on this node once these pods are gone from it: nobody else gets it then.

        It holds beside a reservation, until `unclaim` or the pod's binding or end, in place of an earlier one. Raises
        ShareRefused, and then there is none.
        """
        state, own = self._nodes.get(node), _claim_of(ask.uid)
        found = fits(state, ask.shape, without=(ask.uid, own, *without), defaults=self._defaults) if state else None
        if state is None or not isinstance(found, Placement):
            self.unclaim(ask.uid)
            raise (found if isinstance(found, Unfit) else Unfit(node, Code.NODE_UNKNOWN)).error(ask.subject)
        use = _reserved(ask, found)
        if state.pods.get(own) != use:
            self._claims.add(ask.uid)
            self._put(own, node, use)
        return found

    def unclaim(self, uid: str) -> None:
        """Give a claim back; nothing where there is none."""
        if uid in self._claims:
            self._claims.discard(uid)
            self._put(_claim_of(uid), "", None)

    def grant_for(self, uid: str, node: str, *, term: int, bound_at: int) -> tuple[Grant, str]:
        """Return the grant, and HAMi's twin, of what is reserved; from then on it stays until `release` or the watch.

        `term`: of the Lease; `bound_at`: Unix µs. Raises GrantError where nothing is reserved there.
        """
        held = self._reservations.get(uid)
        if held is None or held.node != node:
            found = "nothing reserved" if held is None else f"reserved on {held.node}"
            raise GrantError(f"pod {uid} on node {node}", found, "a grant is of what was reserved", "schedule it again")
        grant, twin = grant_of(held.ask, held.placement, term=term, bound_at=bound_at)
        self._reservations.bind(uid)
        return grant, twin

    # ---- what is known ----

    @property
    def defaults(self) -> Defaults:
        """What applies where a pod says nothing."""
        return self._defaults

    def sizes(self) -> set[int]:
        """Return the bytes that cards carry, of all kinds of cards that there are."""
        return self._kinds.sizes()

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """Every node by name, for `fits`; not to be changed."""
        return self._nodes

    @property
    def pods(self) -> Mapping[str, PodFacts]:
        """Every pod by UID."""
        return self._pods

    def reservation(self, uid: str) -> Reservation | None:
        """Return what is reserved for a pod."""
        return self._reservations.get(uid)

    @property
    def kept(self) -> int:
        """How many places are kept for pods that are not bound: reservations and claims."""
        return len(self._reservations) + len(self._claims)

    def recount(self) -> tuple[Difference, ...]:
        """Add everything up anew from pods and reservations, and return where the books differ; changes nothing."""
        uses = []
        for uid, pod in self._pods.items():
            use = use_of(pod)
            if use is not None:
                uses.append((pod.node, uid, use))
        for uid in self._reservations:
            held = self._reservations.get(uid)
            if held is not None:
                uses.append((held.node, uid, _reserved(held.ask, held.placement)))
        claims = [(self._at[claim], claim) for claim in map(_claim_of, self._claims)]  # told by nobody else
        uses.extend((name, claim, self._nodes[name].pods[claim]) for name, claim in claims)
        return differences(self._nodes, uses)

    def overpromised(self) -> tuple[Overpromise, ...]:
        """Return the pods that cannot have what was promised to them, since others before them have it.

        Looks at every node: for a page of figures and for tests. A place that is kept until others have ended is among
        it, as not bound.
        """
        return tuple(one for state in self._nodes.values() for one in overpromised(state))

    def _fit(self, ask: PodAsk, name: str) -> Placement | Unfit:
        state = self._nodes.get(name)
        if state is None:
            return Unfit(name, Code.NODE_UNKNOWN)
        return fits(state, ask.shape, without=self._own(ask.uid), defaults=self._defaults)

    def _own_nodes(self, uid: str) -> set[str]:
        """Return where a pod itself is counted."""
        return {self._at[own] for own in self._own(uid) if own in self._at}

    def _own(self, uid: str) -> tuple[str, ...]:
        """Return under what a pod itself is counted: it does not stand in its own way."""
        return (uid, _claim_of(uid)) if uid in self._claims else (uid,)

    def _node(self, name: str) -> NodeState:
        state = self._nodes.get(name)
        if state is None:
            state = self._nodes[name] = NodeState(name, self._kinds)
        return state

    def _put(self, uid: str, node: str, use: PodUse | None) -> None:
        """Count a pod on this node and nowhere else."""
        before = self._at.pop(uid, None)
        if before is not None:
            state = self._nodes[before]
            state.remove(uid)
            if state.facts is None and not state.pods:
                del self._nodes[before]
            self._index.changed(before)
        if use is not None:
            self._node(node).add(uid, use)
            self._at[uid] = node
            self._index.changed(node)


def _reserved(ask: PodAsk, placement: Placement) -> PodUse:
    """Return what a pod has of a node as long as it is only promised."""
    order = (_LAST, 0, ask.uid)
    return PodUse(ask.subject, order, placement.need, placement.seats, reserved=True, priority=ask.priority)


def _claim_of(uid: str) -> str:
    """Return under what a pod's claim is counted."""
    return f"claim: {uid}"


def _nearness(verdict: NodeVerdict) -> int:
    """Return how many cards would do, counted for the container that has fewest."""
    fitting = [sum(card.code is None for card in cards) for cards in verdict.cards.values()]
    return min(fitting, default=0)
