"""`partage explain` and `partage simulate` over books of real objects: the right code, and what helps (K24)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from click.testing import CliRunner
from lightkube.resources.core_v1 import ResourceQuota

from partage.cli import cluster as reading
from partage.cli.cluster import ClusterLook, look_of
from partage.cli.explain import explain, show
from partage.cli.explaining import changes, explain_new, explain_pod, lines, quota_changes
from partage.cli.manifests import pods_of, unread
from partage.cli.simulate import simulate
from partage.cli.simulating import place_all
from partage.devices.ask import read_ask
from partage.model import NotFoundError, UsageError, names
from partage.model.grant import encode_grant
from partage.model.node_devices import encode_node_devices
from partage.model.pod import PodView, TaintView
from partage.scheduler.books import Books
from partage.scheduler.quota.feed import QuotaRefused
from partage.scheduler.views import NodeSpecView, WatchedNode, WatchedPod
from tests.scheduler.support import groups, node

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage.scheduler.facts import NodeFacts

Json = dict[str, Any]
MEMORY = "limits.nvidia.com/gpumem"
HALF: Json = {"gpumem-percentage": 50}


def node_object(facts: NodeFacts) -> WatchedNode:
    """A node as the API has it."""
    assert facts.devices is not None
    annotations = {names.DEVICES: encode_node_devices(facts.devices), "hami.io/device-cordon": ",".join(facts.cordoned)}
    status = {
        "allocatable": {"nvidia.com/gpu": str(sum(one.seats for one in facts.devices.devices) or 1)},
        "conditions": [{"type": "Ready", "status": "True" if facts.ready else "False"}],
    }
    return msgspec.convert(
        {"metadata": {"name": facts.name, "annotations": annotations}, "status": status}, WatchedNode
    )


def pod_json(name: str = "a", *, annotations: Json | None = None, namespace: str = "default", **limits: Any) -> Json:
    """A pod; limits by the last word of NVIDIA's resources."""
    written = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations or {},
            "creationTimestamp": "2026-11-30T00:00:00Z",
        },
        "spec": {
            "schedulerName": "partage-scheduler",
            "containers": [{"name": "app", "resources": {"limits": written}}],
        },
    }  # fmt: skip


@dataclass
class World:
    """Objects of a cluster."""

    nodes: list[NodeFacts]
    pods: list[Json] = field(default_factory=list)
    quotas: dict[str, Json] = field(default_factory=dict)

    def bound(self, on: str, name: str, **limits: Any) -> World:
        """Add a pod that runs."""
        pod = pod_json(name, **limits)
        books = self.look().books
        ask = read_ask(pod)
        assert ask is not None
        books.reserve(ask, on, 0.0)
        grant, _ = books.grant_for(ask.uid, on, term=1, bound_at=1)
        pod["metadata"]["annotations"] = {names.GRANT: encode_grant(grant)}
        pod["spec"]["nodeName"] = on
        pod["status"] = {"phase": "Running"}
        self.pods.append(pod)
        return self

    def limited(self, name: str = "q", **hard: str) -> World:
        self.quotas[name] = {f"limits.nvidia.com/{key}": value for key, value in hard.items()}
        return self

    def look(self, *more: Json) -> ClusterLook:
        quotas = [
            ResourceQuota.from_dict({"metadata": {"name": name, "namespace": "default"}, "spec": {"hard": hard}})
            for name, hard in self.quotas.items()
        ]
        pods = [msgspec.convert(pod, WatchedPod) for pod in (*self.pods, *more)]
        return look_of(map(node_object, self.nodes), pods, cast("list[ResourceQuota]", quotas))


@dataclass(frozen=True)
class Cause:
    """A pod that does not fit. `helps`: the beginning of the first suggestion."""

    code: str
    nodes: int
    helps: str
    world: Callable[[], World]
    pod: Json


