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
from partage.scheduler.order import UseOrder
from partage.scheduler.rank import Ranker
from partage.scheduler.single import Single
from partage.scheduler.sweep import Question, Sweep
from partage.scheduler.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Plan
    from partage.scheduler.rank import RankKey
    from partage.scheduler.tally import Why

SHAPES: Final = 256
_CHANGES: Final = 4096  # kept; who has missed more asks all nodes again
_NEAREST: Final = 4  # nodes of each code that are looked at
_UNKNOWN: Final = (Code.NODE_UNKNOWN, str(Code.NODE_UNKNOWN))
#: Nodes that changed: more than so many are asked faster all at once; of shapes of one container, and of others.
_MANY: Final = 500
_SOME: Final = 16


class Entry:
    """One shape. `fitting`: the nodes that take it. `sweep` is up to date wherever it is given."""

    def __init__(self, plan: Plan, sweep: Sweep) -> None:
        self.plan = plan
        self.fitting: set[str] = set()
        self.seen = -1  # up to which change
        self._sweep = sweep
        self._single = Single(sweep, plan) if Single.serves(plan) else None
        self._refused: dict[str, Unfit] = {}
        self._whys: dict[str, Why] = {}
        self._question: Question | None = None  # with which all nodes were asked, as long as nothing changed
        self._tally: Tally | None = None
        self._keys: dict[str, RankKey] = {}
        self._order: list[RankKey] | None = None
        self.ranker = Ranker(plan)

    @property
    def some(self) -> int:
        """How many changed nodes are asked one by one."""
        return _SOME if self._single is None else _MANY

    def all_again(self) -> None:
        """Ask all nodes; nothing that was known before counts."""
        self._refused.clear()
        self._keys.clear()
        self._order = None
        self._whys.clear()
        sweep = self._sweep
        if self._single is not None:
            rows = self._single.rows()
        else:
            question = self._question = Question(sweep, self.plan)
            self._tally = None
            rows = question.fitting()
            self._refused = question.refused
        self.fitting = set(map(sweep.names.__getitem__, rows))
        if self.ranker.has_links:  # these numbers are at hand now
            key = self.ranker.key
            self._keys = {sweep.names[row]: key(sweep.states[row], self._masks(row)) for row in rows}

    def again(self, changed: Iterable[str]) -> None:
        """Ask these nodes again."""
        self._question = None
        for name in changed:
            self._forget(name)
            row = self._sweep.row(name)
            if row is not None and self._takes(row):
                self.fitting.add(name)
                if self._order is not None:
                    key = self._keys[name] = self.ranker.key(self._sweep.states[row], self._masks(row))
                    insort(self._order, key)

    def _takes(self, row: int) -> bool:
        if self._single is not None:
            return self._single.takes(row)
        state = self._sweep.states[row]
        found = fit_plan(state, self.plan)
        if isinstance(found, Unfit):
            self._refused[state.name] = found
        return isinstance(found, Placement)

    def _masks(self, row: int) -> list[int] | None:
        """Return for each container the node's cards that take it by itself; None: these numbers do not tell."""
        if self._single is not None:
            return [self._single.mask(row)]
        return None if self._question is None else self._question.masks(row)

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

    def why(self, names: Iterable[str]) -> Mapping[str, Why]:
        """Return code and line of these nodes, which are none of the fitting, and of others."""
        whys = self._whys
        unknown = [name for name in names if name not in whys]
        if unknown:
            rows = self._sweep.rows(unknown)
            if self._single is not None or len(unknown) > _SOME:
                whys |= self._tallied().why(rows)
            else:
                found = [self.refusal(self._sweep.states[row]) for row in rows]
                whys |= {unfit.node: (unfit.code, unfit.text) for unfit in found}
        return whys

    def _tallied(self) -> Tally:
        tally = self._tally
        if self._single is not None:
            tally = tally or Tally(self._single, self.refusal)
        elif self._question is None or self._question.version != self._sweep.version:
            self._question = Question(self._sweep, self.plan)
            tally = Tally(self._question, self.refusal)
        else:
            tally = tally or Tally(self._question, self.refusal)
        self._tally = tally
        return tally

    def ranked(self, nodes: Mapping[str, NodeState]) -> list[RankKey]:
        """Return the fitting nodes in their order, each with its key."""
        if self._order is None:
            known, key = self._keys, self.ranker.key
            known |= {name: key(nodes[name]) for name in self.fitting if name not in known}
            self._order = sorted(known.values())
        return self._order


class Index:
    """Entry by shape."""

    def __init__(self, nodes: Mapping[str, NodeState]) -> None:
        self.nodes = nodes
        self._sweep = Sweep()
        self._stale: set[str] = set()  # nodes that the sweep has not been told of
        self._orders: dict[tuple[str, int], tuple[UseOrder, set[str]]] = {}  # and nodes that it has not been told of
        self._changes: list[str] = []
        self._first = 0  # number of the first change that is kept
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    def changed(self, name: str) -> None:
        """Take note that a node came, went, or is another than before."""
        self._stale.add(name)
        for _, stale in self._orders.values():
            stale.add(name)
        self._changes.append(name)
        if len(self._changes) > 2 * _CHANGES:
            del self._changes[:_CHANGES]
            self._first += _CHANGES

    def entry(self, plan: Plan) -> Entry:
        """Return what is known of a shape, as of now."""
        entry = self._entries.get(id(plan))
        if entry is None:
            entry = self._entries[id(plan)] = Entry(plan, self._sweep)
            if len(self._entries) > SHAPES:
                self._entries.popitem(last=False)
        self._entries.move_to_end(id(plan))
        now = self._first + len(self._changes)
        if entry.seen != now:
            self.refresh()
            missed = self._missed(entry)
            if missed is None:
                entry.all_again()
            else:
                entry.again(missed)
            entry.seen = now
        return entry

    def ordered(self, entry: Entry) -> Iterator[str]:
        """Yield the nodes that take a shape, the best first; those of an entry that was just asked for."""
        ranker, fitting = entry.ranker, entry.fitting
        if not ranker.is_plain:
            return (name for _, name in entry.ranked(self.nodes))
        order = self._order(ranker.plan.backends[0], ranker.sign)
        return (name for name in order.walk(ranker.adds, self.nodes) if name in fitting)

    def _order(self, backend: str, sign: int) -> UseOrder:
        """Return nodes in the order of their use, as of now."""
        found = self._orders.get((backend, sign))
        if found is None:
            found = self._orders[backend, sign] = UseOrder(backend, sign), set(self.nodes)
        order, stale = found
        order.refresh(self.nodes, stale)
        stale.clear()
        return order

    def refresh(self) -> None:
        """Bring all nodes' numbers up to date."""
        self._sweep.refresh(self.nodes, self._stale)
        self._stale.clear()

    def _missed(self, entry: Entry) -> Collection[str] | None:
        """Return the nodes that changed since the entry was made; None: too many."""
        if entry.seen < self._first:
            return None
        missed = set(self._changes[entry.seen - self._first :])
        return missed if len(missed) <= entry.some else None


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

    def texts(self) -> dict[str, str]:
        """Return the line of every node for `FailedNodes`."""
        if not self._names:
            return {}
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
        self._index.refresh()
        whys = self._entry.why(known)
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
