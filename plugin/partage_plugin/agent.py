"""The node agent, put together: one resource of one backend on one node, from start to end.

`run` takes the right to serve (owner_lock), finds the cards, then lets these go on side by side: registration, the
arbiter, health, pods, clean-up. The first that cannot go on ends all of them, and with them the process: kubelet then
keeps its devices, running containers their limits, and the DaemonSet starts the next agent, which adopts what runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import DeviceError, LaunchError
from partage_plugin.arbiter import Arbiter
from partage_plugin.calls import Calls
from partage_plugin.cards import Cards
from partage_plugin.delivery import Delivery
from partage_plugin.front import SharesFront
from partage_plugin.handover.cdi import CdiDirectory
from partage_plugin.handover.desk import Desk
from partage_plugin.handover.grants import Grants
from partage_plugin.handover.store import Store
from partage_plugin.kubelet.checkpoint import CheckpointFile
from partage_plugin.kubelet.minted import Minted
from partage_plugin.kubelet.podresources import PodResources
from partage_plugin.kubelet.register import Registrar
from partage_plugin.kubelet.seats import card_of
from partage_plugin.kubelet.server import DevicePlugin
from partage_plugin.library import Library
from partage_plugin.mending import Mender
from partage_plugin.monitor.whereabouts import place_of
from partage_plugin.owner_lock import OwnerLock
from partage_plugin.owners import Owners
from partage_plugin.ports import Clock, MonotonicClock
from partage_plugin.safe import SafeMode
from partage_plugin.shrinking import Shrinking
from partage_plugin.sweep import Sweeper
from partage_plugin.writing import Directory, Writing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from partage.devices.backend import Backend
    from partage_plugin.handover.desk import Held, Watch
    from partage_plugin.monitor.whereabouts import Place
    from partage_plugin.places import Places
    from partage_plugin.ports import Pods, Reports
    from partage_plugin.refusal import Refused

DISCOVER_EVERY_S: Final = 30.0
NO_CARDS_AGAIN_S: Final = 5.0
PLACES_EVERY_S: Final = 10.0
SWEEP_EVERY_S: Final = 60.0
SWEEP_GATHER_S: Final = 0.2  # pods that end together are looked after together
SWEEP_AGAIN_S: Final = 1.0  # while containers of ended pods are still on their way out
SWEEP_AGAIN_LAST_S: Final = 30.0

log = structlog.get_logger("partage.agent")


@dataclass(frozen=True, slots=True)
class Choices:
    """What an administrator decides. `oversub`: permille of the allocatable memory that promises may add up to.

    `one_card`: containers that ask for shares of more than one card are refused.
    """

    node: str
    oversub: int = 1000
    preload_by_variable: bool = False
    safe_mode: bool = False
    tells_numa: bool = True
    one_card: bool = False


async def _nobody_to_tell() -> None:
    """Tell nobody."""


async def _none_cordoned() -> frozenset[str]:
    """No card is cordoned."""
    return frozenset()


class Agent:
    """The agent of one resource."""

    def __init__(  # noqa: PLR0913 -- the world around it
        self,
        *,
        choices: Choices,
        places: Places,
        backend: Backend,
        pods: Pods,
        reports: Reports,
        watch: Watch,
        library: Path,
        calls: Calls | None = None,
        clock: Clock | None = None,
        context_of: Callable[[str], int | None] = lambda _: None,
        cordoned: Callable[[], Awaitable[Collection[str]]] = _none_cordoned,
        place_of: Callable[[int], Place] = place_of,
    ) -> None:
        self.cards = Cards()
        self._backend = backend
        self._pods = pods
        self._clock = clock or MonotonicClock()
        self._calls = calls or Calls(self._clock)
        self._places = places
        self._library = library
        self._lock = OwnerLock(places.root, self._clock, f"node {choices.node}", places.plugins)
        self._store = Store(places.root)
        self.runtime = ""  # of containers, as the node's status names it; empty: not known yet
        self._cdi = CdiDirectory(places.cdi, lambda: self.runtime)
        self._grants = Grants(choices.node)
        self._choices = choices
        self.desk = self._make_desk(watch, context_of)
        self._checkpoint = CheckpointFile(places.plugins, backend.resource)
        self._minted = Minted(self._clock.now)
        self._resources = PodResources(places.pod_resources, backend.resource)
        self._cordoned = cordoned
        self._reports = reports
        self.arbiter = Arbiter(places.root, places.locks, self._clock)
        self._sweeper = self._make_sweeper()
        self._mender = Mender(self.desk, self._tell_damaged)
        self._shrinking = Shrinking(
            desk=self.desk, grants=self._grants, pods=pods, reports=reports, use=backend.use, place_of=place_of
        )
        self.writing = Writing(
            Directory(lambda: self._store.is_doubted, self._store.try_out),
            Directory(lambda: self._cdi.is_doubted, self._cdi.try_out),
        )
        self._sweep_wanted = asyncio.Event()
        self._plugin: DevicePlugin | None = None
        self.front: SharesFront | None = None
        self.registrar: Registrar | None = None
        self.tell_node: Callable[[], Awaitable[None]] = _nobody_to_tell

    def _make_desk(self, watch: Watch, context_of: Callable[[str], int | None]) -> Desk:
        return Desk(
            store=self._store,
            cdi=self._cdi,
            cards=self.cards,
            backend=self._backend,
            grants=self._grants,
            pods=self._pods,
            watch=watch,
            oversub=self._choices.oversub,
            one_card=self._choices.one_card,
            context_of=context_of,
        )

    def _make_sweeper(self) -> Sweeper:
        return Sweeper(
            store=self._store,
            cdi=self._cdi,
            desk=self.desk,
            checkpoint=self._checkpoint,
            minted=self._minted,
            pods=self._pods,
        )

    @property
    def is_standby(self) -> bool:
        """Whether another agent serves and this one waits to take over."""
        return not self._lock.is_ours

    @property
    def is_ready(self) -> bool:
        """Whether kubelet follows our seats, or this one is ready to take over."""
        return self.is_standby or (self.registrar is not None and self.registrar.is_registered)

    async def run(self) -> None:
        """Serve until cancelled; raises PartageError where that cannot be."""
        self._store.open()
        library = Library(self._library, self._places.library)
        self.writing.add(Directory(lambda: library.is_lost, library.ensure))
        try:
            await self._lock.take()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.arbiter.run(), name="arbiter")
                await self._find_cards()
                registrar = self._assemble(Delivery(library, by_variable=self._choices.preload_by_variable))
                tasks.create_task(registrar.run(), name="kubelet")
                tasks.create_task(self._follow_pods(), name="pods")
                tasks.create_task(self._follow_health(), name="health")
                tasks.create_task(self._rediscover(), name="discovery")
                tasks.create_task(self._follow_cards(), name="cards")
                tasks.create_task(self._sweep(), name="clean-up")
                tasks.create_task(self._shrinking.run(self._clock), name="shrinking")
                tasks.create_task(self._follow_places(library), name="places")
        finally:
            self.desk.let_go()
            await self._resources.close()
            self._lock.let_go()
            library.let_go()

    def _assemble(self, delivery: Delivery) -> Registrar:
        safe = SafeMode(self._choices.node, self._backend.resource, self._backend.name)
        owners = Owners(self._checkpoint, self._resources, self._minted, self._pods)
        front = SharesFront(
            cards=self.cards,
            store=self._store,
            desk=self.desk,
            grants=self._grants,
            owners=owners,
            checkpoint=self._checkpoint,
            minted=self._minted,
            delivery=delivery,
            pods=self._pods,
            reports=self._reports,
            calls=self._calls,
            shrinking=self._shrinking,
            safe=safe if self._choices.safe_mode else None,
            cordoned=self._cordoned,
            tells_numa=self._choices.tells_numa,
        )
        plugin = DevicePlugin(front)
        owners.write_again = plugin.list_again
        front.on_handed_over = self._handed_over
        front.clean_up = self._sweeper.sweep
        self.front, self._plugin = front, plugin
        self.registrar = Registrar(
            directory=self._places.plugins,
            resource=self._backend.resource,
            plugin=plugin,
            rebuild=front.rebuild,
            clock=self._clock,
            is_ours=lambda seat: card_of(seat) in self.cards.by_uuid,
            on_registered=self._registered,
        )
        return self.registrar

    async def _registered(self) -> None:
        """Look what stands on the node: a kubelet that starts makes a node anew that somebody has deleted."""
        await self.tell_node()

    async def _follow_places(self, library: Library) -> None:
        """Look whether all can be written; end where that reaches nobody: the next agent has what is there then."""
        while True:
            await self._clock.sleep(PLACES_EVERY_S)
            removed = self._places.removed()
            if removed is not None:
                limit, step = "what is written there reaches nobody", "none: the agent is started again"
                raise LaunchError(str(removed), "was removed from the host", limit, step)
            self._lock.keep()
            library.keep()
            self.writing.look()

    # ---- cards ---------------------------------------------------------------------------------------------------

    async def _find_cards(self) -> None:
        """Wait for the first discovery that finds a card: an agent without any has nothing to register."""
        while True:
            reason = await self.discover()
            if self.cards.by_uuid:
                return
            log.warning("no cards; not registered", reason=reason or "none found")
            await self._clock.sleep(NO_CARDS_AGAIN_S)

    async def discover(self) -> str:
        """Look for cards now; return why that cannot be, or nothing."""
        try:
            self.cards.found(await self._backend.discover())
        except DeviceError as error:
            return str(error)
        return ""

    async def _rediscover(self) -> None:
        while True:
            await self._clock.sleep(DISCOVER_EVERY_S)
            reason = await self.discover()
            if reason:
                log.warning("cards cannot be looked for; what is known stays", reason=reason)

    async def _follow_health(self) -> None:
        async for change in self._backend.watch_health():
            if self.cards.health(change):
                log.warning("health", card=change.uuid, healthy=change.healthy, reason=change.reason)

    async def _follow_cards(self) -> None:
        """Tell kubelet and the node's annotation about cards, now and at each change."""
        while True:
            changed = asyncio.ensure_future(self.cards.changed())
            try:
                self._tell_seats()
                await self.tell_node()
                await changed
            finally:
                changed.cancel()

    def _handed_over(self) -> None:
        """Look after what changes with a hand-over: seats, and gates of neighbours that could not be written."""
        self._seats_changed()
        if self.desk.is_behind:
            self._sweep_wanted.set()

    def _seats_changed(self) -> None:
        """Tell kubelet where a hand-over came or went beside a card that failed or is gone: else seats are the same."""
        has_strays = self.front is not None and self.front.has_strays
        if has_strays or any(not card.healthy for card in self.cards.by_uuid.values()):
            self._tell_seats()

    def _tell_seats(self) -> None:
        if self._plugin is not None:
            self._plugin.seats_changed()

    # ---- pods ----------------------------------------------------------------------------------------------------

    def ledger_spoilt(self, hand_over: str, why: str) -> None:
        """Say on its pod that a container was closed because of what it did to its ledger."""
        if self.front is not None:
            self.front.ledger_spoilt(hand_over, why)

    def _tell_damaged(self, held: Held, refusal: Refused | None) -> None:
        if self.front is not None:
            self.front.damaged(held, refusal)

    async def _follow_pods(self) -> None:
        async for change in self._pods.changes():
            if change.gone or change.pod.is_over:
                self._sweep_wanted.set()
            elif self.front is not None:
                try:
                    self.front.pod_changed(change.pod)
                except Exception:  # a pod that has found a defect of ours ends nobody else's agent: logged in full
                    log.exception("a pod's change cannot be followed", pod=change.pod.full_name, uid=change.pod.uid)
            if change.gone and self.front is not None:
                self.front.forget([change.pod.uid])

    async def _sweep(self) -> None:
        """Clean up when pods end, again while their containers are on their way out, and now and then."""
        again = SWEEP_EVERY_S
        while True:
            await self._until_sweep(again)
            await self._clock.sleep(SWEEP_GATHER_S)
            await self._calls.until_quiet()
            wanted, removed = self._sweep_wanted.is_set(), await self._sweeper.sweep(between=self._calls.until_none)
            self._sweep_wanted.clear()
            if removed:
                self._seats_changed()
            await self._mender.look()
            if self.desk.mend() or wanted or removed:
                again = SWEEP_AGAIN_S
            else:
                again = min(2 * again, SWEEP_EVERY_S) if again < SWEEP_AGAIN_LAST_S else SWEEP_EVERY_S

    async def _until_sweep(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(self._sweep_wanted.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
