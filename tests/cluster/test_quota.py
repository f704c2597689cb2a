"""Quotas of shares at a real control plane: our scheduler counts, the objects tell, the native controller agrees.

Nodes are objects; the API server's own quota admission and the resource quota controller run beside (C133, C135).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from partage.model.units import GI
from tests.cluster.scheduling import APISERVER, TOP, Site, share_pod

if TYPE_CHECKING:
    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import OpenControlPlane

MEMORY, CARDS = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpu"
CONTROLLERS = "--controllers=resourcequota-controller,disruption-controller,replicaset-controller"


@pytest.fixture
def site(control_plane: OpenControlPlane) -> Site:
    """One node with two cards of 24 GB, and our scheduler."""
    cluster: Cluster = control_plane(scheduler=False, apiserver_flags=APISERVER, controller_manager_flags=[CONTROLLERS])
    made = Site(cluster).prepare()
    made.nodes(1, cards=2, memory=24 * GI)
    made.replica("a", election=False).start()
    return made


def limit(site: Site, namespace: str, name: str, hard: Json, **spec: Any) -> None:
    if site.cluster.api.find("namespaces", namespace) is None:
        site.cluster.api.create("namespaces", {"metadata": {"name": namespace}})
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard, **spec}}
    site.cluster.api.create("resourcequotas", body, namespace)


def used(site: Site, namespace: str, name: str, **wanted: str) -> None:
    """Wait until a quota's status says so; keys by their last word."""

    def says(quota: Json) -> bool:
        found = (quota.get("status") or {}).get("used") or {}
        assert not any(value.startswith("-") for value in found.values()), found
        return all(
            found.get(key if key == "pods" else f"limits.nvidia.com/{key}") == value for key, value in wanted.items()
        )

    site.cluster.api.wait("resourcequotas", name, says, namespace, what=f"used {wanted}")


def create(site: Site, namespace: str, pod: Json) -> None:
    site.cluster.api.create("pods", pod, namespace)


def wait_bound(site: Site, namespace: str, name: str) -> None:
    site.cluster.api.wait("pods", name, lambda pod: bool(pod["spec"].get("nodeName")), namespace, what="bound")


def wait_refused(site: Site, namespace: str, name: str, code: str) -> str:
    """Wait until the pod's condition has this code, and return what it says."""

    def condition(pod: Json) -> Json:
        found = pod["status"].get("conditions") or []
        return next((one for one in found if one["type"] == "partage.io/Placed"), {})

    pod = site.cluster.api.wait("pods", name, lambda pod: condition(pod).get("reason") == code, namespace, what=code)
    return str(condition(pod)["message"])


def half(name: str) -> Json:
    """Half of a card, and nothing said of its size."""
    pod = share_pod(name, cores=10)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    del limits["nvidia.com/gpumem"]
    limits["nvidia.com/gpumem-percentage"] = "50"
    return pod


def described(site: Site, namespace: str) -> dict[str, tuple[str, str]]:
    """Return key -> used and hard as `kubectl describe quota` shows them."""
    text = site.cluster.kubectl("describe", "quota", "-n", namespace).stdout
    return {key: (have, hard) for key, have, hard in re.findall(r"^(\S+/\S+|pods) +(\S+) +(\S+)$", text, re.MULTILINE)}


