"""What kubelet writes down and says of its containers' devices: asked without harm to it, also where it is behind."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from partage_plugin.kubelet.checkpoint import CHECKPOINT_FILE
from tests.cluster.agent import MI, limits
from tests.cluster.cleanup import DEVICE_PLUGINS
from tests.cluster.images import BOX
from tests.cluster.namespace import running
from tests.cluster.pods import container, pod
from tests.cluster.test_agent import ENDS, total

if TYPE_CHECKING:
    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

KINDS: Final = ("first", "beside", "app")
#: Says its limit, and ends when it is told to: as the first process it would get no signal that it does not ask for.
STAYS: Final = ["sh", "-c", "/greedy 1 once; trap 'exit 1' TERM; sleep 100000 & wait"]


def bound(agent: NodeAgent, namespace: Namespace, name: str, first: int) -> None:
    """Create a pod of init, sidecar and app containers, each with a limit of its own, in MiB from `first` on."""
    sizes = {kind: first + at for at, kind in enumerate(KINDS)}
    init = container("first", BOX, ENDS, limits=limits(sizes["first"], 1))
    beside = container("beside", BOX, STAYS, limits=limits(sizes["beside"], 1), sidecar=True)
    app = container("app", BOX, STAYS, limits=limits(sizes["app"], 1))
    parts = {kind: agent.part(agent.share(0, size * MI)) for kind, size in sizes.items()}
    agent.bound(namespace, pod(name, app, init=[init, beside]), **parts)


def asked(agent: NodeAgent) -> dict[str, float]:
    """Return how often kubelet was asked by each method of PodResources, since it was started."""
    text = agent.cluster.api.text(f"/api/v1/nodes/{agent.cluster.node.name}/proxy/metrics")
    found = {"list": 0.0, "get": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            method = sample.name.removesuffix("_total").removeprefix("kubelet_pod_resources_endpoint_requests_")
            if method in found:
                found[method] += sample.value
    return found


def test_kubelet_does_not_count_its_devices_anew(agent: NodeAgent, namespace: Namespace) -> None:
    """A `List` frees what it has just chosen, of any plugin; whose a container is costs none."""
    before = asked(agent)
    bound(agent, namespace, "a", 1000)
    namespace.wait("a", running, what="Running")
    for at, kind in enumerate(KINDS):
        assert total(namespace, "a", kind) == (1000 + at) * MI
    after = asked(agent)
    assert after["list"] == before["list"]
    assert after["get"] >= before["get"] + len(KINDS), "each start is cross-checked"


def doctored(text: bytes, uid: str) -> bytes:
    """Return a checkpoint as it was before a pod came."""
    whole = json.loads(text)
    entries = [entry for entry in whole["Data"]["PodDeviceEntries"] or () if entry["PodUID"] != uid]
    return json.dumps({**whole, "Data": {**whole["Data"], "PodDeviceEntries": entries}}).encode()


@pytest.mark.parametrize("kind", ["older", "garbage", "gone"])
def test_a_checkpoint_that_does_not_tell(agent: NodeAgent, namespace: Namespace, kind: str) -> None:
    """It is older than the last answer (kubelet's writers overtake each other), or none. Ids that two containers share
    then cannot be told; kubelet is made to write it again, and a container that starts anew gets its own."""
    bound(agent, namespace, "a", 2000)
    made = namespace.wait("a", running, what="Running")
    file = DEVICE_PLUGINS / CHECKPOINT_FILE
    text = file.read_bytes()
    file.unlink()
    if kind != "gone":
        beside = file.with_name(".beside")
        beside.write_bytes(doctored(text, made["metadata"]["uid"]) if kind == "older" else b"garbage")
        beside.rename(file)
    namespace.exec("a", "kill", "1", container="beside")
    namespace.wait("a", lambda p: restarts(p) == 1 and running(p), what="its sidecar started anew")
    assert total(namespace, "a", "beside") == 2001 * MI


def restarts(made: Json) -> int:
    return int(made["status"]["initContainerStatuses"][1]["restartCount"])


def test_a_sandbox_made_anew(agent: NodeAgent, namespace: Namespace) -> None:
    """Its first process was killed: init containers run again by the ids that an answer of before has, without another
    `Allocate`, and each container has its own share again."""
    bound(agent, namespace, "a", 3000)
    made = namespace.wait("a", running, what="Running")
    there, before = set(agent.hand_overs()), ids(made)
    (first,) = (pid for pid in agent.cluster.node.container_pids() if is_first(pid, made["metadata"]["uid"]))
    os.kill(first, signal.SIGKILL)

    namespace.wait("a", lambda p: running(p) and not ids(p) & before, what="all of its containers started anew")
    for at, kind in enumerate(KINDS):
        assert total(namespace, "a", kind) == (3000 + at) * MI
    assert set(agent.hand_overs()) == there


def ids(made: Json) -> set[str]:
    """Return which containers a pod has: kubelet 1.34 counts no restart of a sidecar whose sandbox is another one."""
    statuses = [*made["status"]["initContainerStatuses"], *made["status"]["containerStatuses"]]
    return {status["containerID"] for status in statuses}


def is_first(pid: int, uid: str) -> bool:
    """Return whether a process is the one that holds a pod's namespaces."""
    place = Path(f"/proc/{pid}")
    with suppress(OSError):  # it has ended
        in_pod = uid in (place / "cgroup").read_text().replace("_", "-")
        return in_pod and b"pause" in (place / "cmdline").read_bytes()
    return False
