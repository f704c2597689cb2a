"""The scheduler's page of figures, port 9445: /metrics, /healthz, /readyz.

Owned by the program's task group. The books are read in one go on their own thread; what is made of them, which takes
a while with ten thousand cards, is made beside it, so that no question waits. Reads only. What can go wrong: the port
is taken (OSError from `serve_pages`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from partage.exposition import CONTENT_TYPE, exposition
from partage.scheduler.metrics import Promised, promised_families, state_families
from partage.scheduler.quota.figures import quota_families

if TYPE_CHECKING:
    from partage.scheduler.service import SchedulerService
    from partage.scheduler.settings import MetricsSettings

SHUT_DOWN_S: Final = 2.0
_EMPTY: Final = Promised([], [])


def pages(service: SchedulerService, settings: MetricsSettings) -> web.Application:
    """Return the pages, for `serve_pages` or for a test's server."""
    own = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=own)

    async def metrics(_: web.Request) -> web.Response:
        reign = service.reign
        promised = Promised.of(reign.books) if settings.cards and reign is not None and reign.is_ready else _EMPTY
        small = [*state_families(reign, service.problem), *service.requests.families()]
        if reign is not None and reign.is_ready:
            small += quota_families(reign.duties.quotas.book, hami_names=settings.hami_names)
        body = exposition([*small, *own.collect()])
        if promised is not _EMPTY:
            body += await asyncio.to_thread(
                lambda: exposition(promised_families(promised, hami_names=settings.hami_names))
            )
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = service.not_ready()
        text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
        return web.Response(status=503 if reasons else 200, text=text)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


async def serve_pages(service: SchedulerService, settings: MetricsSettings) -> None:
    """Answer on an address until cancelled; raises OSError where the port is taken."""
    app = pages(service, settings)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUT_DOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.address, settings.port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
