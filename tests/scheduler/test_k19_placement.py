"""We test these aspects of K19 (C118, C120, C121, C122, C124) and of answers (C117): each policy's word chooses the
cards and the node that it says; chains decide one after the other; links, NUMA and cards that are named; what is
wanted of types is matched by words."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from partage.devices.masks import subsets
from partage.devices.nvidia.topology import NvidiaTopology
from partage.model import ShareRefused
from partage.model.need import Role
from partage.model.reasons import Code
from partage.model.share import ShareClass
from partage.model.units import GI
from partage.scheduler.books import Books
from partage.scheduler.choice import MEMO_MAX, joined_subsets
from partage.scheduler.facts import NodeFacts
from partage.scheduler.settings import load
from tests.scheduler.support import ask, card, devices, groups, node, nvlinks, place, want, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.model.ask import ContainerAsk
    from partage.model.node_devices import DeviceLink
    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Defaults


def books_of(*nodes: NodeFacts, defaults: Defaults | None = None) -> Books:
    books = Books(defaults=defaults)
    for one in nodes:
        books.set_node(one)
    return books


def used(books: Books, name: str, gib: dict[int, int], **fields: Any) -> None:
    """Put one pod of so many GiB on each of these cards."""
    for index, amount in gib.items():
        place(books, ask(want(gib=amount, **fields), indexes=frozenset({index})), name)


def cards(books: Books, name: str, *wants: ContainerAsk, **wishes: Any) -> list[list[int]]:
    """Reserve a place; return each container's cards."""
    placement = books.reserve(ask(*wants, **wishes), name, 0.0)
    return [[card.index for card in container.cards] for container in placement.containers]


def first(books: Books, *wants: ContainerAsk, **wishes: Any) -> str:
    pod = ask(*wants, **wishes)
    ranked = books.rank(pod, books.filter(pod).fitting)
    assert [points for _, points in ranked].count(10) == 1
    return ranked[0][0]


BUSY = {0: 72, 1: 56, 2: 24, 3: 8}  # of 80 GiB


@pytest.mark.parametrize(
    ("words", "count", "chosen"),
    [
        (("spread",), 1, [3]),
        (("binpack",), 1, [0]),
        (("numa", "binpack"), 1, [0]),  # one card is always on one NUMA node
        (("spread",), 2, [2, 3]),
        (("binpack",), 2, [0, 1]),
        ((), 1, [3]),  # the default spreads
    ],
)
def test_c118_policies_choose_by_use(words: Sequence[str], count: int, chosen: list[int]) -> None:
    books = books_of(node("n", [{"numa": 0}, {"numa": 0}, {"numa": 1}, {"numa": 1}]))
    used(books, "n", BUSY)
    assert cards(books, "n", want(gib=4, cards=count), card_policies=tuple(words)) == [chosen]


def test_an_administrators_policies_are_those_of_pods_that_name_none() -> None:
    placement = load(["--placement-node-policy=spread", "--placement-card-policies=binpack,numa"], {}).placement
    books = books_of(node("m", 2), node("n", 4), defaults=placement.defaults())
    used(books, "n", BUSY)
    assert first(books, want(gib=4)) == "m"
    assert first(books, want(gib=4), node_policy="binpack") == "n"
    assert cards(books, "n", want(gib=4)) == [[0]]
    assert cards(books, "n", want(gib=4), card_policies=("spread",)) == [[3]]


def test_c118_two_cards_come_from_one_numa_node_where_use_is_equal() -> None:
    books = books_of(node("n", [{"numa": 0}, {"numa": 1}, {"numa": 1}, {"numa": 0}]))
    assert cards(books, "n", want(gib=4, cards=2)) == [[0, 3]]


def test_numa_before_use_where_the_chain_says_so() -> None:
    books = books_of(node("n", [{"numa": 0}, {"numa": 1}, {"numa": 1}, {"numa": 0}]))
    used(books, "n", {0: 40, 1: 30, 2: 20})
    assert cards(books, "n", want(gib=4, cards=2), card_policies=("spread",)) == [[2, 3]]
    assert cards(books, "n", want(gib=4, cards=2), card_policies=("numa", "spread")) == [[0, 3]]


