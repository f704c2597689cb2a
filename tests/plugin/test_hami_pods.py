"""Pods that HAMi placed: what they have is counted, they get nothing here, and a twin that cannot be read closes its
cards. Also: a mode that the backend cannot hold is refused before anything is handed over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.model.hami_twin import ANNOTATION
from partage.shm import read_policy
from partage_plugin.handover.grants import Grants
from tests.plugin.test_handover import refused, run
from tests.plugin.world import CARDS, GI, NODE, World, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from pathlib import Path

    from partage_plugin.ports import Pod


def of_hami(uid: str, twin: str) -> Pod:
    return replace(pod_of(uid, text="", app=part()), annotations={ANNOTATION: twin}, phase="Running")


def twin(index: int, mib: int, cores: int = 0) -> str:
    return f"{CARDS[index]},NVIDIA,{mib},{cores}:;"


async def allocate(world: World, uid: str):  # type: ignore[no-untyped-def]
    return await world.kubelet.allocate(uid, f"default/pod-{uid}", "app")


def test_what_hami_gave_is_counted(tmp_path: Path) -> None:
    """It came first, whatever the times say, and room is there again once its pod is over."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            theirs = await world.pods.put(of_hami("h1", twin(0, 60 * 1024)))
            await world.pods.put(pod_of("u0", app=part(share(0, 20 * GI, 0))))
            await world.kubelet.pre_start(await allocate(world, "u0"))
            await world.pods.put(pod_of("u1", app=part(share(0, 24 * GI, 0))))
            entry = await allocate(world, "u1")
            assert "default/pod-h1" in await refused(world, entry)
            assert world.told.events[-1][:2] == ("pod-u1", "CardOverpromised")
            await world.pods.put(replace(theirs, phase="Succeeded"))
            await world.kubelet.pre_start(entry)
            assert not [event for event in world.told.events if event[0] == "pod-h1"]

    run(go())


def test_cores_that_hami_gave_are_counted(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(of_hami("h1", twin(0, 1024, 71)))
            await world.pods.put(pod_of("u1", app=part(share(0, GI, 300))))
            assert "default/pod-h1" in await refused(world, await allocate(world, "u1"))

    run(go())


def test_a_pod_of_hami_gets_nothing_here(tmp_path: Path) -> None:
    """Not even a whole card in safe mode, which takes its card for busy."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=True):
            await world.pods.put(of_hami("h1", twin(0, 1024)))
            said = await refused(world, await allocate(world, "h1"))
            assert ANNOTATION in said
            assert names.SCHEDULER in said
            assert world.told.conditions["pod-h1", names.CONDITION_ENFORCED][:2] == (False, "GrantOfHami")
            await world.pods.put(pod_of("u1", text="", app=part()))
            entry = await allocate(world, "u1")
            await world.kubelet.pre_start(entry)
            assert read_policy(world.places.root / entry.name / "policy").devices[0].uuid == CARDS[1]
            await world.pods.put(pod_of("u2", text="", app=part()))
            assert "0 of 2 free" in await refused(world, await allocate(world, "u2"))

    run(go())


def test_a_grant_of_ours_stands_before_the_twin_beside_it(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            pod = pod_of("u1", app=part(share(0, 8 * GI)))
            await world.pods.put(replace(pod, annotations={**pod.annotations, ANNOTATION: "no twin"}))
            await world.kubelet.pre_start(await allocate(world, "u1"))
            assert not world.told.events

    run(go())


def test_a_twin_that_cannot_be_read_closes_the_cards_it_names(tmp_path: Path) -> None:
    """What runs there goes on, the other card is untouched, and the pod is told why."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u0", app=part(share(0, GI, 100))))
            runs = await allocate(world, "u0")
            await world.kubelet.pre_start(runs)
            await world.pods.put(of_hami("h1", f"{CARDS[0]}[1-0],NVIDIA,1024,0:;"))
            await world.told.until(lambda told: told.events)
            pod, reason, message = world.told.events[0]
            assert (pod, reason) == ("pod-h1", "GrantOfHamiInvalid")
            assert "MIG instance" in message
            await world.pods.put(pod_of("u1", app=part(share(0, GI, 100))))
            assert "default/pod-h1" in await refused(world, await allocate(world, "u1"))
            assert world.told.events[-1][:2] == ("pod-u1", "CardUseUnknown")
            await world.pods.put(pod_of("u2", app=part(share(1, GI, 100))))
            await world.kubelet.pre_start(await allocate(world, "u2"))
            await world.kubelet.pre_start(runs)
            assert "MIG instance" in await refused(world, await allocate(world, "h1"))

    run(go())


def test_a_twin_without_a_card_closes_none() -> None:
    grants = Grants(NODE)
    pod = of_hami("h1", "garbage")
    assert grants.promise(pod, held=False) is None
    trouble = grants.twin_trouble(pod)
    assert trouble is not None
    assert trouble.reason == "GrantOfHamiInvalid"
    assert grants.twin_trouble(of_hami("h2", twin(0, 1))) is None
    assert grants.twin_trouble(of_hami("h3", ";")) is None
    assert grants.promise(of_hami("h3", ";"), held=False) is None


def test_a_twin_is_read_again_where_it_changed() -> None:
    grants = Grants(NODE)
    first = grants.promise(of_hami("h1", twin(0, 1024)), held=False)
    second = grants.promise(of_hami("h1", twin(1, 2048)), held=False)
    assert first is not None
    assert second is not None
    assert (first.order, first.held, first.unknown) == ((0, 0, "h1"), True, False)
    assert {uuid: need.memory for uuid, need in first.need.items()} == {CARDS[0]: GI}
    assert {uuid: need.memory for uuid, need in second.need.items()} == {CARDS[1]: 2 * GI}


@pytest.mark.parametrize("mode", ["mig", "mps", "vendor"])
def test_a_mode_that_nothing_holds_is_not_started_and_not_resized_to(tmp_path: Path, mode) -> None:  # type: ignore[no-untyped-def]
    async def go() -> None:
        world = World(tmp_path)
        world.backend.cannot_hold = frozenset({mode})
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, GI), mode=mode)))
            entry = await allocate(world, "u1")
            assert f"mode {mode}" in await refused(world, entry)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2] == (False, "ModeNotEnforced")
            assert not read_policy(world.places.root / entry.name / "policy").is_open
            pod = await world.pods.put(pod_of("u2", app=part(share(0, GI))))
            runs = await allocate(world, "u2")
            await world.kubelet.pre_start(runs)
            text = grant_text("u2", gen=2, app=part(share(0, 2 * GI), mode=mode))
            await world.pods.put(replace(pod, annotations={names.GRANT: text}))
            await world.told.until(lambda told: ("pod-u2", names.CONDITION_RESIZED) in told.conditions)
            assert world.told.conditions["pod-u2", names.CONDITION_RESIZED][:2] == (False, "ModeNotEnforced")
            assert read_policy(world.places.root / runs.name / "policy").devices[0].memory == GI

    run(go())
