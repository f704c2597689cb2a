"""We test these aspects of shares: the class rules, the bounds, how devices are named, what every error says."""

from __future__ import annotations

import pytest

from partage.model import Device, ShareClass, ShareRefused, UsageError, Wish, parse_priority, pick

GIB = 1 << 30


def share(**wish):
    return Wish(**wish).share_of("GPU-a", 24 * GIB, 80 * GIB)


@pytest.mark.parametrize(
    ("wish", "kind", "cores", "ceiling", "weight"),
    [
        ({}, ShareClass.BURST, 0, 1000, 100),
        ({"cores": 300}, ShareClass.FIXED, 300, 300, 300),
        ({"cores": 300, "share_class": ShareClass.BURST}, ShareClass.BURST, 300, 1000, 300),
        ({"share_class": ShareClass.BEST_EFFORT}, ShareClass.BEST_EFFORT, 0, 1000, 100),
        ({"cores": 300, "share_class": ShareClass.BEST_EFFORT}, ShareClass.BEST_EFFORT, 0, 300, 100),
    ],
)
def test_class_rules(wish, kind, cores, ceiling, weight):
    assert Wish(**wish).resolved_class() is kind
    made = share(**wish)
    assert (made.cores, made.ceiling, made.weight) == (cores, ceiling, weight)


def test_fixed_without_cores_is_refused():
    with pytest.raises(UsageError, match="add --cores"):
        share(share_class=ShareClass.FIXED)


@pytest.mark.parametrize("memory", [0, -1, 80 * GIB + 1])
def test_memory_beyond_the_card_is_refused(memory):
    with pytest.raises(ShareRefused, match="the card has"):
        Wish().share_of("GPU-a", memory, 80 * GIB)


DEVICES = [Device(f"GPU-{name}", index, "H100", 80 * GIB, 79 * GIB) for index, name in enumerate(["aa1", "aa2", "b"])]


def test_devices_are_named_by_index_uuid_or_its_start():
    assert pick(DEVICES, "1").uuid == "GPU-aa2"
    assert pick(DEVICES, "GPU-aa1").index == 0
    assert pick(DEVICES, "GPU-b").index == 2


@pytest.mark.parametrize("wanted", ["3", "-1", "GPU-aa", "GPU-c", "", "aa1"])
def test_other_devices_are_refused_with_those_there_are(wanted):
    with pytest.raises(UsageError, match="2 = GPU-b"):
        pick(DEVICES, wanted)


def test_priorities():
    assert [parse_priority(text) for text in ("P0", "p1", "2")] == [0, 1, 2]
    for text in ("P3", "", "high", "-1", "P"):
        with pytest.raises(UsageError, match="P0"):
            parse_priority(text)
