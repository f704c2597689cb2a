"""A namespace of one test: what it creates in it, waits for, reads, and how all of it goes away at the end.

Made by the `namespace` fixture. Waiting is by watch; every wait names what it waited for. What can go wrong: pods that
do not go away; the fixture's end then fails with their state.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.api import PATIENCE_S, RefusedError
from tests.cluster.node import condition
from tests.cluster.process import POLL

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from tests.cluster.api import Api, Json
    from tests.cluster.cluster import Cluster

GRANT = "partage.io/grant"


def running(pod: Json) -> bool:
    """Say whether every container runs and the pod is Ready."""
    return pod["status"].get("phase") == "Running" and condition(pod, "Ready") == "True"


@dataclass
class Namespace:
    """A namespace, and the cluster that it is in."""

    cluster: Cluster
    name: str

    @property
    def api(self) -> Api:
        """The API as administrator."""
        return self.cluster.api

    def open(self) -> Namespace:
        """Create it and wait until pods may be created in it: its default service account must be there."""
        self.api.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        self.api.wait("serviceaccounts", "default", lambda _: True, self.name, what="made by its controller")
        return self

    def close(self) -> None:
        """Delete its pods and what makes pods, wait until kubelet let them go, then delete the rest."""
        for kind in ("deployments.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch"):
            for item in self.api.list(kind, self.name):
                self.api.delete(kind, item["metadata"]["name"], self.name)
        left = self.api.list("pods", self.name)
        for pod in left:
            self.api.delete("pods", pod["metadata"]["name"], self.name, grace=1)
        for pod in left:
            self.api.wait_gone("pods", pod["metadata"]["name"], self.name)
        self.api.delete("namespaces", self.name)

    # ---- pods ------------------------------------------------------------------------------------------------------

    def create(self, pod: Json) -> Json:
        """Create a pod; its images are made and imported first where they are ours."""
        spec = pod["spec"]
        named = {made["image"] for made in [*spec["containers"], *spec.get("initContainers", [])]}
        if self.cluster.nodes:
            self.cluster.image(*(image for image in sorted(named) if image.startswith("partage.test/")))
        return self.api.create("pods", pod, self.name)

    def run(self, pod: Json, *, seconds: float = PATIENCE_S) -> Json:
        """Create a pod and return it once it is Running and Ready."""
        self.create(pod)
        return self.wait(pod["metadata"]["name"], running, what="Running and Ready", seconds=seconds)

    def finish(self, pod: Json, *, seconds: float = PATIENCE_S) -> Json:
        """Create a pod that ends by itself and return it once it Succeeded or Failed."""
        self.create(pod)
        ended = ("Succeeded", "Failed")
        return self.wait(
            pod["metadata"]["name"], lambda p: p["status"]["phase"] in ended, what="ended", seconds=seconds
        )

    def wait(self, name: str, reached: Callable[[Json], bool], *, what: str, seconds: float = PATIENCE_S) -> Json:
        """Wait by watch until a pod is as wanted; NotReachedError with its state and events where it is not."""
        try:
            return self.api.wait("pods", name, reached, self.name, what=what, seconds=seconds)
        except AssertionError as error:
            error.add_note("events: " + "; ".join(self.messages(name)))
            raise

    def get(self, name: str) -> Json:
        """Return a pod."""
        return self.api.get("pods", name, self.name)

    def delete(self, name: str, *, grace: int | None = None, seconds: float = PATIENCE_S) -> None:
        """Delete a pod and wait until kubelet let it go."""
        self.api.delete("pods", name, self.name, grace=grace)
        self.api.wait_gone("pods", name, self.name, seconds=seconds)

    def bind(self, name: str, grant: Mapping[str, object] | str | None = None, *, api: Api | None = None) -> Json:
        """Bind a pod to the node as the product's scheduler does, with a grant as annotation of the binding.

        `api` binds as somebody else. RefusedError where the server says no.
        """
        metadata: Json = {"name": name, "namespace": self.name}
        if grant is not None:
            metadata["annotations"] = {GRANT: grant if isinstance(grant, str) else json.dumps(grant)}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.cluster.node.name}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        return (api or self.cluster.scheduler_account()).post("pods", name, "binding", binding, self.name)

    def wait_denied(self, resource: str, body: Json, words: str, *, api: Api | None = None) -> str:
        """Try to create an object, as a dry run, until admission denies it in these words; policies take a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                (api or self.api).create(resource, body, self.name, dryRun="All")
            except RefusedError as error:
                if words in error.message:
                    return error.message
                raise
            if time.monotonic() > deadline:
                raise AssertionError(f"{resource} {body['metadata']['name']} was never denied with {words!r}")
            time.sleep(POLL)  # nothing tells when a server has taken a policy over

    # ---- what a user reads -----------------------------------------------------------------------------------------

    def logs(self, name: str, container: str | None = None, *, previous: bool = False) -> str:
        """Return a container's log, or that of the run before its last restart."""
        query = {"container": container} if container else {}
        if previous:
            query["previous"] = "true"
        return self.api.text(self.api.path("pods", name, self.name, "log"), **query)

    def wait_log(self, name: str, text: str, container: str | None = None, *, seconds: float = PATIENCE_S) -> str:
        """Follow a container's log until it holds `text`, and return the lines so far."""
        return self.wait_line(name, lambda line: text in line, container, what=repr(text), seconds=seconds)

    def wait_line(
        self,
        name: str,
        wanted: Callable[[str], bool],
        container: str | None = None,
        *,
        what: str = "what was wanted",
        seconds: float = PATIENCE_S,
    ) -> str:
        """Follow a container's log until a line is wanted, and return the lines so far."""
        query: Json = {"follow": "true", **({"container": container} if container else {})}
        path = self.api.path("pods", name, self.name, "log")
        lines: list[str] = []
        with self.api.http.stream("GET", path, params=query, timeout=seconds) as answer:
            assert answer.is_success, answer.read().decode()
            for line in answer.iter_lines():
                lines.append(line)
                if wanted(line):
                    return "\n".join(lines)
        raise AssertionError(f"{self.name}/{name}: its log ended without {what}:\n" + "\n".join(lines))

    def exec(self, name: str, *command: str, container: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as `kubectl exec` does; what it returns is the caller's to judge."""
        chosen = [f"--container={container}"] if container else []
        return self.cluster.kubectl("exec", f"--namespace={self.name}", name, *chosen, "--", *command, check=False)

    def events(self, name: str) -> list[Json]:
        """Return the events of a pod."""
        return self.api.list("events", self.name, fieldSelector=f"involvedObject.name={name}")

    def messages(self, name: str) -> list[str]:
        """Return the events of a pod as `Reason: message`."""
        return [f"{event['reason']}: {event['message']}" for event in self.events(name)]

    def wait_event(self, name: str, reason: str, *, seconds: float = PATIENCE_S) -> Json:
        """Wait by watch for an event of a pod."""
        selector = f"involvedObject.name={name},reason={reason}"
        for seen in self.api.watch("events", self.name, seconds=seconds, fieldSelector=selector):
            return dict(seen["object"])
        raise AssertionError(f"{self.name}/{name}: no event {reason} within {seconds:g} s; got {self.messages(name)}")
