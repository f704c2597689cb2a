"""We test these aspects of the informer: it ends up with what the server has, whatever happens to its watch; each
change is told once and in order; an object is found by UID, by name, or waited for; it never asks in a hot loop."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from lightkube.resources.core_v1 import Pod

from partage.kube import Backoff, Change, Informer, Timing
from partage.model import KubeError
from tests.kube import support
from tests.kube.api_server import ApiServer, Fault, status_of
from tests.kube.support import FakeClock, client_of, scenario, until, watched


def pods_of(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}"


@pytest.fixture(autouse=True, params=[False, True], ids=["httpx2", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "BY_POSTER", request.param)


def test_list_then_watch() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.put_pod("elsewhere", "u9", node="n2")
        async with watched(server) as seen:
            assert seen.told == [("added", "u1")]
            server.put_pod("b", "u2")
            server.put_pod("a", "u1", annotations={"x": "1"})
            server.delete(pods_of("b"))
            await until(lambda: len(seen.changes) == 4)
            assert seen.told[1:] == [("added", "u2"), ("modified", "u1"), ("deleted", "u2")]
            changed = seen.changes[2]
            assert changed.old is not None
            assert changed.old.metadata
            assert changed.old.metadata.annotations is None
            assert changed.object.metadata
            assert changed.object.metadata.annotations == {"x": "1"}
            assert seen.informer.get("u1") is changed.object
            assert seen.informer.named("default", "a") is changed.object
            assert seen.informer.get("u2") is None
            assert len(seen.informer) == 1
            assert seen.informer.problem is None
        query = server.requests[1][2]
        assert query["fieldSelector"] == "spec.nodeName=n1"
        assert query["allowWatchBookmarks"] == "true"
        assert 300 <= int(query["timeoutSeconds"]) <= 600

    scenario(play)


def test_a_stream_that_ends_is_joined_again_from_its_last_version() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        async with watched(server) as seen:
            server.put_pod("b", "u2")
            await until(lambda: len(seen.changes) == 2)
            last = str(server.version)
            server.script(None)
            await server.wait_watches(2)
            assert server.opened[1] == last
            server.say("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "5000"}})
            server.script(None)
            await server.wait_watches(3)
            assert server.opened[2] == "5000"
            assert seen.names == ["a", "b"]
        assert server.count("LIST") == 1

    scenario(play)


def test_what_happens_between_two_streams_is_not_lost() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        clock = FakeClock()
        async with watched(server, clock) as seen:
            server.script(None)
            await until(lambda: clock.sleeping)
            server.put_pod("b", "u2")
            server.delete(pods_of("a"))
            clock.advance(60)
            await until(lambda: seen.names == ["b"])
            assert seen.told == [("added", "u1"), ("added", "u2"), ("deleted", "u1")]

    scenario(play)


@pytest.mark.parametrize("how", ["answer", "event"])
def test_too_old_a_version_lists_anew_and_tells_the_difference(how: str) -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.put_pod("b", "u2")
        clock = FakeClock()
        async with watched(server, clock) as seen:
            server.history.clear()
            server.watches[0].put_nowait(None)
            if how == "event":
                server.watches[0]._queue.clear()  # type: ignore[attr-defined]
                server.say("ERROR", status_of(410, "Expired", "too old resource version"))
            await until(lambda: clock.sleeping)
            server.delete(pods_of("a"), told=False)
            server.put_pod("a", "u3")  # a successor of the same name
            server.put_pod("b", "u2", labels={"x": "1"})
            server.oldest = server.version
            clock.advance(60)
            if how == "answer":
                await until(lambda: clock.sleeping)
                clock.advance(60)
            await until(lambda: len(seen.changes) == 5)
            assert sorted(seen.told[2:]) == [("added", "u3"), ("deleted", "u1"), ("modified", "u2")]
            assert seen.told.index(("deleted", "u1")) < seen.told.index(("added", "u3"))
            found = seen.informer.named("default", "a")
            assert found is not None
            assert found.metadata
            assert found.metadata.uid == "u3"

    scenario(play)


def test_duplicates_and_late_events_say_nothing() -> None:
    async def play(server: ApiServer) -> None:
        old = dict(server.put_pod("a", "u1"))
        old["metadata"] = dict(old["metadata"])
        async with watched(server) as seen:
            new = server.put_pod("a", "u1", labels={"now": "yes"})
            for _ in range(3):
                server.say("MODIFIED", new)
                server.say("MODIFIED", old)
                server.say("ADDED", new)
            gone = server.delete(pods_of("a"))
            server.say("DELETED", gone)
            server.say("MODIFIED", new)  # after its deletion
            server.put_pod("b", "u2")
            await until(lambda: seen.names == ["b"])
            assert seen.told == [("added", "u1"), ("modified", "u1"), ("deleted", "u1"), ("added", "u2")]

    scenario(play)


def test_what_left_a_selection_comes_back() -> None:
    """C091 (K15): for who watches a selection that is a deletion, but the object lives and keeps its UID."""

    async def play(server: ApiServer) -> None:
        pod = server.put_pod("a", "u1")
        async with watched(server) as seen:
            left = dict(pod, metadata=dict(pod["metadata"], resourceVersion="200"))
            server.say("DELETED", left)
            server.say("MODIFIED", pod)  # as it was before
            back = dict(pod, metadata=dict(pod["metadata"], resourceVersion="201"))
            server.say("ADDED", back)
            server.say("DELETED", left)  # told once more after a stream was joined again
            await until(lambda: len(seen.changes) == 3)
            server.say("ADDED", dict(back, metadata=dict(back["metadata"], uid="u2", name="b")))
            await until(lambda: seen.names == ["a", "b"])
            assert seen.told == [("added", "u1"), ("deleted", "u1"), ("added", "u1"), ("added", "u2")]

    scenario(play)


def test_versions_that_go_backwards() -> None:
    """C091 (K15): a database that was restored has older objects, and some that were gone; a list is believed."""

    async def play(server: ApiServer) -> None:
        server.version = 1000
        server.put_pod("a", "u1", labels={"is": "new"})
        server.put_pod("b", "u2")
        async with watched(server) as seen:
            server.delete(pods_of("b"))
            await until(lambda: seen.names == ["a"])
            server.version, server.history = 500, []
            server.put_pod("a", "u1", labels={"is": "old"})
            server.put_pod("b", "u2")
            server.say("ERROR", status_of(410, "Expired", "too old resource version"))
            await until(lambda: seen.names == ["a", "b"])
            found = seen.informer.get("u1")
            assert found is not None
            assert found.metadata is not None
            assert found.metadata.labels == {"is": "old"}
            assert seen.told[3:] == [("modified", "u1"), ("added", "u2")]

    scenario(play)


def test_a_stream_that_says_nothing_at_all_lists_anew() -> None:
    """Not even a bookmark in a minute: the server may wait for a version that is years ahead of a restored database."""

    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        clock = FakeClock(jumps=True)
        async with watched(server, clock) as seen:
            server.history = []
            server.objects[pods_of("b")] = dict(server.objects[pods_of("a")])
            server.objects[pods_of("b")]["metadata"] = {"name": "b", "namespace": "default", "uid": "u2"}
            clock.time += 60
            server.script(None)
            await until(lambda: seen.names == ["a", "b"])
            assert server.count("LIST") == 2

    scenario(play)


def test_a_name_that_is_used_again_is_its_successor() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        async with watched(server) as seen:
            gone = server.delete(pods_of("a"), told=False)
            server.put_pod("a", "u2")
            server.say("DELETED", gone)  # late: the name is another's by now
            server.put_pod("b", "u3")
            await until(lambda: seen.informer.get("u3"))
            assert seen.told == [("added", "u1"), ("deleted", "u1"), ("added", "u2"), ("added", "u3")]
            found = seen.informer.named("default", "a")
            assert found is seen.informer.get("u2")
            assert found is not None

    scenario(play)


def test_what_a_tenant_writes_into_an_annotation_breaks_no_line() -> None:
    """U+0085, U+2028 and the like end lines of text, not of the stream."""
    odd = "one\u0085two\u2028three\x1cfour\rfive"

    async def play(server: ApiServer) -> None:
        async with watched(server) as seen:
            pod = {"metadata": {"name": "a", "uid": "u1", "resourceVersion": "900", "annotations": {"x": odd}}}
            line = json.dumps({"type": "ADDED", "object": pod}, ensure_ascii=False).encode()
            for begin in range(0, len(line), 7):  # and whole however it is cut
                server.script(line[begin : begin + 7])
                await asyncio.sleep(0)
            server.script(b"\n\n")
            await until(lambda: seen.changes)
            found = seen.informer.get("u1")
            assert found is not None
            assert found.metadata
            assert found.metadata.annotations == {"x": odd}

    scenario(play)


@pytest.mark.parametrize(
    "line", [b"<html>\n", b'{"type":"NEWS","object":{"metadata":{}}}\n', b'{"type":"ADDED","object":[]}\n']
)
def test_a_line_that_is_none_is_ridden_out(line: bytes) -> None:
    async def play(server: ApiServer) -> None:
        async with watched(server) as seen:
            server.script(line)
            server.put_pod("a", "u1")
            await until(lambda: seen.names == ["a"])

    scenario(play)


def test_failures_wait_longer_and_longer_and_are_shown() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        clock = FakeClock()
        async with watched(server, clock, Timing(waits=Backoff(1, 60))) as seen:
            clock.slept.clear()
            cuts = (0, 0) if support.BY_POSTER else (0,)  # aiohttp sends a GET that was cut once more by itself
            server.faults.extend(
                Fault(status, matches=lambda request: "watch" in request.query)
                for status in (403, 500, *cuts, 429, 403)
            )
            server.script(None)
            for failures in range(1, 7):
                await until(lambda: clock.sleeping)
                assert seen.informer.problem is not None
                assert 2.0 ** (failures - 1) / 2 <= clock.slept[-1] <= 2.0 ** (failures - 1)
                assert seen.names == ["a"]  # what was known stays known
                clock.advance(clock.slept[-1])
            assert seen.informer.stale_for > 10
            server.put_pod("b", "u2")
            await until(lambda: seen.names == ["a", "b"])
            assert seen.informer.problem is None
            assert seen.informer.stale_for == 0

    scenario(play)


def test_a_server_that_ends_every_stream_at_once_is_not_hammered() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        async with watched(server, clock):
            for count in range(1, 6):
                server.script(None)
                await until(lambda: clock.sleeping)
                assert len(server.opened) == count
                clock.advance(60)
                await server.wait_watches(count + 1)

    scenario(play)


def test_the_first_list_fails_for_a_while() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.faults.extend(Fault(503) for _ in range(12))
        async with watched(server) as seen:
            assert seen.names == ["a"]

    scenario(play)


def test_waiting_for_an_object() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        clock = FakeClock()
        async with watched(server, clock) as seen:
            informer = seen.informer
            assert await informer.wait_for("u1", timeout=5) is informer.get("u1")

            def granted(pod: Pod) -> bool:
                return bool(pod.metadata and pod.metadata.annotations)

            waits = [
                asyncio.create_task(informer.wait_for("u2", timeout=5)),
                asyncio.create_task(informer.wait_for("u2", granted, timeout=5)),
                asyncio.create_task(informer.wait_for("u1", granted, timeout=5)),
                asyncio.create_task(informer.wait_for("u3", timeout=5)),
            ]
            await until(lambda: clock.sleeping == 4)
            server.put_pod("b", "u2")
            await waits[0]
            assert not waits[1].done()
            server.put_pod("b", "u2", annotations={"g": "1"})
            assert granted(await waits[1])
            server.delete(pods_of("a"))
            with pytest.raises(KubeError, match="deleted") as caught:
                await waits[2]
            assert caught.value.status == 404
            clock.advance(5)
            with pytest.raises(TimeoutError):
                await waits[3]
            with pytest.raises(KubeError, match="deleted"):  # at once: it never comes again
                await informer.wait_for("u1", timeout=5)
            assert not informer._waiting
            assert clock.sleeping == 0

    scenario(play)


def test_a_question_that_raises_is_its_askers() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock()
        async with watched(server, clock) as seen:

            def broken(pod: Pod) -> bool:
                raise ZeroDivisionError(pod.kind)

            wrong = asyncio.create_task(seen.informer.wait_for("u1", broken, timeout=5))
            right = asyncio.create_task(seen.informer.wait_for("u1", timeout=5))
            await until(lambda: clock.sleeping == 2)
            server.put_pod("a", "u1")
            with pytest.raises(ZeroDivisionError):
                await wrong
            await right

    scenario(play)


def test_a_handler_that_raises_stops_nobody() -> None:
    async def play(server: ApiServer) -> None:
        async with watched(server) as seen:
            late: list[str] = []

            def broken(change: Change[Pod]) -> None:
                raise RuntimeError(change.kind)

            seen.informer.subscribe(broken)
            end = seen.informer.subscribe(lambda change: late.append(change.key.uid), replay=True)
            server.put_pod("a", "u1")
            await until(lambda: late == ["u1"])
            end()
            server.put_pod("b", "u2")
            await until(lambda: len(seen.changes) == 2)
            assert late == ["u1"]
            seen.informer.subscribe(lambda change: late.append(change.key.name), replay=True)
            assert sorted(late) == ["a", "b", "u1"]

    scenario(play)


def test_a_resync_tells_everything_again() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.put_pod("b", "u2")
        clock = FakeClock()
        async with watched(server, clock, Timing(resync_s=100)) as seen:
            await until(lambda: clock.sleeping == 1)
            assert 90 <= clock.slept[-1] <= 110
            clock.advance(110)
            await until(lambda: len(seen.changes) == 4)
            assert seen.told[2:] == [("resync", "u1"), ("resync", "u2")]

    scenario(play)


def test_random_faults_end_in_the_same_picture() -> None:
    """Every kind of fault in random order, while pods come, change and go."""

    async def play(server: ApiServer) -> None:
        random = Random(7)
        async with watched(server) as seen:
            for step in range(300):
                name = f"p{random.randrange(12)}"
                there = pods_of(name) in server.objects
                told = random.random() > 0.1
                match random.randrange(7):
                    case 0 | 1:
                        uid = server.objects[pods_of(name)]["metadata"]["uid"] if there else f"u{step}"
                        server.put_pod(name, uid, labels={"step": str(step)})
                    case 2 if there:
                        server.delete(pods_of(name), told=told)
                        server.oldest = server.oldest if told else server.version
                        if not told:
                            server.script(None)
                    case 3:
                        server.script(None)
                    case 4:
                        server.faults.append(Fault(random.choice([0, 410, 429, 500, 503])))
                    case 5 if server.history:
                        server.say(*random.choice(server.history)[1:])
                await asyncio.sleep(0.002 if step % 5 else 0)
            server.oldest = server.version
            server.faults.clear()
            server.script(None)
            left = {obj["metadata"]["uid"] for obj in server.objects.values()}
            await until(lambda: {change.key.uid for change in seen.changes} >= left)
            await until(lambda: {pod.metadata.uid for pod in seen.informer if pod.metadata} == left)
            alive: set[str] = set()
            for change in seen.changes:  # and what was told adds up to it
                assert (change.key.uid in alive) == (change.kind != "added")
                (alive.discard if change.kind == "deleted" else alive.add)(change.key.uid)
            assert alive == left

    scenario(play)


def test_before_it_runs() -> None:
    async def play(server: ApiServer) -> None:
        async with client_of(server, FakeClock()) as client:
            informer = Informer(client, Pod)
            assert not informer.is_synced
            assert informer.problem == "not listed yet"

    scenario(play)
