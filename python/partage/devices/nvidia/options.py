"""What an administrator decides about NVIDIA cards, as this backend takes it. Filled by the agent's settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.devices.nvidia.waterline import WaterLines

if TYPE_CHECKING:
    from partage.devices.nvidia.cards import RawCard

RESOURCE: Final = "nvidia.com/gpu"
SEATS: Final = 10
#: Errors of the program on the card, not of the card.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """Which XIDs are no failures, and how cards come back. Times in seconds.

    `quiet_s`: after an XID, until NVML's word that nothing is to be done is believed; `patience_s`: the same where the
    driver has no such word and the card never stopped answering.
    """

    ignored_xids: frozenset[int] = APPLICATION_XIDS
    watch_xids: bool = True
    probe_s: float = 30.0
    probe_failed_s: float = 2.0
    answer_s: float = 10.0
    quiet_s: float = 10.0
    patience_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Extras:
    """What containers get beside their cards, where it is on the host: GPUDirect Storage, InfiniBand, GDRCopy, IMEX."""

    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    imex_channels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the driver's libraries and the device nodes lie: on the host, and where this process sees them."""

    driver: Path = Path("/")
    driver_here: Path = Path("/")
    dev: Path = Path("/")
    dev_here: Path = Path("/")


@dataclass(frozen=True, slots=True)
class Options:
    """All of it. `memory`: bytes of cards that do not say how much they have.

    `cdi_specs`: where the node's own specs are looked for, the last one wins; `by_index`: under which name a card is
    looked for there first; `one_card_only`: a container gets shares of one card at most.
    """

    seats: int = SEATS
    water: WaterLines = field(default_factory=WaterLines)
    memory: int | None = None
    left_out_uuids: frozenset[str] = frozenset()
    left_out_indexes: frozenset[int] = frozenset()
    health: HealthOptions = HealthOptions()
    roots: Roots = Roots()
    cdi_specs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    by_index: bool = False
    one_card_only: bool = False
    extras: Extras = Extras()

    def leaves_out(self, card: RawCard) -> bool:
        """Whether this card is to be treated as if it were not there."""
        return card.uuid in self.left_out_uuids or card.index in self.left_out_indexes
