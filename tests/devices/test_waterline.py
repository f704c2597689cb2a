"""How much of a card can be promised: the lecture's setting, the default, types of cards; use changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partage.devices.nvidia.cards import RawCard
from partage.devices.nvidia.waterline import Overheads, WaterLine, WaterLines

MI = 1 << 20
CARD = RawCard(
    uuid="GPU-a",
    index=0,
    minor=0,
    name="NVIDIA A100 80GB PCIe",
    address="0000:17:00.0",
    total=81920 * MI,
    reserved=768 * MI,
    used=0,
    idle=True,
    mig=False,
    mig_capable=True,
    numa=0,
)


def test_the_lectures_setting() -> None:
    assert WaterLine(100, 1500 * MI).allocatable(81920 * MI, 768 * MI) == 72228 * MI


def test_by_default_two_halves_of_the_card_fit() -> None:
    whole = WaterLine().allocatable(CARD.total, Overheads().of(CARD))
    assert whole == (81920 - 768) * MI
    assert 2 * (whole // 2) <= whole


def test_a_part_of_the_product_name_chooses_the_line() -> None:
    lines = WaterLines(WaterLine(50), (("a100 80gb", WaterLine(100, 1500 * MI)), ("A100", WaterLine(1))))
    assert lines.of(CARD.name) == WaterLine(100, 1500 * MI)
    assert lines.of("NVIDIA A100-SXM4-40GB") == WaterLine(1)
    assert lines.of("NVIDIA L40S") == WaterLine(50)


def test_more_than_there_is_leaves_nothing_and_never_less() -> None:
    assert WaterLine(1000, 5).allocatable(100, 0) == 0


def with_use(used: int, *, idle: bool) -> RawCard:
    return RawCard(**{**{name: getattr(CARD, name) for name in CARD.__slots__}, "used": used, "idle": idle})


def test_what_programs_take_is_no_overhead() -> None:
    overheads = Overheads()
    assert overheads.of(with_use(40000 * MI, idle=False)) == 768 * MI
    assert overheads.of(with_use(4 * MI, idle=True)) == 772 * MI
    assert overheads.of(with_use(40000 * MI, idle=False)) == 772 * MI
    assert overheads.of(with_use(900 * MI, idle=True)) == 772 * MI, "a process that has just ended leaves memory"
    assert overheads.of(with_use(3 * MI, idle=True)) == 771 * MI


@given(st.integers(0, 1000), st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 40))
def test_the_formula(buffer: int, physical: int, reported: int, overhead: int | None) -> None:
    found = WaterLine(buffer, overhead).allocatable(physical, reported)
    exact = physical * (1000 - buffer) - 1000 * (reported if overhead is None else overhead)
    assert found == max(0, exact // 1000)
    assert found <= physical
