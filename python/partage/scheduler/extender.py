"""What the extender answers: filter, prioritize and bind, over the books of one term.

Called by the HTTP side (`server.py`) and by tests. All is pure but `bind`, which posts. Between filter and bind the
next pod is already being filtered, so a place is promised as soon as kube-scheduler's choice is likely: in `prioritize`
on the node that we rank first, in `filter` where only one fits (kube-scheduler skips `prioritize` then), and the
promise moves where `bind` names another node. A pod whose bind is open (`bind.py`) goes where that order says.

Every node that is refused is so for good as far as kube-scheduler is concerned: its own preemption sees neither memory
nor cores. Answers name only nodes of the question. What can go wrong: a pod that asks in a way without meaning is
refused everywhere with all that is wrong; the books no longer agree at bind (ShareRefused) and the pod is tried again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import AskError, PartageError, ShareRefused
from partage.model.errors import cut
from partage.model.grant import encode_grant
from partage.model.reasons import Code
from partage.scheduler.answers import Filtered, RefusedAlike
from partage.scheduler.bind import BindOrder, Outcome, Result
from partage.scheduler.books import Books
from partage.scheduler.facts_of import node_facts
from partage.scheduler.protocol import (
    Args,
    BindAnswer,
    BindArgs,
    FilterAnswer,
    HostPriority,
    NodeList,
    named,
    read_node,
)
from partage.scheduler.quota.feed import QuotaRefused
from partage.scheduler.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import msgspec

    from partage.devices.requests import AskOptions
    from partage.kube import Clock
    from partage.model.ask import PodAsk
    from partage.model.pod import PodView
    from partage.scheduler.bind import Binder
    from partage.scheduler.evict import Evictor
    from partage.scheduler.leader import Term
    from partage.scheduler.quota.feed import QuotaFeed
    from partage.scheduler.tell import Tell
    from partage.scheduler.views import WatchedPod
    from partage.scheduler.wake import Waker
    from partage.scheduler.watch import Watch

ASKS_MAX: Final = 20_000  # of pods between filter and bind
INVALID_MAX: Final = 500  # characters of what is wrong with a pod: the answer says them once for every node
RANKED_MAX: Final = 16  # only the best of them counts, and a thousand scores take kube-scheduler a millisecond to read

log = structlog.get_logger("partage.scheduler")


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes of a question: names in its order, and the nodes themselves where it has them."""

    names: Sequence[str]
    whole: Mapping[str, msgspec.Raw] | None

    def answer(self, fitting: list[str], refused: dict[str, str]) -> FilterAnswer:
        """Return the answer in the form of the question."""
        if self.whole is None:
            return FilterAnswer(node_names=fitting, failed_and_unresolvable_nodes=refused)
        nodes = NodeList(tuple(self.whole[name] for name in fitting))
        return FilterAnswer(nodes=nodes, failed_and_unresolvable_nodes=refused)


