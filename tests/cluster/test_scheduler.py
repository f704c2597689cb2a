"""We test these aspects of the scheduler on a real control plane with a real kube-scheduler: a pod in HAMi's form is
bound with its grant; a bind whose answer is lost is neither lost nor made twice; leaders that are killed in a burst of
pods leave books that equal a recount; an API server that refuses, fails and ends its watches."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from partage.model import names
from partage.model.units import GI, MI
from tests.cluster.apiproxy import Act, ApiProxy
from tests.cluster.scheduling import APISERVER, Replica, Site, share_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.conftest import OpenControlPlane

IS_SOAK = os.environ.get("PARTAGE_SOAK") == "full"
BURST = int(os.environ.get("PARTAGE_BURST", "500" if IS_SOAK else "100"))  # pods
KILLS = int(os.environ.get("PARTAGE_LEADER_KILLS", "50" if IS_SOAK else "8"))  # each step twice
PATIENCE_S = 120.0
Json = dict[str, Any]


@pytest.fixture
def site(control_plane: OpenControlPlane) -> Site:
    """A control plane in which our scheduler may run."""
    return Site(control_plane(scheduler=False, controller_manager=False, apiserver_flags=APISERVER)).prepare()


def until(holds: Callable[[], bool], what: str, site: Site, seconds: float = PATIENCE_S) -> None:
    """Look until something is so."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not {what} within {seconds:g} s\n{site.cluster.logs()}"
        time.sleep(0.1)


def started(site: Site, replica: Replica) -> Replica:
    replica.start()
    until(replica.ready, f"{replica.name} ready", site)
    return replica


def wait_bound(site: Site, count: int) -> list[Json]:
    until(lambda: len(site.bound()) >= count, f"{count} pods bound", site)
    return site.bound()


def promised(pods: list[Json]) -> dict[str, tuple[int, int, int]]:
    """Return card -> bytes, permille and pods that grants promise, each checked against its own pod."""
    found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for pod in pods:
        grant = json.loads(pod["metadata"]["annotations"][names.GRANT])
        assert (grant["uid"], grant["node"]) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
        for share in grant["containers"]["app"]["shares"]:
            memory, cores, seats = found[share["uuid"]]
            found[share["uuid"]] = (memory + share["memory"], cores + share["cores"], seats + 1)
    return dict(found)


def check_books(site: Site, leader: Replica) -> None:
    """The leader's books are what the API server's pods add up to, and no card is promised beyond what it has."""
    counted = promised(site.bound())
    assert all(memory <= 80 * GI and cores <= 1000 and seats <= 10 for memory, cores, seats in counted.values())

    def agrees() -> bool:
        series = leader.figures()
        kept = {
            name.split('device_uuid="')[1].split('"')[0]: int(value)
            for name, value in series.items()
            if name.startswith("partage_scheduler_device_memory_promised_bytes") and value
        }
        settled = series["partage_scheduler_reservations"] == series["partage_scheduler_binds_unknown"] == 0
        return settled and kept == {card: memory for card, (memory, _, _) in counted.items()}

    until(agrees, "in agreement with the books", site, 30)


def test_a_pod_in_hamis_form_is_bound_with_its_grant_to_the_node_that_has_the_card(site: Site) -> None:
    site.nodes(3, cards=2, memory=16 * GI)
    site.nodes(1, cards=2, first=7)
    leader = started(site, site.replica("a"))
    site.pods("p", 1, memory=40_000, cores=30)
    (pod,) = wait_bound(site, 1)
    assert pod["spec"]["nodeName"] == "n0007"
    notes = pod["metadata"]["annotations"]
    (share,) = json.loads(notes[names.GRANT])["containers"]["app"]["shares"]
    assert (share["memory"], share["cores"]) == (40_000 * MI, 300)
    assert notes["hami.io/vgpu-devices-allocated"] == f"{share['uuid']},NVIDIA,40000,30:;"
    check_books(site, leader)


