"""The admission policies as shipped, on a real API server: a forged grant is denied at every door, by name; the
scheduler, kubelet and everybody's ordinary pods are not hindered; an agent's token is worth its own node and no more.

K09: a tenant who can edit everything in its namespace, pods/binding and pods/status included, gets itself no share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.api import APPLY, MERGE, PATIENCE_S, STRATEGIC, Api, Json, RefusedError
from tests.cluster.changes import deadline, left
from tests.cluster.cluster import SYSTEM, Cluster
from tests.cluster.conftest import opened
from tests.cluster.controlplane import Options
from tests.cluster.process import POLL

if TYPE_CHECKING:
    from tests.cluster.binaries import Binaries

POLICIES = Path(__file__).resolve().parents[2] / "deploy" / "policies"
GRANT, TWIN = "partage.io/grant", "hami.io/vgpu-devices-allocated"
GUARDED = (GRANT, TWIN, "hami.io/kunlun-allocated", "hami.io/Biren-devices-allocated")
WRITER = "system:serviceaccount:partage-system:partage-scheduler"
#: Nodes are objects: who judges their kubelets dead changes their conditions, and those of their pods, under our hands.
CONTROLLERS = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"
JSON_PATCH = "application/json-patch+json"
#: What the scheduler takes for the node's word that memory was given back.
RESIZED: Json = {"type": "partage.io/Resized", "status": "True", "reason": "ShareResized", "message": "generation 2"}
TENANT: tuple[Json, ...] = ({"apiGroups": ["", "apps"], "resources": ["*"], "verbs": ["*"]},)
AGENT: tuple[Json, ...] = (
    {"apiGroups": [""], "resources": ["nodes", "nodes/status", "pods", "pods/status"], "verbs": ["*"]},
)


def pod_of(name: str, *, annotations: Json | None = None, node: str | None = None, limits: Json | None = None) -> Json:
    container: Json = {"name": "app", "image": "none"}
    if limits:
        container["resources"] = {"limits": limits}
    spec: Json = {"containers": [container], "automountServiceAccountToken": False}
    spec |= {"nodeName": node} if node else {"schedulerName": "nobody"}
    metadata: Json = {"name": name, "annotations": annotations} if annotations else {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def binding_of(name: str, annotations: Json | None = None, node: str = "n1") -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata: Json = {"name": name, "annotations": annotations} if annotations else {"name": name}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


class Site:
    """A control plane with the policies in force, two nodes, and everybody who comes to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = cluster.api
        for name in ("n1", "n2"):
            self.admin.create("nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
        self.scheduler = cluster.scheduler_account()
        cluster.account("tenant", "tenant", TENANT)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self.admin.apply("serviceaccounts", account, "tenant")
        self.tenant = cluster.as_account("tenant", "tenant")
        cluster.account("partage-agent", SYSTEM, AGENT)
        self.agents = {node: self._agent(node) for node in ("n1", "n2")}
        self.unbound = cluster.as_account("partage-agent")
        cluster.control.authority.issue("kubelet-n1", "system:node:n1", "system:nodes")
        self.kubelet = cluster.control.client("kubelet-n1")
        self.admin.others.append(self.kubelet)
        cluster.apply(POLICIES)
        self._in_force()
        self.made = 0

    def _agent(self, node: str) -> Api:
        pod = pod_of(f"agent-{node}", node=node)
        pod["spec"]["serviceAccountName"] = "partage-agent"
        return self.cluster.as_account("partage-agent", pod=self.admin.create("pods", pod, SYSTEM))

    def _in_force(self) -> None:
        """Return once every policy denies what it is there to deny: the API server takes a moment to take them."""
        forged = pod_of("probe", annotations={GRANT: "x"})
        double = pod_of("probe", limits={"nvidia.com/gpu": "1", "metax-tech.com/sgpu": "1"})
        node = {"metadata": {"annotations": {"partage.io/devices": "x"}}}
        label = {"metadata": {"labels": {"x": "y"}}}
        said = {"status": {"conditions": [RESIZED]}}
        probes: dict[str, Callable[[], object]] = {
            "annotation partage.io/grant": lambda: self.tenant.create("pods", forged, "tenant", dryRun="All"),
            "one kind of share": lambda: self.tenant.create("pods", double, "tenant", dryRun="All"),
            "only the agent on that node": lambda: self.admin.patch("nodes", "n2", node),
            "by the agent of node n1": lambda: self.agents["n1"].patch("nodes", "n2", label),
            "agent changes more than its status": lambda: self.agents["n1"].patch("pods", "agent-n1", label, SYSTEM),
            "say what holds of a share": lambda: self.admin.patch("pods", "agent-n1", said, SYSTEM, sub="status"),
        }
        for words, probe in probes.items():
            until_denied(probe, words)
        self.agents["n2"].patch("nodes", "n2", {"metadata": {"annotations": {"partage.io/devices": None}}})

    def new(self, annotations: Json | None = None) -> str:
        """Create an ordinary pod as the tenant and return its name."""
        self.made += 1
        name = f"p{self.made}"
        self.tenant.create("pods", pod_of(name, annotations=annotations), "tenant")
        return name

    def granted(self) -> str:
        """Create a pod and bind it to n1 with a grant and its twin, as the scheduler does."""
        name = self.new()
        self.scheduler.post("pods", name, "binding", binding_of(name, {GRANT: "{}", TWIN: ";"}), "tenant")
        return name

    def pod(self, name: str) -> Json:
        return self.admin.get("pods", name, "tenant")


def until_denied(request: Callable[[], object], words: str) -> None:
    """Repeat a request until a policy denies it in these words: what decides it is seen a moment later."""
    end, said = deadline(PATIENCE_S), "it is allowed"
    while words not in said:
        assert left(end) > 0, f"no policy denies it with {words!r} within {PATIENCE_S:g} s: {said}"
        try:
            request()
            said = "it is allowed"
        except RefusedError as error:
            said = error.message
        time.sleep(POLL)  # nothing tells


def until_done(request: Callable[[], object]) -> None:
    """Repeat a kubelet's request until it is allowed: what the API server knows of its pods it knows by watch."""
    end = deadline(PATIENCE_S)
    while _is_denied(request):
        assert left(end) > 0, f"still denied after {PATIENCE_S:g} s"
        time.sleep(POLL)


def _is_denied(request: Callable[[], object]) -> bool:
    try:
        request()
    except RefusedError:
        return True
    return False


@pytest.fixture(scope="module")
def site(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Site]:
    options = Options(scheduler=False, controller_manager_flags=[CONTROLLERS])
    for cluster in opened(pytestconfig, binaries, node=False, options=options):
        yield Site(cluster)


def denied(request: Callable[[], object], *words: str) -> str:
    """Expect a refusal that names all these words; return its message."""
    with pytest.raises(RefusedError) as caught:
        request()
    assert caught.value.code in (403, 422), caught.value
    for word in words:
        assert word in caught.value.message
    return caught.value.message


# ---- the doors -------------------------------------------------------------------------------------------------------

Door = Callable[[Site, Api, str, str], object]  # as whom, which pod, which annotation


def _replaced(sub: str | None) -> Door:
    def request(site: Site, who: Api, name: str, key: str) -> object:
        pod = site.pod(name)
        pod["metadata"].setdefault("annotations", {})[key] = "forged"
        return who.request("PUT", who.path("pods", name, "tenant", sub), body=pod)

    return request


def _json_patched(sub: str | None) -> Door:
    def request(site: Site, who: Api, name: str, key: str) -> object:
        patch: Json = {"op": "add", "path": "/metadata/annotations", "value": {key: "forged"}}
        return who.request("PATCH", who.path("pods", name, "tenant", sub), body=[patch], kind=JSON_PATCH)

    return request


def _bound(site: Site, who: Api, name: str, key: str) -> object:
    return who.post("pods", name, "binding", binding_of(name, {key: "forged"}), "tenant")


def _bound_as_of_old(site: Site, who: Api, name: str, key: str) -> object:
    return who.create("bindings", binding_of(name, {key: "forged"}), "tenant")


def _applied(site: Site, who: Api, name: str, key: str) -> object:
    return who.apply("pods", pod_of(name, annotations={key: "forged"}), "tenant")


def _created(site: Site, who: Api, name: str, key: str) -> object:
    return who.create("pods", pod_of(f"{name}-new", annotations={key: "forged"}), "tenant")


def _merged(sub: str | None) -> Door:
    def request(site: Site, who: Api, name: str, key: str) -> object:
        return who.patch("pods", name, {"metadata": {"annotations": {key: "forged"}}}, "tenant", sub=sub)

    return request


DOORS: dict[str, Door] = {
    "create": _created,
    "update": _replaced(None),
    "patch": _merged(None),
    "json patch": _json_patched(None),
    "apply": _applied,
    "update status": _replaced("status"),
    "patch status": _merged("status"),
    "json patch status": _json_patched("status"),
    "binding": _bound,
    "legacy binding": _bound_as_of_old,
}


@pytest.mark.parametrize("key", GUARDED)
@pytest.mark.parametrize("door", DOORS)
def test_k09_a_forged_grant_is_denied(site: Site, door: str, key: str) -> None:
    name = site.new()
    message = denied(lambda: DOORS[door](site, site.tenant, name, key), key, "tenant/", WRITER)
    assert "system:serviceaccount:tenant:tenant" in message
    assert "let the scheduler place the pod" in message
    assert key not in site.pod(name)["metadata"].get("annotations", {})
    assert site.pod(name)["spec"].get("nodeName") is None


@pytest.mark.parametrize("door", ["update", "patch", "json patch", "update status", "patch status"])
def test_k09_a_grant_that_is_there_stays_as_it_is(site: Site, door: str) -> None:
    name = site.granted()
    sub = "status" if "status" in door else None
    gone: Json = {"metadata": {"annotations": {TWIN: None}}}
    for who in (site.tenant, site.admin, *([site.kubelet] if sub else [])):
        denied(partial(DOORS[door], site, who, name, GRANT), GRANT)
        denied(partial(who.patch, "pods", name, gone, "tenant", sub=sub), TWIN)
    assert site.pod(name)["metadata"]["annotations"] == {GRANT: "{}", TWIN: ";"}


@pytest.mark.parametrize("sub", ["resize", "ephemeralcontainers"])
def test_k09_no_other_subresource_carries_a_grant(site: Site, sub: str) -> None:
    """These drop annotations by themselves, or the policy denies them: either way there is none afterwards."""
    name = site.new()
    _is_denied(lambda: _merged(sub)(site, site.tenant, name, GRANT))
    assert GRANT not in site.pod(name)["metadata"].get("annotations", {})


def test_k09_controllers_make_no_forged_pods_of_a_template(site: Site) -> None:
    """The template may say what it likes; its pods are denied, and the one who wrote it reads why."""
    labels = {"app": "forged"}
    template = {"metadata": {"labels": labels, "annotations": {GRANT: "x"}}, "spec": pod_of("")["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "forged"}, "spec": spec}
    site.tenant.create("replicasets.apps", made, "tenant")
    done = site.admin.wait(
        "replicasets.apps",
        "forged",
        lambda found: any(c["type"] == "ReplicaFailure" for c in found.get("status", {}).get("conditions", [])),
        "tenant",
        what="refused its pods",
    )
    assert GRANT in done["status"]["conditions"][0]["message"]
    site.tenant.delete("replicasets.apps", "forged", "tenant")


def test_the_scheduler_grants_with_the_binding_and_rewrites(site: Site) -> None:
    name = site.granted()
    pod = site.pod(name)
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"] == {GRANT: "{}", TWIN: ";"}
    site.scheduler.patch("pods", name, {"metadata": {"annotations": {GRANT: '{"gen":2}'}}}, "tenant")
    assert site.pod(name)["metadata"]["annotations"][GRANT] == '{"gen":2}'


def test_ordinary_pods_are_nobodys_business(site: Site) -> None:
    wishes = {"hami.io/node-scheduler-policy": "spread", "partage.io/class": "burst"}
    for name in (site.new(), site.new(annotations=wishes)):
        site.tenant.patch("pods", name, {"metadata": {"annotations": {"a": "b", "partage.io/resize": "{}"}}}, "tenant")
        site.tenant.patch("pods", name, {"metadata": {"labels": {"partage.io/grant": "not-an-annotation"}}}, "tenant")
        site.tenant.post("pods", name, "binding", binding_of(name, {"other": "1"}), "tenant")
        site.tenant.patch("pods", name, {"status": {"message": "mine"}}, "tenant", sub="status")
        site.tenant.delete("pods", name, "tenant", grace=0)
    old = site.new()
    site.tenant.create("bindings", binding_of(old), "tenant")


def test_a_granted_pod_lives_and_ends_as_any_other(site: Site) -> None:
    name = site.granted()
    site.tenant.patch("pods", name, {"metadata": {"finalizers": ["example.com/hold"], "labels": {"x": "1"}}}, "tenant")
    running: Json = {
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [
                {"name": "app", "image": "none", "imageID": "", "ready": True, "restartCount": 0, "state": {}}
            ],
        }
    }
    site.kubelet.patch("pods", name, running, "tenant", sub="status")
    assert site.pod(name)["status"]["phase"] == "Running"
    site.tenant.delete("pods", name, "tenant")
    until_done(lambda: site.kubelet.delete("pods", name, "tenant", grace=0))
    assert site.pod(name)["metadata"]["deletionTimestamp"]
    site.tenant.patch("pods", name, {"metadata": {"finalizers": None}}, "tenant")
    site.admin.wait_gone("pods", name, "tenant")


def test_a_pod_full_of_annotations_does_not_exhaust_the_policy(site: Site) -> None:
    """The most that the API server takes: its status must still be written, or the pod would hang for ever."""
    many = {f"hami.io/{number:05}": "x" for number in range(13000)}
    name = site.new(annotations=many)
    site.scheduler.post("pods", name, "binding", binding_of(name, {GRANT: "{}"}), "tenant")
    site.kubelet.patch("pods", name, {"status": {"phase": "Running"}}, "tenant", sub="status")
    denied(lambda: DOORS["patch"](site, site.tenant, name, GRANT), GRANT)
    other = site.granted()
    said = [{"type": f"partage.{number:05}", "status": "True"} for number in range(1000)]
    site.tenant.patch("pods", other, {"status": {"conditions": said}}, "tenant", sub="status")
    site.kubelet.patch("pods", other, {"status": {"phase": "Running"}}, "tenant", sub="status")
    site.tenant.delete("pods", name, "tenant", grace=0)


# ---- what is said of a pod -------------------------------------------------------------------------------------------


def _says(kind: str, sub: str | None = "status") -> Door:
    """Return how somebody writes a condition (`key` names it) by a request of this kind, on the pod as it is."""

    def request(site: Site, who: Api, name: str, key: str) -> object:
        said = {**RESIZED, "type": key}
        path = who.path("pods", name, "tenant", sub)
        pod = site.pod(name)
        there = [one for one in pod["status"].get("conditions", []) if one["type"] != key]
        whole: Json = {"status": {"conditions": [*there, said]}}
        if kind == "PUT":
            return who.request("PUT", path, body=pod | {"status": pod["status"] | whole["status"]})
        if kind == JSON_PATCH:
            patch = [{"op": "add", "path": "/status/conditions", "value": whole["status"]["conditions"]}]
            return who.request("PATCH", path, body=patch, kind=JSON_PATCH)
        if kind == APPLY:
            body: Json = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "status": {"conditions": [said]},
            }
            return who.request("PATCH", path, body=body, kind=APPLY, fieldManager="forger", force="true")
        return who.request(
            "PATCH", path, body={"status": {"conditions": [said]}} if kind == STRATEGIC else whole, kind=kind
        )

    return request


SAYING: dict[str, Door] = {
    "update": _says("PUT"),
    "patch": _says(MERGE),
    "strategic patch": _says(STRATEGIC),
    "json patch": _says(JSON_PATCH),
    "apply": _says(APPLY),
}


def conditions(site: Site, name: str) -> dict[str, Json]:
    return {one["type"]: one for one in site.pod(name)["status"].get("conditions", []) if "partage" in one["type"]}


@pytest.mark.parametrize("door", SAYING)
def test_k15_a_forged_confirmation_is_denied(site: Site, door: str) -> None:
    """K15: the scheduler promises memory to others once it reads `partage.io/Resized`."""
    name = site.granted()
    for kind in ("partage.io/Resized", "partage.io/Enforced", "partage.io/New"):
        for who in (site.tenant, site.kubelet):
            message = denied(partial(SAYING[door], site, who, name, kind), f"condition {kind} of tenant/{name}")
            assert "agent of its node" in message
    assert conditions(site, name) == {}


def test_k15_no_other_door_leads_to_a_condition(site: Site) -> None:
    """The API server drops status there, or refuses: either way it says nothing afterwards."""
    name = site.granted()
    for sub in (None, "resize", "ephemeralcontainers"):
        for kind in ("PUT", MERGE, STRATEGIC, JSON_PATCH, APPLY):
            _is_denied(partial(_says(kind, sub), site, site.tenant, name, "partage.io/Resized"))
            assert conditions(site, name) == {}, (sub, kind)
    born = pod_of(f"{name}-born") | {"status": {"conditions": [RESIZED]}}
    site.tenant.create("pods", born, "tenant")
    assert conditions(site, f"{name}-born") == {}


def test_k15_what_our_parts_say_stays_as_it_is(site: Site) -> None:
    name = site.granted()
    refused = {**RESIZED, "status": "False", "reason": "ShareStillUsed"}
    placed = {**RESIZED, "type": "partage.io/Placed", "reason": "Placed"}

    def say(who: Api, *said: Json, kind: str = STRATEGIC) -> object:
        path = who.path("pods", name, "tenant", "status")
        return who.request("PATCH", path, body={"status": {"conditions": list(said)}}, kind=kind)

    say(site.scheduler, placed)
    say(site.agents["n1"], refused)
    before = conditions(site, name)
    assert before.keys() == {"partage.io/Placed", "partage.io/Resized"}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for who in (site.tenant, site.admin, site.kubelet):
        for said in (
            [{**refused, "status": "True"}],
            [{**refused, "message": "generation 3"}],
            [{"type": "partage.io/Resized", "$patch": "delete"}],
        ):
            denied(partial(say, who, *said), "partage.io/Resized")
        denied(partial(say, who, ready, kind=MERGE), "condition partage.io/")  # which takes both away
        denied(partial(say, who, *before.values(), before["partage.io/Resized"], kind=MERGE), "repeated")
    denied(partial(say, site.agents["n2"], RESIZED), "by the agent of node n2")
    say(site.tenant, ready)
    say(site.kubelet, *reversed(before.values()), ready, kind=MERGE)
    assert conditions(site, name) == before
    say(site.agents["n1"], RESIZED)
    assert conditions(site, name)["partage.io/Resized"]["status"] == "True"


def test_k15_a_forged_end_is_denied(site: Site) -> None:
    """What a pod that has ended had is promised to others: nobody but who runs it says so of one with a share."""
    name, ordinary = site.granted(), site.new()
    running = {
        "name": "app",
        "image": "none",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {}},
    }
    status: Json = {"phase": "Running", "containerStatuses": [running]}
    site.kubelet.patch("pods", name, {"status": status}, "tenant", sub="status")

    def says(who: Api, **status: object) -> Callable[[], object]:
        return lambda: who.patch("pods", name, {"status": status}, "tenant", sub="status")

    for phase in ("Failed", "Succeeded"):
        denied(says(site.tenant, phase=phase), f"says that it is {phase}", "delete the pod")
        denied(says(site.tenant, phase=phase, containerStatuses=[]), "its kubelet")
    site.tenant.patch("pods", ordinary, {"status": {"phase": "Failed"}}, "tenant", sub="status")
    says(site.kubelet, phase="Failed")()  # ahead of its containers
    denied(says(site.tenant, containerStatuses=None), "says that it is Failed")
    says(site.tenant, message="mine")()
    assert site.pod(name)["status"]["containerStatuses"]
    site.cluster.account("pod-garbage-collector", "kube-system", TENANT)
    site.cluster.as_account("pod-garbage-collector", "kube-system").patch(
        "pods", name, {"status": {"phase": "Succeeded", "containerStatuses": None}}, "tenant", sub="status"
    )