def test_numa_bind_is_a_must() -> None:
    books = books_of(node("n", [{"numa": 0}, {"numa": 1}, {"numa": 1}]))
    assert cards(books, "n", want(gib=4, cards=2), one_numa_node=True) == [[1, 2]]
    assert books.filter(ask(want(gib=4, cards=3), one_numa_node=True)).counts() == {Code.NUMA: 1}


def test_mutex_takes_cards_on_which_nobody_is() -> None:
    books = books_of(node("n", 2))
    used(books, "n", {0: 1})
    assert cards(books, "n", want(gib=1), card_policies=("mutex", "binpack")) == [[1]]
    assert books.filter(ask(want(gib=1), card_policies=("mutex",))).counts() == {Code.CARD_NOT_EMPTY: 1}


def test_c124_a_linked_pair_goes_before_cards_without_links() -> None:
    books = books_of(node("n", 4, groups((0, 1), (2, 3))))
    used(books, "n", {0: 1})
    assert cards(books, "n", want(gib=4, cards=2)) == [[2, 3]]


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_c122_better_links_win_under_both_node_policies(policy: Any) -> None:
    books = books_of(node("a", 2), node("b", 2, groups((0, 1))), node("c", 2))
    assert first(books, want(gib=4, cards=2), node_policy=policy) == "b"
    assert first(books, whole(2), node_policy=policy, card_policies=("topology-aware",)) == "b"


def test_nodes_go_by_use() -> None:
    books = books_of(node("a", 2), node("b", 2), node("c", 2))
    used(books, "b", {0: 10})
    used(books, "c", {0: 30})
    assert first(books, want(gib=4), node_policy="binpack") == "c"
    assert first(books, want(gib=4), node_policy="spread") == "a"
    assert first(books, want(gib=4)) == "c"  # the default packs


def test_weights_say_what_counts_as_use() -> None:
    books = books_of(node("n", 2))
    used(books, "n", {0: 60})
    for _ in range(3):
        used(books, "n", {1: 1})
    spread = ("spread",)
    assert cards(books, "n", want(gib=1), card_policies=spread, weights=(("memory", 1),)) == [[1]]
    assert cards(books, "n", want(gib=1), card_policies=spread, weights=(("slot", 1),)) == [[0]]


def test_a_group_of_the_right_size_goes_before_a_larger_one_between_nodes() -> None:
    books = books_of(node("x", 4, groups(range(4))), node("y", 8, groups(range(8))))
    assert first(books, whole(4), nvlink="required", node_policy="binpack") == "x"
    assert first(books, whole(4), card_policies=("topology-aware",), node_policy="spread") == "x"


def test_a_node_without_a_joined_set_is_filtered_only_where_that_is_required() -> None:
    books = books_of(node("x", 5, groups(range(4))))
    used(books, "x", {0: 1})
    assert books.filter(ask(whole(4), nvlink="required")).counts() == {Code.NVLINK: 1}
    assert books.filter(ask(whole(4), nvlink="preferred")).fitting == ["x"]
    assert books.filter(ask(whole(3), nvlink="required")).fitting == ["x"]


def test_a_single_card_does_least_damage() -> None:
    assert cards(books_of(node("n", 5, groups(range(4)))), "n", whole()) == [[4]]
    assert cards(books_of(node("n", 6, groups(range(4), (4, 5)))), "n", whole()) == [[4]]


def test_a_pair_with_more_lanes_goes_first_on_a_node_and_between_nodes() -> None:
    def both(a: int, b: int) -> DeviceLink:
        return {(0, 1): nvlinks(4), (2, 3): nvlinks(12)}.get((a, b), nvlinks(0, kind="system"))

    books = books_of(node("n", 4, both), node("a", 2, groups((0, 1), lanes=4)))
    assert cards(books, "n", whole(2), card_policies=("topology-aware",)) == [[2, 3]]
    books.set_node(node("z", 2, groups((0, 1), lanes=12)))
    assert first(books, whole(2), card_policies=("topology-aware",)) == "z"


def test_a_chain_decides_between_equals_in_its_order() -> None:
    books = books_of(node("n", 6, groups((0, 1), (2, 3), (4, 5))))
    used(books, "n", {0: 8, 1: 8, 2: 4, 3: 4, 4: 10})
    chosen = {
        words: cards(books, "n", want(gib=1, cards=2), card_policies=words, weights=(("memory", 1),))
        for words in (("spread", "topology-aware"), ("topology-aware", "spread"))
    }
    assert chosen == {("spread", "topology-aware"): [[2, 5]], ("topology-aware", "spread"): [[2, 3]]}


