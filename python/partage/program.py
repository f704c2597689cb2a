"""A long-running program of ours: settings, logs, signals, exit codes. One shape for agent, scheduler and webhook.

    def run(given):                      # the program's own entry
        return run_program(log, lambda: load(given, os.environ), serve)

    async def serve(settings, signals):  # ends when it may: after `signals.ended`
        await signals.until_ended(work)

SIGTERM and SIGINT ask it to end, SIGHUP to read its settings again, where it can. Logs are JSON, one line a decision,
on standard error. Exit codes: 0 ended when asked; 1 it cannot go on (the last lines say why); 2 the settings are wrong.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from partage._version import __version__
from partage.logs import configure_logs
from partage.model import PartageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

ENDED: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class HasLogLevel(Protocol):
    """Settings, as far as this page reads them."""

    @property
    def log_level(self) -> str:
        """The least that is logged."""


S = TypeVar("S", bound=HasLogLevel)


class Signals:
    """What was asked of the program so far."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.ended.set)

    def hangup(self) -> asyncio.Event:
        """Return what SIGHUP sets, for who reads settings again and clears it; else SIGHUP ends the program."""
        event = asyncio.Event()
        self._loop.add_signal_handler(signal.SIGHUP, event.set)
        return event

    async def until_ended(self, work: Coroutine[object, object, None]) -> None:
        """Do this until the end is asked for; what ends it sooner is raised."""
        working = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.ended.wait())
        await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, asked):
            task.cancel()
        result, _ = await asyncio.gather(working, asked, return_exceptions=True)
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def run_program(log: Any, load: Callable[[], S], serve: Callable[[S, Signals], Coroutine[object, object, None]]) -> int:
    """Run a program until it ends; return its exit code."""
    configure_logs()
    try:
        settings = load()
    except UsageError as error:
        log.error("settings", error=str(error))
        return USAGE
    configure_logs(settings.log_level)
    log.info("starting", version=__version__)
    try:
        asyncio.run(_served(serve, settings))
    except (PartageError, OSError) as error:
        log.error("cannot go on", error=str(error))
        return FAILED
    except BaseExceptionGroup as group:
        for leaf in _leaves(group):
            log.error("cannot go on", error=str(leaf), kind=type(leaf).__name__, exc_info=leaf)
        return FAILED
    return ENDED


async def _served(serve: Callable[[S, Signals], Coroutine[object, object, None]], settings: S) -> None:
    await serve(settings, Signals())


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
