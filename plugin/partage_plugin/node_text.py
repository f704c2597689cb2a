"""What the agent's node says of its cards: our annotation, HAMi's two, NVIDIA's labels; from what the agent knows now.

Pure: the same cards give the same texts byte for byte, and the generation of our annotation grows only when anything
else in it changes. Called by `node.py`, which writes what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from partage.devices.backend import Inventory
from partage.devices.nvidia import hami
from partage.devices.nvidia.labels import labels
from partage.model import NodeDevicesError
from partage.model.node_devices import (
    NODE_DEVICES_VERSION,
    DeviceLink,
    NodeDevice,
    NodeDevices,
    encode_node_devices,
    parse_node_devices,
)
from partage_plugin.cards import GONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.backend import Card
    from partage.model.node_devices import SafeMode
    from partage_plugin.cards import Cards

_WHOLE: Final = 1000  # permille
_FARTHEST: Final = DeviceLink(kind="system")


@dataclass(frozen=True, slots=True)
class Say:
    """What is said beside the cards. `oversub` in permille; `labels`, `hami`: whether these are written at all."""

    version: str
    backend: str
    oversub: int = _WHOLE
    labels: bool = True
    hami: bool = True


@dataclass(frozen=True, slots=True)
class NodeText:
    """The texts by annotation and label; ours is apart, since nobody else may write it."""

    devices: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def whole_inventory(cards: Cards) -> Inventory:
    """Return all cards that were ever found with their links: one that is gone is as far away as can be."""
    listed = tuple(cards.by_uuid.values())
    linked = [card for card in listed if card.reason != GONE]
    at = {card.uuid: place for place, card in enumerate(linked)} if len(linked) == len(cards.links) else {}

    def link(one: Card, other: Card) -> DeviceLink:
        if one.uuid == other.uuid:
            return DeviceLink()
        if one.uuid in at and other.uuid in at:
            return cards.links[at[one.uuid]][at[other.uuid]]
        return _FARTHEST

    return Inventory(listed, tuple(tuple(link(one, other) for other in listed) for one in listed), dict(cards.facts))


def node_text(inventory: Inventory, say: Say, safe: tuple[SafeMode, ...], before: str | None, node: str) -> NodeText:
    """Return what the node has to say now; `before`: our annotation as it stands there."""
    devices = _next(_devices(inventory, say, safe), before, node)
    annotations: dict[str, str] = {}
    if say.hami and inventory.cards:
        annotations[hami.REGISTER] = hami.register_text(inventory, oversub=say.oversub)
        annotations[hami.SCORE] = hami.score_text(inventory)
    return NodeText(encode_node_devices(devices), annotations, labels(inventory) if say.labels else {})


def _devices(inventory: Inventory, say: Say, safe: tuple[SafeMode, ...]) -> NodeDevices:
    return NodeDevices(
        v=NODE_DEVICES_VERSION,
        gen=1,
        agent=say.version,
        oversub=say.oversub,
        devices=tuple(_device(card, say.backend) for card in inventory.cards),
        links=inventory.links,
        safe=safe,
    )


def _device(card: Card, backend: str) -> NodeDevice:
    return NodeDevice(
        uuid=card.uuid,
        index=card.index,
        backend=backend,
        kind=card.name,
        mode=card.mode,
        physical=card.physical,
        memory=card.allocatable,
        cores=_WHOLE,
        seats=card.seats,
        numa=card.numa,
        health=card.healthy,
        reason=card.reason or msgspec.UNSET,
        profiles=card.profiles,
    )


def _next(now: NodeDevices, before: str | None, node: str) -> NodeDevices:
    """Return `now` with its generation: that of `before` where nothing else differs."""
    if before is None:
        return now
    try:
        there = parse_node_devices(before, node=node)
    except NodeDevicesError:
        return now  # somebody spoilt it, or another release wrote it: readers take it as it comes
    same = msgspec.structs.replace(now, gen=there.gen)
    return same if same == there else msgspec.structs.replace(now, gen=there.gen + 1)
