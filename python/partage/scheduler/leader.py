"""Whether these books are the ones that count: they are where our own kube-scheduler leads.

    async for term in Follow(...).terms():      # or Always()
        ...                                     # a Term: lead under it; None: no longer

`Follow` asks the kube-scheduler beside us (its metrics, over its own secure port) whether it leads, so that the two can
never disagree; the number of the term is how often the Lease changed hands, which every grant carries. One that was
restarted in between is seen by the start time on the same page. `Always` is for a kube-scheduler without election: one
term, number 0. What can go wrong outside (no answer, no Lease, a Lease of another holder) means not leading, with the
reason in `problem`; an answer that fails now and then is ridden out for `GRACE_S`, the time after which a leader that
cannot renew its Lease ends itself.

A process can be frozen (a stopped node, a paused machine) while another replica takes the Lease, and wakes without
knowing. So before anything is written that promises room, `confirm` is asked: it answers from what was heard a moment
ago, and after a longer silence only once kube-scheduler and the Lease were asked again. What is on its way to the API
server by then is refused there by its term (deploy/policies/terms.yaml).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
import structlog
from yarl import URL

from partage.kube.clock import within
from partage.model import KubeError, UsageError
from partage.scheduler.views import LeaseView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from partage.kube import Client, Clock

GRACE_S: Final = 10.0
ASK_S: Final = 3.0
CONFIRM_S: Final = 5.0
LEASE_S: Final = 15.0  # kube-scheduler's default
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# kube-scheduler's own name for its election, whatever its Lease is called
_STATUS: Final = re.compile(rb'^leader_election_master_status\{name="kube-scheduler"\} ([0-9.e+]+)$', re.MULTILINE)
_STARTED: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)

log = structlog.get_logger("partage.scheduler")


@dataclass(frozen=True, slots=True)
class Term:
    """One leader's time. `number`: of the Lease; two terms with one number are told apart by `since`."""

    number: int
    holder: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What kube-scheduler says of itself; `started` is when its process did."""

    leads: bool
    started: float


class Leader(Protocol):
    """Who says whether we lead."""

    problem: str

    def terms(self) -> AsyncIterator[Term | None]:
        """Yield a Term where one begins, None where it ends; the first at once."""

    def look(self) -> None:
        """Look now: kube-scheduler called, which only a leader does."""

    async def confirm(self, term: Term) -> bool:
        """Say whether this term holds still; looks now where that was not heard for a while."""


class Always:
    """Beside a kube-scheduler that runs alone."""

    problem = ""

    async def terms(self) -> AsyncIterator[Term | None]:
        """Yield the one term."""
        yield Term(0)
        await asyncio.Event().wait()

    def look(self) -> None:
        """Nothing to look at."""

    async def confirm(self, term: Term) -> bool:  # noqa: ARG002 -- there is one
        """Say that it does."""
        return True


class Follow:
    """Beside a kube-scheduler that takes part in an election for a Lease."""

    def __init__(  # noqa: PLR0913 -- the last two are named
        self,
        ask: Callable[[], Awaitable[Standing]],
        client: Client,
        lease: tuple[str, str],
        clock: Clock,
        *,
        host: str = "",
        every_s: float = 2.0,
    ) -> None:
        """`lease`: namespace and name; `host`: what the holder's identity begins with, empty: any."""
        self._ask = ask
        self._client = client
        self._lease = lease
        self._clock = clock
        self._host = host
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()  # one for each look
        self._term: Term | None = None
        self._heard_at = float("-inf")  # when the last question that was answered was asked
        self._sure_s = LEASE_S / 3
        self._started = 0.0
        self.problem = "has not looked yet"

    def look(self) -> None:
        """Look now."""
        self._wake.set()

    async def terms(self) -> AsyncIterator[Term | None]:
        """Yield a Term where one begins, None where it ends."""
        yield None
        while True:
            before = self._term
            await self._look()
            looked, self._looked = self._looked, asyncio.Event()
            looked.set()
            if self._term is not before:
                if before is not None:
                    yield None
                if self._term is not None:
                    yield self._term
            await self._pause()

    async def confirm(self, term: Term) -> bool:
        """Say whether this term holds: from what was heard within a third of the Lease's time, else from a new look."""
        if self._term is term and not self._is_sure():
            with contextlib.suppress(TimeoutError):
                await within(self._clock, CONFIRM_S, self._hear())
        return self._term is term and self._is_sure()

    async def _hear(self) -> None:
        for _ in range(2):  # one look may be under way, and have begun too long ago
            looked = self._looked
            self.look()
            await looked.wait()
            if self._is_sure():
                return

    def _is_sure(self) -> bool:
        """Whether it was heard so lately that nobody else can have the Lease by now."""
        return self._clock.now() - self._heard_at <= self._sure_s

    async def _look(self) -> None:
        """Ask kube-scheduler, and read the Lease where a term may begin or where we have not heard for long."""
        asked_at = self._clock.now()
        try:
            standing = await self._ask()
            if self._term is not None and (not standing.leads or standing.started != self._started):
                self._lose(leads=standing.leads)
            if not standing.leads:
                self._say("kube-scheduler does not lead: another replica does")
                return
            if self._term is None or asked_at - self._heard_at > self._sure_s:
                await self._read_lease(standing)
            self._heard_at = asked_at
            self._say("")
        except (KubeError, UsageError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self._say(str(error) or type(error).__name__)
            if self._term is not None and self._clock.now() - self._heard_at > GRACE_S:
                self._lose(problem=self.problem)

    async def _read_lease(self, standing: Standing) -> None:
        """Begin the term that the Lease tells, or end one that it no longer does.

        kube-scheduler is asked once more after it, so that the Lease read is this holder's.
        """
        namespace, name = self._lease
        lease = await self._client.get(LeaseView, name, namespace=namespace)
        holder, number = lease.spec.holder_identity or "", lease.spec.lease_transitions or 0
        if self._term is not None and (self._term.number, self._term.holder) != (number, holder):
            self._lose(now=number, holder=holder)
        subject = f"Lease {namespace}/{name}"
        if not holder.startswith(self._host):
            limit = f"held by the kube-scheduler of {self._host}"
            raise UsageError(subject, f"held by {holder!r}", limit, "it is looked at again; one of them ends soon")
        if await self._ask() != standing:
            raise UsageError(subject, "changed hands", "one leader while it is read", "it is looked at again")
        if self._term is None:
            self._sure_s = (lease.spec.lease_duration_seconds or LEASE_S) / 3
            self._term, self._started = Term(number, holder, self._clock.now()), standing.started

    def _lose(self, **why: object) -> None:
        log.warning("no longer the leader", term=self._term.number if self._term else None, **why)
        self._term = None

    async def _pause(self) -> None:
        """Wait until it is time, or until somebody has a reason to look."""
        bell = asyncio.ensure_future(self._clock.sleep(self._every_s))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((bell, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (bell, woken):
                task.cancel()
            await asyncio.gather(bell, woken, return_exceptions=True)
        self._wake.clear()

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.info("not leading", problem=problem)
        self.problem = problem


class MetricsPage:
    """kube-scheduler's own metrics, asked for with our service account's token.

    Its certificate is one that it made for itself unless `authority` names what signed it: then a token is sent to
    nobody but the loopback interface, which in a pod is the pod's own.
    """

    def __init__(self, url: str, authority: Path | None, token: Callable[[], str]) -> None:
        host = URL(url).host or ""
        if authority is None and host not in LOOPBACK:
            limit = "only the loopback interface is trusted without a certificate authority"
            raise UsageError("election.metrics", url, limit, "set election.authority")
        self._url = url
        self._token = token
        self._tls = ssl.create_default_context(cafile=authority)
        if authority is None:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self._session: aiohttp.ClientSession | None = None

    async def ask(self) -> Standing:
        """Return what it says; raises UsageError for a page that does not tell, and what the network raises."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=1)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ASK_S))
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._session.get(self._url, headers=headers) as response:
            if response.status != 200:
                step = "its account needs `get` on the path /metrics (deploy/scheduler)"
                raise UsageError(self._url, f"answers {response.status}", "200 with kube-scheduler's metrics", step)
            return read_standing(await response.read())

    async def close(self) -> None:
        """End the connection."""
        if self._session is not None:
            await self._session.close()


def read_standing(page: bytes) -> Standing:
    """Return what a page of kube-scheduler's metrics says of its election."""
    leads, started = _STATUS.search(page), _STARTED.search(page)
    if leads is None:
        limit = "`leader_election_master_status`, which one that takes part in an election has"
        step = "start kube-scheduler with leaderElect, or this program with --leader always"
        raise UsageError("kube-scheduler's metrics", "nothing of an election", limit, step)
    return Standing(float(leads[1]) == 1.0, float(started[1]) if started else 0.0)
