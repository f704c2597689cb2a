"""The manifests as shipped, on a real API server: each is taken, nothing in it is unknown or pruned, twice the same.

And partage.kube against the same server: it sees what happens, survives the server's restart, writes where it may.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from lightkube.resources.core_v1 import ConfigMap, Node, Pod, Secret

from partage.kube import (
    Client,
    Condition,
    EventRecorder,
    Informer,
    Retry,
    condition_of,
    load_config,
    mark_node,
    pod_reference,
    set_condition,
)
from partage.model import KubeError, names
from tests.cluster.api import PATIENCE_S, RefusedError
from tests.cluster.changes import deadline, left
from tests.cluster.cluster import SYSTEM
from tests.cluster.conftest import opened
from tests.cluster.controlplane import Options
from tests.cluster.process import POLL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.cluster.api import Json
    from tests.cluster.binaries import Binaries
    from tests.cluster.cluster import Cluster

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ENDED = Retry(attempts=20, total_s=PATIENCE_S)
EVENTS = "events.events.k8s.io"


@pytest.fixture(scope="module")
def plane(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    for cluster in opened(
        pytestconfig, binaries, node=False, options=Options(scheduler=False, controller_manager=False)
    ):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        cluster.api.apply("serviceaccounts", account, "default")
        yield cluster


@pytest.mark.parametrize("room", ["agent", "policies", "webhook"])
def test_every_manifest_is_taken(plane: Cluster, room: str) -> None:
    plane.kubectl("apply", "--server-side", "--filename", str(DEPLOY / "agent" / "1-namespace.yaml"))
    paths = sorted((DEPLOY / room).glob("*.yaml"))
    files = [argument for path in paths for argument in ("--filename", str(path))]
    flags = ("apply", "--server-side", "--validate=strict")
    count = sum(1 for path in paths for found in yaml.safe_load_all(path.read_text()) if found)
    tried = plane.kubectl(*flags, "--dry-run=server", *files)
    assert len(tried.stdout.splitlines()) == count
    assert "warning" not in tried.stderr.lower()
    plane.kubectl(*flags, *files)
    again = json.loads(plane.kubectl(*flags, "--output=json", *files).stdout)
    items = again.get("items", [again])
    assert len(items) == count
    assert all(item["metadata"].get("generation", 1) == 1 for item in items)  # the second time changes nothing


def pod_of(name: str, **annotations: str) -> Json:
    spec = {
        "containers": [{"name": "app", "image": "none"}],
        "automountServiceAccountToken": False,
        "schedulerName": "nobody",
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


@asynccontextmanager
async def followed(plane: Cluster) -> AsyncIterator[tuple[Client, Informer[Pod]]]:
    config = load_config(plane.kubeconfig)
    async with Client.connect(config, manager="partage-test", retry=ENDED) as client, asyncio.TaskGroup() as tasks:
        pods = Informer(client, Pod, namespace="default")
        running = tasks.create_task(pods.run())
        await pods.wait_synced()
        yield client, pods
        running.cancel()


def test_pods_are_followed(plane: Cluster) -> None:
    api = plane.api

    async def play() -> None:
        first = api.create("pods", pod_of("first"), "default")
        async with followed(plane) as (_, pods):
            assert pods.get(first["metadata"]["uid"]) is not None
            second = api.create("pods", pod_of("second", odd="one\u0085two\u2028three"), "default")
            uid = second["metadata"]["uid"]
            seen = await pods.wait_for(uid, timeout=PATIENCE_S)
            assert seen.metadata is not None
            assert seen.metadata.annotations == {"odd": "one\u0085two\u2028three"}
            api.patch("pods", "second", {"metadata": {"labels": {"x": "1"}}}, "default")
            await pods.wait_for(uid, lambda pod: bool(pod.metadata and pod.metadata.labels), timeout=PATIENCE_S)
            gone = asyncio.create_task(pods.wait_for(uid, lambda _: False, timeout=PATIENCE_S))
            await asyncio.sleep(0)
            api.delete("pods", "second", "default", grace=0)
            with pytest.raises(KubeError, match="deleted"):
                await gone
            api.create("pods", pod_of("second"), "default")
            again = await pods.wait_for(api.get("pods", "second", "default")["metadata"]["uid"], timeout=PATIENCE_S)
            assert pods.named("default", "second") is again
        for name in ("first", "second"):
            api.delete("pods", name, "default", grace=0)

    asyncio.run(play())


def test_the_api_server_goes_away_and_comes_back(plane: Cluster) -> None:
    server = plane.control.processes["kube-apiserver"]

    async def play() -> None:
        async with followed(plane) as (_, pods):
            server.kill()
            server.start()
            await asyncio.to_thread(server.until, plane.api.ready, seconds=120, what="ready")
            made = plane.api.create("pods", pod_of("after"), "default")
            assert await pods.wait_for(made["metadata"]["uid"], timeout=PATIENCE_S)
            assert pods.problem is None
        plane.api.delete("pods", "after", "default", grace=0)

    asyncio.run(play())


def is_told(events: list[Json]) -> bool:
    """Whether ours is among them; others' may be of an older form, without a time of their own."""
    return any(one.get("note") == "no grant" for one in events)


