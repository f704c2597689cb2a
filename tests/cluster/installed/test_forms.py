"""Pods as HAMi's users write them, and as charts for serving models render them: each runs with just what it asks for.

The documents lie in forms/; here stands what each container is to get. What is refused is refused for its own reason.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from partage.model import names
from partage.model.units import MI
from tests.cluster.agent import total_of
from tests.cluster.api import PATIENCE_S, RefusedError
from tests.cluster.images import BOX
from tests.cluster.installed.release import placed, shares
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.model.node_devices import NodeDevice
    from tests.cluster.api import Json
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace

FORMS: Final = Path(__file__).parent / "forms"
NVIDIA: Final = "runtimeclasses.node.k8s.io"


@dataclass(frozen=True)
class Share:
    """What a container is to get of each of its cards: MiB, or a part of what shares may have; cores in permille."""

    cards: int
    mib: int = 0
    percent: int = 0
    cores: int = 0

    def memory(self, card: NodeDevice) -> int:
        """Return bytes of this card."""
        if self.percent == 100:
            return card.physical
        return self.mib * MI or card.memory * self.percent // 100


WHOLE: Final = {
    "whole-by-count": {"ubuntu-container": Share(2, percent=100, cores=1000)},
    "whole-by-amounts": {"ubuntu-container": Share(2, percent=100, cores=1000)},
    "wanted-type": {"ubuntu-container": Share(2, percent=100, cores=1000)},
    "unwanted-uuids": {"ubuntu-container": Share(1, percent=100, cores=1000)},
}
SHARED: Final = {
    "default-use": {"ubuntu-container": Share(2, 3000, cores=300)},
    "quoted": {"vulkaninfo": Share(1, 1024, cores=300)},
    "binary-units": {"app": Share(1, 2048)},
    "requests-alone": {"app": Share(1, 1500)},
    "memory-alone": {"app": Share(1, 1600)},
    "fraction": {"ubuntu-container": Share(2, percent=20, cores=200)},
    "beside-1": {"ubuntu-container": Share(1, percent=40, cores=600)},
    "beside-2": {"ubuntu-container": Share(1, percent=60, cores=400)},
    "unwanted-type": {"ubuntu-container": Share(1, 1100)},
    "wanted-indexes": {"ubuntu-container": Share(2, 1200)},
    "unwanted-indexes": {"ubuntu-container": Share(1, 1300)},
    "several": {
        "warm-up": Share(1, 1700),
        "beside": Share(1, 1000),
        "first": Share(1, 3000),
        "second": Share(1, 5000, cores=100),
    },
    "short": {"app": Share(1, 2100, cores=100)},
    "of-volcano": {"app": Share(1, 2200, cores=100)},
    "cuda-sample": {"cuda-sample": Share(1, 1900)},
    "tensor-parallel": {"vllm": Share(2, percent=30, cores=300)},
    "sample-job": {"training-container": Share(1, 4000, cores=100)},
    "nightly": {"app": Share(1, 2300)},
    "state": {"app": Share(1, 2400)},
    "vllm-opt125m-deployment-vllm": {"vllm": Share(2, 2500, cores=150)},
    "vllm-half-deployment-vllm": {"vllm": Share(1, percent=25, cores=250)},
    "xinference-supervisor": {"supervisor": Share(1, percent=5, cores=100)},
    "xinference-worker": {"worker": Share(1, percent=10, cores=200)},
}
COUNTS: Final = {"cuda-sample": 2, "xinference-worker": 2}
#: Cards that a pod's annotations leave it, by index.
ALLOWED: Final = {
    "unwanted-uuids": {2, 3, 4, 5, 6, 7},
    "beside-1": {7},
    "beside-2": {7},
    "wanted-indexes": {2, 3},
    "unwanted-indexes": {6, 7},
}


@pytest.fixture
def nvidia_class(installed: Installed) -> Iterator[None]:
    """The runtime class that charts name, as NVIDIA's container toolkit makes it."""
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "runc"}
    installed.cluster.api.create(NVIDIA, body)
    yield
    installed.cluster.api.delete(NVIDIA, "nvidia")