@pytest.mark.parametrize(
    ("kind", "types", "no_types", "takes"),
    [
        ("NVIDIA A100-SXM4-80GB", ("A10",), (), False),
        ("NVIDIA A10", ("A10",), (), True),
        ("NVIDIA A10", ("A100",), (), False),
        ("NVIDIA A10G", ("A10",), (), False),
        ("NVIDIA L40S", ("L40",), (), False),
        ("NVIDIA A100-SXM4-80GB", ("a100-80",), (), True),
        ("NVIDIA A100-SXM4-80GB", ("A100-80GB",), (), True),
        ("NVIDIA A100-SXM4-80GB", ("A100-40",), (), False),
        ("NVIDIA A100-SXM4-80GB", ("NVIDIA-NVIDIA A100-SXM4-80GB",), (), True),
        ("Tesla T4", ("NVIDIA-Tesla T4",), (), True),
        ("NVIDIA T400", ("T4",), (), False),
        ("Tesla T4", ("A100", "t4"), (), True),
        ("Tesla T4", ("T4",), ("Tesla",), False),
        ("Tesla T4", (), ("T400",), True),
        ("Tesla T4", (), ("T4",), False),
        ("Tesla T4", ("",), (), False),
    ],
)
def test_c120_types_are_matched_by_words(kind: str, types: Any, no_types: Any, takes: bool) -> None:
    books = books_of(node("n", [{"kind": kind}]))
    found = books.filter(ask(want(gib=1), types=types, no_types=no_types))
    assert found.counts() == ({} if takes else {Code.CARD_TYPE: 1})


def test_c121_cards_are_chosen_by_uuid_and_index() -> None:
    books = books_of(node("n", 4), node("m", 4))
    two = frozenset({"GPU-n-1", "GPU-n-3"})
    for count in (1, 2):
        assert books.filter(ask(want(gib=1, cards=count), uuids=two)).fitting == ["n"]
    assert books.filter(ask(want(gib=1, cards=3), uuids=two)).counts() == {Code.CARD_UUID: 2}
    assert cards(books, "n", want(gib=1, cards=2), uuids=two) == [[1, 3]]
    assert cards(books, "n", want(gib=1, cards=2), no_uuids=two) == [[0, 2]]
    assert cards(books, "n", want(gib=1, cards=1), uuids=two, no_uuids=frozenset({"GPU-n-1"})) == [[3]]
    assert cards(books, "n", want(gib=1), indexes=frozenset({2})) == [[2]]
    assert cards(books, "n", want(gib=1, cards=2), no_indexes=frozenset({0, 1})) == [[2, 3]]
    assert books.filter(ask(want(gib=1), indexes=frozenset({9}))).counts() == {Code.CARD_INDEX: 2}


def test_init_and_app_containers_share_a_card() -> None:
    books = books_of(node("n", 2))
    init, app = whole(name="init", role=Role.INIT), want("app", gib=4)
    assert cards(books, "n", init, app) == [[0], [0]]
    used(books, "n", {1: 76})
    assert books.nodes["n"].cores == [0, 1000]


def values(chosen: Sequence[int], words: Sequence[str], state: NodeState) -> list[int]:
    """Return what each word of a chain makes of a choice; cards are alike, and the pod has no cores."""
    use = sum((80 * GI - state.memory[at]) * 10 + state.tenants[at] * 80 * GI for at in chosen)
    value = {
        "binpack": use,
        "spread": -use,
        "numa": -len({state.kinds[at].numa for at in chosen}),
        "topology-aware": state.topologies["nvidia"].score(sum(1 << at for at in chosen), state.empty),
    }
    return [value[word] for word in words]


@pytest.mark.parametrize("seed", range(150))
def test_a_choice_is_the_best_of_all_by_its_chain(seed: int) -> None:
    random = Random(seed)
    size = random.randint(2, 6)
    pairs = [pair for pair in combinations(range(size), 2) if random.random() < 0.5]
    books = books_of(node("n", [{"numa": random.choice((0, 1))} for _ in range(size)], groups(*pairs)))
    used(books, "n", {at: random.choice((8, 16, 24)) for at in range(size) if random.random() < 0.6})
    words = tuple(random.sample(("binpack", "spread", "numa", "topology-aware"), random.randint(1, 2)))
    count = random.randint(1, size)
    state = books.nodes["n"]
    all_values = {chosen: values(chosen, words, state) for chosen in combinations(range(size), count)}
    (found,) = cards(books, "n", want(gib=1, cards=count), card_policies=words)
    assert all_values[tuple(found)] == max(all_values.values())


