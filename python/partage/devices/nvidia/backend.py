"""NVIDIA cards as the node agent asks for them: the protocol of `devices/backend.py`, by NVML.

Calls into NVML block, and a driver in trouble may not return from one; so each is made on a thread of its own and
waited for only so long. One session of NVML is kept and opened anew where NVML as a whole stopped answering (the
driver was reloaded). What can go wrong: no NVML, or none that answers (DeviceError).
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from partage.devices.backend import CardUse, ContainerEdits, Enforcement, HealthChange, Inventory
from partage.devices.nvidia.cards import SYSFS
from partage.devices.nvidia.discover import Discovery
from partage.devices.nvidia.driver_files import absent_extras, nvml_library
from partage.devices.nvidia.edits import real_edits, simulated_edits
from partage.devices.nvidia.health import Clock, HealthBook, HealthWatch
from partage.devices.nvidia.kept import KeptXids
from partage.devices.nvidia.nvml import Nvml, load
from partage.devices.nvidia.options import RESOURCE, Options
from partage.devices.nvidia.procfs import PROC
from partage.model import DeviceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from partage.devices.backend import Card
    from partage.devices.nvidia.cards import RawCard
    from partage.model.grant import GrantShare, Mode

NAME: Final = "nvidia"
LOOK_S: Final = 30.0
USE_S: Final = 2.0
_AGAIN: Final = "delete the pod: it is placed anew"
_HOLDS: Final = {
    "shim": Enforcement.SHIM,
    "timeslice": Enforcement.NONE,  # shown as what it is: isolated by nobody
    "whole": Enforcement.NONE,  # nobody is beside it
}

log = structlog.get_logger("partage.nvidia")


class NvidiaBackend:
    """The cards of this node. `libraries`: directory of the simulated libraries, None for the real driver.

    `state`: where it keeps, from one agent to the next, which cards have failed.
    """

    name: Final = NAME
    resource: Final = RESOURCE

    def __init__(  # noqa: PLR0913 -- where it runs
        self,
        options: Options,
        clock: Clock,
        libraries: Path | None,
        *,
        state: Path | None = None,
        sysfs: Path = SYSFS,
        proc: Path = PROC,
    ) -> None:
        self._options = options
        self._clock = clock
        self._libraries = libraries
        self._discovery = Discovery(options, sysfs=sysfs, proc=proc, withheld=self._withheld)
        self._book = HealthBook(options.health)
        self._watch = HealthWatch(self._book, options.health, clock, libraries)
        self._watch.kept = None if state is None else KeptXids(state)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="partage-nvml")
        self._session: Nvml | None = None
        self._using: Future[Mapping[str, CardUse]] | None = None
        self._looking: tuple[asyncio.Future[tuple[Inventory, Mapping[str, RawCard]]], float] | None = None  # since when
        self._cards: Mapping[str, RawCard] = {}
        self._absent: tuple[str, ...] = ()

    def configure(self, options: Options) -> None:
        """Go by these options from now on; those of cards from the next discovery."""
        self._options = options
        self._discovery.options = options
        self._book.options = options.health
        self._watch.options = options.health

    async def discover(self) -> Inventory:
        """Return what there is now; raises DeviceError where NVML does not answer at all."""
        if self._looking is None:
            begun = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
            self._looking = begun, self._clock.now()
        ours = self._looking  # another may ask meanwhile (SIGHUP) and is told the same
        looking, since = ours
        bell = asyncio.ensure_future(self._clock.sleep(LOOK_S))
        try:
            await asyncio.wait((looking, bell), return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()
            await asyncio.gather(bell, return_exceptions=True)
        if not looking.done():
            limit, step = f"it is waited for {LOOK_S:g} s", "see what the kernel's log says of the driver (NVRM)"
            raise DeviceError("NVML", "does not answer", limit, step)
        if self._looking is ours:
            self._looking = None
        inventory, self._cards = looking.result()
        self._watch.watch(frozenset(card.uuid for card in inventory.cards))
        return replace(inventory, cards=tuple(self._as_heard(card, since) for card in inventory.cards))

    def _as_heard(self, card: Card, since: float) -> Card:
        """Return a card that was found with what health knows of it now: a look lasts, and what is heard is newer."""
        reason = self._book.reason(card.uuid)
        if not reason and self._book.heard(card.uuid) < since:
            return card
        mine = reason or self._discovery.unfit.get(card.uuid, "")
        return replace(card, healthy=not mine, reason=mine)

    def _look(self) -> tuple[Inventory, Mapping[str, RawCard]]:
        if self._libraries is None:
            self._say_absent()
        if self._session is None:
            self._session = self._open()
        try:
            return self._discovery.look(self._session), self._discovery.known()
        except DeviceError:
            session, self._session = self._session, None
            session.close()
            raise

    def _withheld(self, card: RawCard, driver: str) -> str:
        """Return why no container could be given this card, which is well; empty: one could."""
        if self._libraries is not None:
            return ""
        try:
            real_edits([card], self._options, driver)
        except DeviceError as error:
            return f"cannot be given to containers: {error}"
        return ""

    def _open(self) -> Nvml:
        """Return a session of NVML: the one that the loader finds, else the driver's own below its root."""
        try:
            return Nvml(self._libraries)
        except DeviceError:
            library = None if self._libraries is not None else nvml_library(self._options.roots)
            if library is None:
                raise
            load(library)
            return Nvml(None)

    def _say_absent(self) -> None:
        """Log, once, what containers are to get and the host does not have: they begin without it."""
        absent = absent_extras(self._options.roots, self._options.extras)
        if absent != self._absent:
            self._absent = absent
            step = "let the agent see the host's /dev (nvidia.devRootInAgent), or load the modules"
            log.warning("containers get no device of these settings", settings=absent, step=step)

    def use(self) -> Mapping[str, CardUse]:
        """Return what NVML says of the use of each card that answers; raises DeviceError where it hangs or is gone."""
        if self._using is None or self._using.done():  # one that hangs is not asked for again
            try:
                self._using = self._thread.submit(self._look_at_use)
            except RuntimeError as error:
                raise DeviceError("NVML", "was let go", "its figures are asked for", "none: the agent ends") from error
        try:
            return self._using.result(USE_S)
        except TimeoutError:
            limit, step = f"it is waited for {USE_S:g} s", "see what the kernel's log says of the driver (NVRM)"
            raise DeviceError("NVML", "does not answer", limit, step) from None

    def _look_at_use(self) -> Mapping[str, CardUse]:
        found: dict[str, CardUse] = {}
        session = self._session
        if session is None:  # not looked for yet, or NVML is to be opened anew
            return found
        for uuid in self._cards:
            with contextlib.suppress(DeviceError):  # one that failed costs its own series; health tells of it
                found[uuid] = session.use(uuid)
        return found

    async def watch_health(self) -> AsyncGenerator[HealthChange, None]:
        """Yield each change as it comes, until closed."""
        async with contextlib.aclosing(self._watch.changes()) as changes:
            async for change in changes:
                if not (change.healthy and change.uuid in self._discovery.unfit):
                    yield change

    async def prepare(self, shares: Sequence[GrantShare]) -> ContainerEdits:
        """Return what a container with these shares needs; raises DeviceError for a card that is not there or well."""
        if len(shares) > 1 and self._options.one_card_only:
            limit, step = "one is allowed here (nvidia.failRequestsGreaterThanOne)", "ask for one, with more of it"
            raise DeviceError(RESOURCE, f"shares of {len(shares)} cards", limit, step)
        cards = [self._card(share.uuid) for share in shares]
        if self._libraries is not None:
            return simulated_edits(cards)
        return real_edits(cards, self._options, self._discovery.driver)

    def _card(self, uuid: str) -> RawCard:
        card = self._cards.get(uuid)
        if card is None:
            there = ", ".join(self._cards) or "none"
            raise DeviceError(
                f"card {uuid}", "not on this node", f"there are: {there}", "delete the pod: it is placed anew"
            )
        reason = self._book.reason(uuid)
        if reason:
            raise DeviceError(f"card {uuid}", reason, "only healthy cards are handed out", _AGAIN)
        return card

    async def release(self, shares: Sequence[GrantShare]) -> None:
        """Give back nothing: whole cards are shared as they are, and no mode of theirs was changed."""

    def enforcement(self, mode: Mode) -> Enforcement:
        """Return what holds the limits of a container of this mode; raises DeviceError where nothing here would."""
        held = _HOLDS.get(mode)
        if held is None:
            limit = "this release holds limits in mode shim; timeslice and whole are given without isolation"
            raise DeviceError(f"backend {NAME}", f"mode {mode}", limit, "place the pod anew in mode shim")
        return held

    def close(self) -> None:
        """Let NVML go; what hangs in it is left behind."""
        session, self._session = self._session, None
        if session is not None:
            self._thread.submit(session.close)
        self._thread.shutdown(wait=False)
