"""Why nodes refuse a shape, for many nodes at once: the codes that `fits` gives, from the sweep's lists of numbers.

Events, the pod's condition and the answer to kube-scheduler name every refused node, or how many there are of each
code; all the rest that a refusal says is worked out by `fits` for the node that somebody looks at. What these numbers
do not tell (links, several containers, cards named by the pod) is asked of `fits`. Cannot fail.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from partage.model.reasons import Code
from partage.scheduler.answers import text_of
from partage.scheduler.fits import RANK, node_refusal
from partage.scheduler.sweep import EMPTY, NUMBERS, PACKED_MAX, UNKNOWN_USE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partage.scheduler.answers import Unfit
    from partage.scheduler.cards import NodeState
    from partage.scheduler.sweep import Question

_CODES: Final = tuple(Code)
_OTHER: Final = 255  # a card of another vendor

Why = tuple[Code, str]  # and the line for kube-scheduler


class Tally:
    """One shape. `exact`: what `fits` says of a node that is none of the fitting."""

    def __init__(self, question: Question, exact: Callable[[NodeState], Unfit]) -> None:
        self._question = question
        self._plan = question.plan
        self._exact = exact
        self._codes: dict[int, bytes] = {}  # container -> code's number of each card
        self._known: dict[bytes, Why] = {}
        self._takes: set[int] = set()  # models of nodes that have enough cards of the vendors
        wishes = self._plan.shape.wishes
        self._named = wishes.uuids | wishes.no_uuids

    def why(self, rows: Iterable[int]) -> dict[str, Why]:
        """Return name -> code and line of these nodes, none of which takes the shape."""
        states, spans = self._question.sweep.states, self._question.sweep.spans
        is_single = len(self._plan.wants) == 1 and not self._named
        counts, count, takes = self._question.counts[0], self._plan.wants[0].count, self._takes
        lefts = [(self._question.sweep.left(resource), seats) for resource, seats in self._plan.seats.items()]
        found = {}
        for row in rows:
            state = states[row]
            if (not (state.model in takes and state.facts and state.facts.ready) and not self._may_take(state)) or any(
                left[row] < seats for left, seats in lefts
            ):
                why = _line(self._exact(state))
            elif is_single and counts[row] < count:
                start, end = spans[row]
                why = self._of(self._of_cards(0)[start:end])
            else:
                why = self._of_several(row, state)
            found[state.name] = why
        return found

    def _of_several(self, row: int, state: NodeState) -> Why:
        """Return why a node refuses several containers, or cards that are named."""
        question, plan = self._question, self._plan
        if self._named and not self._named.isdisjoint(state.place):
            return _line(self._exact(state))
        short = next((at for at, want in enumerate(plan.wants) if question.counts[at][row] < want.count), None)
        if plan.shape.wishes.uuids:
            short = 0
        if short is not None:
            start, end = question.sweep.spans[row]
            return self._of(self._of_cards(short)[start:end])
        is_near = not plan.is_many or not (plan.is_joined or plan.is_one_numa)
        if len(plan.wants) > 1 and plan.is_singles and is_near and len(plan.running) <= PACKED_MAX:
            return Code.TOGETHER, str(Code.TOGETHER)
        return _line(self._exact(state))

    def _may_take(self, state: NodeState) -> bool:
        """Whether it is only what is free of cards and seats that stands in the way."""
        if state.facts is None or not state.facts.ready:
            return False
        if state.model in self._takes:
            return True
        refusal = node_refusal(state, self._plan)
        if refusal is not None and refusal.code is not Code.NODE_SEATS:
            return False
        if refusal is None:
            self._takes.add(state.model)
        return True

    def _of(self, codes: bytes) -> Why:
        """Return what a node says whose cards say this."""
        found = self._known.get(codes)
        if found is None:
            counts = Counter(_CODES[number - 1] for number in codes if number not in {0, _OTHER})
            code = max(counts, key=lambda one: (counts[one], RANK[one]), default=Code.NODE_CHANGED)  # asked too late
            found = self._known[codes] = code, text_of(tuple(counts.items()), len(codes) - codes.count(_OTHER))
        return found

    def _of_cards(self, place: int) -> bytes:
        """Return the number of the code with which each card refuses a container by itself."""
        found = self._codes.get(place)
        if found is not None:
            return found
        question, plan = self._question, self._plan
        sweep, needs, want = question.sweep, question.needs[place], plan.wants[place]
        own, asked = [], plan.shape.containers[place]
        qos, alone = [], NUMBERS[Code.CARD_NOT_EMPTY] if want.alone or plan.is_mutex else 0
        for kind in sweep.kinds:
            code = plan.on(kind)[place].code
            if code is None and plan.shape.wishes.uuids:
                code = Code.CARD_UUID
            own.append(_OTHER if kind.backend != want.backend else 0 if code is None else NUMBERS[code])
            is_other = kind.qos is not None and not want.alone and kind.qos is not asked.share_class
            qos.append(NUMBERS[Code.CARD_QOS] if is_other else 0)
        gone, cores, memory = NUMBERS[Code.CARD_CORES_GONE], NUMBERS[Code.CARD_CORES], NUMBERS[Code.CARD_MEMORY]
        least, enough = needs.memory, needs.cores
        self._codes[place] = found = bytes(
            [
                0
                if there >= least[kind] and free >= enough[kind] and not own[kind]
                else own[kind]
                or (block if block == UNKNOWN_USE else 0)
                or (qos[kind] if free < EMPTY else 0)
                or block
                or (alone if free < EMPTY else 0)
                or (memory if there < least[kind] else cores if free < want.cores else gone)
                for kind, there, free, block in zip(sweep.kind, sweep.memory, sweep.cores, sweep.block, strict=True)
            ]
        )
        return found


def _line(unfit: Unfit) -> Why:
    return unfit.code, unfit.text