def test_every_form_runs_with_its_share(installed: Installed, namespace: Namespace, nvidia_class: None) -> None:
    cards = installed.cards()
    apply(installed, namespace, cards, "whole.yaml", "beside.yaml")
    for name in WHOLE:  # while these have their cards, a pod of higher priority would make room for itself
        namespace.wait(name, lambda found: found["status"].get("phase") == "Succeeded", what="done")
    for name in ("beside-1", "beside-2"):
        namespace.wait(name, lambda found: bool(found["spec"].get("nodeName")), what="placed")
    apply(installed, namespace, cards, "pods.yaml", "workloads.yaml", "charts.yaml")
    installed.cluster.kubectl("create", "job", "nightly", "--from=cronjob/nightly", f"--namespace={namespace.name}")
    expected = WHOLE | SHARED
    seen: dict[str, list[Json]] = {name: [] for name in expected}
    count = sum(COUNTS.get(name, 1) for name in expected)
    for found in at_work(namespace, count):
        seen[whose(found, expected)].append(found)
    for name, containers in expected.items():
        assert len(seen[name]) == COUNTS.get(name, 1), name
        for found in seen[name]:
            check(namespace, found, containers, {card.uuid: card for card in cards})
            allowed = ALLOWED.get(name, set(range(len(cards))))
            assert {uuid for each in shares(found).values() for uuid in (one.uuid for one in each)} <= {
                cards[index].uuid for index in allowed
            }, name


def apply(installed: Installed, namespace: Namespace, cards: list[NodeDevice], *files: str) -> None:
    """Apply documents as a user does; the UUIDs of this machine's cards stand where theirs would."""
    uuids = {f"GPU{card.index}": card.uuid for card in cards}
    text = "\n---\n".join(string.Template((FORMS / file).read_text()).substitute(uuids) for file in files)
    said = installed.cluster.kubectl("apply", f"--namespace={namespace.name}", "--filename=-", stdin=text)
    assert len(said.stdout.splitlines()) == sum(1 for found in yaml.safe_load_all(text) if found)


def at_work(namespace: Namespace, count: int) -> list[Json]:
    """Return the pods as they are once so many of them run, or have done their work."""
    ready: dict[str, Json] = {}
    for event in namespace.api.watch("pods", namespace.name, seconds=2 * PATIENCE_S):
        found = event["object"]
        name = found["metadata"]["name"]
        assert found["status"].get("phase") != "Failed", (name, namespace.messages(name))
        if found["status"].get("phase") in ("Running", "Succeeded"):
            ready[name] = found
        if len(ready) == count:
            return list(ready.values())
    waiting = [found for found in namespace.api.list("pods", namespace.name) if found["metadata"]["name"] not in ready]
    said = {found["metadata"]["name"]: namespace.messages(found["metadata"]["name"]) for found in waiting}
    raise AssertionError(f"{len(ready)} of {count} pods run; others: {said}")


def whose(found: Json, expected: dict[str, dict[str, Share]]) -> str:
    """Return which document a pod is of: it has the name of its workload, and something behind it."""
    name = found["metadata"]["name"]
    return name if name in expected else max((one for one in expected if name.startswith(f"{one}-")), key=len)


def check(namespace: Namespace, found: Json, expected: dict[str, Share], cards: dict[str, NodeDevice]) -> None:
    """Compare a pod's grant, and what its programs saw, with what it asked for."""
    name = found["metadata"]["name"]
    assert found["spec"]["schedulerName"] == names.SCHEDULER, name
    granted = shares(found)
    assert granted.keys() == expected.keys(), name
    for app, share in expected.items():
        assert len({one.uuid for one in granted[app]}) == share.cards, (name, app)
        for one in granted[app]:
            assert one.cores == share.cores, (name, app)
            assert abs(one.memory - share.memory(cards[one.uuid])) < MI, (name, app, one.memory)
        total, uuid = total_of(namespace.wait_log(name, "held ", app))
        first = granted[app][0]
        assert (total, uuid) == (first.memory, first.uuid), (name, app)


