"""Kubelet's word on which container has which ids: a checkpoint that is garbage or gone, answers that contradict it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partage.shm import read_policy
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2
from tests.plugin.test_handover import refused, run
from tests.plugin.world import GI, World, part, pod_of, share

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("text", ["", "garbage", '{"Data":{"Other":1},"Checksum":1}', "{}"])
def test_a_checkpoint_that_nobody_knows(tmp_path: Path, text: str) -> None:
    """PodResources and what was minted decide where they leave no doubt; shared ids are refused."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, 8 * GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.kubelet.write_raw_checkpoint(text)
            await world.kubelet.pre_start(entry)
            assert read_policy(world.places.root / entry.name / "policy").devices[0].memory == 8 * GI

            await world.pods.put(pod_of("u2", init=part(share(1)), app=part(share(1))))
            init = await world.kubelet.allocate("u2", "default/pod-u2", "init", init=True)
            app = await world.kubelet.allocate("u2", "default/pod-u2", "app", ids=init.ids)
            world.kubelet.write_raw_checkpoint(text)
            for shared in (init, app):
                assert "exactly one of each" in await refused(world, shared)

    run(go())


def test_a_checkpoint_that_is_gone(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            (world.places.plugins / "kubelet_internal_checkpoint").unlink()
            world.kubelet.answers_resources = False
            assert "0 containers" in await refused(world, entry)
            world.kubelet.answers_resources = True
            await world.kubelet.pre_start(entry)

    run(go())


def test_ids_that_kubelet_gave_to_nobody(tmp_path: Path) -> None:
    """C065: a self-described pod is no answer; without an entry nothing is handed out."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.kubelet.entries.clear()
            world.kubelet.write_checkpoint()
            assert "no entry" in await refused(world, entry)

    run(go())


def test_podresources_contradicts(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            entry.pod = "default/somebody-else"
            assert "somebody-else" in await refused(world, entry)

    run(go())


def test_an_answer_of_another_plugin(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            ours = api_pb2.ContainerAllocateResponse.FromString(entry.answer.SerializeToString())
            entry.answer.ClearField("cdi_devices")
            world.kubelet.write_checkpoint()
            entry.answer = ours
            assert "somebody else" in await refused(world, entry)

    run(go())
