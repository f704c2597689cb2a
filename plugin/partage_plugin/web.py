"""The agent's HTTP side, port 9445: /metrics, /healthz, /readyz, and whose each hand-over is for `partage top --node`.

Owned by the agent's task group (`serve`). Health means the process does its work, else restart it; readiness means
containers can be started here. Both say their reasons in plain words. Reads only; nothing here changes anything. What
can go wrong: the port is taken (OSError from `serve`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from partage_plugin.metrics import CONTENT_TYPE, Collector, exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partage_plugin.figures import FigureSource

SHUT_DOWN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What the pages are made of: figures, and why the agent is not alive or not ready (nothing: it is)."""

    node: str
    figures: FigureSource
    not_alive: Callable[[], Iterable[str]]
    not_ready: Callable[[], Iterable[str]]
    hami_names: bool = True


def application(answers: Answers) -> web.Application:
    """Return the pages, for `serve` or for a test's server."""
    own = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=own)

    async def metrics(_: web.Request) -> web.Response:
        figures = await answers.figures.latest()
        families = Collector(figures, answers.node, hami_names=answers.hami_names).collect()
        body = exposition([*families, *own.collect()])
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def hand_overs(_: web.Request) -> web.Response:
        figures = await answers.figures.latest()
        owners = {
            found.hand_over: {"namespace": found.namespace, "pod": found.pod, "container": found.container}
            for found in figures.containers
        }
        return web.Response(body=msgspec.json.encode(owners, order="sorted"), content_type="application/json")

    async def healthz(_: web.Request) -> web.Response:
        return _verdict(answers.not_alive())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(answers.not_ready())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/hand-overs", hand_overs)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _verdict(reasons: Iterable[str]) -> web.Response:
    found = list(reasons)
    return web.Response(status=503 if found else 200, text="".join(f"{reason}\n" for reason in found) or "ok\n")


async def serve(answers: Answers, address: str, port: int) -> None:
    """Answer on an address until cancelled; raises OSError where the port is taken."""
    runner = web.AppRunner(application(answers), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port, shutdown_timeout=SHUT_DOWN_S).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
