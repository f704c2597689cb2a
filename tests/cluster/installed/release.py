"""The product as it is shipped, as a release in the session's cluster: images made as the Dockerfile says, the chart.

What differs from a cluster elsewhere: the API server listens on this machine's loopback only, so pods are on the
host's network and are told its address; and the node's directories are the test cluster's own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from partage.model import names
from partage.model.grant import parse_grant
from partage.model.node_devices import parse_node_devices
from tests.cluster import product
from tests.cluster.agent import RESOURCE
from tests.cluster.api import PATIENCE_S
from tests.cluster.changes import deadline, left
from tests.cluster.controlplane import free_port
from tests.cluster.image import Image, Tree
from tests.cluster.images import BOX, TOP
from tests.cluster.process import POLL
from tests.cluster.test_chart import CHART
from tests.cluster.webhook import is_asked

if TYPE_CHECKING:
    from partage.model.grant import GrantShare
    from partage.model.node_devices import NodeDevice
    from tests.cluster.api import Json
    from tests.cluster.binaries import Binaries
    from tests.cluster.cluster import Cluster
    from tests.cluster.namespace import Namespace

SYSTEM: Final = names.NAMESPACE
CARDS: Final = 8
SEATS: Final = 10 * CARDS
#: A program that takes what it can get, says how much, and ends.
EAGER: Final = ("/greedy", "999999", "once")


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
        self.is_there = False
        (cluster.node.volatile / "locks").mkdir(exist_ok=True)
        cluster.image(BOX, *(product.reference(role) for role in product.roles()))
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
        self.is_there = True

    def uninstall(self) -> None:
        """Take the release off, where it is there."""
        if self.is_there:
            self.helm("uninstall", "partage", "--wait", "--no-hooks")
            self.is_there = False
            self.wait_seats(0)
            self.cluster.forget_accounts()

    def partage(self, *arguments: str) -> str:
        """Run `partage` against the cluster, as an administrator does, and return what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "partage", *arguments, "--kubeconfig", str(self.cluster.kubeconfig)],
            env={**os.environ, "PYTHONPATH": f"{TOP}/python"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # ---- what there is ---------------------------------------------------------------------------------------------

    def pods(self) -> dict[str, Json]:
        """Return the product's pods, by name."""
        found = self.cluster.api.list("pods", SYSTEM)
        return {one["metadata"]["name"]: one for one in found if "app.kubernetes.io/name" in one["metadata"]["labels"]}

    def cards(self) -> list[NodeDevice]:
        """Return the node's cards, as its agent describes them."""
        node = self.cluster.api.get("nodes", self.cluster.node.name)
        text = node["metadata"]["annotations"][names.DEVICES]
        return list(parse_node_devices(text, node=self.cluster.node.name).devices)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait_serving(self) -> None:
        """Return once every part is ready and kubelet counts the seats."""
        self.wait_seats(SEATS)
        self.wait_deployed()

    def wait_deployed(self) -> None:
        """Return once scheduler and webhook are ready, and the API server asks the latter."""
        for name in ("partage-webhook", "partage-scheduler"):
            self.wait_ready("deployments.apps", name)
        self.wait_asked()

    def wait_asked(self) -> None:
        """Return once a pod without sense is refused: a webhook that is just there may not be asked yet, or in vain."""
        end = deadline(PATIENCE_S)
        while not is_asked(self.cluster):
            assert left(end) > 0, f"the API server does not ask the webhook after {PATIENCE_S:g} s"
            time.sleep(POLL)  # nobody announces it

    def wait_replaced(self, uids: set[str]) -> None:
        """Return once none of these pods is there any more: their containers end before they are gone."""
        gone = lambda pods: not uids & {one["metadata"]["uid"] for one in pods}  # noqa: E731 -- one line
        self.cluster.api.wait_all("pods", gone, SYSTEM, what="all replaced")

    def wait_ready(self, kind: str, name: str, seconds: float = PATIENCE_S) -> None:
        """Return once one replica is ready, and is of the newest description."""

        def ready(found: Json) -> bool:
            said = found["status"]
            current = said.get("observedGeneration") == found["metadata"]["generation"]
            alone = said.get("updatedReplicas", 0) == said.get("replicas", 0) == said.get("readyReplicas", 0) >= 1
            return bool(current and alone)

        self.cluster.api.wait(kind, name, ready, SYSTEM, what="ready", seconds=seconds)

    def wait_seats(self, count: int, seconds: float = PATIENCE_S) -> None:
        """Return once kubelet counts so many seats."""

        def counted(node: Json) -> bool:
            return bool(node["status"].get("allocatable", {}).get(RESOURCE, "0") == str(count))

        name = self.cluster.node.name
        self.cluster.api.wait("nodes", name, counted, what=f"{count} of {RESOURCE}", seconds=seconds)


def shares(found: Json) -> dict[str, tuple[GrantShare, ...]]:
    """Return what a placed pod was granted, by container."""
    meta = found["metadata"]
    subject = f"{meta['namespace']}/{meta['name']}"
    grant = parse_grant(meta["annotations"][names.GRANT], uid=meta["uid"], node=found["spec"]["nodeName"], pod=subject)
    return {name: part.shares for name, part in grant.containers.items()}


def placed(found: Json) -> Json:
    """Return the condition that says where a pod was placed or why not, empty where there is none yet."""
    return condition(found, names.CONDITION_PLACED)


def condition(found: Json, kind: str) -> Json:
    """Return a condition of a pod, empty where it has none of that kind."""
    return next((one for one in found["status"].get("conditions", []) if one["type"] == kind), {})


def held(namespace: Namespace, name: str, app: str = "app") -> int:
    """Return how many MiB a greedy container got before it was told that there is no more."""
    return held_by(namespace.wait_log(name, "held ", app))


def held_by(lines: str) -> int:
    """Return how many MiB a greedy program got before it was told that there is no more."""
    found = re.search(r"held (\d+) MiB, then 2", lines)
    assert found, lines
    return int(found[1])
