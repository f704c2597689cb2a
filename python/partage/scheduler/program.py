"""The scheduler as a program: settings, the API server, the extender's port, the page of figures, signals.

Called by `partage scheduler`. How it ends, and its exit codes: `partage.program`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from partage.kube import Client, SystemClock, load_config
from partage.kube.poster import Poster
from partage.model import LaunchError
from partage.program import run_program
from partage.scheduler.leader import Always, Follow, MetricsPage
from partage.scheduler.pages import serve_pages
from partage.scheduler.server import application, serve
from partage.scheduler.service import SchedulerService
from partage.scheduler.settings import POD_NAME, ask_options, lease_of, load
from partage.scheduler.term import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lightkube.config.kubeconfig import SingleConfig

    from partage.program import Signals
    from partage.scheduler.leader import Leader
    from partage.scheduler.settings import Settings

MANAGER: Final = "partage-scheduler"
MIB: Final = 1 << 20

log = structlog.get_logger("partage.scheduler")


def run(given: Sequence[str]) -> int:
    """Run the scheduler with these arguments; return its exit code."""
    return run_program(log, lambda: load(given, os.environ), _until_ended)


async def _until_ended(settings: Settings, signals: Signals) -> None:
    gc.freeze()  # what is loaded by now stays: no pause to look for garbage among it
    log.info("serving", leader=settings.leader)
    await signals.until_ended(_serve(settings))
    log.info("ended; what is promised stands on the pods")


async def _serve(settings: Settings) -> None:
    """Serve until cancelled or something cannot go on."""
    config = load_config(settings.kubeconfig or None)
    clock = SystemClock()
    async with AsyncExitStack() as open_:
        poster = await open_.enter_async_context(Poster(config))
        client = await open_.enter_async_context(Client.connect(config, manager=MANAGER, clock=clock, streams=poster))
        leader = _leader(settings, config, client, open_)
        world = World(
            client=client,
            poster=poster,
            clock=clock,
            options=ask_options(settings),
            instance=settings.instance or os.environ.get(POD_NAME) or socket.gethostname(),
            reserved_s=settings.books.reservation_seconds,
            defaults=settings.placement.defaults(),
            audit_s=settings.books.audit_seconds,
            tells_success=settings.placed_events,
            schedulers=frozenset(settings.schedulers),
            settle=settle,
        )
        service = SchedulerService(leader, world, patience_s=settings.extender.patience_seconds)
        extender, metrics = settings.extender, settings.metrics
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run(), name="service")
            app = application(service, extender.request_mib * MIB)
            tasks.create_task(_bound(serve(app, extender), "extender", extender.port), name="extender")
            if metrics.port:
                tasks.create_task(_bound(serve_pages(service, metrics), "metrics", metrics.port), name="pages")


def settle() -> None:
    """Look for garbage among all that there is, an earlier term's too, and never again among what is left.

    With ten thousand pods that takes as long as a hundred questions, and would come in the midst of them.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def _bound(serving: Coroutine[object, object, None], section: str, port: int) -> None:
    """Serve; a port that cannot be had is told as the setting that it is."""
    try:
        await serving
    except OSError as error:
        step = f"set {section}.port to a free one, and its certificates to files that can be read"
        raise LaunchError(f"port {port}", error.strerror or error, "a port to listen on", step) from error


def _leader(settings: Settings, config: SingleConfig, client: Client, open_: AsyncExitStack) -> Leader:
    election = settings.election
    if settings.leader == "always":
        return Always()
    lease = lease_of(settings)
    authority = Path(election.authority) if election.authority else None
    page = MetricsPage(election.metrics, authority, _token(election.token_file, config))
    open_.push_async_callback(page.close)
    host = election.host or f"{socket.gethostname()}_"  # which kube-scheduler begins its identity with
    return Follow(page.ask, client, lease, SystemClock(), host=host, every_s=election.every_seconds)


def _token(path: str, config: SingleConfig) -> Callable[[], str]:
    """Return how our token is read: it is renewed while we run."""
    user = config.user
    file = path or (str(config.abs_file(user.token_file)) if user is not None and user.token_file else "")
    if file:
        return lambda: Path(file).read_text().strip()
    fixed = (user.token if user is not None else None) or ""
    return lambda: fixed
