"""One term of these books: made when our kube-scheduler begins to lead, gone when it no longer does.

A term lists all pods and nodes anew and answers nothing before: so nothing that an earlier term believed or reserved
can leak into it, and a restart, a fail-over and a lost Lease are the same thing. What an earlier term sent and may
still happen is refused by its number (`fence.py`); only where the number is the same, since nobody else led in between,
is a bind without a known end kept open, with its place. What a term writes, it writes while it holds: `holds` is asked
before each request. Owned by `service.py`.
What can go wrong outside (an API server that does not answer) is ridden out by the informers; a defect ends the term's
tasks and with them the program, which begins anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.devices.ask import asks_for_shares
from partage.model import names
from partage.scheduler.audit import audit
from partage.scheduler.bind import Binder
from partage.scheduler.books import Books
from partage.scheduler.duties import Duties
from partage.scheduler.extender import Extender
from partage.scheduler.fence import wait_for_fence
from partage.scheduler.tell import Tell
from partage.scheduler.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from partage.devices.requests import AskOptions
    from partage.kube import Client, Clock
    from partage.scheduler.audit import Difference
    from partage.scheduler.bind import BindOrder, Posts
    from partage.scheduler.leader import Term
    from partage.scheduler.plan import Defaults
    from partage.scheduler.reservations import Reservation
    from partage.scheduler.views import WatchedPod

TIDY_S: Final = 5.0

log = structlog.get_logger("partage.scheduler")


class World:
    """What every term is made of: the API server, the clock, and what an administrator decided.

    `settle`: called once a term knows everything, before it answers anybody.
    """

    def __init__(  # noqa: PLR0913 -- all are named
        self,
        *,
        client: Client,
        poster: Posts,
        clock: Clock,
        options: AskOptions,
        instance: str,
        reserved_s: float,
        defaults: Defaults,
        audit_s: float,
        tells_success: bool,
        schedulers: frozenset[str] = frozenset({names.SCHEDULER}),
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self.client = client
        self.poster = poster
        self.clock = clock
        self.options = options
        self.instance = instance
        self.reserved_s = reserved_s
        self.defaults = defaults
        self.audit_s = audit_s
        self.tells_success = tells_success
        self.schedulers = schedulers
        self.settle = settle


@dataclass(frozen=True, slots=True)
class Left:
    """A bind that may happen yet, and what is reserved for it."""

    order: BindOrder
    held: Reservation


class Reign:
    """Books, watch, extender and what they tell, for one term; `holds`: whether it is the term still."""

    def __init__(
        self, term: Term, world: World, holds: Callable[[], Awaitable[bool]], left: Sequence[Left] = ()
    ) -> None:
        """`left`: what this process's last term left open, where that had the same number."""
        clock, client = world.clock, world.client.guarded(holds)
        self.term = term
        self.books = Books(defaults=world.defaults, reserved_s=world.reserved_s)
        self.watch = Watch(client, self.books, clock)
        self.binder = Binder(world.poster, client, clock, holds)
        self.tell = Tell(client, clock, world.instance, tells_success=world.tells_success)
        self.duties = Duties(
            client,
            self.books,
            self.watch,
            clock,
            options=world.options,
            instance=world.instance,
            term=term.number,
        )
        self.extender = Extender(
            books=self.books,
            watch=self.watch,
            quotas=self.duties.quotas,
            evictor=self.duties.evictor,
            waker=self.duties.waker,
            binder=self.binder,
            tell=self.tell,
            clock=clock,
            term=term,
            options=world.options,
        )
        self.audits = 0
        self.differences = 0
        self._world = world
        self._ready = asyncio.Event()
        self._left = left
        self.watch.on_pod = self._saw
        self.watch.on_gone = self._gone
        self.watch.on_unreadable = self.tell.unreadable

    @property
    def is_ready(self) -> bool:
        """Whether all pods, nodes and quotas of this term are listed."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Return once they are."""
        await self._ready.wait()

    def left(self) -> list[Left]:
        """Return the binds that may happen yet."""
        reserved = ((order, self.books.reservation(order.uid)) for order in self.binder.left())
        return [Left(order, held) for order, held in reserved if held is not None]

    def _inherit(self) -> None:
        """Keep open what was left open, where nobody has bound the pod by now and it is still there."""
        for one in self._left:
            pod = self.watch.pod(one.order.uid)
            if pod is not None and not pod.node:
                log.info("a bind without a known end is kept open", pod=pod.subject, node=one.order.node)
                self.binder.inherit(one.order)
                self.books.inherit(one.held)
        self._left = ()

    async def run(self) -> None:
        """Keep the books until cancelled."""
        await wait_for_fence(self._world.poster, self.term, self._world.clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="watch")
            tasks.create_task(self.tell.run(), name="tell")
            tasks.create_task(self.duties.run(), name="duties")
            begin = self._world.clock.now()
            await self.watch.wait_synced()
            await self.duties.wait_synced()
            self._inherit()
            self._ready.set()
            took = round(self._world.clock.now() - begin, 3)
            log.info(
                "ready", term=self.term.number, nodes=len(self.books.nodes), pods=len(self.books.pods), took_s=took
            )
            tasks.create_task(self._tidy(), name="tidy")
            if self._world.audit_s:
                tasks.create_task(self._audit(), name="audit")

    def _saw(self, pod: WatchedPod) -> None:
        self.extender.saw(pod)
        self.duties.saw(pod)
        if pod.node:
            self.tell.is_bound(pod)
        else:
            if pod.scheduler not in self._world.schedulers and asks_for_shares(pod):
                self.tell.stray(pod)
            condition = pod.condition(names.CONDITION_PLACED)
            if condition is not None and condition.status == "False":
                self.tell.waits_already(pod, condition.reason or "")

    def _gone(self, uid: str) -> None:
        self.extender.gone(uid)
        self.duties.gone(uid)

    async def _tidy(self) -> None:
        while True:
            await self._world.clock.sleep(TIDY_S)
            await self.extender.settle()

    async def audit(self) -> list[Difference]:
        """Count the books anew, from the API's objects alone; return where they differ from those that are kept."""
        found = await audit(self.books, self.watch)
        self.audits += 1
        self.differences = len(found)
        return found

    async def _audit(self) -> None:
        while True:
            await self._world.clock.sleep(self._world.audit_s)
            found = await self.audit()
            if found:
                log.error("the books differ from a recount", differences=[str(one) for one in found][:20])
