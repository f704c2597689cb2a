"""We test these aspects of a pod's need: the rule for init containers and sidecars, against a timeline played out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partage.model.need import Need, Role, need_of


def of(memory, cores=0, card="a"):
    return {card: Need(memory, cores, 1)}


def test_apps_and_sidecars_add_up_and_an_init_container_may_be_higher():
    asked = [(Role.INIT, of(10)), (Role.SIDECAR, of(3)), (Role.INIT, of(9)), (Role.APP, of(4)), (Role.APP, of(2))]
    assert need_of(asked)["a"] == Need(12, 0, 3)


def test_each_amount_has_a_maximum_of_its_own():
    asked = [(Role.INIT, of(10, 100)), (Role.APP, of(4, 500))]
    assert need_of(asked)["a"] == Need(10, 500, 1)


def test_cards_do_not_mix():
    asked = [(Role.INIT, of(10, card="b")), (Role.APP, of(4, card="a"))]
    assert need_of(asked) == {"a": Need(4, 0, 1), "b": Need(10, 0, 1)}


amounts = st.builds(Need, st.integers(0, 50), st.integers(0, 50), st.integers(0, 3))
shares = st.dictionaries(st.sampled_from("ab"), amounts, max_size=2)
init_containers = st.lists(st.tuples(st.sampled_from([Role.INIT, Role.SIDECAR]), shares), max_size=5)
app_containers = st.lists(st.tuples(st.just(Role.APP), shares), max_size=4)


@given(init_containers, app_containers)
def test_the_need_is_what_runs_at_once_at_the_worst_moment(first, apps):
    """Play the pod's life: what runs at each moment, and the largest of each amount over all of them."""
    moments = []
    running = []
    for role, asked in first:
        moments.append([*running, asked])
        if role is Role.SIDECAR:
            running.append(asked)
    moments.append([*running, *(asked for _, asked in apps)])
    need = need_of([*first, *apps])
    for card in "ab":
        sums = [sum((asked.get(card, Need()) for asked in moment), Need()) for moment in moments]
        worst = Need(max(s.memory for s in sums), max(s.cores for s in sums), max(s.seats for s in sums))
        assert need.get(card, Need()) == worst
