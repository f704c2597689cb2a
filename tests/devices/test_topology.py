"""We test these aspects of K19 and of NVIDIA's topology: the table of which cards and which node go first, as a number;
what a choice breaks up; and that nodes with switches, where all is equal, keep their halves whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partage.devices.masks import subsets
from partage.devices.nvidia.topology import NvidiaRules, NvidiaTopology
from partage.model.node_devices import DeviceLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partage.model.grant import Mode

FAR = DeviceLink(kind="system")


def topology(size: int, link: Callable[[int, int], DeviceLink]) -> NvidiaTopology:
    links = [[DeviceLink() if a == b else link(min(a, b), max(a, b)) for b in range(size)] for a in range(size)]
    return NvidiaTopology(links, range(size))


def joined(*groups: Sequence[int], kind: Any = "nvlink", lanes: int = 4) -> Callable[[int, int], DeviceLink]:
    link = DeviceLink(kind=kind, lanes=lanes)
    return lambda a, b: link if any({a, b} <= {*group} for group in groups) else FAR


def mask(*places: int) -> int:
    return sum(1 << place for place in places)


def best(found: NvidiaTopology, free: int, count: int) -> int:
    return max(subsets(free, count), key=lambda chosen: (found.score(chosen, free), -found.waste(chosen, free)))


def test_a_free_group_of_the_right_size_goes_before_a_larger_one() -> None:
    four, eight = topology(4, joined(range(4))), topology(8, joined(range(8)))
    right, larger = four.score(mask(0, 1, 2, 3), mask(0, 1, 2, 3)), eight.score(mask(0, 1, 2, 3), 0xFF)
    assert right > larger
    assert (right - larger) == 4_000  # what is left of the eight


def test_three_of_a_group_of_four_are_not_four_joined_cards() -> None:
    found = topology(5, joined(range(4)))
    free = mask(1, 2, 3, 4)
    assert not any(found.is_joined(chosen) for chosen in subsets(free, 4))
    assert found.is_joined(mask(1, 2, 3))


def test_a_single_card_comes_from_no_group() -> None:
    assert best(topology(5, joined(range(4))), 0x1F, 1) == mask(4)


def test_else_from_the_smallest_group() -> None:
    assert best(topology(6, joined((0, 1, 2, 3), (4, 5))), 0x3F, 1) in {mask(4), mask(5)}


def test_else_from_the_most_broken_group() -> None:
    found = topology(8, joined(range(4), range(4, 8)))
    assert best(found, mask(0, 1, 2, 3, 4, 5), 1) in {mask(4), mask(5)}


def test_a_pair_with_more_lanes_goes_first() -> None:
    found = topology(
        4,
        lambda a, b: (
            DeviceLink(kind="nvlink", lanes={(0, 1): 4, (2, 3): 12}[a, b]) if b - a == 1 and a % 2 == 0 else FAR
        ),
    )
    assert best(found, 0xF, 2) == mask(2, 3)


def test_a_joined_pair_goes_before_one_on_a_board() -> None:
    found = topology(
        4, lambda a, b: DeviceLink(kind="nvlink", lanes=1) if (a, b) == (2, 3) else DeviceLink(kind="board")
    )
    assert best(found, 0xF, 2) == mask(2, 3)


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (0xFF, 2, mask(0, 1)),
        (0xFE, 1, mask(1)),  # its neighbour is taken: nothing is broken
        (0xFE, 2, mask(2, 3)),
        (mask(2, 4, 5, 6, 7), 1, mask(2)),
        (mask(0, 1, 2, 4, 5, 6, 7), 4, mask(4, 5, 6, 7)),
        (0xFF, 8, 0xFF),
    ],
)
def test_on_switches_aligned_blocks_stay_whole(free: int, count: int, chosen: int) -> None:
    found = topology(8, joined(range(8), kind="nvswitch", lanes=18))
    assert found.is_alike(free, free)
    assert best(found, free, count) == chosen


def test_links_without_lanes_join_nothing() -> None:
    assert not topology(2, joined((0, 1), lanes=0)).is_joined(3)


def test_alike_means_that_no_choice_is_better() -> None:
    for found in (
        topology(6, joined((0, 1, 2, 3), (4, 5))),
        topology(6, joined(range(6))),
        topology(6, joined()),
        topology(6, joined((0, 1), (2, 3), (4, 5))),
    ):
        for cards in range(1, 64):
            for empty in range(64):
                if found.is_alike(cards, empty):
                    for count in range(1, cards.bit_count() + 1):
                        assert len({found.score(chosen, empty) for chosen in subsets(cards, count)}) == 1


@pytest.mark.parametrize(
    ("card", "wanted", "whole", "mode"),
    [
        ("shim", None, False, "shim"),
        ("shim", None, True, "whole"),
        ("shim", "shim", True, "shim"),
        ("shim", "whole", True, "whole"),
        ("shim", "whole", False, None),
        ("whole", None, True, "whole"),
        ("whole", None, False, None),
        ("mig", None, False, None),
        ("mig", "mig", False, None),
        ("mps", None, False, None),
        ("shim", "mig", False, None),
        ("timeslice", None, True, None),
    ],
)
def test_modes_of_cards_and_of_shares(card: Mode, wanted: Mode | None, whole: bool, mode: Mode | None) -> None:
    assert NvidiaRules().mode(card, wanted, whole=whole) == mode
