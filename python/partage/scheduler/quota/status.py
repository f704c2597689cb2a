"""Writes what is used into the status of ResourceQuota objects, for `kubectl describe quota` and whoever watches them.

Run by the scheduler's leader. Only our keys of `status.used` are patched, and only where another number stands there:
the controller of Kubernetes keeps what it does not count itself as long as `spec.hard` has the key. At most one write a
second for each quota, whatever happens in between; what is written is what is used at that moment. What can go wrong:
the API server refuses or does not answer; it is tried again, and the log says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from lightkube.resources.core_v1 import ResourceQuotaStatus

from partage.model import KubeError, UsageError
from partage.scheduler.quota.meters import format_amount, parse_amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightkube.models.core_v1 import ResourceQuota

    from partage.kube import Client, Clock
    from partage.scheduler.quota.book import QuotaBook
    from partage.scheduler.quota.limits import Limit

Name = tuple[str, str]  # namespace and name of a quota

EVERY_S: Final = 1.0
NOT_FOUND: Final = 404

log = structlog.get_logger("partage.scheduler")


class StatusWriter:
    """Keeps the status of all quotas true; owned by one event loop.

    `seen`: the object as last known, None where it is gone; `writes`: whether it is ours to write now.
    """

    def __init__(
        self,
        client: Client,
        book: QuotaBook,
        clock: Clock,
        *,
        seen: Callable[[str, str], ResourceQuota | None],
        writes: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._book = book
        self._clock = clock
        self._seen = seen
        self._writes = writes
        self._due: set[Name] = set()
        self._tried_at: dict[Name, float] = {}
        self._wake = asyncio.Event()
        self.written = 0
        book.listen(self._wake.set)

    def look_again(self, namespace: str, name: str) -> None:
        """Compare a quota's status with the book: its object has changed, or it is ours to write from now on."""
        self._due.add((namespace, name))
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._due |= self._book.take_changed()
            wait = await self._write_due()
            if wait is not None:
                await self._clock.sleep(wait)
                self._wake.set()

    async def _write_due(self) -> float | None:
        """Write what may be written now; return the seconds until the next may, None where there is none."""
        waits = []
        for name in sorted(self._due):
            wait = self._tried_at.get(name, float("-inf")) + EVERY_S - self._clock.now()
            if wait > 0:
                waits.append(wait)
                continue
            self._due.discard(name)
            if not await self._write(name):
                self._due.add(name)
                waits.append(EVERY_S)
        return min(waits, default=None)

    async def _write(self, name: Name) -> bool:
        """Bring one status up to date; return whether it need not be tried again."""
        quota, limit = self._seen(*name), self._book.limit(*name)
        if quota is None or limit is None or not self._writes():
            self._tried_at.pop(name, None)
            return True
        lacking = self._lacking(quota, limit)
        if not lacking:
            return True
        self._tried_at[name] = self._clock.now()
        try:
            await self._client.patch(
                ResourceQuotaStatus, limit.name, {"status": {"used": lacking}}, namespace=limit.namespace
            )
        except KubeError as error:
            if error.status == NOT_FOUND:
                return True
            log.warning("quota status not written", quota="/".join(name), error=str(error))
            return False
        self.written += 1
        return True

    def _lacking(self, quota: ResourceQuota, limit: Limit) -> dict[str, str]:
        """Return the keys whose number in the object is another than the book's."""
        there = (quota.status.used if quota.status else None) or {}
        wanted: dict[str, str] = {}
        for key, amount in self._book.usage(limit.namespace, limit.name).items():
            meter = limit.meter(key)
            text = format_amount(meter, amount, like=limit.written.get(key, ""))
            try:
                same = key in there and parse_amount(meter, str(there[key])) == parse_amount(meter, text)
            except UsageError:
                same = False
            if not same:
                wanted[key] = text
        return wanted