# ---- one kind of share a container -----------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["metax-tech.com/sgpu", "nvidia.com/mig-1g.10gb", "kunlunxin.com/vxpu"])
@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_two_kinds_of_share_in_one_container_are_denied_by_name(site: Site, place: str, second: str) -> None:
    pod = pod_of("double")
    resources = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10", second: "1", "cpu": "1"}}
    pod["spec"].setdefault(place, []).append({"name": "greedy", "image": "none", "resources": resources})
    denied(lambda: site.tenant.create("pods", pod, "tenant"), "container greedy", "nvidia.com/gpu", second)


def test_one_kind_of_share_a_container_is_fine(site: Site) -> None:
    pod = pod_of("single", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "30"})
    other = {"name": "other", "image": "none", "resources": {"limits": {"metax-tech.com/sgpu": "1"}}}
    pod["spec"]["initContainers"] = [other]
    site.tenant.create("pods", pod, "tenant")


# ---- the agent -------------------------------------------------------------------------------------------------------


def test_an_agent_says_what_its_own_node_has(site: Site) -> None:
    marks = {"partage.io/devices": "{}", "hami.io/node-nvidia-register": "[]", "hami.io/node-nvidia-score": "[]"}
    labels = {"nvidia.com/gpu.count": "8", "partage.io/agent": "1"}
    site.agents["n1"].patch("nodes", "n1", {"metadata": {"annotations": marks, "labels": labels}})
    condition = {"type": "partage.io/Ready", "status": "True"}
    before = site.admin.get("nodes", "n1")["status"].get("conditions", [])
    site.agents["n1"].patch("nodes", "n1", {"status": {"conditions": [*before, condition]}}, sub="status")
    node = site.admin.get("nodes", "n1")
    assert marks.items() <= node["metadata"]["annotations"].items()
    assert any(found["type"] == "partage.io/Ready" for found in node["status"]["conditions"])


