"""What a container asks of Kunlunxin XPUs.

    kunlunxin.com/xpu           whole cards
    kunlunxin.com/vxpu          slices, one a card; kunlunxin.com/vxpu-memory: MiB of each, rounded up to a slice's size

A card is cut into slices of 24576, 49152 or 98304 MiB; cores go with the memory. What was asked for is kept in a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.requests import Amounts, Selectors, Vendor
from partage.model.share import CORES_MAX
from partage.model.units import MI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import AskOptions, Requested

BACKEND: Final = "kunlun"
WHOLE: Final = "kunlunxin.com/xpu"
SLICES: Final = "kunlunxin.com/vxpu"
MEMORY: Final = "kunlunxin.com/vxpu-memory"
SIZES: Final = (24576, 49152, 98304)  # MiB


def read(asked: Requested, _annotations: Mapping[str, str], _options: AskOptions) -> Amounts | None:
    """Return what the container asks of XPUs, None for nothing. Problems are noted in `asked`."""
    if SLICES not in asked and MEMORY not in asked:
        cards = asked.cards(WHOLE)
        return Amounts(BACKEND, WHOLE, cards, cores=CORES_MAX, mode="whole") if cards else None
    cards = asked.cards(SLICES) if SLICES in asked else 1
    amount = asked.integer(MEMORY, SIZES[-1], f"MiB of a slice, rounded up to {', '.join(map(str, SIZES))}")
    if not cards:
        return None
    if not amount:
        return Amounts(BACKEND, SLICES, cards, cores=CORES_MAX, mode="vendor")
    size = next(size for size in SIZES if size >= amount)
    return Amounts(
        backend=BACKEND,
        resource=SLICES,
        cards=cards,
        memory=size * MI,
        cores=size * CORES_MAX // SIZES[-1],
        mode="vendor",
        written={SLICES: cards, MEMORY: size},
        asked={MEMORY: asked.written(MEMORY)} if size != amount else {},
    )


VENDOR: Final = Vendor(
    name=BACKEND,
    kinds=(WHOLE, SLICES),
    default=SLICES,
    names=frozenset({WHOLE, SLICES, MEMORY}),
    read=read,
    amounts={MEMORY: SLICES},
    selectors=Selectors(
        uuids=("baidu.com/use-gpuuuid", "hami.io/use-xpu-uuid"),
        no_uuids=("baidu.com/nouse-gpuuuid", "hami.io/no-use-xpu-uuid"),
    ),
)
