"""Whose container is it? Many pods at once, all limits different, and pods that come again under the same name.

Each container asks its driver what card it has and how much of it: that has to be its own grant, in every round, and no
pod may end with UnexpectedAdmissionError. How long a round took is printed, not judged.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.agent import MI, limits, total_of
from tests.cluster.images import BOX
from tests.cluster.pods import container, pod
from tests.cluster.test_reboot import next_pod
from tests.soak.conftest import full

if TYPE_CHECKING:
    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

PODS: Final = 20
CARDS: Final = 8
ROUNDS: Final = 50 if full() else 3
SETS: Final = 10
AGAIN: Final = 20 if full() else 2  # of each set's pod
KINDS: Final = ("first", "beside", "app")  # init, sidecar, app
CROWD: Final = 8  # who look at once
HOUR_S: Final = 3600


def memory_of(number: int, kind: int, turn: int) -> int:
    """Return the limit of a container: no two of a round, nor of two rounds that follow each other, have the same."""
    return (600 + 3 * number + kind + 100 * (turn % 7)) * MI


def card_of(number: int, kind: int, turn: int) -> int:
    """Return the index of a container's card: its pod's other containers are elsewhere."""
    return (number + 3 * kind + turn) % CARDS


def name_of(number: int, turn: int) -> str:
    return f"p{number}-{turn}"


def crowd_pod(number: int, turn: int) -> Json:
    asks = [limits(memory_of(number, kind, turn) // MI, 1) for kind in range(len(KINDS))]
    init = [
        container("first", BOX, ["/greedy", "1", "once"], limits=asks[0]),
        container("beside", BOX, ["/greedy", "1"], limits=asks[1], sidecar=True),
    ]
    return pod(name_of(number, turn), container("app", BOX, ["/greedy", "1"], limits=asks[2]), init=init)


def check(agent: NodeAgent, namespace: Namespace, number: int, turn: int) -> None:
    """See that each container of a pod has its own limit and card."""
    name = name_of(number, turn)
    namespace.wait(name, runs, what="Running", seconds=240)
    for kind, app in enumerate(KINDS):
        seen = total_of(namespace.wait_log(name, "held ", app))
        wanted = (memory_of(number, kind, turn), agent.uuids[card_of(number, kind, turn)])
        assert seen == wanted, f"round {turn}: {name}/{app} has {seen}, its grant says {wanted}"


def gone(namespace: Namespace, name: str) -> None:
    namespace.delete(name, grace=0, seconds=240)


def runs(made: Json) -> bool:
    """Say whether a pod runs; AssertionError where it never will."""
    status = made["status"]
    assert status["phase"] != "Failed", f"{made['metadata']['name']}: {status.get('reason')}: {status.get('message')}"
    return bool(status["phase"] == "Running")


@pytest.mark.timeout(ROUNDS * 300, func_only=True)
def test_twenty_pods_of_three_containers(agent: NodeAgent, namespace: Namespace) -> None:
    """K11: 20 pods at once, init, sidecar and app each with a limit and a card of its own, round after round."""
    times = []
    for turn in range(ROUNDS):
        began = time.monotonic()
        for number in range(PODS):
            parts = {
                app: agent.part(agent.share(card_of(number, kind, turn), memory_of(number, kind, turn)))
                for kind, app in enumerate(KINDS)
            }
            agent.bound(namespace, crowd_pod(number, turn), **parts)
        with ThreadPoolExecutor(CROWD) as looks:
            list(looks.map(partial(check, agent, namespace, turn=turn), range(PODS)))
            list(looks.map(lambda number, turn=turn: gone(namespace, name_of(number, turn)), range(PODS)))
        times.append(time.monotonic() - began)
        print(f"round {turn}: {PODS * len(KINDS)} containers right, {times[-1]:.1f} s", flush=True)
    print(f"{ROUNDS} rounds, {ROUNDS * PODS * len(KINDS)} containers, {sum(times) / len(times):.1f} s a round")


# ---- the same name again ---------------------------------------------------------------------------------------------


def stateful_set(name: str) -> Json:
    made = pod(name, container("app", BOX, ["/greedy", "1"], limits=limits(600, 1)), scheduler="partage-scheduler")
    template = {"metadata": {"labels": {"app": name}}, "spec": made["spec"]}
    spec = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def play(agent: NodeAgent, namespace: Namespace, number: int) -> int:
    """Let a StatefulSet make its pod again and again, each time with another share; return how often it was right."""
    name = f"set-{number}"
    namespace.api.create("statefulsets.apps", stateful_set(name), namespace.name)
    before: set[str] = set()
    for turn in range(AGAIN):
        made = next_pod(namespace, name, before, seconds=240)
        uid, own = made["metadata"]["uid"], made["metadata"]["name"]
        memory, card = memory_of(number, 0, turn), card_of(number, 0, turn)
        namespace.bind(own, agent.grant(made, app=agent.part(agent.share(card, memory))))
        namespace.wait(own, lambda p, uid=uid: p["metadata"]["uid"] == uid and runs(p), what="Running", seconds=240)
        seen = total_of(namespace.wait_log(own, "held ", "app"))
        assert seen == (memory, agent.uuids[card]), f"{own}, made for the {turn + 1}. time, has {seen}"
        before.add(uid)
        namespace.api.delete("pods", own, namespace.name, grace=0)
    namespace.api.delete("statefulsets.apps", name, namespace.name)
    return AGAIN


@pytest.mark.timeout(HOUR_S, func_only=True)
def test_pods_under_the_same_name(agent: NodeAgent, namespace: Namespace) -> None:
    """K11: StatefulSets make their pods again with other shares, ten sets at a time: never the old limit."""
    agent.cluster.image(BOX)
    with ThreadPoolExecutor(SETS) as sets:
        done = sum(sets.map(lambda number: play(agent, namespace, number), range(SETS)))
    print(f"{done} re-creations of {SETS} StatefulSets' pods, each with its own share")
    assert done == SETS * AGAIN