def partage(site: Site, *arguments: str, pod: Json | None = None) -> str:
    """Return what the command says of the cluster."""
    done = subprocess.run(
        [sys.executable, "-m", "partage", *arguments, "--kubeconfig", str(site.cluster.kubeconfig)],
        input=json.dumps(pod) if pod else "",
        env={**os.environ, "PYTHONPATH": str(TOP / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_parts_of_cards_and_several_cards_are_charged_and_given_back(site: Site) -> None:
    limit(site, "half", "q", {MEMORY: "20000", CARDS: "3", "pods": "5"})
    limit(site, "two", "q", {MEMORY: "30000"})
    used(site, "half", "q", gpumem="0", gpu="0", pods="0")
    create(site, "half", half("a"))
    create(site, "two", share_pod("a", memory=2000, cards=2))
    wait_bound(site, "half", "a")
    wait_bound(site, "two", "a")
    used(site, "half", "q", gpumem="12288", gpu="1", pods="1")
    used(site, "two", "q", gpumem="4k")
    assert described(site, "half") == {CARDS: ("1", "3"), MEMORY: ("12288", "20k"), "pods": ("1", "5")}
    assert described(site, "two") == {MEMORY: ("4k", "30k")}
    create(site, "half", half("b"))
    told = wait_refused(site, "half", "b", "ResourceQuotaNotFit")
    assert "12288 of limits.nvidia.com/gpumem asked, 12288 used; resourcequota half/q allows 20000" in told
    said = partage(site, "explain", "pod", "half/b")
    assert "resourcequota half/q: limits.nvidia.com/gpumem: 12288 asked, 12288 used, 20000 allowed" in said
    assert "ask for nvidia.com/gpumem: 7712 in container app (then on node n0000)" in said
    assert "pod half/a: placed on node n0000" in partage(site, "explain", "pod", "a", "-n", "half")
    assert "pod two/more: fits on node n0000" in partage(
        site, "simulate", "-f", "-", "-n", "two", pod=share_pod("more")
    )
    site.cluster.api.patch("resourcequotas", "q", {"spec": {"hard": {"pods": "6"}}}, "half")
    used(site, "half", "q", gpumem="12288", pods="2")
    site.cluster.api.delete("pods", "a", "half", grace=0)
    wait_bound(site, "half", "b")
    site.cluster.api.delete("pods", "b", "half", grace=0)
    site.cluster.api.delete("pods", "a", "two", grace=0)
    used(site, "half", "q", gpumem="0", gpu="0", pods="0")
    used(site, "two", "q", gpumem="0")


def test_two_quotas_with_scopes_and_a_misspelt_key(site: Site) -> None:
    api = site.cluster.api
    for name, value in (("high", 1000), ("low", 10)):
        api.create(
            "priorityclasses.scheduling.k8s.io",
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value},
        )
    only_high = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
    limit(site, "s", "all", {MEMORY: "5000", "limits.nvidia.com/gpumemory": "1"})
    limit(site, "s", "high", {MEMORY: "2000"}, scopeSelector=only_high)
    limit(site, "s", "effort", {MEMORY: "9000"}, scopes=["NotBestEffort"])
    create(site, "s", share_pod("a", memory=2000, priorityClassName="high"))
    create(site, "s", share_pod("b", memory=2000, priorityClassName="low"))
    wait_bound(site, "s", "a")
    wait_bound(site, "s", "b")
    used(site, "s", "all", gpumem="4k")
    used(site, "s", "high", gpumem="2k")
    used(site, "s", "effort", gpumem="0")
    create(site, "s", share_pod("c", memory=1000, priorityClassName="high"))
    assert "resourcequota s/high allows 2000" in wait_refused(site, "s", "c", "ResourceQuotaNotFit")
    api.delete("pods", "a", "s", grace=0)
    wait_bound(site, "s", "c")
    used(site, "s", "all", gpumem="3k")
    used(site, "s", "high", gpumem="1k")
    create(site, "s", share_pod("d", memory=1500, priorityClassName="high"))
    wait_refused(site, "s", "d", "ResourceQuotaNotFit")
    api.patch("resourcequotas", "high", {"spec": {"hard": {MEMORY: "2500"}}}, "s")
    wait_bound(site, "s", "d")  # kube-scheduler hears nothing of it

    def told(events: list[Json]) -> bool:
        return any(one["regarding"]["kind"] == "ResourceQuota" for one in events)

    found = api.wait_all("events.events.k8s.io", told, "s", what="an event of a quota")
    events = [one for one in found if one["regarding"]["kind"] == "ResourceQuota"]
    assert [one["reason"] for one in events] == ["QuotaKeyUnknown"]
    assert "did you mean limits.nvidia.com/gpumem?" in events[0]["note"]


def is_seen(controller: Json, generation: int) -> bool:
    """Whether a controller without replicas has taken note of that: until then it replaces what is deleted."""
    status = controller["status"]
    return bool(status.get("observedGeneration", 0) >= generation and status.get("replicas", 0) == 0)


def test_c135_a_workload_that_comes_and_goes_leaves_nothing_behind(site: Site) -> None:
    limit(site, "churn", "q", {MEMORY: "9000"})
    template = {"metadata": {"labels": {"app": "a"}}, "spec": share_pod("x", memory=1000)["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "a"}, "spec": spec}
    api = site.cluster.api
    api.create("replicasets.apps", body, "churn")
    for _ in range(5):
        api.patch("replicasets.apps", "a", {"spec": {"replicas": 9}}, "churn")
        used(site, "churn", "q", gpumem="9k")
        asked = api.patch("replicasets.apps", "a", {"spec": {"replicas": 0}}, "churn")["metadata"]["generation"]
        api.wait("replicasets.apps", "a", partial(is_seen, generation=asked), "churn", what="scaled down")
        for pod in api.list("pods", "churn"):  # which end, and nobody here plays kubelet
            api.delete("pods", pod["metadata"]["name"], "churn", grace=0)
        used(site, "churn", "q", gpumem="0")
