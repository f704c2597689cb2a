"""HAMi's annotations of a node's NVIDIA cards, for tools that read them: register, score; and its cordon, read.

The texts follow HAMi 2.10's readers: JSON in which a field that is 0, empty or false is left out, so that a reader
takes an absent `health` for false. They say what may be promised (the water line applied), not what the card carries.
Byte for byte the same for the same cards. Pure; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from partage.model.units import MI

if TYPE_CHECKING:
    from partage.devices.backend import Card, Inventory
    from partage.model.node_devices import DeviceLink

REGISTER: Final = "hami.io/node-nvidia-register"
SCORE: Final = "hami.io/node-nvidia-score"
CORDON: Final = "hami.io/device-cordon"
_WHOLE: Final = 1000  # permille
_MODES: Final = {"shim": "hami-core", "mig": "mig", "mps": "mps"}
_MAKER: Final = "NVIDIA"
# HAMi's points for what lies between two cards; each NVLink counts 100 more, and it counts at most 18 of them.
_POINTS: Final = {"board": 60, "switch": 50, "multiswitch": 40, "bridge": 30, "node": 20, "system": 10}
_LANE_POINTS: Final = 100
_LANES_MAX: Final = 18


def register_text(inventory: Inventory, *, oversub: int = _WHOLE) -> str:
    """Return the register annotation; `oversub`: permille of the allocatable memory that shares may add up to."""
    return _encode([_entry(card, oversub) for card in inventory.cards])


def score_text(inventory: Inventory) -> str:
    """Return the score annotation: for each card the points of every other one."""
    cards = inventory.cards
    return _encode(
        [
            {
                "uuid": card.uuid,
                "score": {
                    other.uuid: _points(card, other, inventory.links[a][b]) for b, other in enumerate(cards) if a != b
                },
            }
            for a, card in enumerate(cards)
        ]
    )


def parse_cordon(text: str | None) -> frozenset[str]:
    """Return the UUIDs of cards on which nothing new is to be placed, from the node's annotation."""
    return frozenset(part.strip() for part in (text or "").split(",") if part.strip())


def _entry(card: Card, oversub: int) -> dict[str, Any]:
    name = card.name if card.name.startswith(_MAKER) else f"{_MAKER}-{card.name}"
    fields = {
        "id": card.uuid,
        "index": card.index,
        "count": card.seats,
        "devmem": card.allocatable * oversub // _WHOLE // MI,
        "devcore": 100,
        "type": name,
        "numa": max(card.numa, 0),
        "mode": _MODES.get(card.mode, "hami-core"),
        "health": card.healthy,
    }
    return {key: value for key, value in fields.items() if value}


def _points(card: Card, other: Card, link: DeviceLink) -> int:
    """Return a pair's points; of cards with NVLink our matrix has no ancestor, so their NUMA nodes stand for it."""
    near = "node" if card.numa == other.numa else "system"
    lanes = link.lanes if link.lanes <= _LANES_MAX else 0
    return _POINTS.get(str(link.kind), _POINTS[near]) + _LANE_POINTS * lanes


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()
