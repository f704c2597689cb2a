"""Cards that fail and come back, at a real kubelet: capacity follows, whoever is elsewhere does not notice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from partage.model import names
from tests.cluster.agent import GI, MI, limits, total_of
from tests.cluster.images import BOX
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

AGENT: Final = {"flags": ("--nvidia-health-probe-seconds=1",)}
SEATS: Final = 10  # of each of eight cards
BROKEN: Final = 2


@pytest.fixture(autouse=True)
def well_again(agent: NodeAgent) -> Iterator[None]:
    """Bring every card back, whatever a test left."""
    yield
    agent.command("sim", "fault", "clear")
    agent.command("sim", "fault", "restore", str(BROKEN))
    agent.wait_seats(8 * SEATS)
    told_of(agent, set())


def greedy(memory: int) -> Json:
    return container("app", BOX, ["/greedy", "1"], limits=limits(memory // MI, 0))


def started(agent: NodeAgent, namespace: Namespace, name: str, card: int, memory: int) -> None:
    """Start a pod on a card and see that it runs there with its own limit."""
    agent.bound(namespace, pod(name, greedy(memory)), app=agent.part(agent.share(card, memory)))
    namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
    assert total_of(namespace.wait_log(name, "held ")) == (memory, agent.uuids[card])


def unhealthy(agent: NodeAgent) -> dict[str, str]:
    """Return the cards that the node's annotation calls unhealthy, with the reasons."""
    node = agent.cluster.api.get("nodes", agent.cluster.node.name)
    devices = json.loads(node["metadata"]["annotations"][names.DEVICES])["devices"]
    return {device["uuid"]: device.get("reason", "") for device in devices if not device["health"]}


def told_of(agent: NodeAgent, failed: set[str]) -> None:
    """Return once the node's annotation calls these cards unhealthy and no others: it is written beside the seats."""
    name = agent.cluster.node.name
    agent.cluster.api.wait("nodes", name, lambda _: unhealthy(agent).keys() == failed, what=f"told of {failed}")


def test_xid_79_takes_free_seats_and_the_card_returns(agent: NodeAgent, namespace: Namespace) -> None:
    """The failed card's free seats go first, what runs keeps its seat, seven cards serve on, and it comes back."""
    started(agent, namespace, "on-it", BROKEN, GI)
    agent.command("sim", "fault", "xid", "1", "31")  # a program's own error: nothing follows from it
    agent.command("sim", "fault", "lose", str(BROKEN))
    agent.wait_seats(8 * SEATS - (SEATS - 1))
    told_of(agent, {agent.uuids[BROKEN]})
    assert "79" in unhealthy(agent)[agent.uuids[BROKEN]]
    kept = namespace.get("on-it")["status"]
    assert (kept["phase"], kept["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    for card in (0, 1, 7):
        started(agent, namespace, f"card-{card}", card, (600 + card) * MI)
    agent.bound(namespace, pod("waits", greedy(2 * GI)), app=agent.part(agent.share(BROKEN, 2 * GI)))
    said = namespace.wait_event("waits", "CardUnhealthy")["message"]
    assert agent.uuids[BROKEN] in said
    assert "79" in said
    agent.command("sim", "fault", "restore", str(BROKEN))
    agent.wait_seats(8 * SEATS)
    namespace.wait("waits", lambda p: p["status"]["phase"] == "Running", what="Running on the card that is back")
    assert total_of(namespace.wait_log("waits", "held ")) == (2 * GI, agent.uuids[BROKEN])


def test_xid_31_changes_nothing(agent: NodeAgent, namespace: Namespace) -> None:
    """An error of a program is not one of its card; heard, and nothing comes of it."""
    started(agent, namespace, "runs", 1, GI)
    before = unhealthy(agent)
    agent.command("sim", "fault", "xid", "1", "31")
    agent.said(lambda log: any('"xid":31' in line and agent.uuids[1] in line for line in log.splitlines()), "XID 31")
    started(agent, namespace, "after", 1, 2 * GI)
    assert unhealthy(agent) == before == {}
    agent.wait_seats(8 * SEATS)
    assert namespace.get("runs")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_nvml_fails_for_one_card_and_recovers(agent: NodeAgent, namespace: Namespace) -> None:
    started(agent, namespace, "on-it", BROKEN, GI)
    agent.command("sim", "fault", "nvml", str(BROKEN))
    agent.wait_seats(8 * SEATS - (SEATS - 1))
    assert namespace.get("on-it")["status"]["containerStatuses"][0]["restartCount"] == 0
    started(agent, namespace, "beside", 3, GI)
    agent.command("sim", "fault", "clear")
    agent.wait_seats(8 * SEATS)
    started(agent, namespace, "again", BROKEN, 2 * GI)
