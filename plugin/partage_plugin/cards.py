"""The cards of this node as they are now: what the backend found, with every change of health since.

Written by the agent's discovery and health tasks, read by everything else in the same loop. Whoever depends on it waits
for `changed`; a card that is gone from one discovery to the next counts as failed and stays listed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from partage.devices.backend import Card, HealthChange, Inventory
    from partage.model.node_devices import DeviceLink

GONE: Final = "not found any more"


class Cards:
    """Card by UUID, in the order of their indexes."""

    def __init__(self) -> None:
        self._cards: dict[str, Card] = {}
        self.links: tuple[tuple[DeviceLink, ...], ...] = ()
        self.facts: Mapping[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def by_uuid(self) -> Mapping[str, Card]:
        """All cards that were ever found."""
        return self._cards

    def found(self, inventory: Inventory) -> bool:
        """Take over what a discovery found; say whether anything is another than before."""
        now = {card.uuid: card for card in inventory.cards}
        lost = {
            uuid: replace(card, healthy=False, reason=GONE) for uuid, card in self._cards.items() if uuid not in now
        }
        cards = dict(sorted({**now, **lost}.items(), key=lambda item: item[1].index))
        same = (cards, inventory.links, dict(inventory.facts)) == (self._cards, self.links, dict(self.facts))
        self._cards, self.links, self.facts = cards, inventory.links, inventory.facts
        if not same:
            self._tell()
        return not same

    def health(self, change: HealthChange) -> bool:
        """Take note of a card that failed or came back; say whether that is new."""
        card = self._cards.get(change.uuid)
        if card is None or (card.healthy, card.reason) == (change.healthy, change.reason):
            return False
        self._cards[change.uuid] = replace(card, healthy=change.healthy, reason=change.reason)
        self._tell()
        return True

    def _tell(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def changed(self) -> Coroutine[Any, Any, object]:
        """Return what ends at the next change from now on, also one that comes before it is waited for."""
        return self._changed.wait()