@pytest.mark.parametrize("share_class", list(ShareClass))
def test_a_card_of_one_class_takes_no_other_while_somebody_is_on_it(share_class: ShareClass) -> None:
    books = books_of(node("n", [{"qos": ShareClass.BURST}]))
    assert books.filter(ask(want(gib=1, cores=100, share_class=share_class))).fitting == ["n"]
    used(books, "n", {0: 1}, share_class=ShareClass.BURST)
    found = books.filter(ask(want(gib=1, cores=100, share_class=share_class)))
    assert found.counts() == ({} if share_class is ShareClass.BURST else {Code.CARD_QOS: 1})


def test_an_answer_names_only_nodes_of_the_question() -> None:
    books = books_of(node("n", 1), node("m", 1))
    pod = ask(want(gib=1))
    found = books.filter(pod, ["m", "nowhere", "m"])
    assert (found.fitting, found.counts()) == (["m"], {Code.NODE_UNKNOWN: 1})
    assert books.rank(pod, ["nowhere", "m"]) == [("m", 10)]
    with pytest.raises(ShareRefused, match="NodeUnknown"):
        books.reserve(pod, "nowhere", 0.0)


def test_nodes_on_which_the_same_is_free_are_told_apart_by_their_links() -> None:
    books = books_of(node("a", 4), node("b", 4, groups((0, 1), (2, 3))), node("c", 4))
    pod = ask(whole(2, name="x"), whole(2, name="y"), nvlink="required")
    found = books.filter(pod)
    assert (found.fitting, found.counts()) == (["b"], {Code.NVLINK: 2})
    assert [name for name, _ in books.rank(pod, ["a", "b", "c"])] == ["b"]


class Counting(NvidiaTopology):
    """Counts how often it is asked whether cards are joined."""

    asked = 0

    def is_joined(self, chosen: int) -> bool:
        self.asked += 1
        return super().is_joined(chosen)


@pytest.mark.parametrize("seed", range(20))
def test_choices_of_joined_cards_are_those_of_trying_all_in_the_same_order(seed: int) -> None:
    random = Random(seed)
    size, count = random.randint(2, 8), random.randint(1, 5)
    pairs = {pair for pair in combinations(range(size), 2) if random.random() < 0.7}
    links = devices([card("n", at) for at in range(size)], lambda a, b: nvlinks(int((a, b) in pairs))).links
    topology = NvidiaTopology(links, range(size))
    pool = random.randrange(1 << size)
    expected = [mask for mask in subsets(pool, count) if topology.is_joined(mask)]
    assert list(joined_subsets(topology, pool, count)) == expected


def test_k18_a_node_of_many_cards_of_which_few_are_joined_keeps_nobody_waiting() -> None:
    """Ten million choices of 8 of 32 cards: hardly any has to be made."""
    many = devices([card("n", at) for at in range(32)], groups(*((at, at + 1) for at in range(0, 32, 2))))
    topology = Counting(many.links, range(32))
    assert list(joined_subsets(topology, (1 << 32) - 1, 8)) == []
    assert topology.asked <= 32 * 31 / 2
    books = books_of(NodeFacts("n", many))
    assert books.filter(ask(want(gib=1, cards=8), nvlink="required")).counts() == {Code.NVLINK: 1}
    assert books.filter(ask(*(want(name, gib=1, cards=8) for name in "ab"), nvlink="required")).fitting == []


def test_k18_what_is_kept_of_a_nodes_links_has_a_bound() -> None:
    """On 16 cards there are four thousand million states that a node can be in."""
    books = books_of(node("n", 4, groups((0, 1), (2, 3))))
    topology = books.nodes["n"].topologies["nvidia"]
    topology.memo.update({("old", number): (1,) for number in range(2 * MEMO_MAX)})
    for wishes in ({"nvlink": "required"}, {"nvlink": "preferred"}, {"one_numa_node": True}):
        first(books, want(gib=1, cards=2), **wishes)
    assert len(topology.memo) < MEMO_MAX
