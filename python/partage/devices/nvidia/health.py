"""Whether cards are well: a state for each, from XIDs and from asking, and the stream of its changes.

A card fails when NVML does not answer for it, and with an XID that is not the program's own error. It comes back when
NVML says so: it answers again and, after an XID, either was away in between (a reset), or NVML has no action to advise,
or where the driver gives no advice nothing new came for a while (unless nothing but a reset helps after that XID).
`HealthBook` is the rules alone; `HealthWatch` asks and listens. XIDs outlive the agent (`kept.py`). A card for
which the driver does not answer in time counts as failed and does not hold up the others.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from partage.devices.backend import HealthChange
from partage.devices.nvidia.cards import Answer, ask, reason_by
from partage.devices.nvidia.kept import KeptXid
from partage.devices.nvidia.xids import Disturbed, Xid, XidThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from partage.devices.nvidia.kept import KeptXids
    from partage.devices.nvidia.options import HealthOptions

_THREADS: Final = 16
#: What an XID means, for people; NVIDIA's catalogue has them all.
_MEANINGS: Final = {
    48: "double-bit ECC error",
    63: "memory row remapped",
    64: "memory row cannot be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
#: Where the card, or the processor on it, is gone until a reset (NVIDIA's catalogue: reset, else reboot): that it
#: answers, from what the driver remembers, says nothing.
_GONE: Final = frozenset({79, 119, 120})

log = structlog.get_logger("partage.nvidia")


class Clock(Protocol):
    """Time that only goes forward."""

    def now(self) -> float:
        """Return seconds since some moment."""

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""


@dataclass(frozen=True, slots=True)
class _State:
    """A card's: `xid`, the one it failed with (0: none), `since` when, `away`: did not answer after that."""

    reason: str = ""
    xid: int = 0
    since: float = 0.0
    away: bool = False


class HealthBook:
    """What is known of each card. Time in seconds; pure."""

    def __init__(self, options: HealthOptions) -> None:
        self.options = options
        self._states: dict[str, _State] = {}
        self._heard: dict[str, float] = {}

    def heard(self, uuid: str) -> float:
        """Return when something was last heard of a card; -inf where nothing ever was."""
        return self._heard.get(uuid, -math.inf)

    def reason(self, uuid: str) -> str:
        """Return why the card is not healthy; empty: it is, or nothing is known of it."""
        return self._states.get(uuid, _State()).reason

    @property
    def has_failed(self) -> bool:
        """Whether any card is not healthy."""
        return any(state.reason for state in self._states.values())

    def keep(self, uuids: Iterable[str]) -> None:
        """Forget all other cards."""
        kept = set(uuids)
        self._states = {uuid: state for uuid, state in self._states.items() if uuid in kept}
        self._heard = {uuid: at for uuid, at in self._heard.items() if uuid in kept}

    def kept(self) -> dict[str, KeptXid]:
        """Return what is to be known of cards that failed with an XID when the next agent begins."""
        return {uuid: KeptXid(one.xid, one.since, one.away) for uuid, one in self._states.items() if one.xid}

    def restore(self, kept: Mapping[str, KeptXid], now: float) -> None:
        """Take over what an agent before this one knew."""
        for uuid, one in kept.items():
            if self._is_failure(one.xid):
                self._states[uuid] = _State(_reason(one.xid), one.xid, min(one.since, now), one.away)

    def _is_failure(self, number: int) -> bool:
        return self.options.watch_xids and number not in self.options.ignored_xids

    def xid(self, uuid: str, number: int, now: float) -> HealthChange | None:
        """Take note of an XID; return the change, None where there is none."""
        if not self._is_failure(number):
            return None
        self._heard[uuid] = now
        before = self._states.get(uuid, _State())
        if before.xid in _GONE and number not in _GONE:
            return self._put(uuid, replace(before, since=now))  # what follows from it is less
        return self._put(uuid, _State(_reason(number), number, now))

    def answered(self, uuid: str, answer: Answer, now: float) -> HealthChange | None:
        """Take note of what a card said when asked; return the change, None where there is none."""
        state = self._states.get(uuid, _State())
        self._heard[uuid] = now
        if answer.fault:
            reason = state.reason if state.xid else answer.fault
            return self._put(uuid, replace(state, reason=reason, away=True))
        if state.xid and not self._is_over(state, answer, now):
            return None
        if answer.action and not state.xid:
            return self._put(uuid, _State(reason_by(answer.action)))
        return self._put(uuid, _State())

    def _is_over(self, state: _State, answer: Answer, now: float) -> bool:
        """Whether a card that failed with an XID, and answers, is well again."""
        if answer.action:
            return False
        if state.away:
            return True
        if state.xid in _GONE and answer.action is None:
            return False
        wait = self.options.patience_s if answer.action is None else self.options.quiet_s
        return now - state.since >= wait

    def _put(self, uuid: str, state: _State) -> HealthChange | None:
        before = self._states.get(uuid, _State())
        self._states[uuid] = state
        if before.reason == state.reason:
            return None
        return HealthChange(uuid, not state.reason, state.reason)


