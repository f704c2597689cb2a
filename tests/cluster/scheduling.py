"""A control plane with our scheduler beside a kube-scheduler, and nodes that are objects: for tests and for the bench.

    site = Site(cluster).prepare()              # accounts, roles, policies as shipped
    site.nodes(5, cards=8)
    replica = site.replica("a").start()         # kube-scheduler and `partage scheduler`, as shipped but for the ports
    site.pods("burst", 500)
    site.wait_bound(500)

kube-scheduler's configuration is the shipped one, with paths and ports of this machine. What can go wrong: a component
does not start; its log is in the error.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from partage.model import names
from partage.model.node_devices import DeviceLink, NodeDevice, NodeDevices, encode_node_devices
from partage.model.units import GI
from tests.cluster.api import PATIENCE_S
from tests.cluster.controlplane import free_port
from tests.cluster.many import send_all
from tests.cluster.process import POLL, Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
SYSTEM = names.NAMESPACE
#: For a control plane whose nodes are objects alone: no taints, no service accounts in pods, no controllers.
APISERVER = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
LEASE_LOST = 1  # kube-scheduler's exit code


def node(name: str, cards: int = 8, *, memory: int = 80 * GI, seats: int = 10, uuids: Sequence[str] = ()) -> Json:
    """Return a Ready node with cards, as kubelet and our agent would have written it."""
    capacity = {"cpu": "512", "memory": "4096Gi", "pods": "500", "nvidia.com/gpu": str(cards * seats)}
    devices = NodeDevices(
        v=1,
        gen=1,
        agent="test",
        oversub=1000,
        devices=tuple(
            NodeDevice(
                uuid=uuids[index] if uuids else f"GPU-{name}-{index}",
                index=index,
                backend="nvidia",
                kind="NVIDIA A100-SXM4-80GB",
                mode="shim",
                physical=memory,
                memory=memory,
                cores=1000,
                seats=seats,
                numa=index * 2 // max(cards, 1),
                health=True,
            )
            for index in range(cards)
        ),
        links=tuple(
            tuple(DeviceLink() if a == b else DeviceLink(kind="nvswitch", lanes=12) for b in range(cards))
            for a in range(cards)
        ),
    )
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            "annotations": {names.DEVICES: encode_node_devices(devices)},
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "object"}],
        },
    }


def share_pod(
    name: str,
    *,
    memory: int = 8000,
    cores: int = 10,
    cards: int = 1,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod in HAMi's form: cards, MiB and percent of each."""
    limits = {"nvidia.com/gpu": str(cards), "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(cores)}
    container = {"name": "app", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {"schedulerName": names.SCHEDULER, "containers": [container]} | spec,
    }


LEASE_S = 6.0
#: Shorter than shipped; long enough that a leader on a busy machine does not lose its Lease for want of a processor.
ELECTION = {"leaseDuration": f"{LEASE_S:g}s", "renewDeadline": "5s", "retryPeriod": "500ms"}


@dataclass
class Replica:
    """One kube-scheduler and one of ours."""

    name: str
    kube: Process
    ours: Process
    extender: int  # port
    metrics: int

    def start(self) -> Replica:
        """Start both."""
        self.ours.start()
        self.kube.start()
        return self

    def kill(self) -> None:
        """Kill both at once, as a node that dies does."""
        for process in (self.kube, self.ours):
            process.kill()

    def freeze(self) -> None:
        """Stop both, as a machine that is paused does."""
        for process in (self.kube, self.ours):
            process.pause()

    def thaw(self) -> None:
        """Let both go on, as if no time had passed."""
        for process in (self.kube, self.ours):
            process.resume()

    def figures(self) -> dict[str, float]:
        """Return the scheduler's series by name and labels, as its page writes them."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics", timeout=PATIENCE_S).text
        lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
        return {series: float(value) for series, _, value in lines}

    def why(self) -> str:
        """Return why it does not answer questions; empty where it says nothing."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.metrics}/readyz", timeout=5).text
        except httpx.HTTPError:
            return ""

    def ready(self) -> bool:
        """Say whether it answers questions."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.metrics}/readyz", timeout=5).is_success
        except httpx.HTTPError:
            return False


@dataclass
class Site:
    """A cluster in which our scheduler runs."""

    cluster: Cluster
    replicas: list[Replica] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Where files of the test's go."""
        return self.cluster.state.directory

    def prepare(self) -> Site:
        """Apply accounts, roles and the policies of grants as shipped."""
        self.cluster.apply(DEPLOY / "agent/1-namespace.yaml", DEPLOY / "agent/2-accounts.yaml")
        self.cluster.apply(DEPLOY / "scheduler/1-access.yaml")
        self.cluster.apply(*(DEPLOY / f"policies/{name}.yaml" for name in ("grants", "conditions", "terms")))
        self.kubeconfig = self.cluster.token_kubeconfig(
            self.directory / "partage-scheduler.kubeconfig", self.cluster.token(names.ACCOUNT_SCHEDULER)
        )
        return self

    # ---- objects -----------------------------------------------------------------------------------------------------

    def many(self, method: str, paths: Sequence[str], bodies: Sequence[Json]) -> None:
        """Send many requests, several at once."""
        send_all(self.cluster.api, [(method, path, body) for path, body in zip(paths, bodies, strict=True)])

    def nodes(self, count: int, *, cards: int = 8, first: int = 0, **more: Any) -> list[str]:
        """Make nodes `n0000` and on."""
        made = [node(f"n{number:04}", cards, **more) for number in range(first, first + count)]
        self.many("POST", ["/api/v1/nodes"] * count, made)
        return [one["metadata"]["name"] for one in made]

    def pods(self, prefix: str, count: int, *, first: int = 0, namespace: str = "default", **more: Any) -> list[str]:
        """Make pods of one kind."""
        made = [share_pod(f"{prefix}-{number:05}", **more) for number in range(first, first + count)]
        self.many("POST", [f"/api/v1/namespaces/{namespace}/pods"] * count, made)
        return [one["metadata"]["name"] for one in made]

    def delete(self, pods: Sequence[str], namespace: str = "default") -> None:
        """Delete pods for good: no kubelet ends them here."""
        paths = [f"/api/v1/namespaces/{namespace}/pods/{name}" for name in pods]
        self.many("DELETE", paths, [{"gracePeriodSeconds": 0}] * len(paths))

    def bound(self, namespace: str | None = "default") -> list[Json]:
        """Return the pods that are bound."""
        return [pod for pod in self.cluster.api.list("pods", namespace) if pod["spec"].get("nodeName")]

    # ---- processes ---------------------------------------------------------------------------------------------------

    def replica(
        self,
        name: str,
        *,
        settings: Sequence[str] = (),
        election: bool = True,
        server: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Replica:
        """Return a replica to be started; `server`: another way to the API server for ours (a proxy)."""
        extender, metrics, secure = free_port(), free_port(), free_port()
        kubeconfig = self.kubeconfig if server is None else self._through(name, server)
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--extender-port={extender}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={metrics}",
            f"--election-metrics=https://127.0.0.1:{secure}/metrics",
            "--election-every-seconds=0.25",
            *([] if election else ["--leader=always"]),
            *settings,
        ]
        path = f"{TOP / 'python'}:{TOP / 'plugin'}"
        ours = Process(
            f"partage-scheduler-{name}",
            [*on_host(name), sys.executable, "-m", "partage", "scheduler", *flags],
            self.directory / "logs" / f"partage-scheduler-{name}.log",
            self.directory,
            {"PYTHONPATH": path, **(environment or {})},
        )
        replica = Replica(name, self.kube_scheduler(name, extender, secure, election), ours, extender, metrics)
        self.replicas.append(replica)
        self.cluster.control.processes |= {process.name: process for process in (replica.kube, replica.ours)}
        return replica

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """Start kube-schedulers again that end since they lost their Lease, as kubelet does."""
        over = threading.Event()

        def keep() -> None:
            while not over.wait(POLL):
                for replica in self.replicas:
                    running = replica.kube.running
                    if running is not None and running.poll() == LEASE_LOST:
                        replica.kube.start()

        thread = threading.Thread(target=keep, name="restarts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def kube_scheduler(self, name: str, extender: int, secure: int, election: bool) -> Process:
        """Return a kube-scheduler with the shipped configuration that asks an extender on this port."""
        config = shipped_configuration()
        config["clientConnection"]["kubeconfig"] = str(self.kubeconfig)
        config["leaderElection"] |= {"leaderElect": election}
        if election:
            config["leaderElection"] |= ELECTION
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender}"
        path = self.directory / f"kube-scheduler-{name}.json"
        path.write_text(json.dumps(config))
        flags = [
            f"--config={path}",
            f"--secure-port={secure}",
            "--bind-address=127.0.0.1",
            "--authentication-skip-lookup",
        ]
        flags += [f"--authentication-kubeconfig={self.kubeconfig}", f"--authorization-kubeconfig={self.kubeconfig}"]
        log = self.directory / "logs" / f"kube-scheduler-{name}.log"
        argv = [*on_host(name), self.cluster.binaries["kube-scheduler"], *flags]
        return Process(f"kube-scheduler-{name}", argv, log, self.directory)

    def _through(self, name: str, server: str) -> Path:
        config = json.loads(self.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": server}
        path = self.directory / f"proxied-{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return path


def on_host(name: str) -> list[str]:
    """Return what a command begins with that is to see itself on a host of this name: a Lease is held under it."""
    return ["unshare", "--uts", "--", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh", f"host-{name}"]


def shipped_configuration() -> dict[str, Any]:
    """Return kube-scheduler's configuration as deploy/scheduler ships it."""
    (shipped,) = yaml.safe_load_all((DEPLOY / "scheduler/2-config.yaml").read_text())
    return dict(yaml.safe_load(shipped["data"]["kube-scheduler.yaml"]))
