"""How much of a card shares may add up to, on a real node: what it tells, and what containers get of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from partage.devices.nvidia.hami import REGISTER
from partage.model import names
from partage.model.node_devices import parse_node_devices
from tests.cluster.agent import MI, limits, total_of
from tests.cluster.images import BOX
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

LINE: Final = ("--nvidia-water-line-buffer=10%", "--nvidia-water-line-overhead=1500Mi")
AGENT: Final = {"profile": "4xA100", "flags": LINE}
PHYSICAL: Final = 81920 * MI
RESERVED: Final = 768 * MI  # as the card tells with nobody on it
ALLOCATABLE: Final = 72228 * MI


def told(agent: NodeAgent, each: int) -> None:
    """Return once the node tells so much of each card, for us and, in MiB, for HAMi's readers."""
    name = agent.cluster.node.name

    def says(node: Json) -> bool:
        annotations = node["metadata"]["annotations"]
        if not {names.DEVICES, REGISTER} <= annotations.keys():
            return False
        ours = [card.memory for card in parse_node_devices(annotations[names.DEVICES], node=name).devices]
        theirs = [card["devmem"] * MI for card in json.loads(annotations[REGISTER])]
        return ours == theirs == [each] * 4

    agent.cluster.api.wait("nodes", name, says, what=f"{each // MI} MiB of each card")


def start(agent: NodeAgent, namespace: Namespace, name: str, memory: int) -> None:
    """Bind a pod with a share of the first card."""
    app = container("app", BOX, ["/greedy", "1"], limits=limits(memory // MI, 0))
    agent.bound(namespace, pod(name, app), app=agent.part(agent.share(0, memory)))


def test_a_tenth_and_the_drivers_part_are_kept_back(agent: NodeAgent, namespace: Namespace) -> None:
    """10 % and 1,500 MiB of 81,920: 72,228 MiB can be promised, to the last one and not one more."""
    told(agent, ALLOCATABLE)
    start(agent, namespace, "all", ALLOCATABLE)
    namespace.wait("all", lambda p: p["status"]["phase"] == "Running", what="Running")
    assert total_of(namespace.wait_log("all", "held ")) == (ALLOCATABLE, agent.uuids[0])
    start(agent, namespace, "more", MI)
    said = namespace.wait_event("more", "CardOverpromised")
    assert "72228" in said["message"] or "70.5" in said["message"], said["message"]


def test_by_default_two_halves_of_a_card_fit(agent: NodeAgent, namespace: Namespace) -> None:
    """Nothing is kept back but what the card itself keeps."""
    agent.end()
    agent.flags = ()
    agent.start()
    try:
        told(agent, PHYSICAL - RESERVED)
        half = (PHYSICAL - RESERVED) // 2
        for name in ("a", "b"):
            start(agent, namespace, name, half)
        for name in ("a", "b"):
            namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
            assert total_of(namespace.wait_log(name, "held ")) == (half, agent.uuids[0])
    finally:
        agent.end()
        agent.flags = LINE
        agent.start()
