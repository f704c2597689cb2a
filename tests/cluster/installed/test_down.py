"""The webhook is down, in both ways that there are: nobody waits for it, and no share runs without its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.model.units import MI
from tests.cluster.agent import limits
from tests.cluster.api import RefusedError
from tests.cluster.images import BOX
from tests.cluster.installed.release import SYSTEM, condition, held, shares
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.api import Json
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace

DEPLOYMENT = "deployments.apps"


@pytest.fixture
def down(installed: Installed) -> Iterator[None]:
    """Nobody answers: the processes are gone."""
    api = installed.cluster.api
    service = api.get("services", "partage-webhook", SYSTEM)["spec"]
    api.patch(DEPLOYMENT, "partage-webhook", {"spec": {"replicas": 0}}, SYSTEM)
    for name in installed.pods():
        if name.startswith("partage-webhook"):
            api.wait_gone("pods", name, SYSTEM)
    yield
    address = {"clusterIP": None, "clusterIPs": None, "ipFamilies": None, "ipFamilyPolicy": None, "ports": None}
    restored = {"type": "ExternalName", "externalName": service["externalName"], "selector": None}
    api.patch("services", "partage-webhook", {"spec": {**address, **restored}}, SYSTEM)
    api.patch(DEPLOYMENT, "partage-webhook", {"spec": {"replicas": 1}}, SYSTEM)
    installed.wait_deployed()


def without_endpoints(installed: Installed) -> None:
    """Let the Service lead to nobody, as it does elsewhere when the last pod is gone."""
    port = installed.values["webhook"]["service"]["port"]
    spec = {"type": "ClusterIP", "externalName": None, "selector": {"app": "nobody"}, "ports": [{"port": port}]}
    installed.cluster.api.patch("services", "partage-webhook", {"spec": spec}, SYSTEM)


def unanswered(installed: Installed) -> float:
    """Return how often the API server went on without an answer."""
    lines = installed.cluster.api.text("/metrics").splitlines()
    name = "apiserver_admission_webhook_fail_open_count{"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_nobody_waits_and_nothing_runs_unlimited(installed: Installed, namespace: Namespace, down: None) -> None:
    goes_on(installed, namespace, "refused")
    named = pod("named", container("app", BOX, ["/greedy"], limits=limits(1000, 10)), scheduler=names.SCHEDULER)
    found = namespace.run(named)
    assert shares(found)["app"][0].memory == 1000 * MI
    assert held(namespace, "named") < 1000
    lets_out = pod("lets-out", container("app", BOX, ["/greedy"], limits=limits(1000, 10)), scheduler=names.SCHEDULER)
    lets_out["spec"]["hostPID"] = True
    namespace.create(lets_out)
    refused = namespace.wait("lets-out", lambda found: bool(condition(found, names.CONDITION_PLACED)), what="told why")
    assert "spec.hostPID: true; a pod with shares" in condition(refused, names.CONDITION_PLACED)["message"]
    without_endpoints(installed)
    goes_on(installed, namespace, "unreached")
    namespace.create(pod("whole", container("app", BOX, ["/greedy"], limits={"nvidia.com/gpu": "1"})))
    assert is_refused(namespace, "whole")
    for name in ("refused", "unreached"):
        assert "Insufficient nvidia.com/gpu" in namespace.wait_event(name, "FailedScheduling")["message"]
        assert namespace.get(name)["status"]["phase"] == "Pending"


def goes_on(installed: Installed, namespace: Namespace, name: str) -> None:
    """A pod without a share runs and nobody is asked; one with amounts is created; a forged grant is denied."""
    before = unanswered(installed)
    namespace.run(pod(f"{name}-plain", container("app", BOX)))
    assert unanswered(installed) == before, "nobody was asked about it"
    made = namespace.create(pod(name, container("app", BOX, ["/greedy"], limits=limits(1000, 10))))
    assert unanswered(installed) > before
    assert made["spec"]["schedulerName"] == "default-scheduler"
    for annotation in (names.GRANT, "hami.io/vgpu-devices-allocated"):
        forged = pod("forged", container("app", BOX, limits=limits(1000, 10)), annotations={annotation: "{}"})
        with pytest.raises(RefusedError, match=f"annotation {annotation}"):
            namespace.create(forged)


def is_refused(namespace: Namespace, name: str) -> bool:
    """Wait until the agent has said of a pod without a grant that it does not start; say whether nothing of it runs."""

    def told(found: Json) -> bool:
        return condition(found, names.CONDITION_ENFORCED).get("reason") == "GrantMissing"

    found = namespace.wait(name, told, what="told that it has no grant")
    return all("running" not in one["state"] for one in found["status"].get("containerStatuses", []))
