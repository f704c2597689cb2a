"""What the books must answer, by trying everything: slow, short, and with nothing of the scheduler's in it.

Imports only the model. `Oracle` is one node with what pods have of its cards; `fits` goes through every choice of cards
for every container, and `wrong` says what is wrong with one that was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import TYPE_CHECKING

from partage.model.need import Need, Role, need_of
from partage.model.share import ShareClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from partage.model.ask import ContainerAsk, Shape
    from partage.model.node_devices import NodeDevice, NodeDevices

Choice = tuple[tuple[str, ...], ...]  # container -> UUIDs


@dataclass
class Oracle:
    """`pods`: what each pod has of each card; `closed`: cards of which nobody knows; `seats`: kubelet's, and taken."""

    devices: NodeDevices | None
    cordoned: frozenset[str] = frozenset()
    ready: bool = True
    seats: int | None = None
    seats_taken: int = 0
    closed: frozenset[str] = frozenset()
    pods: dict[str, Mapping[str, Need]] = field(default_factory=dict)

    def fits(self, shape: Shape) -> bool:
        """Whether there is any way."""
        return any(self.wrong(shape, choice) == "" for choice in self.choices(shape))

    def choices(self, shape: Shape) -> Iterator[Choice]:
        """Yield every choice of cards for every container, possible or not."""
        cards = [] if self.devices is None else [card.uuid for card in self.devices.devices]
        yield from product(*(combinations(cards, ask.cards) for ask in shape.containers))

    def wrong(self, shape: Shape, choice: Choice) -> str:
        """Return what is wrong with a choice, empty: nothing."""
        if self.devices is None or not self.ready:
            return "no node"
        cards = {card.uuid: card for card in self.devices.devices}
        for ask, uuids in zip(shape.containers, choice, strict=True):
            for uuid in uuids:
                trouble = self._card(shape, ask, cards[uuid])
                if trouble:
                    return trouble
            if trouble := self._set(shape, uuids):
                return trouble
        return self._kubelet(shape) or self._sums(shape, choice, cards)

    def _card(self, shape: Shape, ask: ContainerAsk, card: NodeDevice) -> str:
        wishes, words = shape.wishes, words_of(f"{card.backend} {card.kind}")
        others = [pod[card.uuid] for pod in self.pods.values() if card.uuid in pod]
        rules = {
            "backend": card.backend == ask.backend == "nvidia",
            "health": card.health,
            "cordon": card.uuid not in self.cordoned,
            "type": not wishes.types or any(words_of(kind) <= words for kind in wishes.types),
            "no type": not any(words_of(kind) <= words for kind in wishes.no_types),
            "uuid": not wishes.uuids or card.uuid in wishes.uuids,
            "no uuid": card.uuid not in wishes.no_uuids,
            "index": not wishes.indexes or card.index in wishes.indexes,
            "no index": card.index not in wishes.no_indexes,
            "closed": card.uuid not in self.closed,
            "mode": mode_of(ask, card) is not None,
            "qos": not others or not card.qos or is_alone(ask) or card.qos is ask.share_class,
            "mutex": not others or "mutex" not in wishes.card_policies,
            "alone": not others or not is_alone(ask),
            "cores left": sum(need.cores for need in others) < 1000,
            "physical": memory_of(ask, card) <= card.physical,
        }
        return next((name for name, holds in rules.items() if not holds), "")

    def _set(self, shape: Shape, uuids: Sequence[str]) -> str:
        assert self.devices is not None
        place = {card.uuid: at for at, card in enumerate(self.devices.devices)}
        if shape.wishes.one_numa_node and len({self.devices.devices[place[uuid]].numa for uuid in uuids}) > 1:
            return "numa"
        if shape.wishes.nvlink == "required":
            for one, other in combinations(uuids, 2):
                link = self.devices.links[place[one]][place[other]]
                if link.kind not in {"nvlink", "nvswitch"} or not link.lanes:
                    return "nvlink"
        return ""

    def _kubelet(self, shape: Shape) -> str:
        if self.seats is None:
            return ""
        need = need_of((ask.role, {"node": Need(seats=ask.cards)}) for ask in shape.containers)["node"].seats
        return "seats" if self.seats_taken + need > self.seats else ""

    def _sums(self, shape: Shape, choice: Choice, cards: Mapping[str, NodeDevice]) -> str:
        assert self.devices is not None
        for uuid, card in cards.items():
            there = [ask for ask, uuids in zip(shape.containers, choice, strict=True) if uuid in uuids]
            others = sum((pod[uuid] for pod in self.pods.values() if uuid in pod), Need())
            for together in moments(shape, there):
                total = others + sum((need_on(ask, card) for ask in together), Need())
                is_whole = any(mode_of(ask, card) == "whole" for ask in together)
                line = card.physical if is_whole else card.memory * self.devices.oversub // 1000
                if together and (total.memory > line or total.cores > 1000 or total.seats > card.seats):
                    return f"over on {uuid}"
                if len(together) > 1 and any(is_alone(ask) for ask in together):
                    return f"not alone on {uuid}"
        return ""


def moments(shape: Shape, there: Sequence[ContainerAsk]) -> Iterator[list[ContainerAsk]]:
    """Yield which containers run at the same time, of those that are on a card."""
    yield [ask for ask in there if ask.role is not Role.INIT]
    names = [ask.name for ask in shape.containers]
    for ask in there:
        if ask.role is Role.INIT:
            before = names[: names.index(ask.name)]
            yield [ask, *(other for other in there if other.role is Role.SIDECAR and other.name in before)]


def need_on(ask: ContainerAsk, card: NodeDevice) -> Need:
    return Need(memory_of(ask, card), guarantee(ask), 1)


def memory_of(ask: ContainerAsk, card: NodeDevice) -> int:
    if mode_of(ask, card) == "whole":
        return card.physical
    if ask.memory is not None:
        return ask.memory
    return card.memory * (1000 if ask.percent is None else ask.percent) // 1000


def guarantee(ask: ContainerAsk) -> int:
    return 0 if ask.share_class is ShareClass.BEST_EFFORT else ask.cores


def is_alone(ask: ContainerAsk) -> bool:
    return guarantee(ask) == 1000


def mode_of(ask: ContainerAsk, card: NodeDevice) -> str | None:
    is_whole = ask.memory is None and ask.percent is None and is_alone(ask)
    served = {("shim", None), ("shim", "shim")}
    if is_whole and ask.mode in {None, "whole"} and card.mode in {"shim", "whole"} and not ask.profile:
        return "whole"
    return "shim" if (card.mode, ask.mode) in served and not ask.profile else None


def words_of(text: str) -> set[str]:
    words = set(re.findall("[a-z0-9]+", text.lower()))
    return words | {word[:-2] for word in words if re.fullmatch("[0-9]+gb", word)}
