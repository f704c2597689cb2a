"""We test these aspects of the extender as a server: 200 questions that are none get an error each and the next one
its answer; without a term nothing is promised; a term that begins is waited for; what the page of figures has."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from partage.devices.requests import AskOptions
from partage.kube.poster import Poster
from partage.model import UsageError, names
from partage.model.need import Role
from partage.scheduler.bind import TRIES
from partage.scheduler.facts import PodFacts
from partage.scheduler.leader import Term
from partage.scheduler.pages import pages
from partage.scheduler.plan import Defaults
from partage.scheduler.server import application
from partage.scheduler.service import SchedulerService
from partage.scheduler.settings import LAYOUT, MetricsSettings, load
from partage.scheduler.term import World
from tests.cluster.scheduling import node, share_pod
from tests.kube.api_server import ApiServer, Fault
from tests.kube.support import FakeClock, client_of, until
from tests.scheduler.support import ask, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1 << 20


class Scripted:
    """A leader that the test moves."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[Term | None] = asyncio.Queue()
        self.problem = "another replica leads"
        self.looks = 0

    async def terms(self) -> AsyncIterator[Term | None]:
        while True:
            yield await self.news.get()

    def look(self) -> None:
        self.looks += 1

    async def confirm(self, term: Term) -> bool:
        return True


class Scene:
    """The service beside a small API server."""

    def __init__(
        self, api: ApiServer, leader: Scripted, service: SchedulerService, http: Any, clock: FakeClock
    ) -> None:
        self.api, self.leader, self.service, self.http, self.clock = api, leader, service, http, clock

    def add_node(self, name: str, **more: Any) -> None:
        self.put_node(node(name, **more))

    def put_node(self, made: dict[str, Any]) -> None:
        made["metadata"]["uid"] = f"uid-{made['metadata']['name']}"
        self.api.put(f"/api/v1/nodes/{made['metadata']['name']}", made)

    def add_pod(self, name: str, **more: Any) -> dict[str, Any]:
        pod = share_pod(name, **more)
        pod["kind"] = "Pod"
        pod["metadata"] |= {"uid": f"uid-{name}", "namespace": "default"}
        return self.api.put(f"/api/v1/namespaces/default/pods/{name}", pod)

    async def lead(self, number: int = 1) -> None:
        self.api.term = number
        self.leader.news.put_nowait(Term(number))
        await until(lambda: self.service.reign is not None and self.service.reign.term.number == number)
        assert self.service.reign is not None
        await self.service.reign.wait_ready()

    async def ask(self, verb: str, **body: Any) -> tuple[int, Any]:
        answer = await self.http.post(f"/{verb}", data=json.dumps(body))
        return answer.status, await answer.json()


