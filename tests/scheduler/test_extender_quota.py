"""Quotas and preemption where the extender asks them: filter, prioritize, the promise, and what gives it back."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from lightkube.resources.core_v1 import ResourceQuota

from partage.kube import Change, Key
from partage.model.units import GI, MI
from partage.scheduler.protocol import read_args
from partage.scheduler.quota.feed import UNSEEN_S
from partage.scheduler.quota.limits import Limit
from partage.scheduler.views import WatchedPod
from tests.cluster.scheduling import node
from tests.scheduler.extending import Desk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.model.ask import PodAsk
    from partage.model.pod import PodView
    from partage.scheduler.protocol import FilterAnswer

MEMORY = "limits.nvidia.com/gpumem"


def desk(allowed_mib: int, *nodes: Any) -> Desk:
    made = Desk(*(nodes or (node("a"), node("b"))))
    made.duties.quotas.set_limit(Limit("default", "q", {MEMORY: allowed_mib * MI}))
    return made


def used(made: Desk) -> int:
    return made.duties.quotas.book.usage("default", "q")[MEMORY] // MI


def test_a_pod_without_room_in_the_quota_is_refused_everywhere_with_the_numbers() -> None:
    made = desk(10000)
    assert made.choose(made.pod("first", memory=3000, cards=2))
    answer = made.extender.filter(made.args(made.pod("second", memory=5000)))
    assert answer.node_names == []
    reason = (
        "ResourceQuotaNotFit: 5000 of limits.nvidia.com/gpumem asked, 6000 used; resourcequota default/q allows 10000"
    )
    assert answer.failed_and_unresolvable_nodes == {"a": reason, "b": reason}
    assert made.prioritize(made.pod("second", memory=5000), ["a", "b"]) == [("a", 0), ("b", 0)]
    assert used(made) == 6000


def test_what_is_promised_counts_until_it_is_given_back() -> None:
    made = desk(10000)
    first, second = made.pod("first", memory=6000), made.pod("second", memory=6000)
    assert made.choose(first)
    assert made.filter(second) == []
    made.gone("first")
    made.duties.quotas.book.drop_pod("uid-first")  # as the watch of pods has it
    assert made.choose(second)
    assert used(made) == 6000


def test_a_part_of_a_card_goes_where_the_quota_allows_it_and_is_charged_by_the_card() -> None:
    made = desk(13000, node("large", 8, memory=80 * GI), node("small", 8, memory=24 * GI))
    pod = made.pod("half", cores=10)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    del limits["nvidia.com/gpumem"]
    limits["nvidia.com/gpumem-percentage"] = "50"
    answer = made.extender.filter(made.args(pod))
    assert answer.node_names == ["small"]
    assert answer.failed_and_unresolvable_nodes["large"] == "8/8 ResourceQuotaNotFit"
    assert used(made) == 12288


def test_k25_no_node_is_made_for_a_pod_that_waits_for_its_quota() -> None:
    """The autoscaler asks with whole nodes and with pods that do not exist; what it asks about counts nowhere."""
    made = desk(10000)
    assert made.choose(made.pod("first", memory=6000))

    def simulated(pod: Any) -> FilterAnswer:
        question = {"Pod": pod, "Nodes": {"items": [node("template")]}}
        return made.extender.filter(read_args(json.dumps(question).encode()))

    small, large = made.pod("small", memory=4000), made.pod("large", memory=5000)
    for _ in range(2):
        refused = simulated(large).failed_and_unresolvable_nodes
        assert refused["template"].startswith("ResourceQuotaNotFit: 5000 of")
        assert simulated(small).failed_and_unresolvable_nodes == {}
    assert used(made) == 6000
    assert made.filter(large) == [], "known by now"
    assert simulated(large).failed_and_unresolvable_nodes.keys() == {"template"}
    assert made.filter(small)
    assert used(made) == 10000


def test_k21_what_a_simulation_asks_changes_nothing_for_the_pod_that_is_placed() -> None:
    made = desk(13000, node("large", 8, memory=80 * GI), node("small", 8, memory=24 * GI))
    pod = made.pod("half", cores=10)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    del limits["nvidia.com/gpumem"]
    limits["nvidia.com/gpumem-percentage"] = "50"
    assert made.filter(pod) == ["small"]
    question = {"Pod": pod, "Nodes": {"items": [node("template")]}}
    made.extender.filter(read_args(json.dumps(question).encode()))
    assert made.prioritize(pod, ["large", "small"]) == [("small", 10)]


def test_other_namespaces_are_free() -> None:
    made = desk(1)
    pod = made.pod("elsewhere", memory=8000)
    pod["metadata"]["namespace"] = "other"
    assert made.filter(pod) == ["a", "b"]


def test_a_pod_that_fits_nowhere_asks_for_room_and_one_without_quota_does_not() -> None:
    made = Desk(node("a", 1))
    asked: list[str] = []

    def wanted(pod: PodView, ask: PodAsk, nodes: Sequence[str] | None) -> None:
        asked.append(f"{ask.name} {list(nodes or ())}")

    made.duties.evictor.wanted = wanted  # type: ignore[method-assign]
    assert made.choose(made.pod("full", memory=80 * 1024))
    assert made.filter(made.pod("late", memory=1000)) == []
    assert asked == ["late ['a']"]
    made.duties.quotas.set_limit(Limit("default", "q", {MEMORY: 0}))
    assert made.filter(made.pod("poor", memory=1000)) == []
    assert asked == ["late ['a']"]


def test_k21_a_pod_that_the_watch_never_shows_does_not_count_for_ever() -> None:
    """It came, was asked about and went while the watch was broken."""
    made = desk(10000, node("a", 1))
    taken, refused = made.pod("taken", memory=6000), made.pod("refused", memory=4000)
    assert made.choose(taken)
    assert made.choose(made.pod("full", memory=70_000)) == ""
    assert made.filter(refused, []) == []
    assert used(made) == 10000

    async def later() -> None:
        await made.extender.settle()
        made.clock.time += UNSEEN_S + 1
        await made.extender.settle()  # what was promised is given back
        await made.extender.settle()

    asyncio.run(later())
    assert used(made) == 0


def test_k21_a_pod_that_was_deleted_unplaced_does_not_count_whoever_keeps_it() -> None:
    made = desk(10000)
    pod = made.pod("p", memory=6000)
    made.filter(pod)
    assert used(made) == 6000
    pod["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    made.duties.quotas.set_pod(msgspec.convert(pod, WatchedPod))
    assert used(made) == 0


def test_k21_a_pod_that_cannot_end_counts_no_longer_than_kubernetes_counts_it() -> None:
    """Its node is lost, so nobody says that it has ended; its cards stay its own, but the namespace may go on."""

    async def play() -> None:
        made = desk(10000, node("a", 1), node("b", 1))
        feed, api = made.duties.quotas, made.api.pods
        stuck, late = made.pod("stuck", memory=6000), made.pod("late", memory=6000)
        assert await made.bind(stuck, made.choose(stuck)) == ""
        deleted = (made.clock.date() + timedelta(seconds=30)).isoformat()
        api["stuck"]["metadata"] |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
        made.show("stuck")
        feed.set_pod(msgspec.convert(api["stuck"], WatchedPod))
        await made.extender.settle()
        assert (used(made), made.filter(late)) == (6000, [])
        made.clock.time += 61
        await made.extender.settle()
        assert made.filter(late)
        for again in ("2", "3"):  # its status is written once more, and cards are others than before
            api["stuck"]["metadata"]["resourceVersion"] = again
            feed.set_pod(msgspec.convert(api["stuck"], WatchedPod))
        assert used(made) == 6000, "the late one's"
        assert "uid-stuck" in made.books.nodes[api["stuck"]["spec"]["nodeName"]].pods
        feed.pod_changed(
            Change("deleted", Key("uid-stuck", "default", "stuck", "4"), msgspec.convert(stuck, WatchedPod))
        )
        assert (feed._ending, feed._overdue) == ({}, set())

    asyncio.run(play())


def test_k21_a_namespace_without_quotas_is_forgotten_and_counted_anew_where_one_comes_again() -> None:
    made = Desk(node("a", 1))
    feed = made.duties.quotas

    def quota(kind: str) -> None:
        whole = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {MEMORY: "10k"}}}
        quota = ResourceQuota.from_dict(whole)
        feed.quota_changed(Change(kind, Key("uid-q", "default", "q", "1"), quota))  # type: ignore[arg-type]

    quota("added")
    pod = msgspec.convert(made.pod("p", memory=6000), WatchedPod)
    made.duties._watch.pods._tell(made.duties._watch.pods._store.put(pod))
    assert used(made) == 6000
    quota("deleted")
    assert (feed.book.knows("uid-p"), list(feed.book.limits()), len(feed.book._rooms)) == (False, [], 0)
    assert made.filter(made.pod("large", memory=20_000)) == ["a"], "nobody limits it"
    quota("added")
    assert used(made) == 6000
    assert made.filter(made.pod("late", memory=5000)) == []