def test_events_and_conditions_are_as_the_api_wants_them(plane: Cluster) -> None:
    made = plane.api.create("pods", pod_of("told"), "default")
    plane.api.create(
        "events",
        {"metadata": {"name": "old"}, "involvedObject": {"kind": "Pod", "name": "told", "namespace": "default"}},
        "default",
    )

    async def play() -> None:
        async with followed(plane) as (client, pods):
            pod = await pods.wait_for(made["metadata"]["uid"], timeout=PATIENCE_S)
            kind = "example.com/Enforced"  # one of ours is written by our own parts alone
            condition = Condition(kind, holds=False, reason="GrantMissing", message="no grant")
            assert await set_condition(client, pod, condition, datetime.now(UTC))
            pod = await pods.wait_for(
                made["metadata"]["uid"], lambda seen: condition_of(seen, kind) is not None, timeout=PATIENCE_S
            )
            assert not await set_condition(client, pod, condition, datetime.now(UTC))
            recorder = EventRecorder(client, "partage.io/agent", instance="n1")
            running = asyncio.create_task(recorder.run())
            try:
                recorder.event(pod_reference(pod), "GrantMissing", "no grant", warning=True)
                await asyncio.to_thread(plane.api.wait_all, EVENTS, is_told, "default", what="an event")
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert "GrantMissing" in plane.kubectl("describe", "pod", "told").stdout

    asyncio.run(play())
    plane.api.delete("pods", "told", "default", grace=0)


def test_the_agents_rights_are_enough_and_no_more(plane: Cluster, tmp_path: Path) -> None:
    """With the role and the policies as shipped and a token bound to the agent's pod on its node."""
    plane.kubectl("apply", "--server-side", "--filename", str(DEPLOY / "agent" / "1-namespace.yaml"))
    plane.apply(DEPLOY / "agent", DEPLOY / "policies")
    plane.api.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    own = pod_of("agent")
    own["spec"] |= {"nodeName": "n1", "serviceAccountName": "partage-agent"}
    bound = plane.api.create("pods", own, SYSTEM)
    tenant = pod_of("tenant")
    tenant["spec"]["nodeName"] = "n1"
    uid = plane.api.create("pods", tenant, "default")["metadata"]["uid"]
    token = plane.token("partage-agent", pod=bound)
    config = load_config(plane.token_kubeconfig(tmp_path / "agent.kubeconfig", token))

    async def play() -> None:
        async with Client.connect(config, manager="partage-agent", retry=ENDED) as client:
            pods = Informer(client, Pod, fields={"spec.nodeName": "n1"})
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(pods.run())
                pod = await pods.wait_for(uid, timeout=PATIENCE_S)
                running.cancel()
            condition = Condition("partage.io/Enforced", holds=True, reason="Shim", message="in force")
            assert await set_condition(client, pod, condition, datetime.now(UTC))
            assert await mark_node(
                client, "n1", annotations={names.DEVICES: "{}"}, labels={"nvidia.com/gpu.count": "8"}
            )
            seen = await client.get(Node, "n1")
            assert not await mark_node(client, "n1", annotations={names.DEVICES: "{}"}, seen=seen)
            recorder = EventRecorder(client, "partage.io/agent", instance="n1")
            sending = asyncio.create_task(recorder.run())
            recorder.event(pod_reference(pod), "GrantMissing", "by the agent itself", warning=True)
            told = asyncio.to_thread(_event_of, plane, "by the agent itself")
            await told
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            assert recorder.dropped == 0
            for refused in (
                client.patch(Pod, "tenant", {"metadata": {"labels": {"x": "y"}}}, namespace="default"),
                client.delete(Pod, "tenant", namespace="default"),
                client.patch(Node, "n1", {"metadata": {"labels": {"other": "1"}}}),
                client.list(Secret),
                client.get(ConfigMap, "partage-config", namespace=SYSTEM),
            ):
                with pytest.raises(KubeError) as caught:
                    await refused
                assert caught.value.status == 403, caught.value

    # The API server takes a moment to take policies; its answer is the same with and without, but for the last label.
    agent = plane.as_account("partage-agent", pod=bound)
    numbers = count()  # one that was taken changes nothing when it is sent again, and is refused by nobody

    def denied() -> object:
        return agent.patch("nodes", "n1", {"metadata": {"labels": {"other": str(next(numbers))}}})

    until_refused(denied, "agent changes other")
    plane.api.patch("nodes", "n1", {"metadata": {"labels": {"other": None}}})
    asyncio.run(play())


def until_refused(request: Callable[[], object], words: str) -> None:
    """Repeat a request until it is refused in these words; another refusal is that of a right not known by then."""
    end = deadline(PATIENCE_S)
    said = "nothing"
    while left(end) > 0:
        try:
            request()
        except RefusedError as error:
            said = error.message
            if words in said:
                return
        time.sleep(POLL)  # nothing tells when a server has taken a policy over
    raise AssertionError(f"not refused with {words!r} within {PATIENCE_S:g} s; it said {said}")


def _event_of(plane: Cluster, note: str) -> None:
    """Return once there is an event with this note in the default namespace."""
    for event in plane.api.watch("events", "default", seconds=PATIENCE_S):
        if event["object"].get("message") == note:
            return
    raise AssertionError(f"no event says {note!r}")
