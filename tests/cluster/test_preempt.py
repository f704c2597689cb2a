"""Room for a pod of high priority at a real control plane: a card full by memory only (C142), budgets (C144).

Nodes are objects, so the test ends evicted pods as kubelet would.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.model.grant import condition_message, parse_grant
from partage.model.units import GI
from tests.cluster.api import PATIENCE_S, STRATEGIC
from tests.cluster.apiproxy import ApiProxy
from tests.cluster.scheduling import APISERVER, Site, share_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.api import Api, Json
    from tests.cluster.conftest import OpenControlPlane

CONTROLLERS = "--controllers=disruption-controller,resourcequota-controller"
PRIORITIES = {"high": 1000, "middle": 500, "low": 10, "polite": 900}


@pytest.fixture
def proxied(control_plane: OpenControlPlane) -> Iterator[tuple[Site, ApiProxy]]:
    """One node with one card of 80 GB, our scheduler behind a proxy, and priority classes."""
    cluster = control_plane(scheduler=False, apiserver_flags=APISERVER, controller_manager_flags=[CONTROLLERS])
    made = Site(cluster).prepare()
    for name, value in PRIORITIES.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        more = {"value": value, "preemptionPolicy": "Never" if name == "polite" else "PreemptLowerPriority"}
        cluster.api.create("priorityclasses.scheduling.k8s.io", {**body, **more})
    made.nodes(1, cards=1, memory=80 * GI)
    with ApiProxy(cluster) as proxy:
        made.replica("a", election=False, server=proxy.url).start()
        yield made, proxy


@pytest.fixture
def site(proxied: tuple[Site, ApiProxy]) -> Site:
    """The same, where nothing is in the way."""
    return proxied[0]


def run(site: Site, name: str, gib: int, priority: str, *, cores: int = 0, **labels: str) -> None:
    """Create a pod and wait until it is bound; it is Running from then on."""
    add(site, name, gib, priority, cores=cores, **labels)
    wait_bound(site, name)
    say(site.cluster.api, name, {"type": "Ready", "status": "True"}, phase="Running")


def say(who: Api, name: str, condition: Json, **status: str) -> None:
    """Set a condition of a pod, and no other."""
    body = {"status": {"conditions": [condition], **status}}
    who.request("PATCH", who.path("pods", name, "default", "status"), body=body, kind=STRATEGIC)


def add(site: Site, name: str, gib: int, priority: str, *, cores: int = 0, **labels: str) -> None:
    pod = share_pod(name, memory=gib * 1024, cores=cores, priorityClassName=priority, terminationGracePeriodSeconds=30)
    pod["metadata"]["labels"] = labels
    site.cluster.api.create("pods", pod, "default")


def wait_bound(site: Site, name: str) -> Json:
    return site.cluster.api.wait("pods", name, lambda pod: bool(pod["spec"].get("nodeName")), "default", what="bound")


def wait_evicted(site: Site, count: int) -> list[str]:
    """Wait until so many pods are being deleted, and return which."""
    ending: set[str] = set()
    for event in site.cluster.api.watch("pods", "default", seconds=PATIENCE_S):
        if event["object"]["metadata"].get("deletionTimestamp"):
            ending.add(event["object"]["metadata"]["name"])
        if len(ending) >= count:
            break
    return sorted(ending)


def wait_told(site: Site, *wanted: tuple[str, str]) -> None:
    """Wait until there are these events: name of the pod, reason."""
    missing = set(wanted)
    for event in site.cluster.api.watch("events.events.k8s.io", "default", seconds=PATIENCE_S):
        missing.discard((event["object"]["regarding"]["name"], event["object"]["reason"]))
        if not missing:
            return
    raise AssertionError(f"not told: {missing}")


def end(site: Site, *pods: str) -> None:
    for name in pods:
        site.cluster.api.delete("pods", name, "default", grace=0)


def alive(site: Site) -> list[str]:
    found = site.cluster.api.list("pods", "default")
    return sorted(pod["metadata"]["name"] for pod in found if not pod["metadata"].get("deletionTimestamp"))


def test_c142_the_fewest_right_victims_go_and_the_place_is_kept(site: Site) -> None:
    run(site, "old", 20, "low")
    run(site, "middle", 20, "middle")
    run(site, "new", 20, "low")
    run(site, "small", 15, "low")
    add(site, "polite", 20, "polite")
    add(site, "winner", 22, "high")
    assert wait_evicted(site, 1) == ["new"], "one is enough: of low priority, the newest that is large enough"
    winner = site.cluster.api.wait(
        "pods", "winner", lambda pod: pod["status"].get("nominatedNodeName") == "n0000", "default", what="nominated"
    )
    assert not winner["spec"].get("nodeName"), "the card is not free before the victim is gone"
    add(site, "greedy", 10, "low")
    end(site, "new")
    wait_bound(site, "winner")
    assert alive(site) == ["greedy", "middle", "old", "polite", "small", "winner"]
    for waiting in ("greedy", "polite"):
        assert "nodeName" not in site.cluster.api.get("pods", waiting, "default")["spec"]
    wait_told(site, ("winner", "PreemptionStarted"), ("new", "Preempted"))


def test_c144_a_budget_is_kept(proxied: tuple[Site, ApiProxy]) -> None:
    """Also one that changes while the eviction is on its way: another goes then, or nobody until it allows more."""
    site, proxy = proxied
    api = site.cluster.api
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": budget}
    api.create("poddisruptionbudgets.policy", body, "default")
    for name in ("web-1", "web-2"):
        run(site, name, 20, "low", app="web")
    run(site, "filler", 40, "high")

    def less() -> None:
        api.patch("poddisruptionbudgets.policy", "web", {"spec": {"minAvailable": 2}}, "default")

    asked = proxy.rule("POST", "/web-2/eviction$", None, before=less)
    add(site, "winner", 20, "high")
    wait_told(site, ("winner", "PreemptionStarted"), ("winner", "PreemptionFailed"))
    assert asked.said == 429, "the API server has the last word"
    assert alive(site) == ["filler", "web-1", "web-2", "winner"]
    end(site, "filler")
    wait_bound(site, "winner")
    run(site, "other", 20, "middle")
    add(site, "second", 20, "high")
    assert wait_evicted(site, 1) == ["other"], "rather one of higher priority than one that its budget protects"
    end(site, "other")
    wait_bound(site, "second")
    add(site, "third", 20, "high")
    api.wait("pods", "third", waits, "default", what="told that it waits")
    assert alive(site) == ["second", "third", "web-1", "web-2", "winner"]
    api.patch("poddisruptionbudgets.policy", "web", {"spec": {"minAvailable": 1}}, "default")
    assert wait_evicted(site, 1) == ["web-2"], "as soon as it may"


def waits(pod: Json) -> bool:
    """Whether our scheduler has said of a pod that no card has room."""
    found = [one for one in pod["status"].get("conditions") or [] if one["type"] == names.CONDITION_PLACED]
    return bool(found) and found[0]["reason"] == "CardInsufficientMemory"


def test_a_running_share_is_resized_or_the_pod_says_why_not(site: Site) -> None:
    api = site.cluster.api
    run(site, "a", 20, "low", cores=30)
    run(site, "b", 40, "low")

    def wish(**amounts: str) -> None:
        api.patch("pods", "a", {"metadata": {"annotations": {names.RESIZE: json.dumps({"app": amounts})}}}, "default")

    wish(memory="30Gi", cores="60%")
    pod = api.wait(
        "pods", "a", lambda one: '"gen":2' in one["metadata"]["annotations"][names.GRANT], "default", what="resized"
    )
    grant = parse_grant(pod["metadata"]["annotations"][names.GRANT], uid=pod["metadata"]["uid"], node="n0000", pod="a")
    share = grant.containers["app"].shares[0]
    assert (share.memory, share.cores) == (30 * GI, 600)
    assert pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] == "GPU-n0000-0,NVIDIA,30720,60:;"
    wish(memory="50Gi")

    def refused(one: Json) -> bool:
        conditions = one["status"].get("conditions") or []
        return any(
            found["type"] == names.CONDITION_RESIZED and found["reason"] == "CardInsufficientMemory"
            and "50 GiB wished; 40 GiB there" in found["message"]
            for found in conditions
        )  # fmt: skip

    api.wait("pods", "a", refused, "default", what="refused")
    add(site, "c", 11, "low")
    api.wait(
        "pods",
        "c",
        lambda one: any(
            found.get("reason") == "CardInsufficientMemory" for found in one["status"].get("conditions") or []
        ),
        "default",
        what="waiting",
    )
    wish(memory="29Gi")
    api.wait("pods", "a", lambda one: '"gen":3' in one["metadata"]["annotations"][names.GRANT], "default", what="less")
    says = {"type": names.CONDITION_RESIZED, "status": "True", "reason": "x", "message": condition_message(3)}
    say(site.cluster.as_account(names.ACCOUNT_AGENT), "a", says)
    wait_bound(site, "c")