CAUSES = [
    Cause(
        "CardInsufficientMemory", 2, "ask for nvidia.com/gpumem: 51200 in place of 70000",
        lambda: World([node("a", 1), node("b", 1)])
        .bound("a", "x", gpu=1, gpumem=30720).bound("b", "y", gpu=1, gpumem=40960),
        pod_json(gpu=1, gpumem=70000),
    ),
    Cause(
        "CardInsufficientCore", 1, "ask for nvidia.com/gpucores: 40 in place of 50",
        lambda: World([node("a", 1)]).bound("a", "x", gpu=1, gpumem=1000, gpucores=60),
        pod_json(gpu=1, gpumem=1000, gpucores=50),
    ),
    Cause(
        "CardTypeMismatch", 3, "leave out the wanted card types",
        lambda: World([node(name) for name in "abc"]),
        pod_json(gpu=1, gpumem=1000, annotations={"nvidia.com/use-gputype": "H100"}),
    ),
    Cause(
        "CardUuidMismatch", 2, "leave out the wanted cards",
        lambda: World([node("a"), node("b")]),
        pod_json(gpu=1, gpumem=1000, annotations={"nvidia.com/use-gpuuuid": "GPU-other"}),
    ),
    Cause(
        "CardCordoned", 1, "take GPU-a-0 out of annotation hami.io/device-cordon of node a",
        lambda: World([node("a", 1, cordoned=frozenset({"GPU-a-0"}))]),
        pod_json(gpu=1, gpumem=1000),
    ),
    Cause(
        "NumaNotFit", 1, "leave out nvidia.com/numa-bind",
        lambda: World([node("a", [{"numa": 0}, {"numa": 1}])]),
        pod_json(gpu=2, gpumem=1000, annotations={"nvidia.com/numa-bind": "true"}),
    ),
    Cause(
        "NvlinkNotFit", 1, "set partage.io/nvlink: preferred",
        lambda: World([node("a", 4, groups((0, 1), (2, 3)))]),
        pod_json(gpu=3, gpumem=1000, annotations={"partage.io/nvlink": "required"}),
    ),
    Cause(
        "CardTimeSlicingExhausted", 1, "take GPU-a-2 out of annotation hami.io/device-cordon",
        lambda: World([node("a", [{"seats": 1}] * 3, cordoned=frozenset({"GPU-a-2"}))])
        .bound("a", "x", gpu=1, gpumem=100).bound("a", "y", gpu=1, gpumem=100),
        pod_json(gpu=1, gpumem=1000),
    ),
    Cause(
        "NodeInsufficientSeats", 1, "end, or wait for the end of, pod default/x on node a",
        lambda: World([node("a", [{"seats": 1}])]).bound("a", "x", gpu=1, gpumem=100),
        pod_json(gpu=1, gpumem=1000),
    ),
    Cause(
        "ExclusiveDeviceAllocateConflict", 1, "ask for nvidia.com/gpumem: 71680 in place of 100 % of a card and",
        lambda: World([node("a", 1)]).bound("a", "x", gpu=1, gpumem=10240, gpucores=10),
        pod_json(gpu=1, gpucores=100),
    ),
    Cause(
        "NodeInsufficientDevice", 2, "ask for nvidia.com/gpu: 8 in place of 9",
        lambda: World([node("a"), node("b", 4)]),
        pod_json(gpu=9, gpumem=1000),
    ),
    Cause(
        "NodeNotReady", 1, "see why node a is not ready",
        lambda: World([node("a", 1, ready=False)]),
        pod_json(gpu=1, gpumem=1000),
    ),
    Cause(
        "CardNotHealth", 1, "see why GPU-a-0 of node a is not well",
        lambda: World([node("a", [{"health": False, "reason": "xid 79"}])]),
        pod_json(gpu=1, gpumem=1000),
    ),
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.code)
def test_a_cause_its_code_its_counts_and_what_helps(cause: Cause) -> None:
    look = cause.world().look(cause.pod)
    said = explain_pod(look, look.pod("default", "a"))
    assert said.state == "pending"
    assert said.codes == {cause.code: cause.nodes}
    assert said.nodes_total == len(look.nodes)
    assert said.remedies[cause.code]
    assert said.suggestions[0].text.startswith(cause.helps)
    ask = read_ask(cause.pod)
    assert ask is not None
    for one in changes(look, ask):
        done = Books()
        for state in look.books.nodes.values():
            assert state.facts is not None
            done.set_node(one.facts if one.facts is not None and one.node == state.name else state.facts)
        for pod in look.books.pods.values():
            if pod.uid not in one.ended:
                done.set_pod(pod)
        assert one.node in done.filter(one.ask).fitting, one.text


