"""We test these aspects of a static pod that asks for a share: it is refused as what it is, on its mirror where that is
known; nobody waits for a pod that never comes; safe mode gives it nothing, by whatever way its owner was found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from tests.plugin.test_handover import refused, run
from tests.plugin.world import GI, World, part, pod_of, share

if TYPE_CHECKING:
    from pathlib import Path

    from partage_plugin.ports import Pod

OF_MANIFEST = "0123456789abcdef0123456789abcdef"  # as kubelet makes it
MIRROR_UID = "6f2c2f5e-3d9e-4a55-9a0c-0d8a0e6c7b11"


def mirror(of: str, *, grant: bool = False) -> Pod:
    """What the API server shows of the static pod `of`; `grant`: with one that somebody forged."""
    shown = pod_of(MIRROR_UID, name="web-n1", text=None if grant else "", app=part(share(0, GI)))
    return replace(shown, annotations={**shown.annotations, names.MIRROR: of})


def nobody_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for(uid: str, seconds: float) -> None:
        pytest.fail(f"waits for pod {uid}")

    monkeypatch.setattr(world.pods, "wait_for", wait_for)


@pytest.mark.parametrize("safe_mode", [False, True])
@pytest.mark.parametrize("grant", [False, True])
def test_its_mirror_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, safe_mode: bool, grant: bool
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=safe_mode) as agent:
            await world.pods.put(mirror(OF_MANIFEST, grant=grant))
            nobody_waits(world, monkeypatch)
            entry = await world.kubelet.allocate(OF_MANIFEST, "default/web-n1", "app")
            assert "default/web-n1: a static pod" in await refused(world, entry)
            holds, reason, message = world.told.conditions["web-n1", names.CONDITION_ENFORCED]
            assert (holds, reason) == (False, "PodStatic")
            assert "nobody binds a static pod" in message
            assert ("web-n1", "PodStatic") in [event[:2] for event in world.told.events]
            assert agent.front is not None
            assert not agent.front.safe_grants()

    run(go())


def test_without_a_mirror_kubelet_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No API server, or one that took no mirror."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            nobody_waits(world, monkeypatch)
            entry = await world.kubelet.allocate(OF_MANIFEST, "default/web-n1", "app")
            assert f"pod {OF_MANIFEST}: a static pod" in await refused(world, entry)

    run(go())


def test_a_uid_that_its_manifest_chose(tmp_path: Path) -> None:
    """It looks as the API server's do: known by the mirror alone, which comes while the pod is waited for."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await world.kubelet.allocate("chosen", "default/web-n1", "app")
            waits = asyncio.create_task(refused(world, entry))
            await world.pods.put(mirror("chosen"))
            assert "default/web-n1: a static pod" in await waits
            assert world.told.conditions["web-n1", names.CONDITION_ENFORCED][1] == "PodStatic"

    run(go())


@pytest.mark.parametrize("safe_mode", [False, True])
def test_without_kubelets_checkpoint(tmp_path: Path, *, safe_mode: bool) -> None:
    """PodResources names the mirror, which has a UID and could be taken for a pod that nobody placed."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=safe_mode):
            await world.pods.put(mirror(OF_MANIFEST))
            entry = await world.kubelet.allocate(OF_MANIFEST, "default/web-n1", "app")
            world.kubelet.write_raw_checkpoint("garbage")
            assert "default/web-n1: a static pod" in await refused(world, entry)

    run(go())


def test_an_agent_that_comes_back_opens_nothing_for_it(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=True):
            await world.pods.put(mirror(OF_MANIFEST))
            entry = await world.kubelet.allocate(OF_MANIFEST, "default/web-n1", "app")
        await world.kubelet.start()
        async with world.agent(safe_mode=True) as agent:
            await world.kubelet.registered()
            assert not agent.desk.held
            assert "a static pod" in await refused(world, entry)
        await world.kubelet.stop()

    run(go())
