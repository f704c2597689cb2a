"""Reads what containers use, from policy, ledger and turns of their hand-overs: the figures of one moment.

Called by the sampler, in a thread of its own. A ledger is its tenant's claim: its numbers are bounded, and one that
cannot be read costs its container's series and is counted. Sums of the ledger's processes go with the process, so they
are carried on here, for as long as the hand-over lives, and only grow. They are in memory alone: after a restart of the
agent they begin with what the living processes say, which Prometheus takes for a counter's reset (`rate` and `increase`
go on rightly; what processes used that had ended before is in the old samples).
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from partage.model import PartageError, names
from partage.shm import read_turn_lines, read_turns
from partage_plugin.figures import CardFigures, ContainerFigures, Figures
from partage_plugin.monitor.strangers import Strangers
from partage_plugin.monitor.whereabouts import hand_overs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from partage.devices.backend import CardUse
    from partage.run.handover import HandOver
    from partage.shm import Ledger, Policy, PolicyDevice, SlotTurn, Turns

CLAIM_MAX: Final = 1 << 53  # of a tenant's number: what every reader of metrics still takes as a whole one
WHOLE: Final = 1000
APART_NS: Final = 1_000_000_000  # what was got in less says little: what was known before stands
_SUMS: Final = ("waited_ns", "waits", "launches", "refusals")


@dataclass(frozen=True, slots=True)
class Held:
    """A hand-over and whose it is."""

    entry: HandOver
    namespace: str
    pod: str
    container: str


@dataclass(slots=True)
class _Sum:
    """A sum over processes that come and go: what is counted already, and what each living one said last."""

    counted: int = 0
    last: dict[object, int] = field(default_factory=dict)

    def add(self, claims: dict[object, int]) -> int:
        self.counted += sum(max(0, claim - self.last.get(process, 0)) for process, claim in claims.items())
        self.last = claims
        return self.total

    @property
    def total(self) -> int:
        return min(self.counted, CLAIM_MAX)


@dataclass(slots=True)
class _Past:
    """What was known of a container on a card the time before."""

    sums: dict[str, _Sum] = field(default_factory=lambda: {name: _Sum() for name in (*_SUMS, "flight_ns")})
    charged_ns: int = 0
    flight_ns: int = 0
    at_ns: int = 0
    got: int | None = None


class Reader:
    """Reads the figures again and again; used from one thread at a time."""

    def __init__(
        self,
        held: Callable[[], Iterable[Held]],
        cards: Callable[[], Iterable[CardFigures]],
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        use: Callable[[], Mapping[str, CardUse]] = dict,
        whose: Callable[[Collection[int]], Collection[str]] = hand_overs_of,
    ) -> None:
        self._held = held
        self._cards = cards
        self._now_ns = now_ns
        self._use = use
        self._strangers = Strangers(whose)
        self._past: dict[tuple[str, str], _Past] = {}
        self._known_pids: set[int] = set()  # with a slot in some ledger, at this reading
        self._failures: Counter[str] = Counter()

    def read(self) -> Figures:
        """Return the figures of now; what cannot be read is left out and counted."""
        containers: list[ContainerFigures] = []
        use = self._read_use()
        self._known_pids = set()
        there = list(self._held())
        for held in there:
            try:
                containers += self._container(held)
            except PartageError:
                self._failures["policy"] += 1
        if use is not None:
            strange = self._strangers.look(use, self._known_pids)
            containers = [_with_hooked(found, use, strange) for found in containers]
        names_there = {held.entry.name for held in there}  # also of what cannot be read this time
        self._past = {key: past for key, past in self._past.items() if key[0] in names_there}
        return Figures(self._read_cards(use or {}), tuple(containers), dict(self._failures), self._now_ns())

    def _read_use(self) -> Mapping[str, CardUse] | None:
        try:
            return self._use()
        except PartageError:
            self._failures["use"] += 1
            return None

    def _read_cards(self, use: Mapping[str, CardUse]) -> tuple[CardFigures, ...]:
        try:
            cards = tuple(self._cards())
        except PartageError:
            self._failures["cards"] += 1
            return ()
        return tuple(
            card
            if (now := use.get(card.uuid)) is None
            else replace(card, used=now.used, busy=now.busy, memory_busy=now.memory_busy)
            for card in cards
        )

    def _container(self, held: Held) -> list[ContainerFigures]:
        policy = held.entry.policy()
        turns = read_turns(held.entry.path / names.TURNS_FILE)
        found = [self._promised(held, policy, ordinal) for ordinal in range(len(policy.devices))]
        try:
            ledger = held.entry.ledger()
            lines = read_turn_lines(held.entry.ledger_path, [slot.index for slot in ledger.slots], len(ledger.devices))
        except PartageError:
            self._failures["ledger"] += 1
            return found
        self._known_pids.update(slot.host_pid for slot in ledger.slots)
        return [
            self._used(figures, device, ledger, lines, turns)
            for figures, device in zip(found, policy.devices, strict=True)
        ]

    def _promised(self, held: Held, policy: Policy, ordinal: int) -> ContainerFigures:
        device = policy.devices[ordinal]
        return ContainerFigures(
            namespace=held.namespace,
            pod=held.pod,
            container=held.container,
            device_uuid=device.uuid,
            ordinal=ordinal,
            hand_over=held.entry.name,
            limit=device.memory,
            cores=device.cores,
            ceiling=device.ceiling,
            share_class=policy.share_class,
            priority=policy.priority,
            enforcement=policy.enforced_by,
            is_open=policy.is_open,
            overhead=device.overhead,
        )

    def _used(
        self,
        figures: ContainerFigures,
        device: PolicyDevice,
        ledger: Ledger,
        lines: dict[int, tuple[SlotTurn, ...]],
        turns: Turns | None,
    ) -> ContainerFigures:
        index = next((i for i, known in enumerate(ledger.devices) if known.uuid == device.uuid), None)
        past = self._past.setdefault((figures.hand_over, device.uuid), _Past())
        if index is None:  # no process has touched the card yet, or its ledger is another one than before
            return replace(
                figures,
                used=device.overhead,
                processes=0,
                waited_ns=past.sums["waited_ns"].total,
                waits=past.sums["waits"].total,
                launches=past.sums["launches"].total,
                refusals=past.sums["refusals"].total,
            )
        now = self._now_ns()
        mine = {slot.identity: (slot.devices[index], lines[slot.index][index]) for slot in ledger.slots}
        sums = {
            "waited_ns": {key: line.waited_at(now) for key, (_, line) in mine.items()},
            "waits": {key: line.waits for key, (_, line) in mine.items()},
            "launches": {key: line.launches for key, (_, line) in mine.items()},
            "refusals": {key: claim.refused for key, (claim, _) in mine.items()},
            "flight_ns": {key: line.flight_at(now) for key, (_, line) in mine.items()},
        }
        totals = {
            name: past.sums[name].add({key: min(claim, CLAIM_MAX) for key, claim in claims.items()})
            for name, claims in sums.items()
        }
        used, contexts = ledger.used(device.uuid), sum(claim.context for claim, _ in mine.values())
        turn = turns.turns[device.turn] if turns and device.turn < len(turns.turns) else None
        return replace(
            figures,
            used=min(used + device.overhead, CLAIM_MAX),
            kinds={"context": min(contexts, used), "allocated": max(0, used - contexts)},
            processes=len(mine),
            idle_s=_idle([line for _, line in mine.values()], now),
            charged_ns=turn.charged_ns if turn else None,
            got=_got(past, turn.charged_ns if turn and turns and turns.arbiter else None, totals["flight_ns"], now),
            waited_ns=totals["waited_ns"],
            waits=totals["waits"],
            launches=totals["launches"],
            refusals=totals["refusals"],
        )


def _with_hooked(
    found: ContainerFigures, use: Mapping[str, CardUse], strange: Mapping[str, Collection[str]]
) -> ContainerFigures:
    """Return a container's figures with whether all its processes on the card have slots; None where it has none."""
    if found.hand_over in strange.get(found.device_uuid, ()):
        return replace(found, hooked=False)
    return replace(found, hooked=True) if found.processes and found.device_uuid in use else found


def _got(past: _Past, charged_ns: int | None, flight_ns: int, now: int) -> int | None:
    """Return the permille of the card's time since the time before: the arbiter's word, else the processes' own."""
    interval = now - past.at_ns
    if past.at_ns > 0 and interval < APART_NS:
        return past.got
    grown = flight_ns - past.flight_ns if charged_ns is None else charged_ns - past.charged_ns
    past.got = min(WHOLE, max(0, grown) * WHOLE // interval) if past.at_ns > 0 else None
    past.charged_ns, past.flight_ns, past.at_ns = charged_ns or 0, flight_ns, now
    return past.got


def _idle(lines: list[SlotTurn], now: int) -> float | None:
    """Return the seconds since the last work of any process ended; 0 while some is in flight."""
    if any(line.busy_ns for line in lines):
        return 0.0
    last = max((line.idle_ns for line in lines), default=0)
    return max(0, now - last) / 1e9 if last else None
