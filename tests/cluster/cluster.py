"""One running cluster as tests use it: control plane, node, images, kubectl, service accounts, the end of every log.

Made by the fixtures and by `python -m tests.cluster up`. `Cluster.open` starts it; `close` undoes it. What can go
wrong: a component does not start; what was started is undone before the error goes on.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.api import PATIENCE_S
from tests.cluster.changes import deadline, left
from tests.cluster.controlplane import ControlPlane, Options
from tests.cluster.node import Node
from tests.cluster.pki import write_kubeconfig
from tests.cluster.process import POLL
from tests.cluster.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.cluster.api import Api, Json
    from tests.cluster.binaries import Binaries
    from tests.cluster.process import Process

SYSTEM = "partage-system"  # the product's own namespace


@dataclass
class Cluster:
    """A control plane, and a node where one was asked for."""

    state: State
    control: ControlPlane
    binaries: Binaries
    nodes: list[Node] = field(default_factory=list)

    @staticmethod
    def open(binaries: Binaries, *, node: bool, options: Options | None = None) -> Cluster:
        """Start a cluster; with `node` wait for the machine's one kubelet first."""
        state = State.make(node=node)
        control = ControlPlane(state.directory, binaries, options or Options())
        cluster = Cluster(state, control, binaries)
        with ExitStack() as undo:
            undo.callback(cluster.close)
            cluster.start(node=node)
            undo.pop_all()
        return cluster

    def start(self, *, node: bool) -> None:
        """Start the control plane, then the node; an error takes the end of every log along."""
        try:
            self.control.start()
            if node:
                self.nodes.append(Node(self.state.directory, self.control, self.binaries))
                self.node.start()
        except Exception as error:
            error.add_note(self.logs())
            raise

    def close(self) -> None:
        """Undo everything."""
        self.control.close()
        self.state.close()
        for process in self.processes():
            process.reap()

    @property
    def node(self) -> Node:
        """The node; IndexError for a control plane alone."""
        return self.nodes[0]

    @property
    def api(self) -> Api:
        """The API as cluster administrator."""
        return self.control.admin

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.control.admin_kubeconfig

    def processes(self) -> list[Process]:
        """Return every process of the cluster."""
        return [*self.control.processes.values(), *(p for node in self.nodes for p in node.processes())]

    def logs(self, lines: int = 25) -> str:
        """Return the end of every component's log."""
        return "\n".join(f"--- {process.name}\n{process.tail(lines)}" for process in self.processes())

    # ---- as a user would -------------------------------------------------------------------------------------------

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; AssertionError with its words where it fails, unless `check` is off."""
        command = [self.binaries["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done

    def apply(self, *manifests: Path | Json, namespace: str | None = None) -> str:
        """Apply files, directories or objects server-side; return what kubectl says of each."""
        said = ""
        scope = [f"--namespace={namespace}"] if namespace else []
        flags = ["apply", "--server-side", "--force-conflicts", *scope]
        paths = [manifest for manifest in manifests if isinstance(manifest, Path)]
        objects = [manifest for manifest in manifests if not isinstance(manifest, Path)]
        if paths:
            said += self.kubectl(*flags, *(f"--filename={path}" for path in paths)).stdout
        if objects:
            whole = {"apiVersion": "v1", "kind": "List", "items": objects}
            said += self.kubectl(*flags, "--filename=-", stdin=json.dumps(whole)).stdout
        return said

    def image(self, *references: str) -> None:
        """Make and import images where they are not on the node yet."""
        for reference in references:
            self.node.containerd.image(reference)

    # ---- accounts --------------------------------------------------------------------------------------------------

    def account(self, name: str, namespace: str = SYSTEM, rules: Iterable[Json] = ()) -> None:
        """Make a service account, its namespace, and a cluster role of these rules for it."""
        self.api.apply("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        metadata = {"name": name, "namespace": namespace}
        self.api.apply(
            "serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, namespace
        )
        role = f"test:{namespace}:{name}"
        group = "rbac.authorization.k8s.io"
        listed = list(rules)
        if not listed:
            return
        common = {"apiVersion": f"{group}/v1", "metadata": {"name": role}}
        self.api.apply(f"clusterroles.{group}", {**common, "kind": "ClusterRole", "rules": listed})
        self.api.apply(
            f"clusterrolebindings.{group}",
            {
                **common,
                "kind": "ClusterRoleBinding",
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", **metadata}],
            },
        )
        self.wait_rights(f"system:serviceaccount:{namespace}:{name}", listed)

    def wait_rights(self, user: str, rules: Iterable[Json], seconds: float = PATIENCE_S) -> None:
        """Return once the API server grants a user what rules of a cluster role say: it takes a moment to see them."""
        end = deadline(seconds)
        for rule in rules:
            group, resource = rule["apiGroups"][-1], rule["resources"][-1]
            plural, _, sub = resource.partition("/")
            asked = {"group": group, "resource": plural, "subresource": sub, "verb": rule["verbs"][-1]}
            review = {"user": user, "resourceAttributes": asked}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review}
            kind = "subjectaccessreviews.authorization.k8s.io"
            while not self.api.create(kind, body)["status"]["allowed"]:
                assert left(end) > 0, f"{user} may still not {rule} after {seconds:g} s"
                time.sleep(POLL)

    def token(self, account: str, namespace: str = SYSTEM, *, pod: Json | None = None, seconds: int = 86400) -> str:
        """Return a token of a service account; with `pod` one bound to it, which carries its node's name."""
        request: Json = {"expirationSeconds": seconds}
        if pod:
            metadata = pod["metadata"]
            request["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": request}
        return str(self.api.post("serviceaccounts", account, "token", body, namespace)["status"]["token"])

    def as_account(self, account: str, namespace: str = SYSTEM, *, pod: Json | None = None) -> Api:
        """Return the API as a service account sees it."""
        return self.api.with_token(self.token(account, namespace, pod=pod))

    def token_kubeconfig(self, path: Path, token: str) -> Path:
        """Write a kubeconfig for a token, for a program that is started outside the cluster."""
        return write_kubeconfig(path, self.control.server, self.control.authority.certificate, {"token": token})

    def scheduler_account(self) -> Api:
        """Return the API as the product's scheduler sees it: it binds pods, and it alone may write grants."""
        return self._scheduler

    def forget_accounts(self) -> None:
        """Make the account of the product's scheduler anew when it is asked for next: it was taken away."""
        self.__dict__.pop("_scheduler", None)

    @cached_property
    def _scheduler(self) -> Api:
        rules: Sequence[Json] = (
            {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        )
        self.account("partage-scheduler", rules=rules)
        return self.as_account("partage-scheduler")
