"""One look at everything: devices, shares, their processes, and what they got since the look before.

Called by `partage top`; nothing here prints. Compute comes from three places, in this order: what the arbiter has
charged (it alone is no tenant's claim), what the processes say they had in flight (where no arbiter answers), and
NVML's figure for processes that take no turns. Ledgers are a tenant's claim: what cannot be read becomes a note in
its row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from partage.cli.devices import devices_of_machine, utilization_of
from partage.model import Device, PartageError, names
from partage.run import handover
from partage.shm import SlotTurn, read_turn_lines, read_turns

if TYPE_CHECKING:
    from partage.run.handover import HandOver
    from partage.shm import Ledger, Policy, PolicyDevice, Slot, Turn

FRAMES: Final = 30  # looks that a trend goes back
WHOLE: Final = 1000  # permille


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of a share on one device: bytes charged, refusals, and what its turns came to, sums in ns."""

    pid: int
    name: str
    used: int
    refused: int
    flight_ns: int = 0
    waited_ns: int = 0
    waits: int = 0
    launches: int = 0
    want: int = 0
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One hand-over on one device; `note` says why `used` is not known.

    Memory in bytes; cores, ceiling and `compute_got` in permille of the device; sums in ns. `compute_got` and `waited`
    (ns of waiting a second, all processes together) are of the interval since the look before; `got_by` says where
    the former is from (turns, flight, nvml). `owner`: namespace, pod and container where somebody knows them.
    """

    name: str
    uuid: str
    used: int | None
    limit: int
    cores: int
    share_class: str
    priority: int
    enforcement: str
    state: str
    processes: tuple[ProcessRow, ...] = ()
    compute_got: int | None = None
    note: str = ""
    ceiling: int = WHOLE
    weight: int = 0
    gated: bool = False
    arbiter: int = 0
    turn_open: bool = False
    charged_ns: int = 0
    flight_ns: int = 0
    waited_ns: int = 0
    waited: int | None = None
    degraded: bool = False
    got_by: str = ""
    trend: tuple[int | None, ...] = ()
    owner: str = ""

    @property
    def title(self) -> str:
        """How people know it: whose it is, else the hand-over's name."""
        return self.owner or self.name


@dataclass(frozen=True, slots=True)
class View:
    """All that one look shows; `at_ns` of CLOCK_MONOTONIC, `interval_ns` since the look before (0: there was none)."""

    devices: tuple[Device, ...]
    shares: tuple[ShareRow, ...]
    notes: tuple[str, ...] = field(default=())
    at_ns: int = 0
    interval_ns: int = 0


def look(before: View | None = None) -> View:
    """Take one look; what cannot be read becomes a note. With the look before, also what was got in between."""
    notes: list[str] = []
    devices: list[Device] = []
    try:
        devices, faults = devices_of_machine()
        notes += map(str, faults)
    except PartageError as error:
        notes.append(str(error))
    now = time.monotonic_ns()
    rows: list[ShareRow] = []
    for entry in handover.living():
        try:
            rows += _rows(entry, entry.policy(), now)
        except PartageError as error:
            notes.append(str(error))
    view = View(tuple(devices), tuple(rows), tuple(notes), now, now - before.at_ns if before else 0)
    return _compared(view, before) if before else view


def _rows(entry: HandOver, policy: Policy, now: int) -> list[ShareRow]:
    ledger, lines, note = None, {}, ""
    try:
        ledger = entry.ledger()
        slots = [slot.index for slot in ledger.slots]
        lines = read_turn_lines(entry.ledger_path, slots, len(ledger.devices))
    except PartageError as error:
        note = str(error)
    turns = read_turns(entry.path / names.TURNS_FILE)
    rows = []
    for device in policy.devices:
        turn = turns.turns[device.turn] if turns and device.turn < len(turns.turns) else None
        row = _row(entry.name, policy, device, turn, note)
        if ledger:
            row = replace(row, used=ledger.used(device.uuid) + device.overhead)
            row = _with_processes(row, _processes(ledger, device.uuid, lines, now))
        rows.append(replace(row, arbiter=turns.arbiter if turns else 0))
    return rows


