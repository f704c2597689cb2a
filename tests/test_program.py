"""We test these aspects of a long-running program's frame: what its exit codes mean, and which signals reach it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import structlog

from partage import program
from partage.model import KubeError, UsageError
from partage.program import Signals, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


@dataclass(frozen=True)
class Settings:
    log_level: str = "info"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the log of the tests as it is."""
    monkeypatch.setattr(program, "configure_logs", lambda *_: None)


def run(serve: Callable[[Settings, Signals], Coroutine[object, object, None]]) -> int:
    return run_program(structlog.get_logger("test"), Settings, serve)


def test_settings_that_are_wrong() -> None:
    def load() -> Settings:
        raise UsageError("port", "99999", "up to 65535", "correct it")

    async def serve(_: Settings, __: Signals) -> None:
        raise AssertionError("it was started")

    assert run_program(structlog.get_logger("test"), load, serve) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_is_asked_for(number: signal.Signals) -> None:
    ended = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    async def serve(_: Settings, signals: Signals) -> None:
        await signals.until_ended(work())

    assert run(serve) == 0
    assert ended == ["in order"]


@pytest.mark.parametrize("error", [KubeError("pod", "no", "yes", "wait"), OSError("no port"), ValueError("a defect")])
def test_what_cannot_go_on(error: Exception) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup():
            raise error

    async def serve(_: Settings, signals: Signals) -> None:
        await signals.until_ended(work())

    assert run(serve) == 1


def test_settings_are_read_again_where_that_can_be() -> None:
    async def serve(_: Settings, signals: Signals) -> None:
        hangup = signals.hangup()
        os.kill(os.getpid(), signal.SIGHUP)
        await hangup.wait()

    assert run(serve) == 0
