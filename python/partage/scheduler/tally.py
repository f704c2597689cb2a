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
from partage.scheduler.sweep import EMPTY, NUMBERS, PACKED_MAX, UNKNOWN_USE, Question, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partage.scheduler.answers import Unfit
    from partage.scheduler.cards import CardKind, NodeState
    from partage.scheduler.plan import Plan
    from partage.scheduler.single import Single
    from partage.scheduler.sweep import Sweep

_CODES: Final = tuple(Code)
_OTHER: Final = 255  # a card of another vendor
_MEMORY: Final = bytes([NUMBERS[Code.CARD_MEMORY]])

Why = tuple[Code, str]  # and the line for kube-scheduler


class Tally:
    """One shape. `exact`: what `fits` says of a node that is none of the fitting."""

    def __init__(self, question: Question | Single, exact: Callable[[NodeState], Unfit]) -> None:
        self._question = question if isinstance(question, Question) else None
        self._sweep = question.sweep
        self._plan = question.plan
        self._exact = exact
        self._known: dict[bytes, Why] = {}
        self._numbering = -1
        self._takes: set[int] = set()  # models of nodes that have enough cards of the vendors
        wishes = self._plan.shape.wishes
        self._named = wishes.uuids | wishes.no_uuids
        self._codes = [_Codes(self._sweep, self._plan, place) for place in range(len(self._plan.wants))]

    def why(self, rows: Sequence[int]) -> dict[str, Why]:
        """Return name -> code and line of these nodes, none of which takes the shape."""
        sweep, takes = self._sweep, self._takes
        if sweep.numbering != self._numbering:
            self._numbering = sweep.numbering
            takes.clear()
        states = sweep.states
        lefts = [(sweep.left(resource), seats) for resource, seats in self._plan.seats.items()]
        for codes in self._codes:
            codes.begin(len(rows))
        found = {}
        for row in rows:
            state = states[row]
            if (not (state.model in takes and state.facts and state.facts.ready) and not self._may_take(state)) or any(
                left[row] < seats for left, seats in lefts
            ):
                why = _line(self._exact(state))
            elif self._question is None:
                why = self._of(self._codes[0].of(row))
            else:
                why = self._of_several(self._question, row, state)
            found[state.name] = why
        return found

    def _of_several(self, question: Question, row: int, state: NodeState) -> Why:
        """Return why a node refuses several containers, or cards that are named."""
        plan = self._plan
        if self._named and not self._named.isdisjoint(state.place):
            return _line(self._exact(state))
        short = next((at for at, want in enumerate(plan.wants) if question.counts[at][row] < want.count), None)
        if plan.shape.wishes.uuids:
            short = 0
        if short is not None:
            return self._of(self._codes[short].of(row))
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


class _Codes:
    """With which code each card refuses one container by itself: a number for each card of a node, 0 for none."""

    def __init__(self, sweep: Sweep, plan: Plan, place: int) -> None:
        self._sweep = sweep
        self._plan = plan
        self._place = place
        self._want = plan.wants[place]
        self._alone = NUMBERS[Code.CARD_NOT_EMPTY] if self._want.alone or plan.is_mutex else 0
        self._numbering = -1
        self._own: list[int] = []  # by the kind of card
        self._qos: list[int] = []
        self._needs = thresholds(plan, place, ())
        self._least = 0  # memory without which a card refuses whatever else; 0: not the same for all kinds, or not all
        self._all: bytes | None = None

    def begin(self, nodes: int) -> None:
        """Get ready for as many questions about nodes as they are now."""
        sweep = self._sweep
        if sweep.numbering != self._numbering:
            self._numbering = sweep.numbering
            self._needs = thresholds(self._plan, self._place, sweep.kinds)
            of_kinds = [self._of_kind(kind) for kind in sweep.kinds]
            self._own, self._qos = [own for own, _ in of_kinds], [qos for _, qos in of_kinds]
            is_plain = not (self._alone or any(self._own) or any(self._qos))
            self._least = self._needs.memory[0] if is_plain and len({*self._needs.memory}) == 1 else 0
        self._all = None
        if not self._least and 2 * nodes > len(sweep.states):
            self._all = self._between(0, len(sweep.kind))

    def of(self, row: int) -> bytes:
        """Return the numbers of a node's cards."""
        sweep = self._sweep
        start, end = sweep.spans[row]
        if self._least and sweep.best[row][0] < self._least and not any(sweep.block[start:end]):
            return _MEMORY * (end - start)
        return self._between(start, end) if self._all is None else self._all[start:end]

    def _of_kind(self, kind: CardKind) -> tuple[int, int]:
        plan, want = self._plan, self._want
        code = plan.on(kind)[self._place].code
        if code is None and plan.shape.wishes.uuids:
            code = Code.CARD_UUID
        own = _OTHER if kind.backend != want.backend else 0 if code is None else NUMBERS[code]
        is_other = kind.qos is not None and not want.alone
        is_other = is_other and kind.qos is not plan.shape.containers[self._place].share_class
        return own, NUMBERS[Code.CARD_QOS] if is_other else 0

    def _between(self, start: int, end: int) -> bytes:
        sweep, alone, want = self._sweep, self._alone, self._want
        own, qos = self._own, self._qos
        least, enough = self._needs.memory, self._needs.cores
        gone, cores, memory = NUMBERS[Code.CARD_CORES_GONE], NUMBERS[Code.CARD_CORES], NUMBERS[Code.CARD_MEMORY]
        cards = zip(
            sweep.kind[start:end], sweep.memory[start:end], sweep.cores[start:end], sweep.block[start:end], strict=True
        )
        return bytes(
            [
                0
                if there >= least[kind] and free >= enough[kind] and not own[kind]
                else own[kind]
                or (block if block == UNKNOWN_USE else 0)
                or (qos[kind] if free < EMPTY else 0)
                or block
                or (alone if free < EMPTY else 0)
                or (memory if there < least[kind] else cores if free < want.cores else gone)
                for kind, there, free, block in cards
            ]
        )


def _line(unfit: Unfit) -> Why:
    return unfit.code, unfit.text
