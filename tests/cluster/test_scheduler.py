"""We test these aspects of the scheduler on a real control plane with a real kube-scheduler: a pod in HAMi's form is
bound with its grant; a bind whose answer is lost is neither lost nor made twice; leaders that are killed or frozen in a
burst of pods leave books that equal a recount; what a frozen leader had on its way is refused once another leads; an
API server that refuses, fails and ends its watches."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from partage.model import names
from partage.model.units import GI, MI
from tests.cluster.api import NotReachedError
from tests.cluster.apiproxy import Act, ApiProxy
from tests.cluster.changes import Changes, deadline, left
from tests.cluster.scheduling import APISERVER, Replica, Site, share_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.apiproxy import Rule
    from tests.cluster.conftest import OpenControlPlane

IS_SOAK = os.environ.get("PARTAGE_SOAK") == "full"
BURST = int(os.environ.get("PARTAGE_BURST", "500" if IS_SOAK else "100"))  # pods
KILLS = int(os.environ.get("PARTAGE_LEADER_KILLS", "50" if IS_SOAK else "8"))  # each step twice
PATIENCE_S = 120.0
LEASE_S = 3.0  # as tests/cluster/scheduling.py sets it
Json = dict[str, Any]


@pytest.fixture
def site(control_plane: OpenControlPlane) -> Site:
    """A control plane in which our scheduler may run."""
    return Site(control_plane(scheduler=False, controller_manager=False, apiserver_flags=APISERVER)).prepare()


def until(holds: Callable[[], bool], what: str, site: Site, seconds: float = PATIENCE_S) -> None:
    """Look whenever our schedulers log something until something is so of them."""
    end = deadline(seconds)
    with Changes([replica.ours.log for replica in site.replicas]) as changes:
        while not holds():
            assert left(end) > 0, f"not {what} within {seconds:g} s\n{site.cluster.logs()}"
            changes.wait(left(end))


def until_pods(site: Site, hold: Callable[[list[Json]], bool], what: str) -> list[Json]:
    """Watch the pods until something is so of them."""
    try:
        return site.cluster.api.wait_all("pods", hold, "default", what=what, seconds=PATIENCE_S)
    except NotReachedError as error:
        raise AssertionError(f"{error}\n{site.cluster.logs()}") from error


def happened(rule: Rule, what: str, site: Site) -> None:
    """Wait until a rule was followed."""
    assert rule.happened.wait(PATIENCE_S), f"not {what} within {PATIENCE_S:g} s\n{site.cluster.logs()}"


def started(site: Site, replica: Replica) -> Replica:
    replica.start()
    until(replica.ready, f"{replica.name} ready", site)
    return replica


def bound_of(pods: list[Json]) -> list[Json]:
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def wait_bound(site: Site, count: int) -> list[Json]:
    return bound_of(until_pods(site, lambda pods: len(bound_of(pods)) >= count, f"{count} pods bound"))


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

    leader.ours.until(agrees, seconds=30, what="in agreement with the API server")  # which nobody announces


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

    def condition(pods: list[Json]) -> Json:
        conditions = pods[0]["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == names.CONDITION_PLACED), {})

    told = condition(until_pods(site, lambda pods: bool(condition(pods)), "told why"))
    assert told["reason"] == "CardInsufficientMemory"
    assert told["message"].startswith("3 nodes CardInsufficientMemory; n000")
    site.nodes(1, cards=1, first=5)
    wait_bound(site, 1)
    until_pods(site, lambda pods: condition(pods)["status"] == "True", "told that it is placed")
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
        happened(rule, "lost an answer", site)
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


STEPS = (
    "killed before a bind",
    "frozen with a bind on its way",
    "killed after a bind, before its answer",
    "frozen after a bind, before its answer",
    "killed after a bind's answer",
    "kube-scheduler alone frozen",
    "killed as soon as it leads",
    "ours alone frozen",
)


@pytest.mark.timeout(7200, func_only=True)
def test_k15_leaders_killed_and_frozen_at_named_steps_of_a_burst_promise_nothing_twice(site: Site) -> None:
    """All places are taken at the end, so a place that was lost leaves a pod behind and one made twice shows."""
    site.nodes(10, cards=max(1, BURST // 100))
    pods = 10 * max(1, BURST // 100) * 10
    with ApiProxy(site.cluster) as proxy, site.restarting():
        for name in ("a", "b"):
            site.replica(name, server=proxy.url).start()
        for number in range(KILLS):
            step = STEPS[number % len(STEPS)]
            leader = the_leader(site)
            (other,) = (replica for replica in site.replicas if replica is not leader)
            proxy.rules.clear()
            rule = arm(proxy, step, leader, other, skip=1 + number * 37 % max(1, pods - 20))
            site.pods(f"r{number}", pods)
            happened(rule, step, site)
            see_to(site, step, leader, other)
            assert len(wait_bound(site, pods)) == pods
            check_books(site, the_leader(site))
            print(f"round {number + 1} of {KILLS}, {pods} pods, {step}: nothing lost, nothing twice", flush=True)
            site.delete([pod["metadata"]["name"] for pod in site.bound()])
            until_pods(site, lambda found: not found, "gone")


def arm(proxy: ApiProxy, step: str, leader: Replica, other: Replica, skip: int) -> Rule:
    """Make the leader die or freeze at a step of the burst."""
    act, before, after = None, None, None
    match step:
        case "killed before a bind":
            act, before = Act.CUT, leader.kill
        case "killed after a bind, before its answer":
            act, after = Act.LOSE, leader.kill
        case "killed after a bind's answer":
            before = leader.kill
        case "killed as soon as it leads":
            act, before, skip = Act.CUT, leader.kill, 0
        case "frozen with a bind on its way":
            before = partial(freeze_until_another_leads, leader, other)
        case "frozen after a bind, before its answer":
            after = leader.freeze
        case "kube-scheduler alone frozen":
            before = leader.kube.pause
        case _:
            before = leader.ours.pause
    return proxy.rule("POST", r"/pods/r\d+-\d+/binding$", act, skip=skip, before=before, after=after)


def freeze_until_another_leads(leader: Replica, other: Replica) -> None:
    leader.freeze()
    other.ours.until(other.ready, seconds=PATIENCE_S, what="the leader", watch=[other.ours.log])


def see_to(site: Site, step: str, leader: Replica, other: Replica) -> None:
    """Do what becomes of the leader in the end: it is started again, or wakes once another has taken over."""
    if step == "ours alone frozen":
        wait_renewed(site, LEASE_S)  # nobody takes over: its kube-scheduler leads on
        leader.ours.resume()
        return
    if step.startswith("killed"):
        leader.start()
        return
    until(other.ready, f"{other.name} the leader", site)
    leader.thaw()


def wait_renewed(site: Site, seconds: float) -> None:
    """Wait until the Lease was renewed for so long."""
    first: datetime | None = None

    def is_later(lease: Json) -> bool:
        nonlocal first
        now = datetime.fromisoformat(lease["spec"]["renewTime"])
        first = first or now
        return (now - first).total_seconds() > seconds

    where = ("leases.coordination.k8s.io", names.SCHEDULER)
    site.cluster.api.wait(*where, is_later, names.NAMESPACE, what="renewed", seconds=PATIENCE_S)


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


def test_k15_a_bind_on_its_way_when_its_leader_freezes_is_refused_once_another_leads(site: Site) -> None:
    """`first` is on its way to the only card when `second`, which the next leader sees to first, gets its place."""
    site.nodes(1, cards=1)
    site.cluster.api.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "sooner"}, "value": 1000})
    with ApiProxy(site.cluster) as way_a, ApiProxy(site.cluster) as way_b:
        a, b = started(site, site.replica("a", server=way_a.url)), site.replica("b", server=way_b.url).start()
        until(lambda: "does not lead" in b.why(), "standing by", site)
        site.pods("before", 1, memory=10_000)
        term = term_of(*wait_bound(site, 1))
        frozen, go_on = threading.Event(), threading.Event()

        def freeze() -> None:
            a.freeze()
            frozen.set()
            go_on.wait(PATIENCE_S)

        def let_the_late_one_through() -> None:
            go_on.set()
            late.happened.wait(PATIENCE_S)

        late = way_a.rule("POST", r"/first-00000/binding$", None, before=freeze)
        way_b.rule("POST", r"/second-00000/binding$", None, before=let_the_late_one_through)
        site.pods("first", 1, memory=50_000)
        assert frozen.wait(PATIENCE_S)
        site.pods("second", 1, memory=50_000, priorityClassName="sooner")
        pods = {pod["metadata"]["name"]: pod for pod in wait_bound(site, 2)}
        assert late.said == 403
        assert pods.keys() == {"before-00000", "second-00000"}
        assert term_of(pods["second-00000"]) > term
        a.thaw()
        a.kube.reap()
        until(lambda: not a.ready(), "no leader any more", site)
        check_books(site, b)
        assert {pod["metadata"]["name"] for pod in site.bound()} == pods.keys()


def term_of(pod: Json) -> int:
    return int(json.loads(pod["metadata"]["annotations"][names.GRANT])["term"])


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
    adopted = lambda: promised_of(leader, "GPU-n0000-0") == 60_000 * MI  # noqa: E731 -- one line
    leader.ours.until(adopted, seconds=PATIENCE_S, what="aware of it")
    site.pods("p", 1, memory=30_000)
    site.pods("q", 1, memory=10_000)
    assert {pod["metadata"]["name"] for pod in wait_bound(site, 2)} == {"by-hami", "q-00000"}


def promised_of(replica: Replica, uuid: str) -> float:
    series = replica.figures()
    return sum(
        value
        for name, value in series.items()
        if name.startswith("partage_scheduler_device_memory_promised_bytes") and uuid in name
    )
