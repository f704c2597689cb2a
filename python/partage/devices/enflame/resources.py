"""What a container asks of Enflame GCUs.

enflame.com/gcu             whole cards
enflame.com/vgcu            shares; enflame.com/vgcu-percentage: percent of each, absent: 100; not beside a slice
enflame.com/drs-gcu         a slice of one card, so many parts of it; or, without that, the smallest that has
enflame.com/gcu-memory      GB (above 96: MiB), and
enflame.com/gcu-core        percent
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.requests import INT32_MAX, PERCENT, Amounts, Selectors, Vendor
from partage.model.share import CORES_MAX
from partage.model.units import GI, MI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import AskOptions, Requested

BACKEND: Final = "enflame"
WHOLE: Final = "enflame.com/gcu"
SHARES: Final = "enflame.com/vgcu"
PERCENTAGE: Final = "enflame.com/vgcu-percentage"
SLICE: Final = "enflame.com/drs-gcu"
MEMORY: Final = "enflame.com/gcu-memory"
CORES: Final = "enflame.com/gcu-core"
GB_MAX: Final = 96  # twice the largest profile's: more can only be MiB
PARTS_MAX: Final = 6


def read(asked: Requested, _annotations: Mapping[str, str], _options: AskOptions) -> Amounts | None:
    """Return what the container asks of GCUs, None for nothing. Problems are noted in `asked`."""
    if any(name in asked for name in (SLICE, MEMORY, CORES)):
        return _slice(asked)
    if SHARES not in asked and PERCENTAGE not in asked:
        cards = asked.cards(WHOLE)
        return Amounts(BACKEND, WHOLE, cards, cores=CORES_MAX, mode="whole") if cards else None
    cards = asked.cards(SHARES) if SHARES in asked else 1
    percent = asked.integer(PERCENTAGE, PERCENT, "percent of a card") or PERCENT
    if not cards:
        return None
    several = cards > 1 and percent != PERCENT  # several are whole ones
    noted = {PERCENTAGE: asked.written(PERCENTAGE)} if several else {}
    percent = PERCENT if several else percent
    part = None if percent == PERCENT else percent * 10
    written = {SHARES: cards, PERCENTAGE: percent}
    return Amounts(
        BACKEND, SHARES, cards, percent=part, cores=percent * 10, mode="vendor", written=written, asked=noted
    )


def _slice(asked: Requested) -> Amounts | None:
    """Return a slice of one card: by its parts, or by what it is to have at least."""
    parts = asked.integer(SLICE, PARTS_MAX, "how many parts of a card")
    amount = asked.integer(MEMORY, INT32_MAX, f"GB up to {GB_MAX}, MiB above")
    cores = asked.integer(CORES, PERCENT, "percent of a card")
    if parts:
        for name in (MEMORY, CORES):
            if asked.is_some(name):
                value = f"'{asked.written(SLICE)}' parts beside {name} '{asked.written(name)}'"
                asked.note(SLICE, value, "a slice by its parts, or by what it is to have", f"leave {name} out")
        return Amounts(BACKEND, SLICE, 1, mode="vendor", profile=f"{parts}g")
    if not amount and not cores:
        return None
    memory = amount * (GI if amount <= GB_MAX else MI) if amount else None
    return Amounts(BACKEND, SLICE, 1, memory=memory, cores=(cores or 0) * 10, mode="vendor")


VENDOR: Final = Vendor(
    name=BACKEND,
    kinds=(WHOLE, SHARES, SLICE),
    default=SLICE,
    names=frozenset({WHOLE, SHARES, PERCENTAGE, SLICE, MEMORY, CORES}),
    read=read,
    amounts={PERCENTAGE: SHARES, MEMORY: SLICE, CORES: SLICE},
    selectors=Selectors(uuids=("enflame.com/use-gpuuuid",), no_uuids=("enflame.com/nouse-gpuuuid",)),
)
