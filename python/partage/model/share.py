"""What one container gets: a share per device, with the rules that turn a user's wish into one.

The class rules are those of the grant: cores given and no class means `fixed`; neither given means `burst` with a
guarantee of 0; `best-effort` never has a guarantee, its cores are a ceiling.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from partage.model.errors import ShareRefused, UsageError
from partage.model.units import format_memory, whole_number

CORES_MAX: Final = 1000
WEIGHT_MAX: Final = 10000
DEFAULT_WEIGHT: Final = 100
DEFAULT_PRIORITY: Final = 1


class ShareClass(enum.Enum):
    """How a share of compute is held; the value is what users write."""

    FIXED = "fixed"
    BURST = "burst"
    BEST_EFFORT = "best-effort"


@dataclass(frozen=True, slots=True)
class Share:
    """One device's part: memory in bytes (hard limit), cores and ceiling in permille, weight 1-10000."""

    uuid: str
    memory: int
    cores: int
    ceiling: int
    weight: int
    physical: int

    def __post_init__(self) -> None:
        if not 0 < self.memory <= self.physical:
            raise ShareRefused(
                f"share of {self.uuid}",
                f"memory {format_memory(self.memory)} asked",
                f"the card has {format_memory(self.physical)}",
                "ask for more than 0 and at most the whole card",
            )
        if not (0 <= self.cores <= self.ceiling <= CORES_MAX and self.ceiling > 0 and 1 <= self.weight <= WEIGHT_MAX):
            raise UsageError(
                f"share of {self.uuid}",
                f"cores {self.cores} ‰, ceiling {self.ceiling} ‰, weight {self.weight}",
                "0 <= cores <= ceiling <= 1000, weight 1 to 10000",
                "correct the value out of bounds",
            )


@dataclass(frozen=True, slots=True)
class Wish:
    """Cores, class, priority and weight as asked; None where the user said nothing. Cores in permille."""

    cores: int | None = None
    share_class: ShareClass | None = None
    priority: int = DEFAULT_PRIORITY
    weight: int | None = None

    def resolved_class(self) -> ShareClass:
        """Return the class that applies; raises UsageError for `fixed` without cores."""
        if self.share_class is None:
            return ShareClass.BURST if self.cores is None else ShareClass.FIXED
        if self.share_class is ShareClass.FIXED and self.cores is None:
            raise UsageError("class fixed", "no cores given", "a fixed share is exactly its cores", "add --cores")
        return self.share_class

    def share_of(self, uuid: str, memory: int, physical: int) -> Share:
        """Return the share of one device for this wish; memory and physical in bytes."""
        cores, ceiling = times_of(self.resolved_class(), self.cores or 0)
        return Share(uuid, memory, cores, ceiling, self.weight or default_weight(cores), physical)


def times_of(kind: ShareClass, asked: int) -> tuple[int, int]:
    """Return guarantee and ceiling (permille) of a share of this class for which `asked` cores were named (0: none)."""
    cores = 0 if kind is ShareClass.BEST_EFFORT else asked
    return cores, asked if asked and kind is not ShareClass.BURST else CORES_MAX


def default_weight(cores: int) -> int:
    """Return the weight of a share with this guarantee (permille) where nobody asked for another."""
    return cores or DEFAULT_WEIGHT


def parse_weight(text: str) -> int:
    """Return the weight that `text` means, 1 to 10000; raises UsageError otherwise."""
    weight = whole_number(text)
    if weight is None or not 1 <= weight <= WEIGHT_MAX:
        limit = f"accepted: a whole number from 1 to {WEIGHT_MAX} (surplus is divided by weight)"
        raise UsageError(f"weight '{text}'", "not a weight", limit, "write one of these")
    return weight


def parse_priority(text: str) -> int:
    """Return 0 (first) to 2 for `P0`, `P1`, `P2` or the bare digit; raises UsageError otherwise."""
    digit = text[1:] if text[:1] in {"P", "p"} else text
    if digit not in {"0", "1", "2"}:
        raise UsageError(f"priority '{text}'", "not a priority", "P0 (first), P1, P2", "write one of these")
    return int(digit)