@pytest.mark.parametrize(
    ("body", "sub", "word"),
    [
        ({"metadata": {"annotations": {"other": "1"}}}, None, "other"),
        ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, None, "node-role"),
        ({"metadata": {"finalizers": ["a.b/c"]}}, None, "finalizers"),
        ({"spec": {"unschedulable": True}}, None, "spec"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, None, "spec"),
        ({"status": {"allocatable": {"cpu": "999"}}}, "status", "status"),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "status", "status"),
    ],
)
def test_an_agent_says_nothing_else_of_its_node(site: Site, body: Json, sub: str | None, word: str) -> None:
    denied(lambda: site.agents["n1"].patch("nodes", "n1", body, sub=sub), "n1", word)


def test_an_agents_token_is_worth_its_own_node(site: Site) -> None:
    mark = {"metadata": {"annotations": {"partage.io/devices": "forged"}}}
    denied(lambda: site.agents["n1"].patch("nodes", "n2", mark), "by the agent of node n1")
    denied(lambda: site.unbound.patch("nodes", "n1", mark), "not bound to a pod")
    denied(lambda: site.agents["n1"].request("DELETE", "/api/v1/nodes/n1"), "n1")
    other = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n3"}}
    denied(lambda: site.agents["n1"].create("nodes", other), "n3")