class Extender:
    """The three verbs over one term's books."""

    def __init__(  # noqa: PLR0913 -- the world around it
        self,
        *,
        books: Books,
        watch: Watch,
        binder: Binder,
        quotas: QuotaFeed,
        evictor: Evictor,
        waker: Waker,
        tell: Tell,
        clock: Clock,
        term: Term,
        options: AskOptions,
    ) -> None:
        self._books = books
        self._watch = watch
        self._binder = binder
        self._quotas = quotas
        self._evictor = evictor
        self._waker = waker
        self._tell = tell
        self._clock = clock
        self._term = term
        self._reader = Reader(options)
        self._asks: OrderedDict[str, PodAsk | None] = OrderedDict()
        self._last_bound_at = 0
        self._scores: dict[str, int] = {}
        self.results: dict[str, int] = {}  # of binds

    # ---- filter ------------------------------------------------------------------------------------------------------

    def filter(self, args: Args) -> FilterAnswer:
        """Return every node of the question that takes the pod, and why the others do not."""
        candidates = _candidates(args)
        try:
            ask = self._read(args.pod) if candidates.whole is None else self._reader.read(args.pod)
        except AskError as error:
            self._tell.meaningless(args.pod, error)
            text = f"InvalidRequest: {cut(str(error), INVALID_MAX)}"
            return candidates.answer([], dict.fromkeys(candidates.names, text))
        if ask is None:
            return candidates.answer(list(candidates.names), {})
        if candidates.whole is not None:
            return self._filter_whole(args.pod, ask, candidates)
        order = self._binder.order_of(ask.uid)
        if order is not None:
            if order.node not in candidates.names:
                self._waker.refused(args.pod, ask)  # kube-scheduler does not hear when this is over
            return _pinned(candidates, order)
        self._books.release(ask.uid)  # kube-scheduler begins anew: what was promised it before has no taker
        found = self._found(args.pod, ask, candidates.names)
        refused = found.refused.texts()  # before the books change
        if len(found.fitting) == 1:
            self._reserve(self._asks[ask.uid] or ask, found.fitting)
        elif not found.fitting:
            self._tell.pending(ask, found)
            self._waker.refused(args.pod, ask)
        return candidates.answer(found.fitting, refused)

    def _found(self, pod: PodView, ask: PodAsk, nodes: Sequence[str]) -> Filtered:
        """Return what the quotas and then the books say; where nothing fits, room may be made."""
        try:
            allowed = self._asks[ask.uid] = self._quotas.narrowed(pod, ask)
        except QuotaRefused as refused:
            self._asks.pop(ask.uid, None)  # nothing is promised for it
            return Filtered([], RefusedAlike(nodes, Code.QUOTA, refused.reason))
        found = self._books.filter(allowed, nodes)
        if not found.fitting:
            self._evictor.wanted(pod, allowed, nodes)
        return found

    def _filter_whole(self, pod: PodView, ask: PodAsk, candidates: Candidates) -> FilterAnswer:
        """Answer about whole nodes, promising nothing.

        That is how simulations ask, with nodes that do not exist: those are judged as they stand in the question. For a
        pod that waits for its quota no node helps, so none is to be made for it.
        """
        whole = candidates.whole or {}
        try:
            ask = self._quotas.supposed(pod, ask)
        except QuotaRefused as error:
            return candidates.answer([], RefusedAlike(candidates.names, Code.QUOTA, error.reason).texts())
        known = [name for name in candidates.names if name in self._books.nodes]
        found = [self._books.filter(ask, known)] if known else []
        strangers = [name for name in candidates.names if name not in set(known)]
        if strangers:
            books = Books(defaults=self._books.defaults)
            for name in strangers:
                books.set_node(node_facts(read_node(whole[name])))
            found.append(books.filter(ask, strangers))
        fits = {name for part in found for name in part.fitting}
        refused = {name: text for part in found for name, text in part.refused.texts().items()}
        return candidates.answer([name for name in candidates.names if name in fits], refused)

    # ---- prioritize --------------------------------------------------------------------------------------------------

    def prioritize(self, args: Args) -> list[HostPriority]:
        """Return the best nodes' scores, and promise the pod a place on the first; a node that is left out has 0."""
        candidates = _candidates(args)
        ask = self._as_filtered(args.pod)
        if ask is None or self._binder.order_of(ask.uid) is not None:
            return [HostPriority(name, 0) for name in candidates.names]
        best = self._books.rank(ask, candidates.names, RANKED_MAX)
        self._reserve(ask, [name for name, _ in best])
        if best:
            self._scores[ask.uid] = best[0][1]
        return [HostPriority(name, score) for name, score in best]

    def _reserve(self, ask: PodAsk, nodes: Iterable[str]) -> None:
        """Promise a place on the first of these nodes that still takes the pod."""
        for name in nodes:
            try:
                self._books.reserve(ask, name, self._clock.now())
            except ShareRefused:  # a node changed between the two questions
                continue
            return

    # ---- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, args: BindArgs) -> BindAnswer:
        """Bind a pod to a node, with its grant."""
        subject = f"pod {args.namespace}/{args.name}"
        if self._binder.is_busy(args.uid):
            return BindAnswer(f"{subject} is being bound; its end is waited for")
        order = self._binder.order_of(args.uid)
        if order is None:
            try:
                order = self._order(args)
            except PartageError as error:
                self._tell.not_bound(args, str(error))
                return BindAnswer(str(error))
        elif order.node != args.node:
            return BindAnswer(f"{subject} may be bound to {order.node} by now; that is found out first")
        score = self._scores.get(args.uid)  # before the watch shows the pod bound
        outcome = await self._binder.bind(order)
        self._end(order, outcome, score)
        if outcome.result is Result.BOUND:
            return BindAnswer()
        return BindAnswer(f"{subject} to {args.node}: {outcome.result.value}: {outcome.message}")

    def _order(self, args: BindArgs) -> BindOrder:
        """Return what to post; raises PartageError where the node does not take the pod any more."""
        ask = self._ask_of(args)
        if ask is None:
            return BindOrder(args.uid, args.namespace, args.name, args.node)
        self._books.reserve(ask, args.node, self._clock.now())
        bound_at = max(int(self._clock.date().timestamp() * 1e6), self._last_bound_at + 1)
        self._last_bound_at = bound_at
        grant, twin = self._books.grant_for(args.uid, args.node, term=self._term.number, bound_at=bound_at)
        text = encode_grant(grant)
        return BindOrder(args.uid, args.namespace, args.name, args.node, text, twin, bound_at)

    def _as_filtered(self, pod: PodView) -> PodAsk | None:
        """Return what a pod asks for, as it was filtered in the same attempt; None also where that has no meaning."""
        uid = pod.metadata.uid or ""
        if uid in self._asks:
            return self._asks[uid]
        try:
            ask = self._read(pod)  # another process filtered it
            return ask if ask is None else self._quotas.narrowed(pod, ask)
        except (AskError, QuotaRefused):
            return None

    def _ask_of(self, args: BindArgs) -> PodAsk | None:
        """Return what a pod asks for: as it was filtered, else (another process filtered it) as it is watched."""
        if args.uid in self._asks:
            return self._asks[args.uid]
        pod = self._watch.pod(args.uid)
        if pod is None:
            step = "it is tried again; the watch shows the pod within moments"
            raise ShareRefused(f"pod {args.namespace}/{args.name}", "is not known here", "a pod with this UID", step)
        return self._read(pod)

    def _end(self, order: BindOrder, outcome: Outcome, score: int | None = None) -> None:
        """Draw the conclusions: a promise is kept while the bind may be, and given back where it is not."""
        self.results[outcome.result.value] = self.results.get(outcome.result.value, 0) + 1
        if outcome.result in {Result.REFUSED, Result.GONE}:
            self._books.release(order.uid)
        if outcome.result is Result.BOUND:
            self._tell.placed(order, score)
        elif outcome.result is not Result.GONE:
            self._tell.not_bound(order, outcome.message)

    async def settle(self) -> None:
        """Ask about binds that have no known end for long, and give back promises that no bind came for."""
        for order in list(self._binder.lost()):
            outcome = await self._binder.settle(order)
            if outcome is None:
                continue
            log.warning("a bind's end found out", pod=f"{order.namespace}/{order.name}", result=outcome.result.value)
            self._end(order, outcome)
        for uid in self._books.expire(self._clock.now()):
            log.info("a promise expired", uid=uid)
        self._quotas.forget_overdue(self._clock.date())
        self._quotas.forget_unseen(self._clock.now(), lambda uid: self._books.reservation(uid) is not None)

    # ---- pods --------------------------------------------------------------------------------------------------------

    def saw(self, pod: WatchedPod) -> None:
        """Take note of a pod as the watch shows it; called after the books were told."""
        self._binder.saw(pod)
        if pod.waits:
            return
        if self._binder.order_of(pod.uid) is None:  # deleted and kept by a finalizer, or bound with nothing of ours
            self._books.release(pod.uid)
        self._forget(pod.uid)

    def gone(self, uid: str) -> None:
        """Take note that a pod is gone."""
        self._binder.gone(uid)
        self._books.release(uid)
        self._forget(uid)
        self._tell.forget(uid)

    def _forget(self, uid: str) -> None:
        self._asks.pop(uid, None)
        self._scores.pop(uid, None)

    def _read(self, pod: PodView) -> PodAsk | None:
        """Return what a pod asks for and keep it until the pod is bound or gone."""
        uid = pod.metadata.uid or ""
        ask = self._reader.read(pod)
        self._asks[uid] = ask
        if len(self._asks) > ASKS_MAX:
            old, _ = self._asks.popitem(last=False)
            self._scores.pop(old, None)
        return ask


def _candidates(args: Args) -> Candidates:
    if args.node_names is not None:
        return Candidates(args.node_names, None)
    whole = named(args.nodes or NodeList())
    return Candidates(tuple(whole), whole)


def _pinned(candidates: Candidates, order: BindOrder) -> FilterAnswer:
    """Return the one node to which a pod may be bound already."""
    text = f"BindOpen: the pod may be bound to {order.node} by now; that is found out first"
    fitting = [name for name in candidates.names if name == order.node]
    return candidates.answer(fitting, {name: text for name in candidates.names if name != order.node})
