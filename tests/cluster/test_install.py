"""The product as it is shipped: images made as the Dockerfile says, the chart's own manifests, on a real node.

What differs from a cluster elsewhere: the API server listens on this machine's loopback only, so pods are on the
host's network and are told its address; and the node's directories are the test cluster's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partage._version import __version__
from partage.model import names
from tests.cluster import product
from tests.cluster.agent import GI, MI, RESOURCE, limits
from tests.cluster.controlplane import free_port
from tests.cluster.image import Image, Tree
from tests.cluster.images import BOX
from tests.cluster.namespace import running
from tests.cluster.pods import container, pod
from tests.cluster.test_chart import CHART, rendered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.api import Json
    from tests.cluster.binaries import Binaries
    from tests.cluster.cluster import Cluster
    from tests.cluster.namespace import Namespace

SYSTEM = names.NAMESPACE


def values(cluster: Cluster) -> dict[str, Any]:
    """Return what differs on this machine."""
    node, server = cluster.node, cluster.control.server.removeprefix("https://")
    host, _, port = server.partition(":")
    reached = [{"name": "KUBERNETES_SERVICE_HOST", "value": host}, {"name": "KUBERNETES_SERVICE_PORT", "value": port}]
    places = {
        "root": str(node.volatile / "partage"),
        "cdi": str(node.cdi),
        "kubelet": str(node.root),
        "library": str(node.directory / "library"),
        "locks": str(node.volatile / "locks"),
    }
    agent = {
        "hostNetwork": True,
        "env": reached,
        "config": {"places": places, "metrics": {"port": free_port()}},
        "simulated": {"profile": "8xH100", "directory": str(node.volatile / "simulated")},
    }
    hook = free_port()
    webhook = {
        "hostNetwork": True,
        "replicas": 1,
        "env": reached,
        "config": {"server": {"port": hook}, "metrics": {"port": free_port()}},
        "service": {"externalName": "localhost", "port": hook},
    }
    scheduler = {
        "hostNetwork": True,
        "replicas": 1,
        "env": reached,
        "config": {"extender": {"port": free_port()}, "metrics": {"port": free_port()}},
        "kubeScheduler": {"port": free_port()},
    }
    return {"agent": agent, "webhook": webhook, "scheduler": scheduler}


def kube_scheduler(cluster: Cluster, work: Path) -> Path:
    """Return an image of the cluster's own kube-scheduler, under the name by which Kubernetes publishes it."""
    tree = Tree(work / "kube-scheduler")
    tree.program("usr/bin/kube-scheduler", Path(cluster.binaries["kube-scheduler"]))
    reference = f"registry.k8s.io/kube-scheduler:v{cluster.binaries.kubernetes}"
    made = Image(reference, ["/usr/bin/kube-scheduler"], environment={"PATH": "/usr/bin"})
    return made.write(tree, work / "kube-scheduler.tar")


class Installed:
    """A release in the session's cluster."""

    def __init__(self, cluster: Cluster, tools: Binaries) -> None:
        self.cluster = cluster
        self.tools = tools
        self.values = values(cluster)
        (cluster.node.volatile / "locks").mkdir(exist_ok=True)
        cluster.image(*(product.reference(role) for role in product.roles()))
        with tempfile.TemporaryDirectory(dir=cluster.node.directory) as work:
            cluster.node.containerd.load(kube_scheduler(cluster, Path(work)))

    def helm(self, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """Run helm against the cluster and return what it says."""
        command = [self.tools["helm"], *arguments, "--namespace", SYSTEM]
        command += ["--kubeconfig", str(self.cluster.kubeconfig)]
        text = None
        if values is not None:
            command += ["--values", "-"]
            text = json.dumps(values)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def upgrade(self, **more: Any) -> None:
        """Install, or upgrade; `more` over the values of this machine.

        What other tests of the session made under the chart's names, accounts and policies, becomes the release's.
        """
        flags = ("--install", "--create-namespace", "--take-ownership")
        self.helm("upgrade", "partage", str(CHART), *flags, values=self.values | more)

    def pods(self) -> dict[str, Json]:
        """Return the product's pods, by name."""
        found = self.cluster.api.list("pods", SYSTEM)
        return {one["metadata"]["name"]: one for one in found if "app.kubernetes.io/name" in one["metadata"]["labels"]}

    def wait_ready(self, kind: str, name: str, seconds: float = 120) -> None:
        """Return once one replica is ready."""

        def ready(found: Json) -> bool:
            return found["status"].get("readyReplicas", 0) >= 1 and found["status"].get("unavailableReplicas", 0) == 0

        self.cluster.api.wait(kind, name, ready, SYSTEM, what="ready", seconds=seconds)

    def wait_seats(self, count: int, seconds: float = 90) -> None:
        """Return once kubelet counts so many seats."""

        def counted(node: Json) -> bool:
            return bool(node["status"].get("allocatable", {}).get(RESOURCE, "0") == str(count))

        name = self.cluster.node.name
        self.cluster.api.wait("nodes", name, counted, what=f"{count} of {RESOURCE}", seconds=seconds)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, chart_tools: Binaries) -> Iterator[Installed]:
    made = Installed(cluster, chart_tools)
    made.upgrade()
    try:
        made.wait_seats(80)
        for name in ("partage-webhook", "partage-scheduler"):
            made.wait_ready("deployments.apps", name)
        yield made
    finally:
        made.helm("uninstall", "partage", "--wait", "--no-hooks")
        made.wait_seats(0)
        cluster.forget_accounts()