def test_nobody_else_says_what_a_node_has(site: Site) -> None:
    mark = {"metadata": {"annotations": {"partage.io/devices": "forged"}}}
    for who, sub in ((site.admin, None), (site.scheduler, None), (site.kubelet, None), (site.kubelet, "status")):
        denied(partial(who.patch, "nodes", "n1", mark, sub=sub), "partage.io/devices", "only the agent")
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n4", **mark["metadata"]}}
    denied(lambda: site.admin.create("nodes", node), "partage.io/devices")
    site.admin.patch("nodes", "n1", {"metadata": {"annotations": {"hami.io/device-cordon": "GPU-1"}}})
    site.kubelet.patch("nodes", "n1", {"status": {"nodeInfo": {"kernelVersion": "6.1"}}}, sub="status")


def enforced(site: Site, name: str, kind: str = "partage.io/Enforced") -> Json:
    conditions = site.pod(name)["status"].get("conditions", [])
    kept = [found for found in conditions if found["type"] != kind]
    return {"status": {"conditions": [*kept, {"type": kind, "status": "True", "reason": "shim", "message": "m"}]}}


def test_an_agent_reports_on_the_pods_of_its_node(site: Site) -> None:
    name = site.granted()
    for kind in ("partage.io/Enforced", "partage.io/Resized", "partage.io/Enforced"):
        site.agents["n1"].patch("pods", name, enforced(site, name, kind), "tenant", sub="status")
    kinds = {found["type"] for found in site.pod(name)["status"]["conditions"]}
    assert {"partage.io/Enforced", "partage.io/Resized"} <= kinds
    site.kubelet.patch("pods", name, {"status": {"phase": "Running"}}, "tenant", sub="status")


