"""`partage explain` and `partage simulate` on a live API server: the right code and counts, read by an account that may
only read, and with what is suggested done by hand the pod is bound (K24).

PARTAGE_EXPLAIN_NODES=1250 is the size that is promised; the default takes a tenth of the time.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from partage.cli.explain import explain
from partage.cli.simulate import simulate
from partage.model.units import GI
from tests.cluster.scheduling import APISERVER, Site, node, share_pod

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.api import Json
    from tests.cluster.conftest import OpenControlPlane

NODES: Final = int(os.environ.get("PARTAGE_EXPLAIN_NODES", "200"))
QUOTAS: Final = "--controllers=resourcequota-controller"
CORDON: Final = "hami.io/device-cordon"
READER: Final = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "resourcequotas"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
]


@dataclass(frozen=True)
class Cause:
    """Why a pod waits: its nodes, who is on them, the pod, and what is done to the first node."""

    nodes: int
    pod: Json
    cards: int = 1
    seats: int = 10
    there: tuple[Json, ...] = ()
    spoilt: Json = field(default_factory=dict)
    selector: str = ""


def asks(**amounts: int) -> Json:
    """Return what a container asks for, by the last word of NVIDIA's names."""
    return {f"nvidia.com/{name}": str(amount) for name, amount in amounts.items()}


def wants(amounts: Json, **wishes: str) -> Json:
    """Return amounts with annotations, by the last word of NVIDIA's names."""
    return {"limits": amounts, "annotations": {f"nvidia.com/{key.replace('_', '-')}": v for key, v in wishes.items()}}


SMALL: Final = asks(gpu=1, gpumem=1000)
CAUSES: Final[dict[str, Cause]] = {
    "CardInsufficientMemory": Cause(
        2, wants(asks(gpu=1, gpumem=70000)), there=(asks(gpu=1, gpumem=40960), asks(gpu=1, gpumem=50000))
    ),
    "CardInsufficientCore": Cause(
        1, wants(asks(gpu=1, gpumem=1000, gpucores=50)), there=(asks(gpu=1, gpumem=1000, gpucores=60),)
    ),
    "CardTypeMismatch": Cause(3, wants(SMALL, use_gputype="H100")),
    "CardUuidMismatch": Cause(2, wants(SMALL, use_gpuuuid="GPU-other")),
    "CardIndexMismatch": Cause(1, wants(SMALL, use_gpuindexes="3")),
    "CardCordoned": Cause(1, wants(SMALL), spoilt={"metadata": {"annotations": {CORDON: "GPU-cardcordoned-0-0"}}}),
    "NumaNotFit": Cause(1, wants(asks(gpu=2, gpumem=1000), numa_bind="true"), cards=2),
    "NodeInsufficientDevice": Cause(2, wants(asks(gpu=9, gpumem=1000)), cards=8),
    "NodeInsufficientSeats": Cause(1, wants(SMALL), seats=1, there=(SMALL,)),
    "ExclusiveDeviceAllocateConflict": Cause(
        1, wants(asks(gpu=1, gpucores=100)), there=(asks(gpu=1, gpumem=10240, gpucores=10),)
    ),
    "ResourceQuotaNotFit": Cause(1, wants(asks(gpu=1, gpumem=3000))),
    "NodeUnschedulable": Cause(2, wants(SMALL), spoilt={"spec": {"unschedulable": True}}),
    "NodeSelectorMismatch": Cause(1, wants(SMALL), selector="nowhere"),
}  # fmt: skip


def pool_of(code: str) -> str:
    return code.lower()


def namespace_of(code: str) -> str:
    return f"of-{pool_of(code)}"