def test_the_agents_image_runs_in_a_container(installed: Installed, namespace: Namespace) -> None:
    """Read-only, without a right, as the user that its image names and as another."""
    for name, user in (("root", None), ("other", 65532)):
        made = container("app", product.reference("agent"), ["partage-plugin", "--version"], user=user)
        security = {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        made["securityContext"] = made.get("securityContext", {}) | security
        ended = namespace.finish(pod(name, made, restart="Never"))
        assert ended["status"]["phase"] == "Succeeded", namespace.logs(name)
        assert namespace.logs(name).strip() == f"partage-plugin {__version__}"


def held(namespace: Namespace, name: str) -> int:
    """Return how many MiB a greedy container got before it was told that there is no more."""
    namespace.wait(name, running, what="Running")
    lines = namespace.wait_log(name, "held ", "app")
    found = re.search(r"held (\d+) MiB, then (\d+)", lines)
    assert found, lines
    assert found[2] == "2"
    return int(found[1])


def test_a_pod_in_hamis_form_is_admitted_placed_and_held_to_its_share(
    installed: Installed, namespace: Namespace
) -> None:
    """From `kubectl apply` to a limit, by what the chart installed alone."""
    created = namespace.create(pod("a", container("app", BOX, ["/greedy"], limits=limits(3 * GI // MI, 30))))
    assert created["spec"]["schedulerName"] == names.SCHEDULER
    assert 0 < held(namespace, "a") < 3 * GI // MI
    placed = namespace.api.get("pods", "a", namespace.name)
    grant = json.loads(placed["metadata"]["annotations"][names.GRANT])
    assert grant["containers"]["app"]["shares"][0]["memory"] == 3 * GI
    assert grant["uid"] == created["metadata"]["uid"]
    namespace.create(pod("b", container("app", BOX, limits={"nvidia.com/gpu": "9", "nvidia.com/gpumem": "1000"})))
    waiting = namespace.wait("b", lambda found: bool(placed_condition(found)), what="told why it waits")
    assert placed_condition(waiting)["status"] == "False"


def placed_condition(found: Json) -> Json:
    """Return the condition that says where a pod was placed or why not, empty where there is none yet."""
    conditions = found["status"].get("conditions", [])
    return next((one for one in conditions if one["type"] == names.CONDITION_PLACED), {})


def test_an_upgrade_while_a_pod_runs_leaves_it_as_it_is(installed: Installed, namespace: Namespace) -> None:
    namespace.create(pod("a", container("app", BOX, ["/greedy"], limits=limits(2 * GI // MI, 10))))
    held(namespace, "a")
    before = {name: one["metadata"]["uid"] for name, one in installed.pods().items() if "agent" in name}
    config = installed.values["agent"]["config"] | {"nvidia": {"seats": 5}}
    installed.upgrade(agent=installed.values["agent"] | {"config": config})
    installed.wait_seats(40)
    after = {name: one["metadata"]["uid"] for name, one in installed.pods().items() if "agent" in name}
    assert not set(before.values()) & set(after.values())
    installed.upgrade()
    installed.wait_seats(80)
    (status,) = namespace.api.get("pods", "a", namespace.name)["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert "running" in status["state"]


def test_what_runs_is_what_the_chart_renders(installed: Installed) -> None:
    text = rendered(installed.tools, installed.values)
    (agent,) = (one for name, one in installed.pods().items() if "agent" in name)
    assert agent["spec"]["containers"][0]["image"] in text
    assert agent["spec"]["containers"][0]["securityContext"]["capabilities"] == {"add": ["SYS_PTRACE"], "drop": ["ALL"]}