def test_an_agent_reports_nothing_else(site: Site) -> None:
    name, unbound = site.granted(), site.new()
    n1, n2 = site.agents["n1"], site.agents["n2"]

    def status(who: Api, body: Json, pod: str = name) -> Callable[[], object]:
        return lambda: who.patch("pods", pod, body, "tenant", sub="status")

    denied(status(n2, enforced(site, name)), "by the agent of node n2")
    denied(status(site.unbound, enforced(site, name)), "not bound to a pod")
    denied(status(n1, enforced(site, unbound), unbound), "on node none")
    denied(status(n1, enforced(site, name, "Ready")), "Enforced and partage.io/Resized only")
    denied(status(n1, enforced(site, name, "partage.io/Placed")), "Enforced and partage.io/Resized only")
    denied(status(n1, {"status": {"conditions": None}}), "Enforced and partage.io/Resized only")
    denied(status(n1, {"status": {"phase": "Succeeded"}}), "only")
    denied(status(n1, {"metadata": {"labels": {"x": "y"}}}), "labels")
    denied(status(n1, {"metadata": {"annotations": {GRANT: "{}x"}}}), "annotation")
    denied(lambda: n1.patch("pods", name, {"metadata": {"labels": {"x": "y"}}}, "tenant"), "more than its status")


