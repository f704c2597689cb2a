"""`partage webhook`: everything real around `decide`.

Called by the command line. Serves until it is asked to end, then answers what still comes for a while, since the
cluster learns of the end later than we do; SIGHUP reads the settings again. Its exit codes: `partage.program`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from partage.admission.certificates import Brought, Made, Shown
from partage.admission.server import Pages, Tally, application, pages
from partage.admission.settings import LAYOUT, load
from partage.kube import Client, SystemClock, load_config
from partage.logs import configure_logs
from partage.model import UsageError
from partage.program import run_program

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from partage.admission.settings import Settings, TlsSettings
    from partage.kube import Clock
    from partage.program import Signals

MANAGER: Final = "partage-webhook"
SHUT_DOWN_S: Final = 5.0

log = structlog.get_logger("partage.webhook")


def run(argv: Sequence[str]) -> int:
    """Run the webhook with these arguments; return its exit code."""

    async def serve(settings: Settings, signals: Signals) -> None:
        await Webhook(settings, argv, SystemClock(), signals).serve()
        log.info("ended")

    return run_program(log, lambda: load(argv, os.environ), serve)


class Webhook:
    """One webhook, from start to end."""

    def __init__(self, settings: Settings, argv: Sequence[str], clock: Clock, signals: Signals) -> None:
        self._settings = settings
        self._options = settings.options()
        self._argv = argv
        self._clock = clock
        self._signals = signals
        self._ending = signals.ended
        self._tally = Tally()

    async def serve(self) -> None:
        """Answer until a signal ends it. Raises KubeError without a configuration, OSError where a port is taken."""
        async with self._shown(self._settings.tls) as shown:
            self._tally.expires = lambda: shown.expires
            not_ready = lambda: self._not_ready(shown)  # noqa: E731 -- one line of a page
            metrics, server = self._settings.metrics, self._settings.server
            beside = pages(Pages(self._tally, not_ready))
            hook = application(lambda: self._options, self._tally)
            async with _served(beside, metrics.address, metrics.port), _task(shown.run()), _task(self._reload()):
                if not await self._first(shown):
                    return
                async with _served(hook, server.address, server.port, shown.context):
                    log.info("answering", address=server.address, port=server.port)
                    await self._ending.wait()
                    log.info("ending", drain_seconds=server.drain_seconds)
                    await self._clock.sleep(server.drain_seconds)

    async def _first(self, shown: Shown) -> bool:
        """Wait for a certificate or the end; return whether it is the certificate."""
        waits = [asyncio.ensure_future(event.wait()) for event in (shown.ready, self._ending)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._ending.is_set()

    @contextlib.asynccontextmanager
    async def _shown(self, tls: TlsSettings) -> AsyncIterator[Shown]:
        if tls.certificate:
            yield Shown(Brought(Path(tls.certificate), Path(tls.private_key)), self._clock, tls.check_seconds)
            return
        config = load_config(self._settings.kubeconfig or None)
        async with Client.connect(config, manager=MANAGER) as client:
            yield Shown(Made(client, self._clock, tls), self._clock, tls.check_seconds)

    def _not_ready(self, shown: Shown) -> str:
        if self._ending.is_set():
            return "ending"
        return "" if shown.ready.is_set() else "no certificate yet; the log says why"

    async def _reload(self) -> None:
        """Put settings that were changed into force; those that cannot be read change nothing."""
        hangup = self._signals.hangup()
        while True:
            await hangup.wait()
            hangup.clear()
            try:
                found = LAYOUT.compare(self._settings, load(self._argv, os.environ))
            except UsageError as error:
                log.error("settings", error=str(error), step="those in force stay")
                continue
            self._settings, self._options = found.settings, found.settings.options()
            configure_logs(self._settings.log_level)
            log.info("settings", live=[each.key for each in found.live], restart=[each.key for each in found.later])


@contextlib.asynccontextmanager
async def _served(
    app: web.Application, address: str, port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve an application; at the end let what is being answered be answered."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUT_DOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port, ssl_context=context).start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _task(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run something beside; where it fails, all fails."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()
