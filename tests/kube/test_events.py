"""We test these aspects of events and conditions: what is told again is counted and not sent again; nobody is flooded;
nothing is written where all is so already; a successor of the same name gets nothing that was meant for another."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from lightkube.resources.core_v1 import Node, Pod

from partage.kube import (
    Client,
    Condition,
    EventRecorder,
    Rate,
    condition_of,
    mark_node,
    node_reference,
    pod_reference,
    set_condition,
)
from partage.model import KubeError
from tests.kube.api_server import ApiServer, Fault
from tests.kube.support import FakeClock, client_of, scenario, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POD = "/api/v1/namespaces/default/pods/a"


@asynccontextmanager
async def recorder_of(
    server: ApiServer, clock: FakeClock, rate: Rate | None = None
) -> AsyncIterator[tuple[EventRecorder, Pod]]:
    server.put_pod("a", "u1")
    async with client_of(server, clock) as client:
        pod = await client.get(Pod, "a", namespace="default")
        recorder = EventRecorder(client, "partage.io/agent", instance="n1", rate=rate, clock=clock)
        running = asyncio.create_task(recorder.run())
        try:
            yield recorder, pod
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def events_of(server: ApiServer) -> list[dict[str, Any]]:
    return [obj for path, obj in server.objects.items() if "/events/" in path]


def test_an_event_says_who_what_and_why() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        async with recorder_of(server, clock) as (recorder, pod):
            recorder.event(pod_reference(pod), "GrantMissing", "no grant", warning=True, action="Start")
            recorder.event(node_reference("n1"), "CardFailed", "x" * 2000)
            await until(lambda: len(events_of(server)) == 2)
        of_pod, of_node = events_of(server)
        assert of_pod["regarding"]["uid"] == "u1"
        assert of_pod["metadata"]["namespace"] == "default"
        assert of_pod["metadata"]["name"].startswith("a.")
        told = {key: of_pod[key] for key in ("type", "reason", "note", "action", "reportingController")}
        assert told == {
            "type": "Warning",
            "reason": "GrantMissing",
            "note": "no grant",
            "action": "Start",
            "reportingController": "partage.io/agent",
        }
        assert of_pod["eventTime"].startswith("2026-11-30T")
        assert of_node["metadata"]["namespace"] == "default"
        assert len(of_node["note"].encode()) <= 1024
        assert of_node["note"].endswith("…")

    scenario(play)


def test_repetitions_are_counted_and_seldom_written() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        async with recorder_of(server, clock) as (recorder, pod):
            about = pod_reference(pod)
            for _ in range(50):
                recorder.event(about, "GrantMissing", "no grant")
            await until(lambda: events_of(server))
            for _ in range(50):
                recorder.event(about, "GrantMissing", "no grant")
            assert server.count("PATCH") == 0
            clock.advance(30)
            recorder.event(about, "GrantMissing", "no grant")
            await until(lambda: server.count("PATCH") == 1)
            await until(lambda: "series" in events_of(server)[0])
            assert events_of(server)[0]["series"]["count"] == 101
            clock.advance(400)  # long ago: a new event
            recorder.event(about, "GrantMissing", "no grant")
            await until(lambda: len(events_of(server)) == 2)
        assert server.count("POST") == 2

    scenario(play)


def test_one_object_cannot_drown_the_others() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        rate = Rate(burst=5, per_s=1, object_burst=10, object_per_s=0.001)
        async with recorder_of(server, clock, rate) as (recorder, pod):
            begin = clock.time
            for number in range(100):
                recorder.event(pod_reference(pod), "Refused", f"try {number}")
            recorder.event(node_reference("n1"), "CardFailed", "XID 79")
            await until(lambda: any(event["reason"] == "CardFailed" for event in events_of(server)))
            assert len(events_of(server)) == 11
            assert recorder.dropped == 90
            assert clock.time - begin >= 5  # eleven writes at five at once and one a second

    scenario(play)


def test_an_api_server_that_refuses_events_stops_nothing() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        server.faults.append(Fault(403, matches=lambda request: request.method == "POST"))
        async with recorder_of(server, clock) as (recorder, pod):
            recorder.event(pod_reference(pod), "One", "refused")
            recorder.event(pod_reference(pod), "Two", "taken")
            await until(lambda: events_of(server))
            assert [event["reason"] for event in events_of(server)] == ["Two"]
            assert recorder.dropped == 1
            recorder.event(pod_reference(pod), "One", "refused")  # not sent yet, so it is sent now
            await until(lambda: len(events_of(server)) == 2)

    scenario(play)


def test_an_event_that_the_api_server_forgot_is_told_anew() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        async with recorder_of(server, clock) as (recorder, pod):
            recorder.event(pod_reference(pod), "One", "x")
            await until(lambda: events_of(server))
            server.objects = {path: obj for path, obj in server.objects.items() if "/events/" not in path}
            clock.advance(31)
            recorder.event(pod_reference(pod), "One", "x")
            await until(lambda: events_of(server))

    scenario(play)


# ---- conditions and marks --------------------------------------------------------------------------------------------


def test_a_condition_is_written_once() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        server.put_pod("a", "u1")
        async with client_of(server, clock) as client:
            pod = await client.get(Pod, "a", namespace="default")
            told = Condition("partage.io/Enforced", holds=True, reason="Shim", message="in force")
            assert await set_condition(client, pod, told, clock.date())
            body = server.bodies[-1]
            assert body["metadata"] == {"uid": "u1"}
            assert body["status"]["conditions"][0]["lastTransitionTime"] == "2026-11-30T00:16:40Z"
            pod = await client.get(Pod, "a", namespace="default")
            found = condition_of(pod, "partage.io/Enforced")
            assert found is not None
            assert found.reason == "Shim"
            assert not await set_condition(client, pod, told, clock.date())
            assert await set_condition(client, pod, replace(told, reason="Dmem"), clock.date())
            assert "lastTransitionTime" not in server.bodies[-1]["status"]["conditions"][0]
        assert server.count("PATCH") == 2

    scenario(play)


def test_a_successor_gets_no_condition_of_its_predecessor() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        server.put_pod("a", "u1")
        async with client_of(server, clock) as client:
            pod = await client.get(Pod, "a", namespace="default")
            server.delete(POD)
            server.put_pod("a", "u2")
            with pytest.raises(KubeError) as caught:
                await set_condition(client, pod, Condition("t", False, "r", "m"), clock.date())
        assert caught.value.status == 409
        assert "status" not in server.objects[POD]

    scenario(play)


async def marks(client: Client, seen: Node | None, **annotations: str | None) -> bool:
    return await mark_node(client, "n1", annotations=annotations, labels={"l": "1"}, seen=seen)


def test_a_node_is_marked_on_change_only() -> None:
    async def play(server: ApiServer) -> None:
        path = "/api/v1/nodes/n1"
        server.put(path, {"kind": "Node", "metadata": {"name": "n1", "uid": "n", "annotations": {"old": "x"}}})
        async with client_of(server, FakeClock()) as client:
            assert await marks(client, None, d="1", old=None)
            assert server.objects[path]["metadata"]["annotations"] == {"d": "1"}
            node = await client.get(Node, "n1")
            assert not await marks(client, node, d="1", old=None)
            assert await marks(client, node, d="2")
            assert server.bodies[-1] == {"metadata": {"annotations": {"d": "2"}}}
        assert server.count("PATCH") == 2

    scenario(play)