def test_the_policies_are_well_typed(site: Site) -> None:
    """The controller manager checks each expression against the kinds it is for and writes down what it doubts."""
    for manifest in POLICIES.glob("*.yaml"):
        for line in manifest.read_text().splitlines():
            if not line.startswith("  policyName: "):
                continue
            name = line.split()[1]
            policy = site.admin.wait(
                "validatingadmissionpolicies.admissionregistration.k8s.io",
                name,
                lambda found: "typeChecking" in found.get("status", {}),
                what="checked",
            )
            assert policy["status"]["typeChecking"] == {}, name


# ---- terms -----------------------------------------------------------------------------------------------------------


def test_k15_a_scheduler_of_an_earlier_term_writes_no_grant(site: Site) -> None:
    """By bind or by resize; what is no grant it may write."""

    def bind(term: int) -> str:
        name = site.new()
        site.scheduler.post("pods", name, "binding", binding_of(name, {GRANT: f'{{"term":{term}}}'}), "tenant")
        return name

    def resize(name: str, text: str) -> None:
        site.scheduler.patch("pods", name, {"metadata": {"annotations": {GRANT: text}}}, "tenant")

    def lead(term: int | None) -> None:
        spec = {"spec": {"leaseTransitions": term}}
        site.admin.patch("leases.coordination.k8s.io", "partage-scheduler", spec, SYSTEM)

    bind(4)  # the Lease is nobody's yet
    lead(5)
    try:
        until_denied(lambda: bind(4), "Lease partage-system/partage-scheduler is in term 5")
        denied(lambda: bind(4), "partage-terms", "written in term 4")
        name = bind(5)
        denied(lambda: resize(name, '{"resizedIn":4,"term":5}'), "written in term 4")
        resize(name, '{"resizedIn":6,"term":3}')
        site.scheduler.patch("pods", name, {"metadata": {"annotations": {"example.com/any": "x"}}}, "tenant")
    finally:
        lead(None)