@dataclass
class World:
    """The cluster, with one pool of nodes and one waiting pod for each cause."""

    site: Site
    reader: Path

    def fill(self) -> None:
        """Make all nodes, those who are on them, and the pods that wait."""
        api, made = self.site.cluster.api, []
        for code, cause in CAUSES.items():
            for number in range(cause.nodes):
                one = node(f"{pool_of(code)}-{number}", cause.cards, memory=80 * GI, seats=cause.seats)
                one["metadata"]["labels"]["pool"] = pool_of(code)
                made.append(one)
        made += [node(f"bulk-{number}", memory=80 * GI) for number in range(NODES - len(made))]
        self.site.many("POST", ["/api/v1/nodes"] * len(made), made)
        for code, cause in CAUSES.items():
            api.create("namespaces", {"metadata": {"name": namespace_of(code)}})
            for number, amounts in enumerate(cause.there):
                self.add(code, f"there-{number}", {"limits": amounts, "annotations": {}}, pool_of(code))
        hard = {"hard": {"limits.nvidia.com/gpumem": "2000"}}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": hard}
        api.create("resourcequotas", body, namespace_of("ResourceQuotaNotFit"))
        self.site.replica("a", election=False).start()
        for code, cause in CAUSES.items():
            for number in range(len(cause.there)):
                self.wait_bound(code, f"there-{number}")
            for number in range(cause.nodes) if cause.spoilt else ():
                api.patch("nodes", f"{pool_of(code)}-{number}", cause.spoilt)
        for code, cause in CAUSES.items():
            self.add(code, "waits", cause.pod, cause.selector or pool_of(code))

    def add(self, code: str, name: str, asked: Json, pool: str) -> None:
        pod = share_pod(name, annotations=asked["annotations"], nodeSelector={"pool": pool})
        pod["spec"]["containers"][0]["resources"]["limits"] = asked["limits"]
        self.site.cluster.api.create("pods", pod, namespace_of(code))

    def wait_bound(self, code: str, name: str) -> Json:
        return self.site.cluster.api.wait(
            "pods", name, lambda pod: bool(pod["spec"].get("nodeName")), namespace_of(code), what=f"bound ({code})"
        )

    def says(self, command: Any, *arguments: str, stdin: str = "") -> tuple[int, Any]:
        """Return what a command says, as the account that may only read: exit code and JSON."""
        flags = ["--kubeconfig", str(self.reader), "--output", "json"]
        done = CliRunner().invoke(command, [*arguments, *flags], input=stdin, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value or 0, json.loads(done.stdout)

    # ---- doing what is suggested -----------------------------------------------------------------------------------

    def follow(self, code: str, text: str) -> None:
        """Do what a suggestion says, as a person would: by its words alone."""
        api, namespace = self.site.cluster.api, namespace_of(code)
        if found := re.search(r"take (\S+) out of annotation (\S+) of node (\S+)", text):
            api.patch("nodes", found[3], {"metadata": {"annotations": {found[2]: None}}})
        elif found := re.search(r"`kubectl uncordon (\S+)`", text):
            self.site.cluster.kubectl("uncordon", found[1])
        elif found := re.search(r"end, or wait for the end of, pod (\S+)/(\S+) on", text):
            api.delete("pods", found[2], found[1], grace=0)
        elif found := re.search(r"have (\S+) of resourcequota (\S+)/(\S+) raised to (\d+)", text):
            api.patch("resourcequotas", found[3], {"spec": {"hard": {found[1]: found[4]}}}, found[2])
        else:
            self.write_again(code, text, api.get("pods", "waits", namespace))

    def write_again(self, code: str, text: str, pod: Json) -> None:
        """Create the pod anew as a suggestion wants it."""
        asked = {"limits": pod["spec"]["containers"][0]["resources"]["limits"], "annotations": {}}
        asked["annotations"] |= pod["metadata"].get("annotations", {})
        selector = pod["spec"]["nodeSelector"]
        for name, amount in re.findall(r"(nvidia\.com/\S+): (\d+)", text):
            asked["limits"][name] = amount
        for key in re.findall(r"nvidia\.com/[\w-]+", text) if text.startswith("leave out") else ():
            asked["annotations"].pop(key, None)
        if found := re.search(r"leave pool: (\S+) out of spec.nodeSelector", text):
            assert selector == {"pool": found[1]}
            selector = {}
        api, namespace = self.site.cluster.api, namespace_of(code)
        api.delete("pods", "waits", namespace, grace=0)
        api.wait_gone("pods", "waits", namespace)
        made = share_pod("waits", annotations=asked["annotations"], nodeSelector=selector)
        made["spec"]["containers"][0]["resources"]["limits"] = asked["limits"]
        api.create("pods", made, namespace)


@pytest.fixture
def world(control_plane: OpenControlPlane) -> World:
    cluster = control_plane(scheduler=False, apiserver_flags=APISERVER, controller_manager_flags=[QUOTAS])
    site = Site(cluster).prepare()
    cluster.account("reader", rules=READER)
    reader = cluster.token_kubeconfig(site.directory / "reader.kubeconfig", cluster.token("reader"))
    made = World(site, reader)
    made.fill()
    return made


def test_k24_each_cause_is_named_and_what_is_suggested_helps(world: World) -> None:
    for code, cause in CAUSES.items():
        _, said = world.says(explain, "pod", f"{namespace_of(code)}/waits")
        assert said["state"] == "pending"
        if code in ("ResourceQuotaNotFit", "NodeSelectorMismatch"):
            assert said["codes"] == {code: NODES}
        else:
            assert said["codes"] == {code: cause.nodes, "NodeSelectorMismatch": NODES - cause.nodes}
        assert said["nodes_total"] == NODES
        assert said["remedies"][code]
        (text, *_) = [one["text"] for one in said["suggestions"] if is_of(code, one)]
        told_by_the_scheduler(world, code, cause)
        world.follow(code, text)
    for code in CAUSES:
        world.wait_bound(code, "waits")
    simulated(world)


def is_of(code: str, suggestion: Json) -> bool:
    """Whether a suggestion is one for the pod's own pool, and not to choose among all nodes."""
    if code == "NodeSelectorMismatch":
        return True
    if code == "ResourceQuotaNotFit":
        return "raised" in suggestion["text"]
    return suggestion["node"].startswith(f"{pool_of(code)}-") and "nodeSelector" not in suggestion["text"]


def told_by_the_scheduler(world: World, code: str, cause: Cause) -> None:
    """Wait until an event says what the scheduler itself says of a pod that it was asked about: the same."""
    if code in ("NodeUnschedulable", "NodeSelectorMismatch", "NodeInsufficientSeats"):
        return  # kube-scheduler itself refuses their nodes
    counted = code if code == "ResourceQuotaNotFit" else f"{cause.nodes} node{'s' * (cause.nodes > 1)} {code}"

    def told(events: list[Json]) -> bool:
        return any(counted in one["note"] for one in events if one["regarding"]["name"] == "waits")

    world.site.cluster.api.wait_all("events.events.k8s.io", told, namespace_of(code), what=f"told of {counted!r}")


def simulated(world: World) -> None:
    """Pods that do not exist yet, of whole workloads; nothing is created, by an account that could not."""
    before = {one["metadata"]["uid"] for one in world.site.cluster.api.list("pods")}
    fits, large = share_pod("fits", memory=8000), share_pod("large", memory=90000)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": share_pod("", cards=8, memory=70000)["spec"]}
    spec = {"replicas": 20, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    many = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": spec}
    whole = {"apiVersion": "v1", "kind": "List", "items": [fits, many, large]}
    code, said = world.says(simulate, "--filename", "-", stdin=json.dumps(whole))
    assert code == 3
    assert [one["state"] for one in said] == ["fits"] + ["fits"] * 20 + ["pending"]
    assert said[-1]["codes"]["CardInsufficientMemory"] > NODES // 2
    assert len({one["node"] for one in said[1:-1]}) == 20, "each finds the cards that the ones before left"
    assert {one["metadata"]["uid"] for one in world.site.cluster.api.list("pods")} == before
