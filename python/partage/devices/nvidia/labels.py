"""The node's labels as NVIDIA's feature discovery has them, so that selectors written for it go on working.

The product carries `-SHARED` where a card has more than one seat; the sharing strategy is then `time-slicing`, the
nearest of the words that readers know: what really holds the limits stands on each pod. Cards of several products:
the one with most cards, then the first by name. Pure; cannot fail.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from partage.devices.nvidia.discover import CUDA, DRIVER, MIG_CAPABLE
from partage.model.units import MI

if TYPE_CHECKING:
    from partage.devices.backend import Inventory

PREFIX: Final = "nvidia.com/"
_VALUE_MAX: Final = 63  # characters, by Kubernetes
_SHARED: Final = "-SHARED"
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]+")


def labels(inventory: Inventory) -> dict[str, str]:
    """Return label -> value; none where the node has no cards."""
    cards = inventory.cards
    if not cards:
        return {}
    products = Counter(card.name for card in cards)
    product = min(products, key=lambda name: (-products[name], name))
    card = next(card for card in cards if card.name == product)
    shared = card.seats > 1
    found = {
        "gpu.present": "true",
        "gpu.product": label_value(product, _SHARED if shared else ""),
        "gpu.count": str(len(cards)),
        "gpu.memory": str(card.physical // MI),
        "gpu.replicas": str(card.seats),
        "gpu.sharing-strategy": "time-slicing" if shared else "none",
        "mig.capable": inventory.facts.get(MIG_CAPABLE, "false"),
    }
    found |= _version("cuda.driver-version", inventory.facts.get(DRIVER, ""), ("major", "minor", "revision"))
    found |= _version("cuda.runtime-version", inventory.facts.get(CUDA, ""), ("major", "minor"))
    return {PREFIX + name: value for name, value in found.items()}


def label_value(text: str, suffix: str = "") -> str:
    """Return `text` as the value of a label: other characters become a dash, what is too long is cut."""
    clean = _OTHER.sub("-", text).strip("-._")
    return clean[: _VALUE_MAX - len(suffix)].rstrip("-._") + suffix


def _version(name: str, text: str, parts: tuple[str, ...]) -> dict[str, str]:
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    if numbers is None:
        return {}
    found = dict(zip(parts, numbers[0].split("."), strict=False))
    return {f"{name}.full": label_value(numbers[0])} | {f"{name}.{part}": value for part, value in found.items()}
