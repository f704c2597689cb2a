"""The webhook as it runs in production, beside a control plane: the manifests as shipped, its own account's rights.

The API server finds it by a Service of type ExternalName that means localhost, and so verifies the certificate for the
Service's own name: certificates, rotation and configurations are exercised unchanged. `WebhookProgram(cluster)` makes
all that; `start` runs one replica (any number may) and returns once the API server asks it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import yaml

from tests.cluster.api import PATIENCE_S, RefusedError
from tests.cluster.cluster import SYSTEM
from tests.cluster.controlplane import free_port
from tests.cluster.process import POLL, Process

if TYPE_CHECKING:
    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster

TOP: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = TOP / "deploy"
NAME: Final = "partage-webhook"
SECRET: Final = "partage-webhook-certificates"  # noqa: S105 -- its name
CONFIGURATION_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
GROUP: Final = "admissionregistration.k8s.io"


@dataclass
class WebhookProgram:
    """The webhook of a cluster, on one port of this machine."""

    cluster: Cluster
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)
    replicas: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        manifests = [DEPLOY / "agent" / "1-namespace.yaml", DEPLOY / "agent" / "2-accounts.yaml"]
        self.cluster.apply(*manifests, DEPLOY / "webhook" / "1-rights.yaml")
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": SYSTEM},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        self.cluster.apply(service)
        self.apply(self.port)
        path = self.cluster.state.directory / f"{NAME}.kubeconfig"
        self.kubeconfig = self.cluster.token_kubeconfig(path, self.cluster.token(NAME))

    def apply(self, port: int) -> None:
        """Apply the configurations as shipped, with this port; a busy machine lets no pod past that is not answered."""
        for found in yaml.safe_load_all((DEPLOY / "webhook" / "3-configurations.yaml").read_text()):
            for hook in found["webhooks"]:
                hook["clientConfig"]["service"]["port"] = port
                hook["timeoutSeconds"] = 30
            self.cluster.apply(found)

    def run(self, *flags: str, port: int | None = None, metrics: int | None = None) -> Process:
        """Start a replica and return once it says that it is ready."""
        metrics = metrics or self.metrics
        number = len(self.replicas)
        argv = [
            *(sys.executable, "-m", "partage", "webhook", f"--kubeconfig={self.kubeconfig}"),
            *("--server-address=127.0.0.1", f"--server-port={port or self.port}"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={metrics}", "--server-drain-seconds=0"),
            *(*self.flags, *flags),
        ]
        directory = self.cluster.state.directory
        environment = {"PYTHONPATH": f"{TOP}/python:{TOP}/plugin"}
        log = directory / "logs" / f"webhook-{number}.log"
        replica = Process(f"webhook-{number}", argv, log, directory, environment).start()
        self.replicas.append(replica)
        self.cluster.control.processes[replica.name] = replica
        replica.until(lambda: self.says(metrics, "readyz") == "ok\n", seconds=PATIENCE_S, what="ready")
        return replica

    def start(self, *flags: str) -> Process:
        """Start a replica and return once the API server asks it and gets an answer."""
        replica = self.run(*flags)
        end = time.monotonic() + PATIENCE_S
        while not is_asked(self.cluster):
            assert time.monotonic() < end, f"the API server does not ask the webhook:\n{replica.tail()}"
            time.sleep(POLL)
        return replica

    def says(self, port: int, page: str) -> str:
        """Return one of its pages, empty where it does not answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{port}/{page}", trust_env=False, timeout=30).text
        except httpx.HTTPError:
            return ""

    def stop(self) -> None:
        """End all replicas."""
        for replica in self.replicas:
            replica.kill(15)
        self.replicas.clear()

    def secret(self) -> Json:
        """Return the data of the Secret with its certificates."""
        return dict(self.cluster.api.get("secrets", SECRET, SYSTEM)["data"])

    def bundles(self) -> list[Any]:
        """Return what each configuration trusts."""
        found = [self.cluster.api.get(f"{kind}.{GROUP}", NAME) for kind in CONFIGURATION_KINDS]
        return [hook["clientConfig"].get("caBundle") for each in found for hook in each["webhooks"]]


def is_asked(cluster: Cluster) -> bool:
    """Whether a pod without sense is refused by us."""
    body = probe({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16G"})
    try:
        cluster.api.create("pods", body, "default", dryRun="All")
    except RefusedError as error:
        return "mutate.partage.io" in error.message
    return False


def probe(limits: Json | None = None, *, name: str = "probe", **metadata: Any) -> Json:
    """Return a pod of one container."""
    container: Json = {"name": "app", "image": "none"}
    if limits:
        container["resources"] = {"limits": limits}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
