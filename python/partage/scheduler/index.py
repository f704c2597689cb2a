"""What is known of each shape: which nodes take it, in which order they go, and why the others do not.

The answer for a shape is kept and only asked again of nodes that changed since; a shape not met before, or not for
long, is asked of all nodes at once by `sweep`. Why a node refuses is worked out when somebody asks. Told by the books
of every change of a node; a few shapes are kept, those that were asked for last. Cannot fail.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from partage.model.reasons import Code
from partage.scheduler.answers import Placement, Refused, Unfit, nearest_of
from partage.scheduler.fits import fit_plan
from partage.scheduler.rank import Ranker
from partage.scheduler.sweep import Question, Sweep
from partage.scheduler.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Plan
    from partage.scheduler.rank import RankKey
    from partage.scheduler.tally import Why

SHAPES: Final = 64
_CHANGES: Final = 4096  # kept; who has missed more asks all nodes again
_NEAREST: Final = 4  # nodes of each code that are looked at
_UNKNOWN: Final = (Code.NODE_UNKNOWN, str(Code.NODE_UNKNOWN))
_SOME: Final = 64  # nodes that changed: more than so many are asked faster all at once


class Entry:
    """One shape. `fitting`: the nodes that take it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fitting: set[str] = set()
        self.seen = -1  # up to which change
        self._refused: dict[str, Unfit] = {}
        self._whys: dict[str, Why] = {}
        self._question: Question | None = None  # with which all nodes were asked, as long as nothing changed
        self._keys: dict[str, RankKey] = {}
        self._order: list[RankKey] | None = None
        self._ranker = Ranker(plan)

    def all_again(self, sweep: Sweep) -> None:
        """Ask all nodes; nothing that was known before counts."""
        question = self._question = Question(sweep, self.plan)
        rows = question.fitting()
        self.fitting = {sweep.names[row] for row in rows}
        self._refused = question.refused
        self._keys.clear()
        self._order = None
        self._whys.clear()
        if self._ranker.has_links:  # these numbers are at hand now
            key = self._ranker.key
            self._keys = {sweep.names[row]: key(sweep.states[row], question.masks(row)) for row in rows}

    def again(self, nodes: Mapping[str, NodeState], changed: Iterable[str]) -> None:
        """Ask these nodes again."""
        self._question = None
        for name in changed:
            self._forget(name)
            state = nodes.get(name)
            if state is None:
                continue
            found = fit_plan(state, self.plan)
            if isinstance(found, Unfit):
                self._refused[name] = found
            else:
                self.fitting.add(name)
                if self._order is not None:
                    key = self._keys[name] = self._ranker.key(state)
                    insort(self._order, key)

    def _forget(self, name: str) -> None:
        self.fitting.discard(name)
        self._refused.pop(name, None)
        self._whys.pop(name, None)
        key = self._keys.pop(name, None)
        if key is not None and self._order is not None:
            del self._order[bisect_left(self._order, key)]

    def refusal(self, state: NodeState) -> Unfit:
        """Return why a node, which is none of the fitting, refuses."""
        known = self._refused.get(state.name)
        if known is None:
            found = fit_plan(state, self.plan)
            if isinstance(found, Placement):  # asked for too late: something ended meanwhile
                return Unfit(state.name, Code.NODE_CHANGED)
            known = self._refused[state.name] = found
        return known

    def why(self, names: Iterable[str], sweep: Sweep) -> Mapping[str, Why]:
        """Return code and line of these nodes, which are none of the fitting, and of others; `sweep`: up to date."""
        unknown = [name for name in names if name not in self._whys]
        if len(unknown) > _SOME:
            question = self._question
            if question is None or question.version != sweep.version:
                question = Question(sweep, self.plan)
            self._whys |= Tally(question, self.refusal).why(sweep.rows(unknown))
        else:
            found = [self.refusal(sweep.states[row]) for row in sweep.rows(unknown)]
            self._whys |= {unfit.node: (unfit.code, unfit.text) for unfit in found}
        return self._whys

    def ranked(self, nodes: Mapping[str, NodeState]) -> list[RankKey]:
        """Return the fitting nodes in their order, each with its key."""
        if self._order is None:
            known = self._keys
            for key in self._ranker.keys([nodes[name] for name in self.fitting if name not in known]):
                known[key[1]] = key
            self._order = sorted(known.values())
        return self._order

    def key(self, state: NodeState) -> RankKey:
        """Return by what a node that takes the shape is ordered."""
        return self._ranker.key(state)