def test_k24_a_pod_that_fits_nowhere_says_why_until_there_is_room(site: Site) -> None:
    site.nodes(3, cards=1, memory=16 * GI)
    started(site, site.replica("a"))
    site.pods("p", 1, memory=40_000)

    def condition() -> Json:
        conditions = site.cluster.api.get("pods", "p-00000", "default")["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == names.CONDITION_PLACED), {})

    until(lambda: bool(condition()), "told why", site)
    assert condition()["reason"] == "CardInsufficientMemory"
    assert condition()["message"].startswith("3 nodes CardInsufficientMemory; n000")
    site.nodes(1, cards=1, first=5)
    wait_bound(site, 1)
    until(lambda: condition()["status"] == "True", "told that it is placed", site)
    events = {event["reason"] for event in site.cluster.api.list("events.events.k8s.io", "default")}
    assert {"FilteringFailed", "BindingSucceed"} <= events


@pytest.mark.parametrize("times", [1, 9], ids=["once", "for-long"])
@pytest.mark.parametrize("act", [Act.LOSE, Act.CUT], ids=["done", "not-done"])
def test_k15_a_bind_whose_answer_is_lost_is_neither_lost_nor_made_twice(site: Site, act: Act, times: int) -> None:
    site.nodes(1, cards=1)
    with ApiProxy(site.cluster) as proxy:
        leader = started(site, site.replica("a", server=proxy.url))
        rule = proxy.rule("POST", r"/binding$", act, times=times)
        site.pods("first", 1, memory=50_000)
        until(lambda: rule.acted > 0, "lost an answer", site)
        site.pods("second", 1, memory=50_000)  # the same card
        pods = wait_bound(site, 1)
        check_books(site, leader)
        assert [pod["metadata"]["name"] for pod in pods] == ["first-00000"]
        assert len(site.bound()) == 1


def leaders(site: Site) -> list[Replica]:
    return [replica for replica in site.replicas if replica.ours.alive() and replica.ready()]


def the_leader(site: Site) -> Replica:
    until(lambda: len(leaders(site)) == 1, "one leader", site)
    return leaders(site)[0]


STEPS = ("before a bind", "after a bind, before its answer", "after a bind's answer", "as soon as it leads")


@pytest.mark.timeout(3600, func_only=True)
def test_k15_leaders_killed_at_named_steps_of_a_burst_promise_nothing_twice(site: Site) -> None:
    """All places are taken at the end, so a place that was lost leaves a pod behind and one made twice shows."""
    site.nodes(10, cards=max(1, BURST // 100))
    pods = 10 * max(1, BURST // 100) * 10
    with ApiProxy(site.cluster) as proxy:
        for name in ("a", "b"):
            site.replica(name, server=proxy.url).start()
        for number in range(KILLS):
            step = STEPS[number % len(STEPS)]
            leader = the_leader(site)
            proxy.rules.clear()
            arm(proxy, step, leader, skip=1 + number * 37 % max(1, pods - 20))
            site.pods(f"r{number}", pods)
            until(lambda leader=leader: not leader.ours.alive(), f"killed {step}", site)  # type: ignore[misc]
            leader.start()
            wait_bound(site, pods)
            assert len(site.bound()) == pods
            check_books(site, the_leader(site))
            site.delete([pod["metadata"]["name"] for pod in site.bound()])
            until(lambda: not site.cluster.api.list("pods", "default"), "empty", site)


def arm(proxy: ApiProxy, step: str, leader: Replica, skip: int) -> None:
    """Make the leader die at a step of the burst."""
    match step:
        case "before a bind":
            proxy.rule("POST", r"/binding$", Act.CUT, skip=skip, before=leader.kill)
        case "after a bind, before its answer":
            proxy.rule("POST", r"/binding$", Act.LOSE, skip=skip, after=leader.kill)
        case "after a bind's answer":
            proxy.rule("POST", r"/binding$", None, skip=skip, before=leader.kill)
        case _:
            proxy.rule("POST", r"/binding$", Act.CUT, before=leader.kill)


@pytest.fixture
def proxied(site: Site) -> Iterator[tuple[Site, ApiProxy, Replica]]:
    site.nodes(4, cards=2)
    with ApiProxy(site.cluster) as proxy:
        yield site, proxy, started(site, site.replica("a", server=proxy.url))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_k18_an_api_server_that_refuses_binds_for_a_while(proxied: tuple[Site, ApiProxy, Replica], status: int) -> None:
    site, proxy, leader = proxied
    proxy.rule("POST", r"/binding$", Act.REFUSE, status=status, times=12)
    site.pods("p", 40)
    wait_bound(site, 40)
    check_books(site, leader)


def test_k15_c091_watches_that_end_and_lists_that_fail_lose_no_pod(proxied: tuple[Site, ApiProxy, Replica]) -> None:
    site, proxy, leader = proxied
    site.pods("p", 40)
    wait_bound(site, 40)
    proxy.rule("GET", r"/api/v1/(pods|nodes)$", Act.REFUSE, status=500, times=6)
    proxy.end_watches()
    site.delete([f"p-{number:05}" for number in range(20)])
    check_books(site, leader)
    site.pods("q", 20)
    wait_bound(site, 40)
    check_books(site, leader)


def test_who_does_not_lead_answers_nothing_and_takes_over(site: Site) -> None:
    site.nodes(2, cards=1)
    a, b = (site.replica(name) for name in ("a", "b"))
    started(site, a)
    b.start()
    until(lambda: b.ours.alive() and "does not lead" in b.why(), "standing by", site)
    site.pods("p", 3)
    wait_bound(site, 3)
    terms = {json.loads(pod["metadata"]["annotations"][names.GRANT])["term"] for pod in site.bound()}
    a.kill()
    until(b.ready, "taken over", site)
    site.pods("q", 3)
    pods = wait_bound(site, 6)
    later = {json.loads(pod["metadata"]["annotations"][names.GRANT])["term"] for pod in pods} - terms
    assert len(terms) == len(later) == 1
    assert min(later) > max(terms)
    check_books(site, b)


def test_pods_of_another_scheduler_are_counted_and_left_alone(site: Site) -> None:
    site.nodes(1, cards=1)
    leader = started(site, site.replica("a"))
    site.cluster.api.create("pods", share_pod("by-hami", memory=60_000, schedulerName="hami-scheduler"), "default")
    twin = {"hami.io/vgpu-devices-allocated": "GPU-n0000-0,NVIDIA,60000,30:;"}
    binding = {
        "metadata": {"name": "by-hami", "annotations": twin},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n0000"},
    }
    site.cluster.as_account(names.ACCOUNT_SCHEDULER).post("pods", "by-hami", "binding", binding, "default")
    until(lambda: promised_of(leader, "GPU-n0000-0") == 60_000 * MI, "adopted", site)
    site.pods("p", 1, memory=30_000)
    site.pods("q", 1, memory=10_000)
    until(lambda: len(site.bound()) == 2, "two pods bound", site)
    assert {pod["metadata"]["name"] for pod in site.bound()} == {"by-hami", "q-00000"}


def promised_of(replica: Replica, uuid: str) -> float:
    series = replica.figures()
    return sum(
        value
        for name, value in series.items()
        if name.startswith("partage_scheduler_device_memory_promised_bytes") and uuid in name
    )