def test_what_is_suggested_can_be_written_into_the_pod() -> None:
    """The first one of less memory, done by hand."""
    cause = CAUSES[0]
    changed = pod_json(gpu=1, gpumem=51200)
    look = cause.world().look(changed)
    assert explain_pod(look, look.pod("default", "a")).state == "fits"


def test_a_quota_is_a_cause_with_its_numbers_and_what_helps() -> None:
    world = World([node("n", 2)]).bound("n", "x", gpu=2, gpumem=2000).limited(gpumem="10000")
    look = world.look(pod_json(gpu=2, gpumem=4000))
    said = explain_pod(look, look.pod("default", "a"))
    assert said.codes == {"ResourceQuotaNotFit": 1}
    assert said.quota is not None
    assert (said.quota.asked, said.quota.used, said.quota.hard, said.quota.left) == ("8000", "4000", "10000", "6000")
    assert [one.text for one in said.suggestions] == [
        "ask for nvidia.com/gpumem: 3000 in container app",
        f"have {MEMORY} of resourcequota default/q raised to 12000, now 10000",
    ]
    fits = world.look(pod_json(gpu=2, gpumem=3000))
    assert explain_pod(fits, fits.pod("default", "a")).state == "fits"
    raised = world.limited(gpumem="12000").look(pod_json(gpu=2, gpumem=4000))
    assert explain_pod(raised, raised.pod("default", "a")).state == "fits"


def test_a_part_of_a_card_is_kept_to_cards_that_the_quota_allows() -> None:
    small = {"physical": 24 << 30, "memory": 24 << 30}
    world = World([node("large", 1), node("small", [small])]).limited(gpumem="20000")
    look = world.look(pod_json(gpu=1, **HALF))
    said = explain_pod(look, look.pod("default", "a"))
    assert (said.state, said.node, said.codes) == ("fits", "small", {"ResourceQuotaNotFit": 1})
    refused = world.limited(gpumem="12287").look(pod_json(gpu=1, **HALF))
    told = explain_pod(refused, refused.pod("default", "a"))
    assert told.quota is not None
    assert told.quota.asked == "12288"


def test_quota_changes_are_enough() -> None:
    look = World([node("n", 2)]).limited(gpumem="10000", gpucores="50").look(pod_json(gpu=2, gpumem=4000, gpucores=30))
    ask = read_ask(pod_json(gpu=2, gpumem=4000, gpucores=30))
    assert ask is not None
    with pytest.raises(QuotaRefused) as refused:
        look.quotas.narrowed(look.pod("default", "a"), ask)
    texts = [text for text, _, _ in quota_changes(look, ask, refused.value.exceeded)]
    assert texts[0] == "ask for nvidia.com/gpucores: 25 in container app"


def test_what_is_placed_and_what_asks_for_nothing() -> None:
    look = World([node("n", 1)]).bound("n", "x", gpu=1, gpumem=1000, gpucores=10).look(pod_json("plain"))
    placed = explain_pod(look, look.pod("default", "x"))
    assert (placed.state, placed.node) == ("placed", "n")
    assert placed.asks == ("container app: fixed, GPU-n-0 1000 MiB 10 %",)
    assert explain_pod(look, look.pod("default", "plain")).state == "nothing"
    assert placed.notes == ()
    with pytest.raises(NotFoundError, match="default/gone"):
        look.pod("default", "gone")


