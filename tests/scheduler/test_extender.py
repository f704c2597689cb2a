"""We test these aspects of the extender's answers: both forms of a question; places are promised between filter and
bind, move and expire; what no card could hold is refused with a reason; answers name only nodes of the question."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from partage.devices.ask import read_ask
from partage.model import AskError, UsageError, names
from partage.scheduler.protocol import encode, read_args
from tests.cluster.scheduling import node, share_pod
from tests.scheduler.extending import Desk, one_card

BIG = 50_000  # MiB: one of them fits a card


def test_every_node_that_fits_is_returned_and_the_others_have_a_reason() -> None:
    desk = Desk(node("a"), node("b"), node("c", memory=16 << 30))
    answer = desk.extender.filter(desk.args(desk.pod("p", memory=BIG)))
    assert answer.node_names == ["a", "b"]
    assert answer.failed_and_unresolvable_nodes == {"c": "8/8 CardInsufficientMemory"}


def test_k18_c117_an_answer_names_only_nodes_of_the_question() -> None:
    desk = Desk(node("a"), node("b"))
    asked = ["b", "never-heard-of"]
    answer = desk.extender.filter(desk.args(desk.pod("p"), asked))
    assert answer.node_names == ["b"]
    assert set(answer.failed_and_unresolvable_nodes) == {"never-heard-of"}
    assert desk.prioritize(desk.pod("p"), asked) == [("b", 10)]


def test_a_pod_that_asks_for_nothing_of_ours_fits_everywhere() -> None:
    desk = Desk(node("a"))
    pod = desk.pod("p")
    del pod["spec"]["containers"][0]["resources"]
    assert desk.filter(pod, ["a", "x"]) == ["a", "x"]


def test_whole_nodes_come_back_byte_for_byte_and_strangers_are_judged_as_they_stand() -> None:
    desk = Desk(node("a"))
    full = desk.pod("full", memory=80 * 1024, cards=8)
    assert desk.choose(full) == "a"
    stranger, small = node("template-1"), node("template-2", memory=1 << 30)
    texts = {one["metadata"]["name"]: json.dumps(one, indent=1) for one in (node("a"), stranger, small)}
    body = f'{{"Pod": {json.dumps(desk.pod("p", memory=BIG))}, "Nodes": {{"items": [{", ".join(texts.values())}]}}}}'
    answer = desk.extender.filter(read_args(body.encode()))
    written = encode(answer)
    assert texts["template-1"].encode() in written
    assert set(answer.failed_and_unresolvable_nodes) == {"a", "template-2"}
    assert "template-1" not in desk.books.nodes
    assert desk.books.reservation("uid-p") is None


def test_k18_a_whole_node_that_is_none_is_said_to_whoever_asked() -> None:
    desk = Desk(one_card("a"))
    bad = one_card("stranger")
    bad["metadata"]["annotations"] = {"partage.io/devices": 7}
    question = {"Pod": desk.pod("p", memory=BIG), "Nodes": {"items": [bad]}}
    with pytest.raises(UsageError, match="what kube-scheduler sends"):
        desk.extender.filter(read_args(json.dumps(question).encode()))


def test_the_last_place_is_promised_before_the_bind() -> None:
    desk = Desk(one_card("a"), one_card("b"))
    first, second, third = (desk.pod(name, memory=BIG) for name in ("p1", "p2", "p3"))
    chosen = [desk.choose(first), desk.choose(second)]
    assert sorted(chosen) == ["a", "b"]
    assert desk.filter(third) == []


def test_a_promise_moves_where_bind_names_another_node() -> None:
    async def play() -> None:
        desk = Desk(one_card("a"), one_card("b"))
        pod = desk.pod("p", memory=BIG)
        chosen = desk.choose(pod)
        other = "b" if chosen == "a" else "a"
        assert await desk.bind(pod, other) == ""
        assert desk.filter(desk.pod("q", memory=BIG)) == [chosen]
        assert desk.grant("p")["node"] == other

    asyncio.run(play())


def test_a_promise_that_no_bind_comes_for_is_given_back() -> None:
    async def play() -> None:
        desk = Desk(one_card("a"), reserved_s=30)
        assert desk.choose(desk.pod("p", memory=BIG)) == "a"
        late = desk.pod("q", memory=BIG)
        desk.clock.time += 29
        await desk.extender.settle()
        assert desk.filter(late) == []
        desk.clock.time += 2
        await desk.extender.settle()
        assert desk.filter(late) == ["a"]

    asyncio.run(play())


def test_a_pod_that_is_filtered_again_does_not_stand_in_its_own_way() -> None:
    desk = Desk(one_card("a"))
    pod = desk.pod("p", memory=BIG)
    assert [desk.choose(pod) for _ in range(3)] == ["a"] * 3


def test_a_pod_that_goes_gives_back_its_promise() -> None:
    desk = Desk(one_card("a"))
    desk.choose(desk.pod("p", memory=BIG))
    desk.gone("p")
    assert desk.filter(desk.pod("q", memory=BIG)) == ["a"]


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "9"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "90000"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1 << 63)},
        {"nvidia.com/gpu": str(1 << 63)},
        {"nvidia.com/gpu": "-1"},
        {"nvidia.com/gpu": "1500m"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "a lot"},
    ],
    ids=lambda limits: ",".join(f"{key.split('/')[1]}={value}" for key, value in limits.items()),
)
def test_k18_c114_what_no_card_holds_is_refused_with_a_reason_and_others_go_on(limits: dict[str, str]) -> None:
    desk = Desk(node("a"), node("b"))
    pod = desk.pod("p")
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    answer = desk.extender.filter(desk.args(pod))
    assert answer.node_names == []
    assert answer.error == ""
    assert set(answer.failed_and_unresolvable_nodes) == {"a", "b"}
    assert all(answer.failed_and_unresolvable_nodes.values())
    assert desk.filter(desk.pod("q")) == ["a", "b"]


def test_k18_what_is_wrong_with_a_pod_of_many_containers_is_no_flood() -> None:
    """It is said once for every node: of a thousand containers on a thousand nodes that would be gigabytes."""
    desk = Desk(node("a"), node("b"))
    pod = desk.pod("p")
    (one,) = pod["spec"]["containers"]
    one["resources"]["limits"]["nvidia.com/gpumem"] = "a lot of memory"
    pod["spec"]["containers"] = [one | {"name": f"c{at}"} for at in range(1000)]
    texts = desk.extender.filter(desk.args(pod)).failed_and_unresolvable_nodes
    assert all("container c0, nvidia.com/gpumem" in text and len(text) < 1000 for text in texts.values())
    with pytest.raises(AskError, match="and 993 more") as caught:
        read_ask(pod)
    assert len(str(caught.value)) < 10_000
    assert len(caught.value.problems) == 1001, "and that no grant has room for so many"


def test_what_binds_carries() -> None:
    async def play() -> None:
        desk = Desk(one_card("a"))
        pod = desk.pod("p", memory=8000, cores=30)
        assert await desk.bind(pod, desk.choose(pod)) == ""
        (order,) = desk.api.posts
        assert order["metadata"]["uid"] == "uid-p"
        assert order["target"] == {"apiVersion": "v1", "kind": "Node", "name": "a"}
        notes: dict[str, Any] = order["metadata"]["annotations"]
        assert notes.pop("hami.io/vgpu-time") == notes.pop("hami.io/bind-time")
        grant = json.loads(notes.pop(names.GRANT))
        assert (grant["term"], grant["node"], grant["uid"]) == (7, "a", "uid-p")
        assert notes == {
            "hami.io/vgpu-devices-allocated": "GPU-a-0,NVIDIA,8000,30:;",
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/vgpu-node": "a",
            "hami.io/bind-phase": "success",
        }
        assert desk.api.reads == 0
        assert len(desk.api.posts) == 1

    asyncio.run(play())


def test_grants_of_one_moment_have_an_order() -> None:
    async def play() -> None:
        desk = Desk(node("a"))
        for number in range(5):
            pod = desk.pod(f"p{number}")
            assert await desk.bind(pod, desk.choose(pod)) == ""
        times = [desk.grant(f"p{number}")["boundAt"] for number in range(5)]
        assert times == sorted(set(times))

    asyncio.run(play())


def test_a_pod_that_another_process_filtered_is_bound_by_what_the_watch_has_of_it() -> None:
    async def play() -> None:
        desk = Desk(one_card("a"))
        pod = desk.pod("p")
        assert "not known" in await desk.bind(pod, "a")
        assert desk.api.posts == []

    asyncio.run(play())


def test_shares_of_two_containers_are_one_answer() -> None:
    desk = Desk(one_card("a"))
    pod = share_pod("p", memory=30_000)
    pod["spec"]["containers"].append(json.loads(json.dumps(pod["spec"]["containers"][0])) | {"name": "b"})
    made = desk.api.add(pod, "uid-p")
    assert desk.filter(made) == ["a"]
    pod["spec"]["containers"][1]["resources"]["limits"]["nvidia.com/gpumem"] = "60000"
    assert desk.filter(desk.api.add(pod, "uid-p")) == []
