"""We test these aspects of the scheduler on a real control plane with a real kube-scheduler: a pod in HAMi's form is
bound with its grant; a bind whose answer is lost is neither lost nor made twice; what a frozen leader had on its way is
refused once another leads; an API server that refuses, fails and ends its watches."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from partage.model import names
from partage.model.units import GI, MI
from tests.cluster.api import PATIENCE_S
from tests.cluster.apiproxy import Act, ApiProxy
from tests.cluster.placed import (
    check_books,
    happened,
    started,
    term_of,
    until,
    until_pods,
    wait_bound,
)
from tests.cluster.scheduling import APISERVER, Replica, Site, share_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.conftest import OpenControlPlane

Json = dict[str, Any]


@pytest.fixture
def site(control_plane: OpenControlPlane) -> Site:
    """A control plane in which our scheduler may run."""
    return Site(control_plane(scheduler=False, controller_manager=False, apiserver_flags=APISERVER)).prepare()


def test_a_pod_in_hamis_form_is_bound_with_its_grant_to_the_node_that_has_the_card(site: Site) -> None:
    site.nodes(3, cards=2, memory=16 * GI)
    site.nodes(1, cards=2, first=7)
    with site.restarting():
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
    started(site, site.replica("a", election=False))
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
    until_told(site, "FilteringFailed", "BindingSucceed")


def until_told(site: Site, *reasons: str) -> None:
    """Wait until there are events of these reasons: they are written beside the conditions."""

    def told(events: list[Json]) -> bool:
        return set(reasons) <= {event["reason"] for event in events}

    site.cluster.api.wait_all("events.events.k8s.io", told, "default", what=f"events {reasons}")


@pytest.mark.parametrize("times", [1, 9], ids=["once", "for-long"])
@pytest.mark.parametrize("act", [Act.LOSE, Act.CUT], ids=["done", "not-done"])
def test_k15_a_bind_whose_answer_is_lost_is_neither_lost_nor_made_twice(site: Site, act: Act, times: int) -> None:
    site.nodes(1, cards=1)
    with ApiProxy(site.cluster) as proxy:
        leader = started(site, site.replica("a", election=False, server=proxy.url))
        rule = proxy.rule("POST", r"/binding$", act, times=times)
        site.pods("first", 1, memory=50_000)
        happened(rule, "lost an answer", site)
        site.pods("second", 1, memory=50_000)  # the same card
        pods = wait_bound(site, 1)
        check_books(site, leader)
        assert [pod["metadata"]["name"] for pod in pods] == ["first-00000"]
        assert len(site.bound()) == 1


@pytest.fixture
def proxied(site: Site) -> Iterator[tuple[Site, ApiProxy, Replica]]:
    site.nodes(4, cards=2)
    with ApiProxy(site.cluster) as proxy:
        yield site, proxy, started(site, site.replica("a", election=False, server=proxy.url))


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


def test_pods_of_another_scheduler_are_counted_and_left_alone(site: Site) -> None:
    site.nodes(1, cards=1)
    leader = started(site, site.replica("a", election=False))
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