# ---- refused ---------------------------------------------------------------------------------------------------------


def asking(name: str, annotations: dict[str, str] | None = None, **amounts: str) -> Json:
    """Return a pod that asks for these amounts; keys by NVIDIA's last word."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in amounts.items()}
    return pod(name, container("app", BOX, ["/greedy"], limits=limits), annotations=annotations)


def test_what_cannot_be_is_refused_for_its_own_reason(installed: Installed, namespace: Namespace) -> None:
    """At once, where no cluster could ever run it."""
    privileged = asking("privileged", gpu="1")
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    others_pids = asking("disaggregated", gpu="1")
    others_pids["spec"] |= {"hostPID": True, "hostIPC": True}
    on_node = asking("on-node", gpu="1")
    on_node["spec"]["nodeName"] = installed.cluster.node.name
    apart = asking("apart", gpu="1", gpumem="2000")
    apart["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    for body, words in (
        (asking("decimal", gpu="1", gpumem="4G"), "nvidia.com/gpumem: '4G'"),
        (asking("percent", gpu="1", gpumem_percentage="101"), "nvidia.com/gpumem-percentage: '101'"),
        (asking("cores", gpu="1", gpucores="101"), "nvidia.com/gpucores: '101'"),
        (asking("priority", gpu="1", priority="7"), "nvidia.com/priority: '7'"),
        (asking("policy", {"hami.io/gpu-scheduler-policy": "pack"}, gpu="1"), "accepted: binpack, spread"),
        (privileged, "privileged"),
        (others_pids, "spec.hostPID"),
        (on_node, "spec.nodeName"),
        (apart, "limit '2k', request '1k'"),
        (asking("forged", {names.GRANT: "{}"}, gpu="1"), f"annotation {names.GRANT}"),
    ):
        with pytest.raises(RefusedError, match="denied the request") as caught:
            namespace.create(body)
        assert words in caught.value.message
    labels = {"app": "x"}
    spec = {"selector": {"matchLabels": labels}, "template": {**others_pids, "metadata": {"labels": labels}}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
    namespace.api.create("deployments.apps", body, namespace.name)

    def told(found: Json) -> bool:
        return any("spec.hostPID" in one.get("message", "") for one in found.get("status", {}).get("conditions", []))

    namespace.api.wait("deployments.apps", "x", told, namespace.name, what="told why it has no pods")


def test_what_no_node_has_waits_with_its_own_reason(installed: Installed, namespace: Namespace) -> None:
    bodies = {
        "NodeInsufficientDevice": asking("many", gpu="9", gpumem="1000"),
        "CardInsufficientMemory": asking("large", gpu="1", gpumem="90000"),
        "CardTypeMismatch": asking("type", {"nvidia.com/use-gputype": "A100,V100"}, gpu="1", gpumem="1"),
        "CardUuidMismatch": asking("uuid", {"nvidia.com/use-gpuuuid": "GPU-of-another"}, gpu="1", gpumem="1"),
        "CardIndexMismatch": asking("index", {"nvidia.com/use-gpuindexes": "8"}, gpu="1", gpumem="1"),
        "ModeNotFit": asking("mig", {"nvidia.com/vgpu-mode": "mig"}, gpu="2", gpumem="8000"),
    }
    for body in bodies.values():
        namespace.create(body)
    for code, body in bodies.items():
        name = body["metadata"]["name"]
        found = namespace.wait(name, lambda one: bool(placed(one)), what="told why it waits")
        assert (placed(found)["status"], placed(found)["reason"]) == ("False", code), placed(found)
        assert f"1 node {code}" in placed(found)["message"].replace("nodes", "node"), placed(found)
    stray = asking("stray", gpu="1", gpumem="1000")
    stray["spec"]["schedulerName"] = "hami-scheduler"
    namespace.create(stray)
    assert "hami-scheduler" in namespace.wait_event("stray", "OtherScheduler")["message"]
