"""Whether a container used a device for longer than the arbiter charged it for: NVML's word against the books.

The library that takes turns runs in the tenant's own process, so a tenant can launch past it, or say that nothing is in
flight. NVML sees its kernels all the same. The watcher looks once a second while the container takes turns (seldomer
while it uses nothing); what a window of looks shows beyond the books goes into the policy (`audit_ns`), and the arbiter
charges it.

NVML is coarse: a figure in whole percent that stands for the second before it. So a window is 3 s, the books have a
look more than NVML, and a difference of up to 10 % of the window is nobody's. An arbiter that does not answer charges
nobody: then what the processes say of themselves counts as charged. `Books` compares and knows no clock; `Auditor`
reads. What can go wrong: NVML does not tell use by process, or a process has no slot (it is not found out), a file
cannot be read (the look is left out).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import DeviceError, LedgerError, PolicyError, names
from partage.shm import read_turn_lines, read_turns, ring_turn_bell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.nvidia.usage import Usage
    from partage.run.handover import HandOver
    from partage.shm import LatePolicy, Ledger, Policy, PolicyDevice, PolicyFile

SECOND_NS: Final = 1_000_000_000
WINDOW_NS: Final = 3 * SECOND_NS  # with less, the second that a figure stands for would be most of what is compared
TOLERANCE: Final = 10  # percent of the window
SAMPLE_NS: Final = SECOND_NS  # for so long at most a figure stands
FRESH_S: Final = 0.25  # so old may NVML's figure be, where another watcher asked for it
LOST_NS: Final = 5 * SECOND_NS  # looks this far apart are not compared: the machine slept, or we were stopped
MOST_NS: Final = 2**64 - 1

log = structlog.get_logger("partage.watcher")


@dataclass(frozen=True, slots=True)
class Look:
    """What was read at `at_ns` of one container on one device; the sums are ns since some moment."""

    at_ns: int
    percent: int  # of the time since the look before, by NVML
    charged_ns: int  # by the arbiter
    claimed_ns: int  # in flight, as the processes say
    is_answered: bool  # an arbiter is at work: it charges what is claimed


class Books:
    """One container on one device: looks go in, what it used beyond the books comes out."""

    def __init__(self) -> None:
        self._last: Look | None = None
        self._owed = 0  # found, and not in what the arbiter charged yet
        self._restart()

    def _restart(self) -> None:
        self._before: int | None = None  # the books of the step before the window
        self._used = self._booked = self._length = 0

    def add(self, look: Look) -> int:
        """Take a look; return the ns beyond the books where this look ends a window that has some, else 0."""
        last, self._last = self._last, look
        if last is None or not 0 < look.at_ns - last.at_ns < LOST_NS or look.charged_ns < last.charged_ns:
            self._owed = 0  # another arbiter: what it charges begins at 0
            self._restart()
            return 0
        booked = self._booked_between(last, look)
        if self._before is None:
            self._before = booked
            return 0
        step = look.at_ns - last.at_ns
        self._used += min(step, SAMPLE_NS) * min(look.percent, 100) // 100
        self._booked += booked
        self._length += step
        return self._close(booked) if self._length >= WINDOW_NS else 0

    def is_moved_by(self, look: Look) -> bool:
        """Whether this look shows use that the one before did not."""
        last = self._last
        if last is None:
            return True
        return look.percent > 0 or (look.charged_ns, look.claimed_ns) != (last.charged_ns, last.claimed_ns)

    def _booked_between(self, last: Look, look: Look) -> int:
        grown = look.charged_ns - last.charged_ns
        repaid = min(grown, self._owed)  # what we found ourselves is charged first, and is no use of this step
        self._owed -= repaid
        booked = grown - repaid
        if not look.is_answered:
            booked = max(booked, min(look.claimed_ns - last.claimed_ns, look.at_ns - last.at_ns))
        return booked

    def _close(self, booked: int) -> int:
        beyond = self._used - self._booked - (self._before or 0) - self._length * TOLERANCE // 100
        self._restart()
        self._before = booked
        self._owed += max(0, beyond)
        return max(0, beyond)


class Auditor:
    """Compares one hand-over's use with its books, on each of its devices. Called by its watcher, time and again."""

    def __init__(self, entry: HandOver, policy: PolicyFile | LatePolicy, usage: Usage) -> None:
        self._entry = entry
        self._policy = policy
        self._usage = usage
        self._books: dict[str, Books] = {}
        self._seen_us: dict[str, int] = {}  # the latest of NVML's samples that was counted

    def look(self, now: int, ledger: Ledger, pids: Mapping[int, int]) -> bool:
        """Look at every gated device; say whether one is in use, as NVML, the books or the processes have it.

        `now` is ns of CLOCK_MONOTONIC, `pids` maps slots to pids as NVML has them. What cannot be read is in use.
        """
        in_use = False
        try:
            for device in self._policy.read().devices:
                if device.gated:
                    in_use |= self._look_at(now, device, ledger, pids)
                else:
                    self._books.pop(device.uuid, None)
        except (DeviceError, LedgerError, PolicyError):
            return True
        return in_use

    def _look_at(self, now: int, device: PolicyDevice, ledger: Ledger, pids: Mapping[int, int]) -> bool:
        uuid = device.uuid
        turns = read_turns(self._entry.path / names.TURNS_FILE)
        index = next((i for i, other in enumerate(ledger.devices) if other.uuid == uuid), None)
        if turns is None or index is None or device.turn >= len(turns.turns):
            return True
        turn = turns.turns[device.turn]
        lines = read_turn_lines(self._entry.ledger_path, pids, len(ledger.devices))
        fresh = now / SECOND_NS - FRESH_S
        seen, self._seen_us[uuid] = self._usage.busy(uuid, self._seen_us.get(uuid, 0), fresh)
        look = Look(
            at_ns=now,
            percent=min(100, sum(seen.get(pid, 0) for pid in set(pids.values()))),
            charged_ns=turn.charged_ns,
            claimed_ns=sum(line[index].flight_at(now) for line in lines.values()),
            is_answered=turn.is_answered(now),
        )
        books = self._books.setdefault(uuid, Books())
        in_use = books.is_moved_by(look)
        beyond = books.add(look)
        if beyond:
            self._report(uuid, beyond)
        return in_use

    def _report(self, uuid: str, beyond: int) -> None:
        def change(policy: Policy) -> Policy:
            present = policy.device(uuid)
            if present is None:
                return policy
            return policy.changed(uuid, audit_ns=min(MOST_NS, present.audit_ns + beyond))

        self._policy.update(change)
        log.warning(
            "used a device beyond its turns; it repays the time",
            hand_over=self._entry.name,
            device=uuid,
            value=f"{beyond / 1e6:.0f} ms more than charged",
            limit=f"{TOLERANCE} % of {WINDOW_NS // SECOND_NS} s",
            step="see what runs there (`partage top`); a tenant that launches past the library needs a card of its own",
        )
        ring_turn_bell(self._entry.ledger_path)