def _row(name: str, policy: Policy, device: PolicyDevice, turn: Turn | None, note: str) -> ShareRow:
    return ShareRow(
        name=name,
        uuid=device.uuid,
        used=None,
        limit=device.memory,
        cores=device.cores,
        share_class=policy.share_class,
        priority=policy.priority,
        enforcement=policy.enforced_by,
        state="open" if policy.is_open else "closed",
        note=note,
        ceiling=device.ceiling,
        weight=device.weight,
        gated=device.gated,
        turn_open=turn.is_open if turn else False,
        charged_ns=turn.charged_ns if turn else 0,
    )


def _with_processes(row: ShareRow, processes: tuple[ProcessRow, ...]) -> ShareRow:
    return replace(
        row,
        processes=processes,
        flight_ns=_bounded(sum(process.flight_ns for process in processes)),
        waited_ns=_bounded(sum(process.waited_ns for process in processes)),
        degraded=any(process.degraded for process in processes),
    )


def _processes(ledger: Ledger, uuid: str, lines: dict[int, tuple[SlotTurn, ...]], now: int) -> tuple[ProcessRow, ...]:
    index = next((i for i, device in enumerate(ledger.devices) if device.uuid == uuid), None)
    if index is None:
        return ()
    return tuple(_process(slot, index, lines[slot.index][index], now) for slot in ledger.slots)


def _process(slot: Slot, index: int, line: SlotTurn, now: int) -> ProcessRow:
    return ProcessRow(
        pid=slot.host_pid or slot.pid,
        name=slot.name,
        used=slot.devices[index].used,
        refused=slot.devices[index].refused,
        flight_ns=_bounded(line.flight_at(now)),
        waited_ns=_bounded(line.waited_at(now)),
        waits=_bounded(line.waits),
        launches=_bounded(line.launches),
        want=line.want,
        degraded=line.degraded,
    )


def _bounded(claim: int) -> int:
    """Return a tenant's number so that sums of it are still numbers that JSON readers take."""
    return min(claim, 2**53)


# ---- against the look before -----------------------------------------------------------------------------------------


def _compared(view: View, before: View) -> View:
    known = {(row.name, row.uuid): row for row in before.shares}
    pairs = [(row, known.get((row.name, row.uuid))) for row in view.shares]
    notes = list(view.notes)
    busy: dict[str, dict[int, int]] = {}
    try:
        ungated = {row.uuid for row, _ in pairs if _source(row) == "nvml" and row.processes}
        busy = utilization_of(ungated) if ungated else {}
    except PartageError as error:
        notes.append(str(error))
    rows = [_since(row, old, view.interval_ns, busy.get(row.uuid, {})) for row, old in pairs]
    return replace(view, shares=tuple(rows), notes=tuple(dict.fromkeys(notes)))


def _source(row: ShareRow) -> str:
    """Say whose word for what the share got is the best there is."""
    if not row.gated:
        return "nvml"
    return "turns" if row.arbiter and not row.degraded else "flight"


def _since(row: ShareRow, old: ShareRow | None, interval: int, busy: dict[int, int]) -> ShareRow:
    """Return the row with what was got and waited since the look before; None where that is not known."""
    got, waited, source = None, None, _source(row)
    if source == "nvml" and row.processes:
        got = min(WHOLE, 10 * sum(busy.get(process.pid, 0) for process in row.processes))
    if old is not None and interval > 0:
        waited = _bounded(_grown(row, old, "waited_ns") * 1_000_000_000 // interval)
        if source == "turns":  # counted anew where another arbiter has come
            got = min(WHOLE, max(0, row.charged_ns - old.charged_ns) * WHOLE // interval)
        elif source == "flight":
            got = min(WHOLE, _grown(row, old, "flight_ns") * WHOLE // interval)
    trend = (*(old.trend if old else ()), got)[-FRAMES:]
    return replace(row, compute_got=got, waited=waited, got_by="" if got is None else source, trend=trend)


def _grown(row: ShareRow, old: ShareRow, name: str) -> int:
    """Return by how much a sum of the processes has grown; those that came count whole, those that went not at all."""
    known = {(process.pid, process.name): process for process in old.processes}
    grown = 0
    for process in row.processes:
        past = known.get((process.pid, process.name))
        grown += max(0, getattr(process, name) - (getattr(past, name) if past else 0))
    return grown