def test_another_scheduler_and_gates_are_told() -> None:
    pod = pod_json(gpu=1, gpumem=1000)
    pod["spec"] |= {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "partage.io/gang"}]}
    look = World([node("n", 1)]).look(pod)
    notes = explain_pod(look, look.pod("default", "a")).notes
    assert "default-scheduler" in notes[0]
    assert "partage.io/gang" in notes[1]


def test_a_pod_that_others_placed_and_pods_that_ended_are_told() -> None:
    """C173 (K24): to be on a node is not to run."""
    other = pod_json(gpu=1, gpumem=1000)
    other["spec"] |= {"schedulerName": "volcano", "nodeName": "n"}
    look = World([node("n", 1)]).look(other)
    (note,) = explain_pod(look, look.pod("default", "a")).notes
    assert note.startswith("no grant: volcano placed it, and the node's agent starts no container with a share")
    twin = {"hami.io/vgpu-devices-allocated": "GPU-n-0,NVIDIA,3000,30:;"}
    adopted = {**other, "metadata": {**other["metadata"], "annotations": twin}}
    look = World([node("n", 1)]).look(adopted)
    said = explain_pod(look, look.pod("default", "a"))
    assert said.asks == ("container app: fixed, GPU-n-0 2.93 GiB 30 %",)
    assert said.notes == ("placed by HAMi, whose device plugin starts its containers; what it has is counted",)
    ended = {**other, "status": {"phase": "Succeeded"}}
    look = World([node("n", 1)]).look(ended)
    assert "it has ended (Succeeded)" in explain_pod(look, look.pod("default", "a")).notes[0]
    going = pod_json(gpu=1, gpumem=1000)
    going["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    look = World([node("n", 1)]).look(going)
    assert "it was deleted" in explain_pod(look, look.pod("default", "a")).notes[0]


def test_a_manifest_of_another_scheduler_is_told() -> None:
    look = World([node("n", 1)]).look(pod_json(gpu=1))
    pod = pod_json(gpu=1, gpumem=1000)
    for name, told in (("volcano", 1), ("default-scheduler", 0), ("partage-scheduler", 0), (None, 0)):
        pod["spec"]["schedulerName"] = name
        (view,) = pods_of(json.dumps({"kind": "Pod", **pod}).encode(), "f", "default")
        assert len(explain_new(look, view).notes) == told


def test_nodes_that_kube_scheduler_keeps_the_pod_off() -> None:
    pod = pod_json(gpu=1, gpumem=1000)
    pod["spec"]["nodeSelector"] = {"zone": "b"}
    world = World([node("a", 1), node("b", 1)])
    objects = [node_object(facts) for facts in world.nodes]
    cordoned = msgspec.structs.replace(objects[1], spec=NodeSpecView(unschedulable=True))
    labelled = msgspec.structs.replace(
        cordoned, metadata=msgspec.structs.replace(cordoned.metadata, labels={"zone": "b"})
    )
    look = look_of([objects[0], labelled], [msgspec.convert(pod, WatchedPod)], [])
    said = explain_pod(look, look.pod("default", "a"))
    assert said.codes == {"NodeSelectorMismatch": 1, "NodeUnschedulable": 1}
    assert [(one.text, one.node) for one in said.suggestions] == [
        ("let pods onto node b again: `kubectl uncordon b`", "b"),
        ("leave zone: b out of spec.nodeSelector", "a"),
    ]
    well = msgspec.structs.replace(labelled, spec=NodeSpecView())
    look = look_of([objects[0], well], [msgspec.convert(pod, WatchedPod)], [])
    assert explain_pod(look, look.pod("default", "a")).node == "b"


GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
IN_B = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}


