"""What restarts, late answers and lost cards must not change: who has room, whose limits hold, that the agent lives."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from partage.model import names
from partage.model.need import Role
from partage_plugin import front
from partage_plugin.handover.cdi import CdiDirectory
from partage_plugin.kubelet.seats import seat_id
from tests.plugin.test_handover import refused, run
from tests.plugin.test_life import has_memory, policy, process_in, started, until
from tests.plugin.world import CARDS, GI, World, card, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from partage.devices.backend import ContainerEdits
    from partage.model.grant import GrantShare
    from tests.plugin.kubelet import Entry


async def late_one_runs(world: World) -> tuple[Entry, Entry]:
    """Two pods that do not fit together: the later one by its grant runs, the earlier one waits."""
    for uid, at in (("u2", 9), ("u1", 5)):
        text = grant_text(uid, at=at, app=part(share(0, 50 * GI)))
        await world.pods.put(pod_of(uid, text=text, app=part()))
        entry = await world.kubelet.allocate(uid, f"default/pod-{uid}", "app")
        if uid == "u2":
            await world.kubelet.pre_start(entry)
    early, late = world.kubelet.entries[1], world.kubelet.entries[0]
    await refused(world, early)
    return early, late


def test_a_restart_of_the_agent_does_not_let_in_who_waited(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            early, late = await late_one_runs(world)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            assert policy(world, late).is_open
            assert not policy(world, early).is_open, "100 of 80 GiB are open"
            assert "pod-u2" in await refused(world, early)
        await world.kubelet.stop()

    run(go())


def test_a_container_that_ran_starts_again_before_who_waits_for_its_end(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            early, late = await late_one_runs(world)
            await world.kubelet.pre_start(late)  # it crashed: else both wait for each other
            await refused(world, early)

    run(go())


def test_a_card_that_is_gone_after_a_restart(tmp_path: Path) -> None:
    """The agent goes on, and so does the pod's container on the other card; a resize of the pod is refused whole."""

    async def go() -> None:
        world = World(tmp_path)
        containers: dict[str, Any] = {"a": part(share(0)), "b": part(share(1))}
        async with world.running():
            await world.pods.put(pod_of("u1", **containers))
            first, second = [await world.kubelet.allocate("u1", "default/pod-u1", name) for name in containers]
            await world.kubelet.pre_start(first)
            await world.kubelet.pre_start(second)
        world.backend.cards = (card(0),)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            await world.kubelet.pre_start(first)
            text = grant_text("u1", gen=2, a=part(share(0, 9 * GI)), b=part(share(1)))
            await world.pods.put(pod_of("u1", text=text, **containers))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert world.told.conditions["pod-u1", names.CONDITION_RESIZED][:2] == (False, "CardMissing")
            assert [policy(world, entry).generation for entry in (first, second)] == [1, 1], "one of two was changed"
        await world.kubelet.stop()

    run(go())


def test_k11_an_init_container_whose_card_failed_keeps_no_other_from_starting_again(tmp_path: Path) -> None:
    """They have the same ids: kubelet's call does not say which of them starts, and only one that may is let."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            made = pod_of("u1", roles={"init": Role.INIT}, app=part(share(1)), init=part(share(0)))
            await world.pods.put(made)
            app = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            init = await world.kubelet.allocate("u1", "default/pod-u1", "init", ids=app.ids, init=True)
            await world.kubelet.pre_start(init)
            failed = card(0, healthy=False, reason="XID 79")
            world.backend.cards = (failed, card(1))
            await agent.discover()
            await world.kubelet.pre_start(app)
            specs = CdiDirectory(world.places.cdi)
            assert (policy(world, app).is_open, policy(world, init).is_open) == (True, False)
            assert specs.names() == {app.name}
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][0], "it is said of the one that runs"
            assert any("XID 79" in text for _, _, text in world.told.events)
            world.backend.cards = (failed, replace(failed, index=1, uuid=CARDS[1]))
            await agent.discover()
            with pytest.raises(grpc.aio.AioRpcError, match="XID 79"):
                await world.kubelet.pre_start(app)
            world.backend.cards = (card(0), card(1))
            await agent.discover()
            await world.kubelet.pre_start(init)
            assert (policy(world, app).is_open, policy(world, init).is_open) == (True, True)
            assert specs.names() == {app.name, init.name}

    run(go())


def test_k12_a_checkpoint_that_is_written_late_still_says_whose_all_is(tmp_path: Path) -> None:
    """The agent restarts beside a spoilt one: what runs is counted once, under its pod, once kubelet has written it."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            busy = await started(world, "u1", app=part(share(0, 50 * GI, 0)))
            idle = await started(world, "u2", app=part(share(1, 50 * GI, 0)))
        world.kubelet.write_raw_checkpoint("{}")
        await world.kubelet.start()
        async with process_in(world.places.root / busy.name / "ledger"), world.agent() as agent:
            await world.kubelet.registered()
            assert set(agent.desk.held) == {busy.name}
            third = await started(world, "u3", app=part(share(0, 30 * GI, 0)))
            assert {name: held.pod for name, held in agent.desk.held.items()} == {
                busy.name: "default/pod-u1",
                idle.name: "default/pod-u2",
                third.name: "default/pod-u3",
            }
            for entry, uid, index in ((busy, "u1", 0), (idle, "u2", 1)):
                smaller = part(share(index, 40 * GI, 0))
                await world.pods.put(pod_of(uid, text=grant_text(uid, gen=2, app=smaller), app=smaller))
                await until(partial(has_memory, world, entry, 40 * GI))
        await world.kubelet.stop()

    run(go())


