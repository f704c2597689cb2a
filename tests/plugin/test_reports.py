"""We test these aspects of conditions on their way to pods: they are sent after kubelet's calls and not beside them;
containers of one pod are one request; the last word stands, whatever is lost or late between; what fails is tried again
and holds up no other pod; an agent that comes back says again what the one before it could not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from lightkube.resources.core_v1 import Pod as KubePod

from partage.kube import Condition, condition_of
from partage.model import KubeError, names
from partage_plugin import condition_writer
from partage_plugin.calls import LATEST_S, QUIET_S, Calls
from partage_plugin.condition_writer import APART_S, AT_ONCE, PER_S, TRIES, ConditionWriter
from partage_plugin.kubepods import ClusterPods
from partage_plugin.reports import KubeReports
from tests.kube.api_server import ApiServer, Fault
from tests.kube.support import FakeClock, client_of, scenario, until
from tests.plugin.kubelet import HANG_S
from tests.plugin.world import World, part
from tests.plugin.world import pod_of as world_pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    import pytest

A = Condition("partage.io/Enforced", holds=True, reason="shim", message="a")
B = Condition("partage.io/Enforced", holds=False, reason="GrantMissing", message="b")
OTHER = Condition("partage.io/Resized", holds=True, reason="ShareResized", message="c")


class Pods:
    """Pods that are told conditions: what each request said, and what stands."""

    def __init__(self, clock: FakeClock) -> None:
        self.requests: list[tuple[str, list[Condition]]] = []
        self.standing: dict[tuple[str, str], Condition] = {}
        self.calls = Calls(clock)
        self.fails: dict[str, list[KubeError]] = {}
        self.gate: asyncio.Event | None = None
        self.lands_first = False
        self.under_way = 0
        self.known: Condition | None = None  # which stands on each pod before anything is said

    async def send(self, uid: str, wanted: Sequence[Condition], written: Mapping[str, Condition | None]) -> bool:
        self.under_way += 1
        assert self.under_way == 1, "two requests at once"
        try:
            self.requests.append((uid, list(wanted)))
            news = [one for one in wanted if written.get(one.kind, self.known) != one]
            if self.lands_first:
                self._take(uid, news)
            if self.gate is not None:
                await self.gate.wait()
            if self.fails.get(uid):
                raise self.fails[uid].pop(0)
            self._take(uid, news)
            return bool(news)
        finally:
            self.under_way -= 1

    def called(self) -> None:
        with self.calls.call():
            pass

    def _take(self, uid: str, wanted: list[Condition]) -> None:
        self.standing |= {(uid, one.kind): one for one in wanted}


@asynccontextmanager
async def writing(clock: FakeClock) -> AsyncIterator[tuple[ConditionWriter, Pods]]:
    pods = Pods(clock)
    writer = ConditionWriter(pods.send, clock, pods.calls, Random(1))
    running = asyncio.create_task(writer.run())
    try:
        yield writer, pods
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def error(status: int) -> KubeError:
    return KubeError("a pod", status, "refused", "none", status=status)


def play(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, HANG_S))


def test_containers_of_one_pod_are_one_request() -> None:
    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            for one in (A, B, A, OTHER):
                writer.want("u1", one)
            await until(lambda: clock.sleeping)
            assert pods.requests == []
            clock.advance(QUIET_S)
            await until(lambda: pods.requests)
            assert pods.requests == [("u1", [A, OTHER])]
            writer.want("u1", A)  # said already
            assert writer.waiting == 0

    play(whole())


def test_nothing_is_sent_beside_kubelets_calls_for_a_while() -> None:
    """While containers start it waits, a second at most."""

    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            writer.want("u1", A)
            writer.want("u2", A)
            for _ in range(4):
                await until(lambda: clock.sleeping)
                assert pods.requests == []
                pods.called()
                clock.advance(LATEST_S / 4)
            await until(lambda: len(pods.requests) == 2)

    play(whole())


def test_it_pauses_between_requests_while_kubelet_calls() -> None:
    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            pods.gate = asyncio.Event()
            for uid in ("u1", "u2"):
                writer.want(uid, A)
            await until(lambda: clock.sleeping)
            clock.advance(QUIET_S)
            await until(lambda: pods.under_way)
            pods.called()
            pods.gate.set()
            await until(lambda: clock.sleeping)
            assert len(pods.requests) == 1
            clock.advance(APART_S)
            await until(lambda: len(pods.requests) == 2)

    play(whole())


def test_what_is_wanted_while_a_request_is_under_way_is_sent_after_it() -> None:
    """Even where it is what stood before: the request under way changes that."""

    async def whole() -> None:
        clock = FakeClock(jumps=True)
        async with writing(clock) as (writer, pods):
            writer.want("u1", A)
            await until(lambda: ("u1", A.kind) in pods.standing and not pods.under_way)
            pods.gate = asyncio.Event()
            writer.want("u1", B)
            await until(lambda: pods.under_way)
            writer.want("u1", A)
            pods.gate.set()
            await until(lambda: not writer.waiting and not pods.under_way)
            assert pods.standing["u1", A.kind] == A

    play(whole())


def test_a_lost_answer_leaves_the_last_word() -> None:
    """The request was done and its answer lost: nobody knows what stands there, so the next word is written."""

    async def whole() -> None:
        clock = FakeClock(jumps=True)
        async with writing(clock) as (writer, pods):
            writer.want("u1", A)
            await until(lambda: pods.standing and not pods.under_way)
            pods.gate, pods.lands_first = asyncio.Event(), True
            pods.fails["u1"] = [error(0)]
            writer.want("u1", B)
            await until(lambda: pods.under_way)
            writer.want("u1", A)
            pods.gate.set()
            await until(lambda: not writer.waiting and not pods.under_way)
            assert pods.standing["u1", A.kind] == A

    play(whole())


def test_what_fails_is_tried_again_and_holds_up_nobody() -> None:
    async def whole() -> None:
        clock = FakeClock(jumps=True)
        async with writing(clock) as (writer, pods):
            pods.fails = {"u1": [error(503)] * 3, "gone": [error(404)]}
            for uid in ("u1", "gone", "u2"):
                writer.want(uid, A)
            await until(lambda: not writer.waiting and not pods.under_way)
            assert [uid for uid, _ in pods.requests] == ["u1", "gone", "u2", "u1", "u1", "u1"]
            assert set(pods.standing) == {("u1", A.kind), ("u2", A.kind)}
            assert max(clock.slept) > 2 * QUIET_S  # growing waits, as the API server may be away for long

    play(whole())


def test_it_gives_up_at_last_and_says_the_next_word() -> None:
    async def whole() -> None:
        clock = FakeClock(jumps=True)
        async with writing(clock) as (writer, pods):
            pods.fails["u1"] = [error(403)] * TRIES
            writer.want("u1", A)
            await until(lambda: len(pods.requests) == TRIES and not pods.under_way)
            assert writer.waiting == 0
            writer.want("u1", A)
            await until(lambda: pods.standing)

    play(whole())


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_writer, "PODS_MAX", 3)

    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            for number in range(5):
                writer.want(f"u{number}", A)
            assert writer.waiting == 3
            await until(lambda: clock.sleeping)
            clock.advance(QUIET_S)
            await until(lambda: not writer.waiting)
            assert [uid for uid, _ in pods.requests] == ["u2", "u3", "u4"]

    play(whole())


def test_a_burst_is_bounded_by_a_number() -> None:
    """A hundred pods at once on a quiet node: so many at once, and so many a second after that, whoever was refused."""

    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            pods.fails["u3"] = [error(404)]
            for number in range(100):
                writer.want(f"u{number}", A)
            await until(lambda: clock.sleeping)
            clock.advance(QUIET_S)
            for written in range(AT_ONCE, 100):
                await until(lambda: clock.sleeping)
                assert len(pods.requests) == written
                clock.advance(1 / PER_S)
            await until(lambda: len(pods.standing) == 99)
            assert [uid for uid, _ in pods.requests] == [f"u{number}" for number in range(100)]

    play(whole())


def test_what_stands_already_counts_for_nothing() -> None:
    """After a restart of the agent all is said again, and what is new does not wait behind it."""

    async def whole() -> None:
        clock = FakeClock()
        async with writing(clock) as (writer, pods):
            pods.known = A
            for number in range(3 * AT_ONCE):
                writer.want(f"u{number}", A)
            writer.want("new", B)
            await until(lambda: clock.sleeping)
            clock.advance(QUIET_S)
            await until(lambda: ("new", B.kind) in pods.standing)

    play(whole())


# ---- at an API server ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reporting(server: ApiServer, clock: FakeClock) -> AsyncIterator[tuple[KubeReports, ClusterPods]]:
    async with client_of(server, clock) as client, asyncio.TaskGroup() as tasks:
        pods = ClusterPods(client, "n1")
        reports = KubeReports(client, pods, "n1", clock=clock)
        running = [tasks.create_task(pods.run()), tasks.create_task(reports.run())]
        await pods.wait_synced()
        yield reports, pods
        for task in running:
            task.cancel()


def shown(server: ApiServer, name: str) -> dict[str, str]:
    pod = server.objects[f"/api/v1/namespaces/default/pods/{name}"]
    return {one["type"]: one["reason"] for one in pod.get("status", {}).get("conditions", [])}


def patches(server: ApiServer) -> int:
    return sum(1 for method, *_ in server.requests if method == "PATCH")


def _shows(server: ApiServer, reason: str) -> bool:
    return shown(server, "a").get(names.CONDITION_ENFORCED) == reason


def test_an_older_look_at_a_pod_hides_no_newer_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is behind; what we have written ourselves counts, not what the pod looked like before."""

    async def whole(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        async with reporting(server, FakeClock(jumps=True)) as (reports, pods):
            pod = pods.get("u1")
            assert pod is not None
            reports.condition(pod, names.CONDITION_ENFORCED, holds=True, reason="shim", message="m")
            await until(lambda: condition_of(pods.kube_pod("u1") or KubePod(), names.CONDITION_ENFORCED))
            found = pods.kube_pod("u1")
            monkeypatch.setattr(pods, "kube_pod", lambda _: found)  # from now on the watch is behind
            for reason in ("none", "shim"):
                reports.condition(pod, names.CONDITION_ENFORCED, holds=True, reason=reason, message="m")
                await until(partial(_shows, server, reason))
            assert patches(server) == 3

    scenario(whole)


def test_a_word_that_stands_already_is_not_written() -> None:
    """An agent that comes back says all again; on a pod that has it nothing is written."""

    async def whole(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        for _ in range(2):
            async with reporting(server, FakeClock(jumps=True)) as (reports, pods):
                pod = pods.get("u1")
                assert pod is not None
                reports.condition(pod, names.CONDITION_ENFORCED, holds=True, reason="shim", message="m")
                await until(lambda: shown(server, "a") == {names.CONDITION_ENFORCED: "shim"})
        assert patches(server) == 1

    scenario(whole)


def test_the_api_server_comes_back() -> None:
    async def whole(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        async with reporting(server, FakeClock(jumps=True)) as (reports, pods):
            pod = pods.get("u1")
            assert pod is not None
            server.faults.extend(Fault(503, matches=lambda request: request.method == "PATCH") for _ in range(12))
            reports.condition(pod, names.CONDITION_ENFORCED, holds=True, reason="shim", message="m")
            await until(lambda: shown(server, "a") == {names.CONDITION_ENFORCED: "shim"})

    scenario(whole)


def test_the_next_agent_says_what_the_one_before_could_not(tmp_path: Path) -> None:
    """Killed between a container's start and its condition; the word is said after the restart."""

    async def whole() -> None:
        world = World(tmp_path)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            pod = await world.pods.put(world_pod("u1", app=part()))
            await world.kubelet.pre_start(await world.kubelet.allocate("u1", pod.full_name, "app"))
        world.told.conditions.clear()  # never reached the API server
        await world.kubelet.restart()
        async with world.agent():
            await world.kubelet.registered()
            assert world.told.conditions[pod.name, names.CONDITION_ENFORCED][:2] == (True, "shim")
        await world.kubelet.stop()

    play(whole())


def test_pods_are_as_the_watch_told_last() -> None:
    """All pods, one by its UID, and after a change and a deletion."""

    async def whole(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.put_pod("b", "u2")
        async with reporting(server, FakeClock(jumps=True)) as (_, pods):
            assert {pod.uid for pod in pods.all()} == {"u1", "u2"}
            assert pods.all() is pods.all()
            server.put_pod("a", "u1", annotations={"x": "y"})
            await until(lambda: (found := pods.get("u1")) is not None and found.annotations)
            assert {pod.uid: dict(pod.annotations) for pod in pods.all()} == {"u1": {"x": "y"}, "u2": {}}
            server.delete("/api/v1/namespaces/default/pods/b")
            await until(lambda: pods.get("u2") is None)
            assert [pod.uid for pod in pods.all()] == ["u1"]

    scenario(whole)
