"""Grants of a card add up to what it has: the later one is refused, what runs is never taken away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.devices.backend import Card
from partage.model.need import Need
from partage_plugin.handover.sums import Promise, check_sums
from partage_plugin.refusal import Refused

UUID = "GPU-1"
CARDS = {UUID: Card(UUID, 0, "TEST CARD", physical=100, allocatable=80, seats=10)}


def promise(memory: int, at: int, cores: int = 0, **more: Any) -> Promise:
    return Promise((0, at, f"u{at}"), f"pod-{at}", {UUID: Need(memory, cores, 1)}, **more)


promises = st.builds(promise, st.integers(1, 90), st.integers(0, 50), st.integers(0, 1000))


@given(st.lists(promises, unique_by=lambda one: one.order, max_size=8), st.randoms())
def test_what_starts_in_any_order_never_exceeds_the_card(wanted: list[Promise], random: object) -> None:
    """Whoever asks when: those that were let in fit together, and one alone that fits is always let in."""
    order = list(wanted)
    random.shuffle(order)  # type: ignore[attr-defined]
    running: list[Promise] = []
    for one in order:
        others = [other for other in wanted if other is not one and other not in running]
        held = [Promise(other.order, other.pod, other.need, held=True) for other in running]
        try:
            check_sums(one, others + held, CARDS)
        except Refused:
            continue
        running.append(one)
        assert sum(other.need[UUID].memory for other in running) <= 80
        assert sum(other.need[UUID].cores for other in running) <= 1000


def test_the_earliest_is_let_in_while_nobody_runs() -> None:
    check_sums(promise(80, 1), [promise(80, 2), promise(80, 3)], CARDS)
    with pytest.raises(Refused, match="pod-1"):
        check_sums(promise(80, 2), [promise(80, 1)], CARDS)


def test_a_whole_card_alone_is_not_held_to_the_water_line() -> None:
    check_sums(promise(100, 1, 1000, whole=frozenset({UUID})), [], CARDS)
    with pytest.raises(Refused):
        check_sums(promise(100, 2, whole=frozenset({UUID})), [promise(1, 1)], CARDS)
    with pytest.raises(Refused):
        check_sums(promise(100, 1), [], CARDS)
    with pytest.raises(Refused):
        check_sums(promise(100, 1, 1000, whole=frozenset({"GPU-another"})), [], CARDS)


def test_what_an_administrator_lets_be_promised_twice() -> None:
    check_sums(promise(120, 1), [], CARDS, oversub=1500)
    with pytest.raises(Refused):
        check_sums(promise(121, 1), [], CARDS, oversub=1500)


def test_beside_what_nobody_can_tell_only_what_runs_goes_on() -> None:
    blind = Promise((0, 0, "h"), "pod-h", {UUID: Need(seats=1)}, held=True, unknown=True)
    with pytest.raises(Refused, match="pod-h") as caught:
        check_sums(promise(1, 1), [blind], CARDS)
    assert caught.value.reason == "CardUseUnknown"
    check_sums(promise(1, 1, held=True), [blind], CARDS)
    check_sums(promise(1, 1), [replace(blind, need={"GPU-2": Need(seats=1)})], CARDS)
