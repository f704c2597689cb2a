"""The node's annotations and labels at a real API server: merged with others'; quiet minutes write nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from partage.kube.client import Client
from partage.kube.config import load_config
from partage.model import names
from partage.model.node_devices import parse_node_devices
from partage_plugin.cards import Cards
from partage_plugin.node import NodeWriter
from partage_plugin.node_object import KubeNode
from partage_plugin.node_text import Say
from tests.devices.clock import HandClock
from tests.plugin.test_node import inventory

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import OpenControlPlane

MADE = {"annotations": {"example.com/owner": "me"}, "labels": {"zone": "a"}}


def test_what_the_node_says_is_merged_once(control_plane: OpenControlPlane) -> None:
    cluster: Cluster = control_plane(scheduler=False, controller_manager=False)
    cluster.api.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", **MADE}})

    async def written(cards: Cards, clock: HandClock, client: Client) -> str:
        """Run the writer until it has looked once more, and for ten minutes of its own time; return the version."""
        writer = NodeWriter("n1", KubeNode(client, "n1"), cards, clock, say=lambda: Say("1.0", "nvidia"))
        running = asyncio.ensure_future(writer.run())
        try:
            for _ in range(6):
                looked = writer.looks
                await writer.tell()
                while writer.looks == looked:
                    await clock.asleep()
                    clock.move(20)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return str(cluster.api.get("nodes", "n1")["metadata"]["resourceVersion"])

    async def go() -> list[str]:
        cards, clock = Cards(), HandClock()
        cards.found(inventory())
        config = load_config(cluster.kubeconfig)
        async with Client.connect(config, manager="partage-agent") as client:
            first = await written(cards, clock, client)
            again = await written(cards, clock, client)
            cards.found(inventory(1))
            return [first, again, await written(cards, clock, client)]

    first, again, changed = asyncio.run(go())
    assert first == again, "the second agent found nothing to write"
    assert changed != again
    found = cluster.api.get("nodes", "n1")["metadata"]
    assert found["annotations"]["example.com/owner"] == "me"
    assert found["labels"]["zone"] == "a"
    assert found["labels"]["nvidia.com/gpu.count"] == "2", "a card that is gone stays listed"
    devices = parse_node_devices(found["annotations"][names.DEVICES], node="n1")
    assert [device.health for device in devices.devices] == [True, False]
    assert devices.gen == 2
