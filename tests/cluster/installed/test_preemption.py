"""Room for an important pod on a card that is full by memory only, until it runs on a real kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.model.units import MI
from tests.cluster.images import BOX
from tests.cluster.installed.release import held, shares
from tests.cluster.namespace import running
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.api import Json
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace

CLASSES = {"e2e-high": 5000, "e2e-low": 10}
GROUP = "priorityclasses.scheduling.k8s.io"
CARD = 5
SMALL = 1500  # MiB


@pytest.fixture
def classes(installed: Installed) -> Iterator[None]:
    api = installed.cluster.api
    for name, value in CLASSES.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        api.create(GROUP, {**body, "value": value})
    yield
    for name in CLASSES:
        api.delete(GROUP, name)


def on_card(name: str, mib: int, priority: str, **labels: str) -> Json:
    """Return a pod of the one card, that takes all that it gets, if that is little."""
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
    app = container("app", BOX, ["/greedy", "999999" if mib == SMALL else "1"], limits=amounts)
    wishes = {names.USE_INDEX: str(CARD)}
    return pod(name, app, annotations=wishes, labels=labels, priorityClassName=f"e2e-{priority}")


def test_the_fewest_right_victims_go_and_the_winner_runs(
    installed: Installed, namespace: Namespace, classes: None
) -> None:
    """Seats and cores are free. Those that a budget protects stay, as does the one too many."""
    card = installed.cards()[CARD]
    part = (card.memory // MI - 2 * SMALL) // 4
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "kept"}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": budget}
    namespace.api.create("poddisruptionbudgets.policy", body, namespace.name)
    namespace.run(on_card("first", part, "low"))
    for name in ("kept-1", "kept-2"):
        namespace.run(on_card(name, part, "low", app="kept"))
    namespace.run(on_card("last", part, "low"))
    namespace.run(on_card("small", SMALL, "low"))

    def counted(found: Json) -> bool:
        return bool(found.get("status", {}).get("currentHealthy") == 2)

    namespace.api.wait("poddisruptionbudgets.policy", "kept", counted, namespace.name, what="counted")
    winner = on_card("winner", part + SMALL, "high")
    winner["spec"]["containers"][0]["command"] = ["/greedy", "300"]
    found = namespace.run(winner)
    assert [(one.uuid, one.memory) for one in shares(found)["app"]] == [(card.uuid, (part + SMALL) * MI)]
    assert "held 300 MiB, then 0" in namespace.wait_log("winner", "held ")
    namespace.api.wait_gone("pods", "last", namespace.name)  # its containers have ended: that is enough for the winner
    left = {one["metadata"]["name"]: one for one in namespace.api.list("pods", namespace.name)}
    assert sorted(left) == ["first", "kept-1", "kept-2", "small", "winner"], "the newest that is large enough went"
    assert all(running(one) for one in left.values())
    assert 0 < held(namespace, "small") < SMALL
    assert "winner" in namespace.wait_event("last", "Preempted")["message"]
