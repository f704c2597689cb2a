"""Making room: the place is claimed and kept, victims are evicted through the API, budgets are waited for (C144)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from lightkube.resources.core_v1 import PodEviction, PodStatus

from partage.kube.client import BUDGET
from partage.model import KubeError
from partage.scheduler.books import Books
from partage.scheduler.budgets import Budget, Budgets, Requirement
from partage.scheduler.evict import KEEP_S, PLAN_S, Evictor
from partage.scheduler.facts import PodFacts
from partage.scheduler.later import WAIT_MAX_S, WAIT_S, Later
from partage.scheduler.views import WatchedPod
from tests.kube.support import FakeClock, until
from tests.scheduler.support import ask, node, place, want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from partage.model.ask import PodAsk
    from partage.model.pod import PodView

WEB = (Requirement("app", "In", frozenset({"web"})),)


class World:
    """A card that is full, and an API server that evicts."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.books = Books()
        self.books.set_node(node("n", 1))
        self.pods: dict[str, WatchedPod] = {}
        self.budgets = Budgets()
        self.evicted: list[str] = []
        self.trials: list[str] = []
        self.kept: set[str] = set()  # by a budget of which nobody here has heard yet
        self.refusals: list[int] = []
        self.nominated: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []
        self.messages: list[tuple[str, bool]] = []
        self.evictor = Evictor(
            cast("Any", self),
            self.books,
            self.clock,
            pod=self.pods.get,
            budgets=lambda: self.budgets,
            told=self,
            members=self.members,
        )

    def members(self, gang: str) -> list[WatchedPod]:
        own = gang.removeprefix("default/")
        return [one for one in self.pods.values() if (one.metadata.labels or {}).get("partage.io/gang") == own]

    def add(self, name: str, priority: int, gib: int, *, on: str = "n", **labels: str) -> None:
        asked = replace(ask(want(gib=gib), uid=name), priority=priority)
        place(self.books, asked, on, priority=priority, bound_at=len(self.pods) + 1)
        self.pods[name] = watched(name, priority, node=on, labels=labels)

    def end(self, name: str) -> None:
        """Let a pod be gone."""
        del self.pods[name]
        self.books.drop_pod(name)
        self.evictor.gone(name)

    def want(self, priority: int, gib: int, *, never: bool = False) -> PodAsk:
        asked = replace(ask(want(gib=gib), uid="winner"), priority=priority)
        policy = "Never" if never else None
        self.evictor.wanted(cast("PodView", watched("winner", priority, policy=policy)), asked, ["n", "unknown"])
        return asked

    # ---- the API server, and where people hear of it ----

    async def create(self, obj: PodEviction, *, name: str, namespace: str) -> None:
        assert namespace == "default"
        assert obj.deleteOptions is not None
        assert obj.deleteOptions.preconditions is not None
        assert obj.deleteOptions.preconditions.uid == name
        if name in self.kept:
            raise KubeError("eviction", "no", "", "", status=429, causes=frozenset({BUDGET}))
        if self.refusals:
            raise KubeError("eviction", "no", "", "", status=self.refusals.pop(0))
        (self.trials if obj.deleteOptions.dryRun else self.evicted).append(name)

    async def patch(self, resource: type, name: str, body: dict[str, Any], *, namespace: str) -> None:
        assert (resource, namespace, body["metadata"]["uid"]) == (PodStatus, "default", "winner")
        self.nominated.append((name, body["status"]["nominatedNodeName"]))

    def pod_event(self, pod: PodView, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((pod.metadata.name or "", reason))
        self.messages.append((message, warning))


def watched(
    name: str, priority: int, *, node: str = "", labels: dict[str, str] | None = None, policy: str | None = None
) -> WatchedPod:
    meta = {"name": name, "namespace": "default", "uid": name, "labels": labels or {}}
    spec: dict[str, Any] = {"priority": priority, "nodeName": node, "preemptionPolicy": policy}
    return msgspec.convert({"metadata": meta, "spec": spec}, WatchedPod)


def ending(name: str, priority: int = 0) -> WatchedPod:
    meta = {"name": name, "namespace": "default", "uid": name, "deletionTimestamp": "2026-11-30T12:00:00Z"}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": "n", "priority": priority}}, WatchedPod)


def play(world: World, script: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.evictor.run())
            await script()
            running.cancel()

    asyncio.run(whole())


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def full() -> World:
    world = World()
    for number in range(8):
        world.add(f"low-{number}", 1, 10)
    return world


def test_the_place_is_claimed_the_victims_go_and_the_winner_gets_it() -> None:
    world = full()

    async def script() -> None:
        winner = world.want(100, 15)
        await until(lambda: len(world.evicted) == 2)
        assert sorted(world.evicted) == ["low-6", "low-7"]
        world.pods["winner"] = watched("winner", 100)
        await until(lambda: world.clock.sleeping)
        world.clock.advance(2)
        await until(lambda: world.nominated == [("pod-winner", "n")])
        assert world.evictor.node_of("winner") == "n"
        world.end("low-6")
        world.end("low-7")
        assert world.books.filter(ask(want(gib=6))).fitting == [], "nobody else gets it"
        assert world.books.filter(winner).fitting == ["n"]
        place(world.books, winner, "n")
        world.evictor.saw(watched("winner", 100, node="n"))
        assert world.evictor.node_of("winner") is None

    play(world, script)
    assert world.books.nodes["n"].memory == [5 << 30]
    assert ("winner", "PreemptionStarted") in world.events
    assert ("low-6", "Preempted") in world.events
    assert world.messages[0] == ("room is being made on node n: default/low-6, default/low-7 must go", False)


def test_a_pod_that_may_not_preempt_and_one_that_would_gain_nothing() -> None:
    world = full()

    async def script() -> None:
        world.want(100, 15, never=True)
        await settle()
        world.want(1, 15)
        await settle()
        world.clock.advance(10)
        world.want(100, 90)
        await settle()

    play(world, script)
    assert (world.evicted, world.events) == ([], [])


def test_k22_pods_of_one_shape_that_want_other_nodes_are_planned_for_each() -> None:
    """What is in vain on the nodes of one zone is not on another's; kube-scheduler may not ask again for minutes."""
    world = full()
    world.books.set_node(node("m", 1))
    world.add("low-m", 1, 80, on="m")
    asked = [replace(ask(want(gib=80), uid=f"winner-{at}"), priority=100) for at in range(2)]
    world.pods["low-0"] = watched("low-0", 100, node="n")  # by now it is no less important

    async def script() -> None:
        for one, on in zip(asked, ("n", "m"), strict=True):
            world.evictor.wanted(cast("PodView", watched(one.uid, 100)), one, [on])
        await settle()

    world.books.set_pod(replace(world.books.pods["low-0"], priority=100))
    play(world, script)
    assert world.evicted == ["low-m"]


def test_c144_an_eviction_that_a_budget_refuses_ends_the_plan_at_once() -> None:
    """And the next best goes; the pod says why."""
    world = World()
    world.add("web", 1, 40, app="web")
    world.add("other", 50, 40)
    world.kept = {"web"}

    async def script() -> None:
        world.want(100, 40)
        await until(lambda: world.evicted == ["other"])
        assert world.evictor.node_of("winner") == "n"

    play(world, script)
    failed = [message for message, warning in world.messages if warning]
    assert failed == [
        f"default/web on node n is kept by its disruption budget, for {WAIT_S:g} s or until that allows more"
    ]
    assert world.events[:2] == [("winner", "PreemptionStarted"), ("winner", "PreemptionFailed")]


def test_c144_nobody_goes_before_all_may() -> None:
    """One of two victims is kept: the other would end in vain, and again with each plan."""
    world = World()
    for name, kind in (("one", "x"), ("web", "web")):
        world.add(name, 1, 40, app=kind)
    world.kept = {"web"}

    async def script() -> None:
        world.want(100, 80)
        await until(lambda: ("winner", "PreemptionFailed") in world.events)
        await settle()
        assert world.books.nodes["n"].memory == [0], "no place is kept meanwhile"
        for _ in range(20):
            world.clock.advance(2)
            await settle()
        assert world.evicted == []
        world.kept.clear()
        world.evictor.budget_grew()
        world.clock.advance(6)
        await until(lambda: sorted(world.evicted) == ["one", "web"])

    play(world, script)
    tried = [event for event in world.events if event == ("winner", "PreemptionFailed")]
    assert 2 <= len(tried) <= 4, "at 0, 5 and 15 seconds of 40: each wait is twice as long"


def test_c144_a_plan_beyond_the_budgets_is_not_begun() -> None:
    world = World()
    world.budgets = Budgets((Budget("default", "web", WEB, 1),))
    for name in ("r1", "r2"):
        world.add(name, 1, 40, app="web")

    async def script() -> None:
        world.want(100, 80)
        await until(lambda: world.messages != [])
        await settle()
        assert world.evicted == world.trials == []
        assert world.evictor.node_of("winner") is None
        world.budgets = Budgets((Budget("default", "web", WEB, 2),))
        world.evictor.budget_grew()
        world.clock.advance(6)
        await until(lambda: len(world.evicted) == 2)

    play(world, script)
    assert "needs 1 more of its pods to go than disruption budgets allow now" in world.messages[0][0]


def test_an_api_server_that_has_no_time_is_asked_again() -> None:
    world = full()

    async def script() -> None:
        world.refusals = [429]
        world.want(100, 8)
        await until(lambda: world.clock.sleeping == 2)
        assert world.evicted == []
        world.clock.advance(2)
        await until(lambda: len(world.evicted) == 1)

    play(world, script)
    assert ("winner", "PreemptionFailed") not in world.events


def test_waits_double_and_a_budget_that_grows_ends_them_though_never_at_once() -> None:
    clock = FakeClock()
    later = Later(clock)
    wanted = (cast("PodView", watched("winner", 100)), ask(want(gib=1), uid="winner"), None)
    waits = [later.refused(wanted) for _ in range(9)]
    assert waits == [WAIT_S * 2**number for number in range(6)] + [WAIT_MAX_S] * 3
    later.budget_grew()
    assert later.take_due() == []
    clock.advance(WAIT_S)
    assert later.take_due() == [wanted]
    assert later.take_due() == [], "once"
    later.in_vain(wanted)
    clock.advance(10 * WAIT_MAX_S)
    assert later.take_due() == [], "for one in vain only a budget is a reason"
    later.budget_grew()
    assert later.take_due() == [wanted]
    later.refused(wanted)
    later.forget("winner")
    later.put_off(wanted)
    later.put_off(wanted)
    assert later.take_due() == []
    clock.advance(WAIT_S)
    assert later.take_due() == [wanted], "what was new is seen"
    later.put_off(wanted)
    later.refused(wanted)
    later.forget("winner")
    clock.advance(WAIT_MAX_S)
    assert later.take_due() == []


def test_a_budget_that_allows_nothing_protects() -> None:
    world = World()
    world.budgets = Budgets((Budget("default", "web", WEB, 0),))
    world.add("r1", 1, 80, app="web")

    async def script() -> None:
        world.want(100, 80)
        await settle()

    play(world, script)
    assert world.evicted == []


def test_an_eviction_that_is_refused_for_good_ends_the_plan_and_that_victim_is_left_alone() -> None:
    world = full()
    refused: list[str] = []
    create = world.create

    async def protects_one(obj: PodEviction, *, name: str, namespace: str) -> None:
        refused.append(name)
        world.refusals = [403] if refused.count(refused[0]) == len(refused) else []
        await create(obj, name=name, namespace=namespace)

    world.create = protects_one  # type: ignore[method-assign]

    async def script() -> None:
        world.want(100, 15)
        await until(lambda: len(world.evicted) == 2)

    play(world, script)
    assert refused.count(refused[0]) == 1, "asked once, and then another plan is made"
    assert refused[0] not in world.evicted
    assert world.events.count(("winner", "PreemptionFailed")) == 1


def test_where_nobody_can_be_evicted_the_place_is_nobodys() -> None:
    world = full()

    async def script() -> None:
        world.refusals = [403] * 99
        world.want(100, 15)
        await until(lambda: len(world.refusals) == 99 - 8 + 1)  # two are needed, one is left
        await settle()

    play(world, script)
    assert world.evicted == []
    world.end("low-0")
    assert world.books.filter(ask(want(gib=6))).fitting == ["n"]


def test_a_pod_of_two_budgets_is_no_victim() -> None:
    """The API server evicts none such: an error each time, and never room."""
    world = World()
    world.budgets = Budgets((Budget("default", "web", WEB, 5), Budget("default", "all", (), 5)))
    world.add("both", 1, 40, app="web")
    world.add("one", 2, 40)

    async def script() -> None:
        world.want(100, 30)
        await until(lambda: world.evicted)

    play(world, script)
    assert world.evicted == ["one"]


@pytest.mark.parametrize("loss", ["gone", "not ready", "card failed", "taken"])
def test_k22_a_place_that_is_lost_is_not_waited_for(loss: str) -> None:
    """Its node goes away or its card fails while victims end: another place is made at once."""
    world = full()
    world.books.set_node(node("unknown", 1))
    for number in range(8):
        world.add(f"far-{number}", 2, 10, on="unknown")

    async def script() -> None:
        world.want(100, 15)
        await until(lambda: len(world.evicted) == 2)
        if loss == "gone":
            world.books.drop_node("n")
        elif loss == "taken":
            stranger = ask(want(gib=75), uid="stranger")
            twin = f"GPU-n-0,NVIDIA,{75 << 10},0:;"
            world.books.set_pod(PodFacts("stranger", "x", "s", node="n", twin=twin, order=stranger.shape.order))
        else:
            world.books.set_node(node("n", [{"health": loss == "not ready"}], ready=loss != "not ready"))
        await until(lambda: world.clock.sleeping)
        world.clock.advance(2)
        await until(lambda: len(world.evicted) == 4)

    play(world, script)
    assert {uid.split("-")[0] for uid in world.evicted[2:]} == {"far"}
    assert world.evictor.node_of("winner") == "unknown"
    assert ("winner", "PreemptionFailed") in world.events
    assert world.books.recount() == ()


def test_nobody_goes_for_a_pod_that_was_deleted_and_is_kept_by_a_finalizer() -> None:
    world = full()

    async def script() -> None:
        world.refusals = [429]
        world.want(100, 15)
        await until(lambda: world.clock.sleeping == 2)
        meta = {"name": "winner", "namespace": "default", "uid": "winner", "deletionTimestamp": "2026-11-30T00:00:00Z"}
        world.evictor.saw(msgspec.convert({"metadata": meta}, WatchedPod))
        world.clock.advance(2)
        await settle()

    play(world, script)
    assert world.evicted == []
    assert world.books.nodes["n"].memory == [0], "and no place is kept for it"


def test_a_place_holds_that_needs_a_pod_which_ends_anyway() -> None:
    world = World()
    world.add("ending", 1, 40)
    world.add("low", 1, 40)
    world.pods["ending"] = ending("ending")

    async def script() -> None:
        world.want(100, 80)
        await until(lambda: world.evicted)
        world.end("low")
        world.end("ending")
        assert world.books.filter(ask(want(gib=1))).fitting == [], "nobody else gets it"

    play(world, script)
    assert world.evicted == ["low"], "who ends anyway is not evicted"


@pytest.mark.parametrize("late_s", [30, 90])
def test_k22_a_pod_that_cannot_end_is_not_waited_for(late_s: int) -> None:
    """Its program hangs in the driver: others go for the pod that waits, once that is plain."""
    world = World()
    for name in ("stuck", "low"):
        world.add(name, 1, 40)
    meta = world.pods["stuck"].metadata
    since = (world.clock.date() - timedelta(seconds=late_s)).isoformat()
    meta = msgspec.structs.replace(meta, deletion_timestamp=since)
    world.pods["stuck"] = msgspec.structs.replace(world.pods["stuck"], metadata=meta)

    async def script() -> None:
        world.want(100, 40)
        await settle()

    play(world, script)
    assert world.evicted == (["low"] if late_s > 60 else [])


def test_nobody_goes_where_room_came_before_the_plan_was_made() -> None:
    """A pod ended by itself since the filter; pods of the same shape are planned for once that room is taken."""
    world = full()

    async def script() -> None:
        world.want(100, 10)
        world.end("low-0")
        await settle()
        assert (world.evicted, world.events) == ([], [])
        world.add("taker", 100, 10)
        other = replace(ask(want(gib=10), uid="winner-2"), priority=100)
        world.evictor.wanted(cast("PodView", watched("winner-2", 100)), other, None)
        await until(lambda: len(world.evicted) == 1)

    play(world, script)


def test_a_place_that_comes_free_anyway_is_kept_for_who_would_have_made_it() -> None:
    """Nobody is evicted, and yet nobody else gets the place; it expires as the place of those who are evicted does."""
    world = full()
    for name in ("low-0", "low-1"):
        world.pods[name] = ending(name, 1)

    async def script() -> None:
        winner = world.want(100, 10)
        await until(lambda: world.evictor.node_of("winner") == "n")
        assert world.messages == [("a place on node n is kept for it until default/low-1 has ended", False)]
        world.pods["winner"] = watched("winner", 100)
        await until(lambda: world.clock.sleeping)
        world.clock.advance(2)
        await until(lambda: world.nominated == [("pod-winner", "n")])
        world.end("low-1")
        assert world.books.filter(ask(want(gib=6))).fitting == [], "nobody else gets it"
        assert world.books.filter(winner).fitting == ["n"]
        world.end("low-0")
        assert world.books.filter(ask(want(gib=10))).fitting == ["n"], "it needs one of them"
        await until(lambda: world.clock.sleeping)
        world.clock.advance(KEEP_S + 1)
        await until(lambda: world.evictor.node_of("winner") is None)

    play(world, script)
    assert world.evicted == []
    assert world.books.nodes["n"].memory == [20 << 30]


def test_a_place_that_equals_leave_is_everybodys() -> None:
    world = World()
    world.add("equal", 100, 50)
    world.add("low", 1, 30)
    world.pods["equal"] = ending("equal", 100)

    async def script() -> None:
        world.want(100, 20)
        await settle()

    play(world, script)
    assert (world.evicted, world.events, world.evictor.node_of("winner")) == ([], [], None)


def test_finished_pods_of_a_gang_are_left_in_peace() -> None:
    world = World()
    gang = {"partage.io/gang": "g"}
    world.add("g1", 1, 80, **gang)
    meta = {"name": "g2", "namespace": "default", "uid": "g2", "labels": gang}
    done = {"metadata": meta, "spec": {"nodeName": "n", "priority": 1}, "status": {"phase": "Succeeded"}}
    world.pods["g2"] = msgspec.convert(done, WatchedPod)

    async def script() -> None:
        world.want(100, 80)
        await until(lambda: world.evicted)
        await settle()

    play(world, script)
    assert world.evicted == ["g1"]


def test_who_has_the_highest_priority_is_planned_for_first() -> None:
    """Pods that nobody's end helps do not keep one waiting whom it does."""
    world = full()
    planned: list[str] = []
    start = world.evictor._start

    async def noted(pod: PodView, asked: PodAsk, nodes: Any) -> Any:
        planned.append(asked.uid)
        return await start(pod, asked, nodes)

    world.evictor._start = noted  # type: ignore[assignment,method-assign]

    async def script() -> None:
        for number in range(20):
            asked = replace(ask(want(gib=90 + number), uid=f"hopeless-{number}"), priority=2)
            world.evictor.wanted(cast("PodView", watched(asked.uid, 2)), asked, None)
        world.want(100, 15)
        await until(lambda: len(planned) == 21)

    play(world, script)
    assert planned.index("winner") == 0


def test_a_victim_that_is_gone_already_is_no_failure() -> None:
    world = full()

    async def script() -> None:
        world.refusals = [404]
        world.want(100, 15)
        await until(lambda: world.evicted)

    play(world, script)
    assert len(world.evicted) == 1


def test_the_place_is_given_back_when_nobody_comes() -> None:
    for ends, after in ((True, KEEP_S), (False, PLAN_S)):
        world = full()

        async def script(world: World = world, ends: bool = ends, after: float = after) -> None:
            world.want(100, 15)
            await until(lambda: len(world.evicted) == 2)
            if ends:
                world.end("low-6")
                world.end("low-7")
            await until(lambda: world.clock.sleeping)
            world.clock.advance(after - 1)
            await settle()
            assert world.evictor.node_of("winner") == "n"
            world.clock.advance(2)
            await until(lambda: world.evictor.node_of("winner") is None)

        play(world, script)
        assert world.books.nodes["n"].memory == ([20 << 30] if ends else [0])


def test_the_winner_that_is_gone_gives_its_place_back() -> None:
    world = full()

    async def script() -> None:
        world.want(100, 15)
        await until(lambda: len(world.evicted) == 2)
        world.evictor.gone("winner")

    play(world, script)
    assert world.books.nodes["n"].memory == [0]


def test_one_pod_is_planned_for_once() -> None:
    world = full()

    async def script() -> None:
        world.want(100, 15)
        await until(lambda: len(world.evicted) == 2)
        world.want(100, 15)
        await settle()

    play(world, script)
    assert len(world.evicted) == 2


def test_a_gang_is_evicted_on_all_its_nodes() -> None:
    world = World()
    world.books.set_node(node("m", 1))
    world.add("g1", 1, 80, **{"partage.io/gang": "g"})
    world.add("g2", 1, 10, on="m", **{"partage.io/gang": "g"})

    async def script() -> None:
        world.want(100, 80)
        await until(lambda: len(world.evicted) == 2)

    play(world, script)
    assert sorted(world.evicted) == ["g1", "g2"]
