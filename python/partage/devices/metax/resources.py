"""What a container asks of MetaX GPUs.

    metax-tech.com/gpu      whole cards
    metax-tech.com/sgpu     shares, one a card; metax-tech.com/vcore: percent of each, absent: 100;
                            metax-tech.com/vmemory: GiB of each, or 2048Mi; absent or 0: all of it

The annotation `metax-tech.com/sgpu-qos-policy` is the vendor's word for the class; a pod without one is best-effort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.requests import PERCENT, Amounts, Selectors, Vendor
from partage.model.errors import Problem
from partage.model.names import CLASS
from partage.model.share import CORES_MAX, ShareClass
from partage.model.units import GI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import AskOptions, Requested

BACKEND: Final = "metax"
WHOLE: Final = "metax-tech.com/gpu"
SHARES: Final = "metax-tech.com/sgpu"
CORES: Final = "metax-tech.com/vcore"
MEMORY: Final = "metax-tech.com/vmemory"
QOS: Final = "metax-tech.com/sgpu-qos-policy"
_CLASSES: Final = {
    "best-effort": ShareClass.BEST_EFFORT,
    "fixed-share": ShareClass.FIXED,
    "burst-share": ShareClass.BURST,
}
_WORDS: Final = {share_class.value: word for word, share_class in _CLASSES.items()}


def read(asked: Requested, annotations: Mapping[str, str], _options: AskOptions) -> Amounts | None:
    """Return what the container asks of MetaX cards, None for nothing. Problems are noted in `asked`."""
    if all(name not in asked for name in (SHARES, CORES, MEMORY)):
        cards = asked.cards(WHOLE)
        return Amounts(BACKEND, WHOLE, cards, cores=CORES_MAX, mode="whole") if cards else None
    cards = asked.cards(SHARES) if SHARES in asked else 1
    cores = asked.integer(CORES, PERCENT, "percent of each card")
    memory = asked.memory(MEMORY, GI, "GiB")
    word = annotations.get(QOS, "").strip()
    if word and word not in _CLASSES:
        accepted = f"accepted: {', '.join(_CLASSES)}"
        asked.note_of_pod(Problem(f"annotation {QOS}", f"'{word}'", accepted, "write one of these, or leave it out"))
    if not cards:
        return None
    return Amounts(
        backend=BACKEND,
        resource=SHARES,
        cards=cards,
        memory=memory,
        cores=CORES_MAX if cores is None else cores * 10,
        share_class=_CLASSES.get(word or _WORDS[ShareClass.BEST_EFFORT.value]),
        mode="vendor",
        written={SHARES: cards},
        annotations={} if word else {QOS: _WORDS.get(annotations.get(CLASS, ""), _WORDS[ShareClass.BEST_EFFORT.value])},
    )


VENDOR: Final = Vendor(
    name=BACKEND,
    kinds=(WHOLE, SHARES),
    default=SHARES,
    names=frozenset({WHOLE, SHARES, CORES, MEMORY}),
    read=read,
    amounts={CORES: SHARES, MEMORY: SHARES},
    selectors=Selectors(uuids=("metax-tech.com/use-gpuuuid",), no_uuids=("metax-tech.com/nouse-gpuuuid",)),
)
