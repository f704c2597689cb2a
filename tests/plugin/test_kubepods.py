"""We test this aspect of pods as the API server tells them: the agent knows of every place where the node mounts what a
container's spec asks for, and not of its volumes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lightkube.resources.core_v1 import Pod as KubePod

from partage_plugin.kubepods import pod_of
from tests.plugin.test_handover import refused, run
from tests.plugin.world import World, part
from tests.plugin.world import pod_of as world_pod

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "asked",
    [
        {"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]},
        {"volumeDevices": [{"name": "v", "devicePath": "/etc/ld.so.preload"}]},
        {"terminationMessagePath": "/etc/ld.so.preload"},
    ],
    ids=["volume", "device", "message"],
)
def test_k09_a_container_that_has_anything_mounted_over_what_holds_its_limit_does_not_start(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    """Kubelet mounts an empty file for a container's last words, wherever its spec says: no library would be loaded."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            pod = world_pod("u1", app=part())
            spec = {"containers": [{"name": "app", **asked}]}
            meta = {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "resourceVersion": "1",
                "annotations": dict(pod.annotations),
            }
            made: Any = KubePod.from_dict({"metadata": meta, "spec": spec})
            await world.pods.put(pod_of(made))
            entry = await world.kubelet.allocate("u1", pod.full_name, "app")
            assert "/etc/ld.so.preload is the library's" in await refused(world, entry)

    run(go())
