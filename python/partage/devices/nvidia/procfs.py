"""The cards as the kernel module lists them, which answers where NVML does not: `/proc/driver/nvidia/gpus`.

Used by discovery for the UUID of a card that fails before it was ever seen. What can go wrong: no such directory, or a
file without a UUID; those cards are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partage.devices.nvidia.cards import normal_address

PROC: Final = Path("/proc/driver/nvidia")


@dataclass(frozen=True, slots=True)
class ListedCard:
    """A card as the kernel module lists it; `minor` -1 where it does not say."""

    uuid: str
    address: str
    name: str
    minor: int


def listed_cards(proc: Path = PROC) -> tuple[ListedCard, ...]:
    """Return the cards in the order of their addresses, which is that of NVML's indexes."""
    found: list[ListedCard] = []
    try:
        directories = [path for path in (proc / "gpus").iterdir() if path.is_dir()]
    except OSError:
        return ()
    for directory in directories:
        card = _read(directory)
        if card is not None:
            found.append(card)
    return tuple(sorted(found, key=lambda card: card.address))


def _read(directory: Path) -> ListedCard | None:
    try:
        lines = (directory / "information").read_text(errors="replace").splitlines()
    except OSError:
        return None
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    uuid, minor = facts.get("GPU UUID", ""), facts.get("Device Minor", "")
    if not uuid.startswith("GPU-") or "?" in uuid:
        return None
    address = normal_address(facts.get("Bus Location", directory.name))
    return ListedCard(uuid, address, facts.get("Model", ""), int(minor) if minor.isdecimal() else -1)