class Index:
    """Entry by shape."""

    def __init__(self, nodes: Mapping[str, NodeState]) -> None:
        self.nodes = nodes
        self._sweep = Sweep()
        self._stale: set[str] = set()  # nodes that the sweep has not been told of
        self._changes: list[str] = []
        self._first = 0  # number of the first change that is kept
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    def changed(self, name: str) -> None:
        """Take note that a node came, went, or is another than before."""
        self._stale.add(name)
        self._changes.append(name)
        if len(self._changes) > 2 * _CHANGES:
            del self._changes[:_CHANGES]
            self._first += _CHANGES

    def entry(self, plan: Plan) -> Entry:
        """Return what is known of a shape, as of now."""
        entry = self._entries.get(id(plan))
        if entry is None:
            entry = self._entries[id(plan)] = Entry(plan)
            if len(self._entries) > SHAPES:
                self._entries.popitem(last=False)
        self._entries.move_to_end(id(plan))
        now = self._first + len(self._changes)
        if entry.seen != now:
            missed = self._missed(entry)
            if missed is None:
                entry.all_again(self.sweep())
            else:
                entry.again(self.nodes, missed)
            entry.seen = now
        return entry

    def sweep(self) -> Sweep:
        """Return all nodes' numbers, as of now."""
        self._sweep.refresh(self.nodes, self._stale)
        self._stale.clear()
        return self._sweep

    def _missed(self, entry: Entry) -> Collection[str] | None:
        """Return the nodes that changed since the entry was made; None: too many."""
        if entry.seen < self._first:
            return None
        missed = set(self._changes[entry.seen - self._first :])
        return missed if len(missed) <= _SOME else None


class Refusals(Refused):
    """Why each of the nodes asked about that do not fit refuses."""

    def __init__(self, index: Index, entry: Entry, names: Sequence[str], known: Mapping[str, Unfit]) -> None:
        self._index = index
        self._entry = entry
        self._names = dict.fromkeys(names)
        self._known = known

    def __getitem__(self, name: str) -> Unfit:
        if name not in self._names:
            raise KeyError(name)
        known = self._known.get(name)
        if known is not None:
            return known
        state = self._index.nodes.get(name)
        return Unfit(name, Code.NODE_UNKNOWN) if state is None else self._entry.refusal(state)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def codes(self) -> Mapping[str, Code]:
        """Return the code of every node."""
        whys = self._whys()
        return {name: whys[name][0] for name in self._names}

    def texts(self) -> Mapping[str, str]:
        """Return the line of every node for `FailedNodes`."""
        whys = self._whys()
        return {name: whys[name][1] for name in self._names}

    def nearest(self) -> Unfit | None:
        """Return the refusal that lacks least, of the nodes of each code on which most is free."""
        by_code: dict[Code, list[tuple[int, str]]] = {}
        for name, code in self.codes().items():
            state = self._index.nodes.get(name)
            measure = _MEASURES.get(code)
            if state is not None and measure is not None:
                by_code.setdefault(code, []).append((-measure(state), name))
        names = [name for ranked in by_code.values() for _, name in nsmallest(_NEAREST, ranked)]
        return nearest_of(map(self.__getitem__, names))

    def _whys(self) -> Mapping[str, Why]:
        nodes, own = self._index.nodes, self._known
        known = [name for name in self._names if name in nodes and name not in own]
        whys = self._entry.why(known, self._index.sweep())
        if len(known) == len(self._names):
            return whys
        others = {name: _UNKNOWN for name in self._names if name not in nodes}
        return {**whys, **others, **{name: (unfit.code, unfit.text) for name, unfit in own.items()}}


#: By what a node comes near to a fit that is refused for this.
_MEASURES: Final[Mapping[Code, Callable[[NodeState], int]]] = {
    Code.CARD_MEMORY: lambda state: max(state.memory),
    Code.CARD_CORES: lambda state: max(state.cores),
    Code.NODE_CARDS: lambda state: len(state.kinds),
    Code.NODE_SEATS: lambda state: -sum(state.seats_used.values()),
}


def unique(names: Sequence[str]) -> list[str]:
    """Return each name once, in the order in which they come first."""
    return list(dict.fromkeys(names))
