"""We test this aspect: leaders that are killed and frozen at named steps of a burst of pods promise nothing twice.

Two replicas of kube-scheduler and of ours behind a proxy; each round the one that leads is killed, or stopped past its
Lease and woken, at another step. All places are taken at the end of a round, so a place that was lost leaves a pod
behind and one made twice shows; the books then equal a recount from the API server.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from partage.model import names
from tests.cluster.api import PATIENCE_S
from tests.cluster.apiproxy import Act, ApiProxy
from tests.cluster.placed import check_books, happened, until, until_pods, wait_bound
from tests.cluster.scheduling import APISERVER, LEASE_S, Replica, Site
from tests.soak.conftest import full

if TYPE_CHECKING:
    from tests.cluster.apiproxy import Rule
    from tests.cluster.conftest import OpenControlPlane

Json = dict[str, Any]
NODES: Final = 10
CARDS: Final = 5 if full() else 1  # of a node; each takes ten of the pods
ROUNDS: Final = 50 if full() else 10


@pytest.fixture
def site(control_plane: OpenControlPlane) -> Site:
    """A control plane in which our scheduler may run."""
    return Site(control_plane(scheduler=False, controller_manager=False, apiserver_flags=APISERVER)).prepare()


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
    site.nodes(NODES, cards=CARDS)
    pods = NODES * CARDS * 10
    with ApiProxy(site.cluster) as proxy, site.restarting():
        for name in ("a", "b"):
            site.replica(name, server=proxy.url).start()
        for number in range(ROUNDS):
            step = STEPS[number % len(STEPS)]
            leader = the_leader(site)
            (other,) = (replica for replica in site.replicas if replica is not leader)
            proxy.rules.clear()
            rule = arm(proxy, step, leader, other, skip=1 + number * 37 % (pods - 20))
            site.pods(f"r{number}", pods)
            happened(rule, step, site)
            see_to(site, step, leader, other)
            assert len(wait_bound(site, pods)) == pods
            check_books(site, *site.replicas)
            print(f"round {number + 1} of {ROUNDS}, {pods} pods, {step}: nothing lost, nothing twice", flush=True)
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
