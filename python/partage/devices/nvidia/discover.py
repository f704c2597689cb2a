"""The cards of this node: found by NVML, one by one, so that one that fails takes none of the others down.

`Discovery` remembers what it saw: a card that stops answering stays listed with its UUID, size and links, unhealthy
and with NVML's reason. One that failed before anybody saw it has its UUID from the kernel module's list, else it
cannot be named and is told in the facts only. Called by the backend. What can go wrong: NVML as a whole does not
answer (DeviceError); everything else is a card's reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from partage.devices.backend import Card, Inventory
from partage.devices.nvidia.cards import EXCLUSIVE, SYSFS, RawCard, read_card, reason_by, reason_of
from partage.devices.nvidia.links import Links
from partage.devices.nvidia.procfs import PROC, listed_cards
from partage.devices.nvidia.waterline import Overheads
from partage.model import DeviceError, format_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from partage.devices.nvidia.nvml import Nvml
    from partage.devices.nvidia.options import Options

DRIVER: Final = "driver"
CUDA: Final = "cuda"
MIG_CAPABLE: Final = "mig.capable"
UNNAMED: Final = "unnamed"
CUT: Final = "is in MIG mode, shares of whole cards are handed out: disable MIG (nvidia-smi -mig 0), or leave it out"
NO_SIZE: Final = "does not say how much memory it has: set nvidia.preconfiguredMemory"

log = structlog.get_logger("partage.nvidia")


class Discovery:
    """What was found, and is found again at each look."""

    def __init__(
        self,
        options: Options,
        *,
        sysfs: Path = SYSFS,
        proc: Path = PROC,
        withheld: Callable[[RawCard, str], str] = lambda _card, _driver: "",
    ) -> None:
        self.options = options
        self.driver = ""  # the version that is loaded
        self._withheld = withheld
        self._sysfs = sysfs
        self._proc = proc
        self._overheads = Overheads()
        self._links = Links()
        self._at: dict[int, RawCard] = {}
        self._unnamed: dict[int, str] = {}
        self.unfit: Mapping[str, str] = {}  # cards that cannot be shared however well they are, and why

    def known(self) -> dict[str, RawCard]:
        """Return the cards as they were last seen, by UUID; those that are left out are not among them."""
        cards = sorted(self._at.values(), key=lambda card: card.index)
        return {card.uuid: card for card in cards if not self.options.leaves_out(card)}

    def look(self, nvml: Nvml) -> Inventory:
        """Return the cards there are now, well where they answer; raises DeviceError where NVML does not at all.

        What is known of them beside that may change while a look lasts, and is put over it after its end (backend.py).
        """
        faults = self._read(nvml.count())
        self.driver = _told(nvml.driver_version)
        cards = list(self.known().values())
        self.unfit = {card.uuid: why for card in cards if (why := self._unfit(card))}
        answering = {card.uuid: card for card in cards if card.index not in faults}
        found = tuple(self._card(card, faults.get(card.index, "") or reason_by(card.action)) for card in cards)
        facts = {
            DRIVER: self.driver,
            CUDA: _told(nvml.cuda_version),
            MIG_CAPABLE: str(any(card.mig_capable for card in cards)).lower(),
        }
        if self._unnamed:
            facts[UNNAMED] = "; ".join(f"card {index}: {reason}" for index, reason in sorted(self._unnamed.items()))
        return Inventory(found, self._links.matrix([card.uuid for card in cards], answering), facts)

    def _read(self, count: int) -> dict[int, str]:
        """Ask for every card; return why some do not answer, by index."""
        faults: dict[int, str] = {}
        unnamed: dict[int, str] = {}
        for index in [index for index in self._at if index >= count]:
            faults[index] = "not listed by NVML any more"
        for index in range(count):
            try:
                card = read_card(index, self._sysfs)
            except DeviceError as error:
                faults[index] = reason_of(error)
                if index not in self._at and not self._name(index, count):
                    unnamed[index] = faults[index]
                continue
            self._at = {at: seen for at, seen in self._at.items() if seen.uuid != card.uuid or at == index}
            self._at[index] = card
        for index, reason in unnamed.items():
            if self._unnamed.get(index) != reason:
                log.warning("a card does not answer and has no UUID yet; left out", index=index, reason=reason)
        self._unnamed = unnamed
        return faults

    def _name(self, index: int, count: int) -> bool:
        """Take a card that never answered from the kernel module's list; say whether it is there."""
        listed = listed_cards(self._proc)
        if len(listed) != count or any(seen.uuid == listed[index].uuid for seen in self._at.values()):
            return False
        card = listed[index]
        self._at[index] = RawCard(
            uuid=card.uuid,
            index=index,
            minor=card.minor,
            name=card.name,
            address=card.address,
            total=0,
            reserved=0,
            used=0,
            idle=False,
            mig=False,
            mig_capable=False,
            numa=-1,
        )
        return True

    def _card(self, raw: RawCard, reason: str) -> Card:
        physical, allocatable = self._amounts(raw)
        mine = reason or self.unfit.get(raw.uuid, "")
        return Card(
            uuid=raw.uuid,
            index=raw.index,
            name=raw.name,
            physical=physical,
            allocatable=allocatable,
            seats=self.options.seats,
            numa=raw.numa,
            mode="mig" if raw.mig else "shim",
            healthy=not mine,
            reason=mine,
            address=raw.address,
        )

    def _amounts(self, raw: RawCard) -> tuple[int, int]:
        """Return what a card carries and what shares may add up to, in bytes."""
        physical = raw.total or self.options.memory or 0
        return physical, self.options.water.of(raw.name).allocatable(physical, self._overheads.of(raw))

    def _unfit(self, raw: RawCard) -> str:
        """Return why a card that is well cannot be shared; empty: it can."""
        physical, allocatable = self._amounts(raw)
        if raw.mig:
            return CUT
        if raw.compute_mode and (raw.compute_mode != EXCLUSIVE or self.options.seats > 1):
            step = f"nvidia-smi -i {raw.index} -c DEFAULT"
            return f"is in compute mode {raw.compute_mode}, shares need a context for each of their programs: {step}"
        if not physical:
            return NO_SIZE
        if not allocatable:
            return f"the water line leaves nothing of {format_memory(physical)}: lower it"
        return self._withheld(raw, self.driver)


def _told(question: Callable[[], str]) -> str:
    """Return what is said; empty where it is not: no card is worse for it."""
    try:
        return question()
    except DeviceError:
        return ""
