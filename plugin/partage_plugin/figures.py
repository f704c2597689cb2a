"""What is known of cards and containers at one moment: the figures that metrics, dashboard and `top` show.

The monitor fills them (`monitor/reader.py`), `metrics.py` writes them down. Memory is bytes, parts of a card permille,
sums nanoseconds. A value that could not be found out is None and costs its own series only; nothing here can fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class CardFigures:
    """One card. `physical` is what it carries, `allocatable` what shares may add up to; `reason` why it is not healthy.

    `used`, `busy` (permille of its time) and `memory_busy` (of its memory controller's) are the driver's own figures.
    """

    uuid: str
    index: int
    kind: str
    backend: str
    mode: str
    physical: int
    allocatable: int
    seats: int
    is_healthy: bool = True
    reason: str = ""
    used: int | None = None
    busy: int | None = None
    memory_busy: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerFigures:
    """One container on one card, `ordinal` as its programs count it.

    `used` holds `overhead` (what the ledger does not know: contexts, modules) in it; `kinds` divides what the ledger
    knows. `got` is the part of the card's time in the interval before; `charged_ns`, `waited_ns`, `waits`, `launches`
    and `refusals` only grow while the container lives. `idle_s`: since its last work ended, 0 while some is in flight,
    None where there was none. `hooked`: whether all its processes on the card have the library in them.
    """

    namespace: str
    pod: str
    container: str
    device_uuid: str
    ordinal: int
    hand_over: str
    limit: int
    cores: int
    ceiling: int
    share_class: str
    priority: int
    enforcement: str
    is_open: bool
    used: int | None = None
    overhead: int | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    got: int | None = None
    charged_ns: int | None = None
    waited_ns: int | None = None
    waits: int | None = None
    launches: int | None = None
    refusals: int | None = None
    processes: int | None = None
    idle_s: float | None = None
    hooked: bool | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """All of them, taken at `at_ns` of CLOCK_MONOTONIC; `failures`: what could not be read, counted by kind."""

    cards: tuple[CardFigures, ...] = ()
    containers: tuple[ContainerFigures, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    at_ns: int = 0


class FigureSource(Protocol):
    """Who can say how things stand now."""

    async def latest(self) -> Figures:
        """Return figures that are no older than a few seconds; does not raise."""
