"""What the books ask of a vendor: in which mode a card serves a share, and how well cards are linked.

A folder beside this file for each vendor implements `Rules`; a vendor that is not in `RULES` is not placed by this
release. Cards are masks of places in the node's annotation: bit 3 is its fourth card. Pure; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from partage.devices.nvidia.topology import NvidiaRules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.model.grant import Mode
    from partage.model.node_devices import DeviceLink


class Topology(Protocol):
    """How the cards of one vendor on a node are linked. One object serves all nodes that are built alike."""

    memo: dict[tuple[object, ...], tuple[int, ...]]  # whoever asks keeps here what was worked out of it

    def is_joined(self, chosen: int) -> bool:
        """Whether each of these cards is directly linked with each other one."""

    def score(self, chosen: int, empty: int) -> int:
        """Return how good a choice is, the higher the better; `empty`: cards that are well and that nobody uses.

        Comparable between nodes of one vendor for choices of equally many cards.
        """

    def is_alike(self, cards: int, empty: int) -> bool:
        """Whether all choices of equally many of these cards have the same score; false where that is hard to tell."""

    def waste(self, chosen: int, empty: int) -> int:
        """Return how much a choice breaks up what is otherwise equal, the lower the better."""


class Rules(Protocol):
    """A vendor's rules."""

    def mode(self, card: Mode, wanted: Mode | None, *, whole: bool) -> Mode | None:
        """Return the mode of a share on a card of mode `card`, None where it does not serve it.

        `wanted`: what the pod asks for, None: whatever there is; `whole`: the share is a card with all it has.
        """

    def topology(self, links: Sequence[Sequence[DeviceLink]], places: Sequence[int]) -> Topology:
        """Return what the links between the cards at these places mean; `links` are those of all cards of the node."""


RULES: Final[Mapping[str, Rules]] = {"nvidia": NvidiaRules()}
