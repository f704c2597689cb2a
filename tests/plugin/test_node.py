"""What the node says of its cards: on change only, ours restored, others' never fought over, a dead API waited for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partage.devices.backend import Card, HealthChange, Inventory
from partage.devices.nvidia.hami import CORDON
from partage.model import UsageError, names
from partage.model.node_devices import DeviceLink, SafeMode, parse_node_devices
from partage_plugin import node as node_room
from partage_plugin.cards import Cards
from partage_plugin.node import LOOK_EVERY_S, NodeMeta, NodeWriter
from partage_plugin.node_text import Say, node_text, whole_inventory
from tests.devices.clock import HandClock
from tests.plugin.kubelet import HANG_S

if TYPE_CHECKING:
    from collections.abc import Mapping

MI = 1 << 20
REGISTER, SCORE = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"
SAY = Say(version="1.0", backend="nvidia")


def inventory(count: int = 2) -> Inventory:
    cards = tuple(
        Card(
            uuid=f"GPU-{index}",
            index=index,
            name="NVIDIA A100 80GB PCIe",
            physical=81920 * MI,
            allocatable=72228 * MI,
            seats=10,
            numa=0,
        )
        for index in range(count)
    )
    links = tuple(
        tuple(DeviceLink() if a == b else DeviceLink(kind="nvlink", lanes=12) for b in range(count))
        for a in range(count)
    )
    return Inventory(cards, links, {"driver": "580.65.06", "cuda": "13.0"})


class Node:
    """This node's object, in memory; `refusals`: how many requests fail from now on."""

    def __init__(self, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> None:
        self.meta = NodeMeta(dict(annotations or {}), dict(labels or {}))
        self.writes: list[tuple[dict[str, str], dict[str, str]]] = []
        self.refusals = 0

    async def read(self) -> NodeMeta:
        self._refuse()
        return self.meta

    async def merge(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self._refuse()
        self.writes.append((dict(annotations), dict(labels)))
        self.meta = NodeMeta({**self.meta.annotations, **annotations}, {**self.meta.labels, **labels})

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise UsageError("node", "500", "an answer", "wait")

    @property
    def devices(self):  # type: ignore[no-untyped-def]
        return parse_node_devices(self.meta.annotations[names.DEVICES], node="n1")


class World:
    def __init__(self, node: Node, say: Say = SAY) -> None:
        self.node, self.say, self.safe = node, say, ()
        self.cards, self.clock = Cards(), HandClock()
        self.runtimes: list[str] = []
        self.writer = NodeWriter(
            "n1",
            node,
            self.cards,
            self.clock,
            say=lambda: self.say,
            safe=lambda: self.safe,
            on_runtime=self.runtimes.append,
        )

    async def pass_time(self, seconds: float) -> None:
        """Let so much time go by, in steps, with everything done that is due."""
        passed = 0.0
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if passed >= seconds:
                return
            self.clock.move(0.5)
            passed += 0.5


def play(node: Node, story, say: Say = SAY) -> World:  # type: ignore[no-untyped-def]
    world = World(node, say)

    async def go() -> None:
        running = asyncio.ensure_future(world.writer.run())
        try:
            await story(world)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())
    return world


async def found(world: World, what: Inventory) -> None:
    world.cards.found(what)
    await world.writer.tell()
    await world.pass_time(2)


def test_cards_are_written_once_and_ten_quiet_minutes_write_nothing() -> None:
    async def story(world: World) -> None:
        await world.pass_time(5)
        assert not world.node.writes, "an earlier agent's annotation stands until cards were looked for"
        await found(world, inventory())
        assert len(world.node.writes) == 1
        for _ in range(20):
            world.cards.found(inventory())
            await world.writer.tell()
            await world.pass_time(30)
        assert len(world.node.writes) == 1

    devices = play(Node(), story).node.devices
    assert (devices.gen, devices.agent, devices.oversub) == (1, "1.0", 1000)
    assert [device.memory for device in devices.devices] == [72228 * MI] * 2
    assert devices.links[0][1] == DeviceLink(kind="nvlink", lanes=12)


def test_the_runtime_is_told_at_each_look() -> None:
    async def story(world: World) -> None:
        await found(world, inventory())
        world.node.meta = NodeMeta(world.node.meta.annotations, world.node.meta.labels, "containerd://2.2.9")
        await world.pass_time(LOOK_EVERY_S + 1)

    assert play(Node(), story).runtimes == ["", "containerd://2.2.9"]


def test_a_restarted_agent_writes_nothing_where_nothing_changed() -> None:
    node = Node()
    play(node, lambda world: found(world, inventory()))
    play(node, lambda world: found(world, inventory()))
    assert len(node.writes) == 1


def test_a_card_that_fails_and_returns_is_two_writes_of_what_changed() -> None:
    async def story(world: World) -> None:
        await found(world, inventory())
        for change in (HealthChange("GPU-1", False, "XID 79"), HealthChange("GPU-1", True)):
            world.cards.health(change)
            await world.writer.tell()
            await world.pass_time(2)

    node = play(Node(), story).node
    assert [sorted(annotations) for annotations, _ in node.writes[1:]] == [[REGISTER, names.DEVICES]] * 2
    assert [labels for _, labels in node.writes[1:]] == [{}, {}]
    failed = parse_node_devices(node.writes[1][0][names.DEVICES], node="n1")
    assert (failed.gen, failed.devices[1].health, failed.devices[1].reason) == (2, False, "XID 79")
    assert node.devices.gen == 3
    assert node.devices.devices[1].health


def test_a_flapping_card_is_written_once_in_a_while() -> None:
    async def story(world: World) -> None:
        await found(world, inventory())
        for round_ in range(100):
            world.cards.health(HealthChange("GPU-1", bool(round_ % 2), "" if round_ % 2 else "XID 79"))
            await world.writer.tell()
            for _ in range(10):
                await asyncio.sleep(0)
            world.clock.move(0.05)
        await world.pass_time(3)

    node = play(Node(), story).node
    assert len(node.writes) <= 8
    assert node.devices.devices[1].health


def test_the_api_server_is_waited_for_and_then_told_the_latest() -> None:
    async def story(world: World) -> None:
        world.node.refusals = 3
        await found(world, inventory(1))
        assert not world.node.writes
        await found(world, inventory(2))
        await world.pass_time(60)

    node = play(Node(), story).node
    assert len(node.writes) == 1
    assert len(node.devices.devices) == 2


def test_what_others_did_to_our_annotation_is_undone_and_to_theirs_is_not() -> None:
    async def story(world: World) -> None:
        await found(world, inventory())
        meta = world.node.meta
        theirs = {names.DEVICES: "{}", REGISTER: "[]"}
        world.node.meta = NodeMeta({**meta.annotations, **theirs}, {**meta.labels, "nvidia.com/gpu.product": "A100"})
        await world.pass_time(1300)

    node = play(Node(), story).node
    assert len(node.writes) == 2
    assert sorted(node.writes[1][0]) == [names.DEVICES]
    assert node.writes[1][1] == {}
    assert node.meta.annotations[REGISTER] == "[]"
    assert node.meta.labels["nvidia.com/gpu.product"] == "A100"


def test_a_node_that_was_made_anew_gets_all_again() -> None:
    async def story(world: World) -> None:
        await found(world, inventory())
        world.node.meta = NodeMeta()
        await world.pass_time(400)

    node = play(Node(), story).node
    assert node.writes[0] == node.writes[1]


@pytest.mark.parametrize(("labels", "hami"), [(True, False), (False, True), (False, False)])
def test_labels_and_hamis_annotations_where_wanted(labels: bool, hami: bool) -> None:
    node = play(Node(), lambda world: found(world, inventory()), replace(SAY, labels=labels, hami=hami)).node
    assert bool(node.meta.labels) == labels
    assert set(node.meta.annotations) == {names.DEVICES} | ({REGISTER, SCORE} if hami else set())


def test_whole_cards_given_without_a_grant_are_told() -> None:
    async def story(world: World) -> None:
        world.safe = (SafeMode(pod="uid", uuids=("GPU-0",)),)  # type: ignore[assignment]
        await found(world, inventory())

    assert json.loads(play(Node(), story).node.meta.annotations[names.DEVICES])["safe"] == [
        {"pod": "uid", "uuids": ["GPU-0"]}
    ]


def test_a_card_that_is_gone_stays_listed_as_far_away() -> None:
    cards = Cards()
    cards.found(inventory(3))
    two = inventory(2)
    cards.found(Inventory((two.cards[0], replace(inventory(3).cards[2])), two.links, two.facts))
    whole = whole_inventory(cards)
    assert [card.healthy for card in whole.cards] == [True, False, True]
    assert whole.links[0][2] == DeviceLink(kind="nvlink", lanes=12)
    assert whole.links[0][1] == whole.links[1][2] == DeviceLink(kind="system")


def test_a_change_before_its_follower_gets_its_turn_is_none_that_it_missed() -> None:
    """Whoever follows looks, and then waits for what comes after that look."""

    async def go() -> None:
        cards = Cards()
        cards.found(inventory())
        waiting = asyncio.ensure_future(cards.changed())
        cards.health(HealthChange("GPU-0", False, "XID 79"))  # the loop has not begun it yet
        async with asyncio.timeout(HANG_S):
            await waiting

    asyncio.run(go())


def test_a_spoilt_annotation_is_written_anew() -> None:
    text = node_text(inventory(), SAY, (), '{"v":9}', "n1")
    assert parse_node_devices(text.devices, node="n1").gen == 1


def test_who_gives_a_whole_card_asks_what_is_cordoned_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the look of some minutes ago said; that stands where the API server refuses or does not answer."""
    monkeypatch.setattr(node_room, "CORDON_S", 0.01)

    async def go() -> None:
        node = Node()
        world = World(node)
        assert await world.writer.cordoned_now() == frozenset()
        node.meta = NodeMeta({CORDON: "GPU-1"})
        assert await world.writer.cordoned_now() == {"GPU-1"}
        node.meta, node.refusals = NodeMeta(), 1
        assert await world.writer.cordoned_now() == {"GPU-1"}

        async def hang() -> NodeMeta:
            await asyncio.Event().wait()
            return NodeMeta()

        monkeypatch.setattr(node, "read", hang)
        assert await world.writer.cordoned_now() == {"GPU-1"}

    asyncio.run(go())
