"""The scheduler as a program: settings, the API server, the extender's port, the page of figures, signals.

Called by `partage scheduler`. Runs until SIGTERM or SIGINT; logs are JSON, one line a decision, on standard error. Exit
codes: 0 ended when asked; 1 it cannot go on (the last lines say why); 2 the settings are wrong.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from partage import __version__
from partage.kube import Client, SystemClock, load_config
from partage.kube.poster import Poster
from partage.logs import configure_logs
from partage.model import LaunchError, PartageError, UsageError
from partage.scheduler.leader import Always, Follow, MetricsPage
from partage.scheduler.pages import serve_pages
from partage.scheduler.server import application, serve
from partage.scheduler.service import SchedulerService
from partage.scheduler.settings import POD_NAME, ask_options, lease_of, load
from partage.scheduler.term import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from lightkube.config.kubeconfig import SingleConfig

    from partage.scheduler.leader import Leader
    from partage.scheduler.settings import Settings

MANAGER: Final = "partage-scheduler"
MIB: Final = 1 << 20

log = structlog.get_logger("partage.scheduler")


def run(given: Sequence[str]) -> int:
    """Run the scheduler with these arguments; return its exit code."""
    configure_logs()
    try:
        settings = load(given, os.environ)
    except UsageError as error:
        log.error("settings", error=str(error))
        return 2
    configure_logs(settings.log_level)
    log.info("starting", version=__version__, leader=settings.leader)
    gc.freeze()  # what is loaded by now stays: no pause to look for garbage among it
    try:
        return asyncio.run(_until_ended(settings))
    except PartageError as error:
        log.error("cannot go on", error=str(error))
    except BaseExceptionGroup as group:
        for leaf in _leaves(group):
            log.error("cannot go on", error=str(leaf), kind=type(leaf).__name__, exc_info=leaf)
    return 1


async def _until_ended(settings: Settings) -> int:
    """Run everything until a signal ends it; return 0 then."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    serving = asyncio.ensure_future(_serve(settings))
    asked = asyncio.ensure_future(ended.wait())
    await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, asked):
        task.cancel()
    results = await asyncio.gather(serving, asked, return_exceptions=True)
    if isinstance(results[0], BaseException) and not isinstance(results[0], asyncio.CancelledError):
        raise results[0]
    log.info("ended; what is promised stands on the pods")
    return 0


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
        )
        service = SchedulerService(leader, world, patience_s=settings.extender.patience_seconds)
        extender, metrics = settings.extender, settings.metrics
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run(), name="service")
            app = application(service, extender.request_mib * MIB)
            tasks.create_task(_bound(serve(app, extender), "extender", extender.port), name="extender")
            if metrics.port:
                tasks.create_task(_bound(serve_pages(service, metrics), "metrics", metrics.port), name="pages")


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


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