def near(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "code", "helps"),
    [
        pytest.param({}, "NodeTaintNotTolerated", "tolerate nvidia.com/gpu=present:NoSchedule in", id="a taint"),
        pytest.param({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, "", "", id="tolerated"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, "", "", id="all tolerated"),
        pytest.param({"tolerations": [GPU_TAINT]}, "", "", id="the same"),
        pytest.param({"tolerations": [GPU_TAINT | {"value": "x"}]}, "NodeTaintNotTolerated", "", id="another value"),
        pytest.param({"tolerations": [GPU_TAINT | {"effect": "NoExecute"}]}, "NodeTaintNotTolerated", "", id="effect"),
        pytest.param(near(IN_B), "NodeSelectorMismatch", "", id="affinity"),
        pytest.param(near(IN_B, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]})
                     | {"tolerations": [GPU_TAINT]}, "", "", id="one of two terms"),
        pytest.param(near({}) | {"tolerations": [GPU_TAINT]}, "NodeSelectorMismatch", "let spec.aff", id="no term"),
    ],
)  # fmt: skip
def test_k24_a_pod_that_kube_scheduler_keeps_off_the_only_node_fits_nowhere(spec: Json, code: str, helps: str) -> None:
    """Nodes with cards have taints as a rule; to be told that the pod fits there helps nobody."""
    (facts,) = World([node("a", 1)]).nodes
    tainted = msgspec.structs.replace(
        node_object(facts), spec=NodeSpecView(taints=(msgspec.convert(GPU_TAINT, TaintView),))
    )
    pod = pod_json(gpu=1, gpumem=1000)
    pod["spec"] |= spec
    look = look_of([tainted], [msgspec.convert(pod, WatchedPod)], [])
    for said in (explain_pod(look, look.pod("default", "a")), explain_new(look, msgspec.convert(pod, PodView))):
        assert said.state == ("pending" if code else "fits")
        assert said.codes == ({code: 1} if code else {})
        assert not helps or said.suggestions[0].text.startswith(helps)


def test_k24_what_kube_scheduler_itself_said_of_a_pod_that_fits_is_told() -> None:
    pod = pod_json(gpu=1, gpumem=1000)
    said = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    pod["status"] = {"phase": "Pending", "conditions": [said]}
    look = World([node("n", 1)]).look(pod)
    assert explain_pod(look, look.pod("default", "a")).notes[-1].endswith(said["message"])


def test_k24_a_pod_that_fits_and_that_no_scheduler_has_looked_at_says_so() -> None:
    """Nobody places pods where no scheduler runs; that it would fit helps nobody then."""
    pod = pod_json(gpu=1, gpumem=1000)
    look = World([node("n", 1)]).look(pod)
    assert explain_pod(look, look.pod("default", "a")).notes[-1].startswith("no scheduler has looked at it: see")
    assert explain_new(look, look.pod("default", "a")).notes == ()
    gated = pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": "team/later"}]}}
    look = World([node("n", 1)]).look(gated)
    notes = explain_pod(look, look.pod("default", "a")).notes
    assert [note.partition(":")[0] for note in notes] == ["gates hold it back"]


def test_all_that_is_wrong_with_a_pod_is_told() -> None:
    look = World([node("n", 1)]).look(pod_json(gpu=1, gpumem="x", gpucores=200))
    said = explain_pod(look, look.pod("default", "a"))
    assert said.state == "invalid"
    assert len(said.problems) == 2


def test_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    look = CAUSES[0].world().look(CAUSES[0].pod)
    said = explain_pod(look, look.pod("default", "a"))
    text = list(lines(said, nodes=1))
    assert text[0] == "pod default/a: fits nowhere"
    assert text[1] == "  container app: 1 nvidia card, 68.36 GiB, class burst"
    assert text[2] == "2 nodes: 0 fit, 2 CardInsufficientMemory"
    assert any(
        line.startswith("  app: card 0 GPU-a-0 NVIDIA A100-SXM4-80GB: CardInsufficientMemory; free 50 GiB")
        for line in text
    )
    assert "and 1 nodes more (--nodes shows them)" in text
    show([said], nodes=0, output="json")
    found = json.loads(capsys.readouterr().out)
    assert found["codes"] == {"CardInsufficientMemory": 2}
    assert found["nodes"][0]["cards"]["app"][0]["free_memory"] == 50 << 30


