"""The agent's HTTP side, port 9445: /metrics, /healthz, /readyz, and whose each hand-over is for `partage top --node`.

Owned by the agent's task group (`serve`). Health means the process does its work, else restart it; readiness means
containers can be started here. Both say their reasons in plain words. Reads only; nothing here changes anything. What
can go wrong: the port is taken (OSError from `serve`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from partage.text_format import CONTENT_TYPE
from partage_plugin.http import HttpServer, Page
from partage_plugin.metrics import MetricsPage
from partage_plugin.process_metrics import process_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partage_plugin.figures import FigureSource


@dataclass(frozen=True, slots=True)
class Answers:
    """What the pages are made of: figures, and why the agent is not alive or not ready (nothing: it is)."""

    node: str
    figures: FigureSource
    not_alive: Callable[[], Iterable[str]]
    not_ready: Callable[[], Iterable[str]]
    hami_names: bool = True


class Pages:
    """All pages by their paths."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._metrics = MetricsPage(answers.node, hami_names=answers.hami_names)

    async def page(self, path: str) -> Page | None:
        """Return a page; None where there is none at this path."""
        match path:
            case "/metrics":
                text = self._metrics.text(await self._answers.figures.latest())
                return Page((text + process_families()).encode(), CONTENT_TYPE)
            case "/hand-overs":
                return await self._hand_overs()
            case "/healthz":
                return _verdict(self._answers.not_alive())
            case "/readyz":
                return _verdict(self._answers.not_ready())
        return None

    async def _hand_overs(self) -> Page:
        figures = await self._answers.figures.latest()
        owners = {
            found.hand_over: {"namespace": found.namespace, "pod": found.pod, "container": found.container}
            for found in figures.containers
        }
        return Page(msgspec.json.encode(owners, order="sorted"), "application/json")


def _verdict(reasons: Iterable[str]) -> Page:
    found = list(reasons)
    return Page("".join(f"{reason}\n" for reason in found).encode() or b"ok\n", status=503 if found else 200)


async def serve(answers: Answers, address: str, port: int) -> None:
    """Answer on an address until cancelled; raises OSError where the port is taken."""
    await HttpServer(Pages(answers).page).run(address, port)
