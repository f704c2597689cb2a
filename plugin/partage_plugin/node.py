"""Writes what the node says of its cards onto the Node object: on change only, and nothing while all is quiet.

`tell` asks for it and returns at once; `run` is the task that writes, so that an API server that does not answer holds
up nobody. What can go wrong: the API server refuses or is away (tried again with growing waits); our annotation was
changed or lost, e.g. with a node that was made anew (noticed by a look now and then, and written again); another
program writes the same labels or HAMi's annotations (named in the log once, and left to it: we never fight over them).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from partage.devices.nvidia.hami import CORDON, parse_cordon
from partage.model import PartageError, names
from partage_plugin.node_text import node_text, whole_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partage.model.node_devices import SafeMode
    from partage_plugin.cards import Cards
    from partage_plugin.node_text import NodeText, Say
    from partage_plugin.ports import Clock

LOOK_EVERY_S: Final = 300.0
GATHER_S: Final = 0.2  # changes that come together are written together
CORDON_S: Final = 2.0  # a container waits for it
BETWEEN_S: Final = 1.0
AGAIN_S: Final = 1.0
AGAIN_LAST_S: Final = 60.0

log = structlog.get_logger("partage.node")


@dataclass(frozen=True, slots=True)
class NodeMeta:
    """The part of a Node that is looked at and written."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""  # of containers, as its status names it


class NodeObject(Protocol):
    """This node's object at the API server; both raise PartageError."""

    async def read(self) -> NodeMeta:
        """Return it as it is now."""

    async def merge(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Set these, and leave all others."""


class NodeWriter:
    """The one writer of what this node says of its cards."""

    def __init__(  # noqa: PLR0913 -- the world around it
        self,
        node: str,
        api: NodeObject,
        cards: Cards,
        clock: Clock,
        *,
        say: Callable[[], Say],
        safe: Callable[[], tuple[SafeMode, ...]] = tuple,
        on_runtime: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_runtime = on_runtime
        self._node = node
        self._api = api
        self._cards = cards
        self._clock = clock
        self._say = say
        self._safe = safe
        self._wanted = asyncio.Event()
        self._written = NodeMeta()
        self._others: set[str] = set()
        self.looks = 0  # how often the object was looked at
        self.cordoned: frozenset[str] = frozenset()  # cards on which nothing new is wanted, by HAMi's annotation

    async def tell(self) -> None:
        """Ask for what is new to be written."""
        self._wanted.set()

    async def cordoned_now(self) -> frozenset[str]:
        """Return the cards on which nothing new is wanted, asked now; as known last where nobody answers in time."""
        try:
            async with asyncio.timeout(CORDON_S):
                self.cordoned = parse_cordon((await self._api.read()).annotations.get(CORDON))
        except (TimeoutError, PartageError) as error:
            log.warning("cordoned cards are as they were known last", error=str(error), cards=sorted(self.cordoned))
        return self.cordoned

    async def run(self) -> None:
        """Write until cancelled."""
        again = AGAIN_S
        while True:
            try:
                await self._write()
            except PartageError as error:
                log.warning("the node's cards cannot be written; tried again", error=str(error), seconds=again)
                await self._clock.sleep(again)
                again = min(2 * again, AGAIN_LAST_S)
                continue
            again = AGAIN_S
            await self._until_wanted()

    async def _until_wanted(self) -> None:
        """Return when something changed, or it is time to look at the object again."""
        waits = [asyncio.ensure_future(self._wanted.wait()), asyncio.ensure_future(self._clock.sleep(LOOK_EVERY_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self._wanted.is_set():
            await self._clock.sleep(GATHER_S)

    async def _write(self) -> None:
        self._wanted.clear()
        if not self._cards.by_uuid:
            return  # nothing was looked for yet: what an earlier agent wrote stands
        there = await self._api.read()
        self._on_runtime(there.runtime)
        self.cordoned = parse_cordon(there.annotations.get(CORDON))
        text = node_text(
            whole_inventory(self._cards), self._say(), self._safe(), there.annotations.get(names.DEVICES), self._node
        )
        annotations, labels = self._new(text, there)
        if annotations or labels:
            await self._api.merge(annotations, labels)
            log.info("the node says what is new of its cards", annotations=sorted(annotations), labels=sorted(labels))
        self._written = NodeMeta(
            {**self._written.annotations, **text.annotations}, {**self._written.labels, **text.labels}
        )
        self.looks += 1
        if annotations or labels:
            await self._clock.sleep(BETWEEN_S)

    def _new(self, text: NodeText, there: NodeMeta) -> tuple[dict[str, str], dict[str, str]]:
        """Return the annotations and labels that have to be written."""
        annotations = self._differing(text.annotations, there.annotations, self._written.annotations)
        if there.annotations.get(names.DEVICES) != text.devices:
            annotations[names.DEVICES] = text.devices
        return annotations, self._differing(text.labels, there.labels, self._written.labels)

    def _differing(
        self, wanted: Mapping[str, str], there: Mapping[str, str], written: Mapping[str, str]
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in wanted.items():
            if there.get(key) == value or key in self._others:
                continue
            if key in there and key in written and there[key] != written[key]:
                self._others.add(key)
                log.warning("another program writes this too; it is left to it", key=key, theirs=there[key], ours=value)
                continue
            found[key] = value
        return found