def test_k12_who_has_a_share_keeps_ids_of_a_card_that_did_not_come_back(tmp_path: Path) -> None:
    """Kubelet re-admits after its restart what has all its ids in the list, and fails the rest for ever."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            for uid, index in (("u1", 0), ("u2", 1)):
                await world.pods.put(pod_of(uid, app=part(share(index))))
            lost = seat_id(CARDS[1], 3), seat_id(CARDS[1], 4)
            mine = await world.kubelet.allocate("u1", "default/pod-u1", "app", ids=lost[:1])
            gone = await world.kubelet.allocate("u2", "default/pod-u2", "app", ids=lost[1:])
            await world.kubelet.pre_start(mine)
            await world.kubelet.pre_start(gone)
        shutil.rmtree(world.places.root)  # a reboot
        world.backend.cards = (card(0),)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            await world.kubelet.pre_start(mine)
            assert set(mine.ids) <= world.kubelet.healthy()
            assert not set(gone.ids) & set(world.kubelet.devices), "its card is gone: it is to be placed anew"
            assert len(world.kubelet.healthy()) == 10, "of ten shares one is held under an id of the other card"
            world.kubelet.entries.clear()
            world.kubelet.write_checkpoint()
            await world.pods.delete("u1")
            await world.kubelet.until(
                lambda kubelet: set(kubelet.healthy()) == {seat_id(CARDS[0], n) for n in range(10)}
            )
        await world.kubelet.stop()

    run(go())


def test_what_was_adopted_without_its_pod_is_resized_when_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server was away at the start: what runs keeps generation and limit, then follows its grant."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        world.pods.pods.clear()
        world.pods.synced.clear()
        monkeypatch.setattr(front, "SYNC_S", 0.01)
        await world.kubelet.start()
        async with world.agent() as agent:
            await world.kubelet.registered()
            assert policy(world, entry).generation == 1
            await world.pods.put(pod_of("u1", text="", app=part()))
            await until(lambda: agent.desk.held[entry.name].pod == "default/pod-u1")
            assert not world.told.events, "what runs was refused"
            text = grant_text("u1", gen=2, app=part(share(0, 4 * GI)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await until(lambda: policy(world, entry).generation == 2)
            assert policy(world, entry).devices[0].memory == 4 * GI
        await world.kubelet.stop()

    run(go())


class Slow:
    """A backend's `prepare` that takes until the test lets it go on."""

    def __init__(self, world: World) -> None:
        self._prepare = world.backend.prepare
        self.asked = 0
        self.go_on = asyncio.Event()
        world.backend.prepare = self  # type: ignore[method-assign]

    async def __call__(self, shares: Sequence[GrantShare]) -> ContainerEdits:
        self.asked += 1
        await self.go_on.wait()
        return await self._prepare(shares)


def test_a_grant_that_changes_while_its_devices_are_prepared(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, 12 * GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            slow = Slow(world)
            start = asyncio.ensure_future(world.kubelet.pre_start(entry))
            await until(lambda: slow.asked)
            text = grant_text("u1", gen=2, app=part(share(0, 4 * GI)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await asyncio.sleep(0)  # the follower of pods sees it: nothing is open yet
            slow.go_on.set()
            await start
            assert (policy(world, entry).generation, policy(world, entry).devices[0].memory) == (2, 4 * GI)

    run(go())


def test_kubelet_asks_again_while_devices_are_prepared(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            slow = Slow(world)
            starts = [asyncio.ensure_future(world.kubelet.pre_start(entry)) for _ in range(2)]
            await until(lambda: slow.asked == 2)
            slow.go_on.set()
            await asyncio.gather(*starts)
            assert policy(world, entry).is_open

    run(go())


def test_a_hand_over_that_somebody_removed(tmp_path: Path) -> None:
    """Under the agent's eyes: the container's next start has a policy again, and later resizes reach it."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            shutil.rmtree(world.places.root / entry.name)
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).is_open
            text = grant_text("u1", gen=2, app=part(share(0, 9 * GI)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await until(lambda: policy(world, entry).generation == 2)

    run(go())


def test_k12_what_a_runtime_made_in_place_of_a_hand_over_that_was_removed(tmp_path: Path) -> None:
    """While the agent is away it makes directories of what it is to mount; the next start is as any other."""

    async def go() -> None:
        world = World(tmp_path)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        place = world.places.root / entry.name
        shutil.rmtree(place)
        (place / "ledger/made inside").mkdir(parents=True)
        async with world.agent():
            await world.kubelet.until(lambda kubelet: len(kubelet.requests) > 1 and kubelet.devices)
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).devices[0].memory == 8 * GI
            assert (place / "ledger").is_file()
        await world.kubelet.stop()

    run(go())


def test_more_than_the_card_has_is_no_resize(tmp_path: Path) -> None:
    """Promises may add up to more than the card, a single share may not."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running(oversub=2000):
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            text = grant_text("u1", gen=2, app=part(share(0, 100 * GI)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert world.told.conditions["pod-u1", names.CONDITION_RESIZED][:2] == (False, "ShareTooLarge")
            assert policy(world, entry).devices[0].memory == 8 * GI

    run(go())


@pytest.mark.parametrize(
    "text",
    ['{"Data":' + '{"a":' * 100_000, '{"Data":{"PodDeviceEntries":' + "[" * 100_000, "\x00" * (1 << 20)],
    ids=["deep", "deep-list", "zeros"],
)
def test_garbage_for_a_checkpoint_ends_nothing(tmp_path: Path, text: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.places.plugins.mkdir()
        world.kubelet.write_raw_checkpoint(text)
        async with world.running():
            assert len(world.kubelet.devices) == 10 * len(CARDS)
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.kubelet.write_raw_checkpoint(text)
            await world.kubelet.pre_start(entry)  # PodResources and what was minted leave no doubt
            assert policy(world, entry).is_open

    run(go())