@asynccontextmanager
async def scene(
    patience_s: float = 0.0, schedulers: frozenset[str] = frozenset({names.SCHEDULER})
) -> AsyncIterator[Scene]:
    clock, leader = FakeClock(jumps=True), Scripted()
    async with ApiServer().running() as api, client_of(api, clock) as client, Poster(api.config()) as poster:
        world = World(
            client=client,
            poster=poster,
            clock=clock,
            options=AskOptions(),
            instance="test",
            reserved_s=1e12,  # this clock jumps
            defaults=Defaults(),
            audit_s=0,
            tells_success=True,
            schedulers=schedulers,
        )
        service = SchedulerService(leader, world, patience_s=patience_s)
        async with TestClient(TestServer(application(service, MIB))) as http:
            running = asyncio.ensure_future(service.run())
            try:
                yield Scene(api, leader, service, http, clock)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def question(pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
    return {"Pod": pod, "NodeNames": list(nodes)}


def mutated(random: Random, text: bytes) -> bytes:
    """Return a text that is no question any more."""
    kind = random.randrange(6)
    at = random.randrange(1, len(text))
    match kind:
        case 0:
            return text[:at]
        case 1:
            return text[:at] + b'"' + text[at:]
        case 2:
            return random.randbytes(at)
        case 3:
            return b"[" * random.choice([1, 500, 200_000])
        case 4:
            return json.dumps(
                random.choice([None, 7, "x", [], {}, {"Pod": None}, {"Pod": {}}, {"NodeNames": [1]}])
            ).encode()
    return text.replace(b'"uid"', b'"u1d"').replace(b'"PodUID"', b'"PodUld"')


def test_k18_two_hundred_questions_that_are_none_get_an_error_each_and_the_next_its_answer() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1")
            pod = at.add_pod("p")
            await at.lead()
            good = json.dumps(question(pod, "n1")).encode()
            order = json.dumps({"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}).encode()
            random = Random(18)
            for number in range(200):
                verb = ("filter", "prioritize", "bind")[number % 3]
                body = mutated(random, order if verb == "bind" else good)
                answer = await at.http.post(f"/{verb}", data=body)
                assert answer.status in {400, 413}, (verb, body[:80])
                assert (await answer.json())["Error"], (verb, body[:80])
            status, answer = await at.ask("filter", **question(pod, "n1"))
            assert (status, answer["NodeNames"]) == (200, ["n1"])
            assert at.service.reign is not None
            assert at.service.reign.books.reservation("uid-p") is not None  # of the good one alone

    asyncio.run(play())


def test_a_question_of_too_many_bytes_is_not_read() -> None:
    async def play() -> None:
        async with scene() as at:
            answer = await at.http.post("/filter", data=io.BytesIO(b" " * (MIB + 1)))
            assert answer.status == 413
            assert (await answer.json())["Error"]

    asyncio.run(play())


def test_k15_c093_who_does_not_lead_promises_nothing_and_a_new_term_knows_nothing_of_the_old() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1", cards=1)
            pod, other = at.add_pod("p", memory=50_000), at.add_pod("q", memory=50_000)
            status, answer = await at.ask("filter", **question(pod, "n1"))
            assert status == 503
            assert "does not lead: another replica leads" in answer["Error"]
            assert at.leader.looks == 1
            await at.lead(1)
            assert (await at.ask("filter", **question(pod, "n1")))[1]["NodeNames"] == ["n1"]
            at.leader.news.put_nowait(None)
            await until(lambda: at.service.reign is None)
            bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
            status, answer = await at.ask("bind", **bind)
            assert status == 503
            await at.lead(2)
            assert (await at.ask("filter", **question(other, "n1")))[1]["NodeNames"] == ["n1"]
            bind |= {"PodName": "q", "PodUID": "uid-q"}
            assert await at.ask("bind", **bind) == (200, {})
            grant = at.api.objects["/api/v1/namespaces/default/pods/q"]["metadata"]["annotations"][names.GRANT]
            assert json.loads(grant)["term"] == 2

    asyncio.run(play())


def test_a_question_waits_for_a_term_that_begins() -> None:
    async def play() -> None:
        async with scene() as at:
            at.service._patience_s = 1e9
            at.clock.jumps = False
            at.add_node("n1")
            asked = asyncio.ensure_future(at.ask("filter", **question(at.add_pod("p"), "n1")))
            await until(lambda: at.leader.looks)
            await at.lead()
            assert (await asked)[1]["NodeNames"] == ["n1"]

    asyncio.run(play())


BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}


def is_bind(request: Any) -> bool:
    return bool(request.path.endswith("/p/binding"))


@pytest.mark.parametrize("number", [1, 2], ids=["same-number", "next-number"])
def test_k15_a_bind_that_an_ended_term_left_unknown(number: int) -> None:
    """Where nobody else led in between nothing refuses it if it comes late: its place is kept. Else it has no place."""

    async def play() -> None:
        async with scene() as at:
            at.add_node("n1", cards=1)
            await at.lead()
            pod = at.add_pod("p", memory=50_000)
            await at.ask("filter", **question(pod, "n1"))
            at.api.faults.extend(Fault(0, matches=is_bind) for _ in range(TRIES))
            assert "unknown" in (await at.ask("bind", **BIND))[1]["Error"]
            first = at.service.reign
            at.leader.news.put_nowait(None)
            await until(lambda: at.service.reign is None)
            await at.lead(number)
            assert at.service.reign is not None
            assert at.service.reign is not first
            other = (await at.ask("filter", **question(at.add_pod("q", memory=50_000), "n1")))[1]
            assert other["NodeNames"] == ([] if number == 1 else ["n1"])
            if number == 1:
                assert await at.ask("bind", **BIND) == (200, {})
                await until(lambda: at.service.reign and "uid-p" in at.service.reign.books.pods)
                assert await at.service.reign.audit() == []

    asyncio.run(play())


def test_k15_a_bind_of_an_earlier_term_is_refused_once_the_next_has_begun() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1", cards=1)
            await at.lead()
            await at.ask("filter", **question(at.add_pod("p", memory=50_000), "n1"))
            at.api.term = 2
            assert "partage-terms" in (await at.ask("bind", **BIND))[1]["Error"]
            begun = len(at.api.requests)
            await at.lead(2)
            asked = [(method, path) for method, path, _ in at.api.requests[begun:]]
            probe = ("POST", "/api/v1/namespaces/partage-system/pods/partage-earlier-term/binding")
            assert asked.index(probe) < asked.index(("LIST", "/api/v1/pods"))
            assert (await at.ask("filter", **question(at.add_pod("q", memory=50_000), "n1")))[1]["NodeNames"] == ["n1"]

    asyncio.run(play())


def test_readiness_says_why() -> None:
    async def play() -> None:
        async with scene() as at:
            answer = await at.http.get("/readyz")
            assert (answer.status, await answer.text()) == (503, "does not lead: another replica leads\n")
            await at.lead()
            assert (await at.http.get("/readyz")).status == 200
            assert (await at.http.get("/healthz")).status == 200

    asyncio.run(play())


def test_k18_c116_a_note_that_cannot_be_read_flags_its_node_and_no_other() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1")
            broken = node("n2")
            broken["metadata"]["annotations"][names.DEVICES] = '{"v":1,"devices":"many"}'
            at.put_node(broken)
            await at.lead()
            pod = at.add_pod("p")
            answer = (await at.ask("filter", **question(pod, "n1", "n2")))[1]
            assert answer["NodeNames"] == ["n1"], answer
            assert list(answer["FailedAndUnresolvableNodes"]) == ["n2"]
            reign = at.service.reign
            assert reign is not None
            assert list(reign.watch.unreadable) == ["n2"]
            events = "/apis/events.k8s.io/v1/namespaces/default/events"
            await until(lambda: any(path.startswith(events) for path in at.api.objects))
            (event,) = [obj for path, obj in at.api.objects.items() if path.startswith(events)]
            assert event["reason"] == "DevicesUnreadable"
            assert event["regarding"]["name"] == "n2"

    asyncio.run(play())


def test_k15_c094_updates_told_again_and_out_of_order_change_nothing() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1")
            await at.lead()
            pod = at.add_pod("p", memory=50_000)
            await at.ask("filter", **question(pod, "n1"))
            bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
            assert await at.ask("bind", **bind) == (200, {})
            reign = at.service.reign
            assert reign is not None
            await until(lambda: "uid-p" in reign.books.pods)
            before = list(reign.books.nodes["n1"].memory)
            path = "/api/v1/namespaces/default/pods/p"
            for number in range(10):
                again = json.loads(json.dumps(at.api.objects[path]))
                again["status"] = {"phase": "Running", "message": str(number)}
                at.api.put(path, again)
                at.api.say("MODIFIED", pod)  # an old one
            at.add_pod("last")
            await until(lambda: reign.watch.pod("uid-last"))
            assert reign.books.nodes["n1"].memory == before
            assert await reign.audit() == []

    asyncio.run(play())


def events_of(at: Scene) -> list[dict[str, Any]]:
    return [one for path, one in at.api.objects.items() if "/events.k8s.io/" in path]


def test_a_pod_with_shares_that_names_another_scheduler_is_told_so_once() -> None:
    async def play() -> None:
        async with scene(schedulers=frozenset({names.SCHEDULER, "known"})) as at:
            at.add_node("n1")
            pod = at.add_pod("stray", schedulerName="volcano")
            at.add_pod("known", schedulerName="known")
            at.add_pod("ours")
            at.add_pod("plain", schedulerName="volcano", containers=[{"name": "app", "image": "none"}])
            await at.lead(1)
            await until(lambda: events_of(at))
            again = json.loads(json.dumps(pod)) | {"status": {"phase": "Pending"}}
            at.api.put("/api/v1/namespaces/default/pods/stray", again)
            await at.lead(2)  # which lists the pod anew
            at.add_pod("stray-2", schedulerName="volcano")
            await until(lambda: len(events_of(at)) == 2)
        told = [(one["regarding"]["uid"], one["reason"], one["type"], "series" in one) for one in events_of(at)]
        assert told == [(f"uid-{name}", "OtherScheduler", "Warning", False) for name in ("stray", "stray-2")]
        assert "schedulerName is volcano" in events_of(at)[0]["note"]

    asyncio.run(play())


def test_an_audit_finds_what_the_books_lost() -> None:
    async def play() -> None:
        async with scene() as at:
            at.add_node("n1")
            pod = at.add_pod("p")
            await at.lead()
            await at.ask("filter", **question(pod, "n1"))
            await at.ask("bind", PodName="p", PodNamespace="default", PodUID="uid-p", Node="n1")
            reign = at.service.reign
            assert reign is not None
            await until(lambda: "uid-p" in reign.books.pods)
            assert await reign.audit() == []
            reign.books.drop_pod("uid-p")
            assert [one.node for one in await reign.audit()] == ["n1"]
            assert reign.differences == 1

    asyncio.run(play())


def test_k24_c165_only_the_leader_shows_cards_and_pods_under_both_names() -> None:
    async def play() -> None:
        async with scene() as at, TestClient(TestServer(pages(at.service, MetricsSettings()))) as page:
            at.add_node("n1", cards=1)
            assert "device_uuid" not in await (await page.get("/metrics")).text()
            await at.lead()
            pod = at.add_pod("p", memory=8000, cores=30)
            await at.ask("filter", **question(pod, "n1"))
            await at.ask("bind", PodName="p", PodNamespace="default", PodUID="uid-p", Node="n1")
            reign = at.service.reign
            assert reign is not None
            await until(lambda: "uid-p" in reign.books.pods)
            text = await (await page.get("/metrics")).text()
            card = 'node="n1",device_uuid="GPU-n1-0"'
            assert f"partage_scheduler_device_memory_promised_bytes{{{card}}} {8000 * MIB}\n" in text
            assert f"partage_scheduler_device_cores_promised_ratio{{{card}}} 0.3\n" in text
            hami = f'zone="vGPU",{card},device_index="0",device_type="NVIDIA A100-SXM4-80GB"'
            assert f"hami_gpu_core_allocated_ratio{{{hami}}} 30\n" in text
            assert f'hami_gpu_memory_allocated_bytes{{{hami},device_cores="30"}} {8000 * MIB}\n' in text
            of_pod = 'namespace="default",node="n1",pod="p",container_index="0",device_uuid="GPU-n1-0"'
            assert f'hami_vgpu_memory_allocated_bytes{{zone="vGPU",{of_pod}}} {8000 * MIB}\n' in text
            assert 'partage_scheduler_binds_total{result="bound"} 1\n' in text
            assert 'partage_scheduler_request_seconds_count{verb="filter"} 1\n' in text
            assert "partage_scheduler_leader 1\n" in text
            assert "partage_scheduler_overpromised_bytes" not in text
            reign.books.claim(ask(whole(), uid="waits"), "n1", ["uid-p"])  # a place after another's end is no trouble
            assert "partage_scheduler_overpromised_bytes" not in await (await page.get("/metrics")).text()
            twin = "GPU-n1-0,NVIDIA,81920,10:;"
            reign.books.set_pod(PodFacts("h", "ns", "hami", "n1", twin=twin, order=(("app", Role.APP),)))
            text = await (await page.get("/metrics")).text()
            lost = 'node="n1",product="NVIDIA A100-SXM4-80GB"'
            assert f"partage_scheduler_overpromised_bytes{{{lost}}} {8000 * MIB}\n" in text
            assert "partage_scheduler_reservations 1\n" in text

    asyncio.run(play())


# ---- settings --------------------------------------------------------------------------------------------------------


def test_a_key_that_does_not_exist_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("extender: {prot: 1}\n")
    with pytest.raises(UsageError, match=r"the nearest is 'extender\.port'"):
        load(["--config", str(file)], {})
    with pytest.raises(UsageError, match="the nearest is --config;"):
        load(["--confg=x"], {})
    with pytest.raises(UsageError, match="the nearest is --extender-port"):
        load(["--extender-prot=1"], {})


def test_flags_go_over_variables_and_those_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("extender: {port: 1, requestMib: 3}\nleader: always\n")
    found = load(["--config", str(file), "--extender-port=3"], {"PARTAGE_SCHEDULER_EXTENDER_PORT": "2"})
    assert (found.extender.port, found.extender.request_mib, found.leader) == (3, 3, "always")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--extender-address=0.0.0.0"], "wants certificates"),
        (["--extender-tls-certificate=a"], "belong together"),
        (["--election-lease=nowhere"], "namespace/name"),
        (["--extender-port=0"], "extender-port"),
        (["--placement-node-policy=fullest"], "placement"),
        (["--placement-card-policies=spread,spread"], "each once"),
        (["--placement-card-policies="], "each once"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(flags, {})


def test_every_key_has_a_description() -> None:
    assert all(key.text.endswith((".", ")")) for key in LAYOUT.keys())  # noqa: SIM118 -- no mapping