# ---- simulate --------------------------------------------------------------------------------------------------------


def test_pods_of_a_file_find_what_the_ones_before_left() -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"replicas": 3, "template": {"spec": pod_json(gpu=1, gpumem=40000)["spec"]}},
    }
    service = {"kind": "Service", "metadata": {"name": "s"}}
    text = "\n---\n".join(map(json.dumps, [service, deployment, pod_json(gpu=1, gpumem=1000)]))
    pods = pods_of(text.encode(), "f", "other")
    assert [pod.metadata.name for pod in pods] == ["d-0", "d-1", "d-2", "a"]
    said = place_all(World([node("n", 1)]).look(), pods)
    assert [one.state for one in said] == ["fits", "fits", "pending", "fits"]
    over = place_all(World([node("n", 1)]).limited(gpumem="60000").look(), pods)
    assert [one.state for one in over] == ["fits", "pending", "pending", "fits"]


def test_other_workloads_and_what_is_no_manifest() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod_json(gpu=1)["spec"]}
    cron = {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}
    listed = {"kind": "List", "items": [cron, {"kind": "Job", "spec": {"parallelism": 2, "template": template}}]}
    pods = pods_of(json.dumps(listed).encode(), "f", "ns")
    assert [(pod.metadata.namespace, pod.metadata.name) for pod in pods] == [
        ("ns", "c-0"), ("ns", "pod-0"), ("ns", "pod-1"),
    ]  # fmt: skip
    assert len({pod.metadata.uid for pod in pods}) == 3
    ray = {"kind": "RayCluster", "metadata": {"name": "r"}, "spec": {"workerGroupSpecs": [{"template": template}]}}
    mixed = json.dumps({"kind": "List", "items": [cron, ray, {"kind": "DaemonSet", "spec": {"template": template}}]})
    assert unread(mixed.encode(), "f") == ["RayCluster r", "DaemonSet (without a name)"], "K24: nothing in silence"
    assert unread(json.dumps(listed).encode(), "f") == unread(b"kind: Service", "f") == []
    for text in (
        b"",
        b"kind: Service",
        b"a: b: c",
        b"- 1",
        b"\xff",
        b"a: " + b"[" * 3000,
        b"kind: Pod\nspec: {containers: 5}",
    ):
        with pytest.raises(UsageError):
            pods_of(text, "f", "ns")


def run(monkeypatch: pytest.MonkeyPatch, command: Any, *arguments: str, stdin: str = "") -> tuple[int, str]:
    world = World([node("n", 1)]).look(pod_json(gpu=1, gpumem=1000))
    monkeypatch.setattr(reading, "read_cluster", lambda *_: world)
    result = CliRunner().invoke(command, arguments, input=stdin, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.output


def test_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = run(monkeypatch, explain, "pod", "default/a")
    assert code == 0
    assert text.startswith("pod default/a: fits on node n, 10 of 10 points\n")
    assert run(monkeypatch, simulate, "-f", "-", stdin=json.dumps(pod_json(gpu=1)))[0] == 0
    assert run(monkeypatch, simulate, "-f", "-", stdin=json.dumps(pod_json(gpu=2)))[0] == 3
    assert run(monkeypatch, simulate, "-f", "-", stdin=json.dumps(pod_json(gpu="x")))[0] == 2


def test_a_new_pod_is_explained_with_a_thousand_nodes() -> None:
    look = World([node(f"n{number}") for number in range(200)]).look()
    pod = msgspec.convert(pod_json(gpu=1, gpumem=90000), PodView)
    said = explain_new(look, pod)
    assert said.codes == {"CardInsufficientMemory": 200}
    assert said.suggestions[0].text == "ask for nvidia.com/gpumem: 81920 in place of 90000 in container app"
