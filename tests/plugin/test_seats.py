"""Seats are fungible: what fails takes free ids with it and nobody's; advice is always a legal choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partage.devices.backend import Card
from partage_plugin.kubelet.seats import ID_MAX, card_of, preferred, seat_id, seats

UUIDS = [f"GPU-{number}0000000-1111-2222-3333-444444444444" for number in range(4)]


def card(index: int, count: int, *, healthy: bool = True, numa: int = 0) -> Card:
    return Card(UUIDS[index], index, "TEST CARD", 1, 1, seats=count, healthy=healthy, numa=numa)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Card], dict[str, int], frozenset[str]]:
    """Cards, how many shares of each are handed over, and as many ids that are taken, of whatever cards."""
    cards = [card(index, draw(st.integers(1, 8)), healthy=draw(st.booleans())) for index in range(4)]
    granted = {one.uuid: draw(st.integers(0, one.seats)) for one in cards}
    ids = [seat_id(one.uuid, number) for one in cards for number in range(one.seats)]
    taken = draw(st.permutations(ids))[: sum(granted.values())]
    return cards, granted, frozenset(taken)


@given(nodes())
def test_a_failed_card_takes_its_free_seats_and_no_other(
    node: tuple[list[Card], dict[str, int], frozenset[str]],
) -> None:
    cards, granted, taken = node
    found = seats(cards, granted, taken)
    withdrawn = {seat.id for seat in found if not seat.healthy}
    assert len(found) == sum(one.seats for one in cards)
    assert not withdrawn & taken, "what runs lost its id"
    assert len(withdrawn) == sum(one.seats - granted[one.uuid] for one in cards if not one.healthy)


@given(nodes())
def test_the_same_node_tells_the_same_list(node: tuple[list[Card], dict[str, int], frozenset[str]]) -> None:
    assert seats(*node) == seats(*node)


def test_an_id_fits_kubelet() -> None:
    assert len(seat_id(UUIDS[0], 999)) <= ID_MAX
    assert card_of(seat_id(UUIDS[0], 7)) == UUIDS[0]


def test_numa_of_a_node_with_two_is_not_promised() -> None:
    assert {seat.numa for seat in seats([card(0, 2, numa=1), card(1, 2, numa=1)], {}, ())} == {1}
    assert {seat.numa for seat in seats([card(0, 2, numa=0), card(1, 2, numa=1)], {}, ())} == {-1}
    assert {seat.numa for seat in seats([card(0, 2, numa=1)], {}, (), tells_numa=False)} == {-1}


def test_k12_a_seat_that_its_card_has_no_more_is_promised_where_the_others_are() -> None:
    """Kubelet fails a running pod at its own restart where the pod's ids are the only ones without a NUMA node."""
    held = seat_id(UUIDS[0], 7)
    found = seats([card(0, 2, numa=1), card(1, 2, numa=1)], {UUIDS[0]: 1}, {held}, {held})
    assert {seat.id: seat.numa for seat in found}[held] == 1


@given(st.data())
def test_advice_is_a_legal_choice(data: st.DataObject) -> None:
    ids = [seat_id(uuid, number) for uuid in UUIDS for number in range(4)]
    available = data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
    size = data.draw(st.integers(1, len(available)))
    must = available[: data.draw(st.integers(0, size))]
    cards = data.draw(st.none() | st.lists(st.sampled_from(UUIDS), max_size=4))
    chosen = preferred(available, must, size, cards)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    if cards is not None and not must and len(cards) == size:
        left = list(available)
        for uuid in cards:  # each planned card has its seat, as far as there is one
            own = next((seat for seat in left if card_of(seat) == uuid), None)
            if own is not None:
                left.remove(own)
                assert sum(card_of(seat) == uuid for seat in chosen) >= 1