def _reason(number: int) -> str:
    return f"XID {number}" + (f" ({_MEANINGS[number]})" if number in _MEANINGS else "")


class HealthWatch:
    """Asks and listens for one set of cards; `watch` is called by the backend whenever a discovery found them."""

    def __init__(
        self,
        book: HealthBook,
        options: HealthOptions,
        clock: Clock,
        libraries: Path | None,
        probe: Callable[[str], Awaitable[Answer]] | None = None,
    ) -> None:
        self._book = book
        self.kept: KeptXids | None = None  # where XIDs outlive the agent
        self._is_restored = False
        self.options = options
        self._clock = clock
        self._libraries = libraries
        self._probe = probe
        self._cards: frozenset[str] = frozenset()
        self._thread: XidThread | None = None
        self._asking: dict[str, asyncio.Future[Answer]] = {}
        self._asked_at = clock.now()

    def watch(self, uuids: frozenset[str]) -> None:
        """Watch these cards from now on."""
        if self.kept is not None and not self._is_restored:
            self._book.restore(self.kept.read(self._clock.now()), self._clock.now())
        self._is_restored = True
        if uuids == self._cards:
            return
        self._cards = uuids
        self._book.keep(uuids)
        if self._thread is not None:
            self._thread.watch(uuids)

    async def changes(self) -> AsyncGenerator[HealthChange, None]:
        """Yield each change as it comes, until closed; ends at once then."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[Xid | Disturbed] = asyncio.Queue()
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="partage-probe")
        probe = self._probe or (lambda uuid: loop.run_in_executor(pool, ask, uuid))

        def tell(what: Xid | Disturbed) -> bool:
            try:
                loop.call_soon_threadsafe(heard.put_nowait, what)
            except RuntimeError:  # the loop has ended
                return False
            return True

        self._thread = XidThread(self._libraries, tell)
        self._thread.watch(self._cards)
        self._thread.start()
        try:
            while True:
                for change in await self._step(heard, probe):
                    yield change
        finally:
            self._thread.stop()
            self._thread = None
            for asked in self._asking.values():
                asked.cancel()
            self._asking.clear()
            pool.shutdown(wait=False, cancel_futures=True)

    async def _step(
        self, heard: asyncio.Queue[Xid | Disturbed], probe: Callable[[str], Awaitable[Answer]]
    ) -> list[HealthChange]:
        """Wait for the next thing to happen and return what it changed."""
        what = await self._next(heard)
        found: list[HealthChange | None] = []
        if isinstance(what, Xid):
            change = self._book.xid(what.uuid, what.number, self._clock.now())
            log.info("xid", card=what.uuid, xid=what.number, is_failure=bool(self._book.reason(what.uuid)))
            found.append(change)
            if change is None:
                return []
            self._keep()
        failed_before = self._failed()
        found += await self._ask(probe)
        self._keep()
        if failed_before - self._failed() and self._thread is not None:
            self._thread.watch(self._cards)  # one that came back is registered anew
        return [change for change in found if change is not None]

    def _keep(self) -> None:
        if self.kept is not None:
            self.kept.write(self._book.kept(), self._clock.now())

    def _failed(self) -> frozenset[str]:
        return frozenset(uuid for uuid in self._cards if self._book.reason(uuid))

    async def _next(self, heard: asyncio.Queue[Xid | Disturbed]) -> Xid | Disturbed | None:
        """Return what was heard; None when it is time to ask, however much is heard meanwhile."""
        every = self.options.probe_failed_s if self._book.has_failed else self.options.probe_s
        wait = self._asked_at + every - self._clock.now()
        if wait <= 0:
            return None
        listening, bell = asyncio.ensure_future(heard.get()), asyncio.ensure_future(self._clock.sleep(wait))
        try:
            await asyncio.wait((listening, bell), return_when=asyncio.FIRST_COMPLETED)
            return listening.result() if listening.done() else None
        finally:
            listening.cancel()
            bell.cancel()
            await asyncio.gather(listening, bell, return_exceptions=True)

    async def _ask(self, probe: Callable[[str], Awaitable[Answer]]) -> list[HealthChange | None]:
        """Ask every card; one that does not answer in time is not asked again until it has."""
        for uuid in self._cards - self._asking.keys():
            self._asking[uuid] = asyncio.ensure_future(probe(uuid))
        self._asked_at = self._clock.now()
        if not self._asking:
            return []
        bell = asyncio.ensure_future(self._clock.sleep(self.options.answer_s))
        all_of_them = asyncio.ensure_future(asyncio.wait(self._asking.values()))
        try:
            await asyncio.wait((all_of_them, bell), return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()
            all_of_them.cancel()
            await asyncio.gather(bell, all_of_them, return_exceptions=True)
        self._asked_at = now = self._clock.now()
        found = []
        for uuid, asked in list(self._asking.items()):
            late = Answer(fault=f"the driver did not answer within {self.options.answer_s:g} s")
            answer = asked.result() if asked.done() else late
            if asked.done():
                del self._asking[uuid]
            if uuid in self._cards:
                found.append(self._book.answered(uuid, answer, now))
        return found
