"""A running share changed by annotation: quota, fit, the next grant, or a refusal with the reason."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from lightkube.resources.core_v1 import ResourceQuota

from partage.cli.cluster import quota_feed
from partage.devices.ask import read_ask
from partage.devices.requests import AskOptions
from partage.model import KubeError, names
from partage.model.grant import Grant, encode_grant, parse_grant
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.share import ShareClass
from partage.model.units import GI, MI
from partage.scheduler.books import Books
from partage.scheduler.facts import PodFacts
from partage.scheduler.facts_of import pod_facts
from partage.scheduler.quota.limits import read_limit
from partage.scheduler.resize import AGAIN_S, Resizer, ResizeRefused, Wish, read_wishes, resized
from partage.scheduler.views import WatchedPod
from tests.kube.support import FakeClock, until
from tests.scheduler.support import node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEMORY = "limits.nvidia.com/gpumem"
Json = dict[str, Any]


class World:
    """Books, quotas, and an API server that holds pods."""

    def __init__(self, cards: int = 1) -> None:
        self.clock = FakeClock()
        self.books = Books()
        self.books.set_node(node("n", cards))
        self.pods: dict[str, Json] = {}
        self.shown: dict[str, PodFacts] = {}
        self.fails: list[KubeError] = []
        self.applied_anyway = False
        self.bodies: list[Json] = []
        self.refusals: list[tuple[str, str, str]] = []
        self.before_answer: Callable[[], None] = lambda: None  # after a write, while its answer is on its way
        self.feed = quota_feed(self.books, {}, AskOptions())
        self.resizer = Resizer(cast("Any", self), self.books, self.feed, self.clock, self, term=3)

    def add(self, name: str, *, cards: int = 1, gib: int = 10, cores: int = 0, **annotations: str) -> WatchedPod:
        """Bind a pod."""
        limits = {"nvidia.com/gpu": str(cards), "nvidia.com/gpumem": str(gib * 1024)}
        limits |= {"nvidia.com/gpucores": str(cores)} if cores else {}
        meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "annotations": annotations}
        spec = {"containers": [{"name": "app", "resources": {"limits": limits}}]}
        pod: Json = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
        ask = read_ask(pod)
        assert ask is not None
        self.books.reserve(ask, "n", 0.0)
        grant, twin = self.books.grant_for(name, "n", term=1, bound_at=len(self.pods) + 1)
        annotations |= {names.GRANT: encode_grant(grant), TWIN: twin}
        meta["annotations"], spec["nodeName"] = annotations, "n"  # type: ignore[assignment]
        self.pods[name] = pod
        return self.told(name)

    def told(self, name: str) -> WatchedPod:
        """Tell books and resizer of a pod as it is; the books of what is new to them alone, as the watch does."""
        found = msgspec.convert(self.pods[name], WatchedPod)
        facts = pod_facts(found)
        assert facts is not None
        if self.shown.get(name) != facts:
            self.shown[name] = facts
            self.books.set_pod(facts)
        self.feed.recount(found)
        self.resizer.saw(found)
        return found

    def wish(self, name: str, **amounts: str) -> None:
        meta = self.pods[name]["metadata"]
        meta["annotations"] = {**meta["annotations"], names.RESIZE: json.dumps({"app": amounts})}
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        self.told(name)

    def says(self, name: str, message: str, *, holds: bool = True) -> None:
        """Let the node's agent write its condition."""
        condition = {"type": names.CONDITION_RESIZED, "status": str(holds), "reason": "x", "message": message}
        self.pods[name]["status"] = {**self.pods[name].get("status", {}), "conditions": [condition]}
        meta = self.pods[name]["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        self.told(name)

    def limit(self, amount: str) -> None:
        whole = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {MEMORY: amount}}}
        self.feed.set_limit(read_limit(cast("ResourceQuota", ResourceQuota.from_dict(whole))))
        for name in self.pods:
            self.feed.recount(msgspec.convert(self.pods[name], WatchedPod))

    def grant(self, name: str) -> Grant:
        text = self.pods[name]["metadata"]["annotations"][names.GRANT]
        return parse_grant(text, uid=name, node="n", pod=name)

    # ---- the API server ----

    async def patch(self, resource: type, name: str, body: Json, *, namespace: str) -> WatchedPod:
        assert (resource, namespace) == (WatchedPod, "default")
        self.bodies.append(body)
        meta = self.pods[name]["metadata"]
        assert body["metadata"]["uid"] == name
        if body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            self.before_answer()
            raise KubeError("pod", "conflict", "", "", status=409)
        failure = self.fails.pop() if self.fails else None
        if failure is None or self.applied_anyway:
            meta["annotations"] = {**meta["annotations"], **body["metadata"]["annotations"]}
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        if failure is not None:
            raise failure
        done = msgspec.convert(self.pods[name], WatchedPod)
        self.before_answer()
        return done

    async def get(self, resource: type, name: str, *, namespace: str) -> WatchedPod:
        assert (resource, namespace) == (WatchedPod, "default")
        return msgspec.convert(self.pods[name], WatchedPod)

    async def resize_refused(self, pod: WatchedPod, code: str, message: str) -> None:
        self.refusals.append((pod.uid, code, message))


def play(world: World, script: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        world.resizer._wake = asyncio.Event()  # of this loop
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.resizer.run())
            await script()
            running.cancel()

    asyncio.run(whole())


def wished(world: World, name: str, **amounts: str) -> None:
    """Wish, and wait for what becomes of it."""

    async def script() -> None:
        before = (world.resizer.written, len(world.refusals))
        world.wish(name, **amounts)
        await until(lambda: (world.resizer.written, len(world.refusals)) != before)

    play(world, script)


def test_what_fits_becomes_the_next_grant_and_its_twin() -> None:
    world = World()
    world.add("a", gib=10, cores=30)
    wished(world, "a", memory="20Gi", cores="60%")
    grant = world.grant("a")
    share = grant.containers["app"].shares[0]
    assert (grant.gen, share.memory, share.cores, share.ceiling, share.weight) == (2, 20 * GI, 600, 600, 600)
    assert (grant.bound_at, grant.term) == (1, 1), "its order is that of the first"
    assert world.pods["a"]["metadata"]["annotations"][TWIN] == "GPU-n-0,NVIDIA,20480,60:;"
    assert world.books.nodes["n"].memory == [60 * GI]
    assert world.books.nodes["n"].cores == [400]


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    world = World()
    world.add("a", gib=10)
    world.add("b", gib=60, cores=50)
    wished(world, "a", memory="30Gi")
    assert world.refusals[0][:2] == ("a", "CardInsufficientMemory")
    assert "30 GiB wished; 20 GiB there" in world.refusals[0][2]
    wished(world, "a", cores="60%")
    assert world.refusals[1][1] == "CardInsufficientCore"
    assert world.grant("a").gen == 1
    assert world.bodies == []
    assert world.books.nodes["n"].memory == [10 * GI]


def test_a_refused_wish_is_had_once_room_has_come() -> None:
    world = World()
    world.add("a", gib=10)
    world.add("b", gib=60)

    async def script() -> None:
        world.wish("a", memory="30Gi")
        await until(lambda: world.refusals)
        await until(lambda: world.clock.sleeping)
        world.clock.advance(30)
        await until(lambda: world.clock.sleeping)
        assert len(world.refusals) == 1, "the same is not told twice"
        world.books.drop_pod("b")
        world.clock.advance(30)
        await until(lambda: world.resizer.written)

    play(world, script)
    assert world.grant("a").containers["app"].shares[0].memory == 30 * GI


def test_the_quota_holds_for_it_too() -> None:
    world = World(2)
    world.add("a", cards=2, gib=2)
    world.limit("6000")
    wished(world, "a", memory="3Gi")
    assert world.refusals[0][1] == "ResourceQuotaNotFit"
    wished(world, "a", memory="2900Mi")
    assert world.feed.book.usage("default", "q") == {MEMORY: 5800 * MI}
    world.limit("1000")
    wished(world, "a", memory="2000Mi")
    assert world.grant("a").gen == 3, "less is always possible"
    assert world.feed.book.usage("default", "q") == {MEMORY: 5800 * MI}, "what may be in use still"
    confirmed(world, "a", "generation 3")
    assert world.feed.book.usage("default", "q") == {MEMORY: 4000 * MI}


def test_growing_is_counted_before_it_is_written_and_shrinking_after() -> None:
    world = World()
    world.add("a", gib=10, cores=50)
    seen: list[tuple[list[int], list[int]]] = []
    patch = world.patch

    async def look(*given: Any, **named: Any) -> WatchedPod:
        seen.append((list(world.books.nodes["n"].memory), list(world.books.nodes["n"].cores)))
        return await patch(*given, **named)

    world.patch = look  # type: ignore[method-assign]
    wished(world, "a", memory="20Gi", cores="20%")
    assert seen == [([60 * GI], [500])], "the larger of both"
    assert (world.books.nodes["n"].memory, world.books.nodes["n"].cores) == ([60 * GI], [800])


def confirmed(world: World, name: str, message: str) -> None:
    """Let the agent say that use is below the limit, and wait for the grant that follows."""

    async def script() -> None:
        before = world.resizer.written
        world.says(name, message)
        await until(lambda: world.resizer.written > before)

    play(world, script)


def test_k15_memory_that_is_given_back_is_promised_to_nobody_while_it_is_in_use() -> None:
    """Also not by a leader that comes later, which knows only what stands on the pod."""
    world = World()
    world.add("a", gib=60)
    wished(world, "a", memory="10Gi")
    assert (world.grant("a").gen, world.grant("a").containers["app"].shares[0].memory) == (2, 10 * GI)
    assert world.books.nodes["n"].memory == [20 * GI]
    again = World()
    again.pods["a"] = world.pods["a"]
    again.told("a")
    assert again.books.nodes["n"].memory == [20 * GI]

    async def nothing_follows() -> None:
        world.says("a", "generation 2: uses more", holds=False)
        world.says("a", "generation 1")
        await until(lambda: world.clock.sleeping)

    play(world, nothing_follows)
    assert (len(world.bodies), world.books.nodes["n"].memory) == (1, [20 * GI])
    confirmed(world, "a", "generation 2")
    assert world.books.nodes["n"].memory == [70 * GI]
    assert (world.grant("a").gen, world.grant("a").containers["app"].shares[0].held) == (2, 0), "the node has this one"


def test_what_is_held_is_let_go_also_when_nobody_wishes_any_more() -> None:
    world = World()
    world.add("a", gib=60)
    wished(world, "a", memory="10Gi")
    del world.pods["a"]["metadata"]["annotations"][names.RESIZE]
    confirmed(world, "a", "generation 2")
    assert world.books.nodes["n"].memory == [70 * GI]


def test_what_is_held_is_the_largest_of_all_before() -> None:
    world = World()
    world.add("a", gib=60)
    for amount, free in (("10Gi", 20), ("30Gi", 20), ("5Gi", 20), ("70Gi", 10)):
        wished(world, "a", memory=amount)
        assert world.books.nodes["n"].memory == [free * GI]
    assert world.grant("a").containers["app"].shares[0].held == 0, "all of it is its own again"


@pytest.mark.parametrize("applied", [False, True])
def test_a_write_whose_end_is_unknown_is_found_out(applied: bool) -> None:
    world = World()
    world.add("a", gib=10)
    world.fails = [KubeError("pod", "no answer", "", "", status=0)]
    world.applied_anyway = applied

    async def script() -> None:
        world.wish("a", memory="20Gi")
        await until(lambda: world.clock.sleeping and world.bodies)
        world.clock.advance(AGAIN_S)
        await until(lambda: world.grant("a").gen == 2 and world.books.nodes["n"].memory == [60 * GI])

    play(world, script)
    assert world.resizer.written == (0 if applied else 1)


def test_what_the_api_server_refuses_is_not_written_again_and_again() -> None:
    """A policy refuses it each time: two requests a try, and a pause between them."""
    world = World()
    world.add("a", gib=10)
    world.fails = [KubeError("pod", "a policy", "", "", status=403)] * 9

    async def script() -> None:
        world.wish("a", memory="20Gi")
        for tries in (1, 2, 3):
            await until(lambda tries=tries: len(world.bodies) == tries and world.clock.sleeping)  # type: ignore[misc]
            await asyncio.sleep(0.02)
            assert len(world.bodies) == tries
            assert world.books.nodes["n"].memory == [70 * GI], "what it has, and no more"
            world.clock.advance(AGAIN_S)
        world.fails.clear()
        await until(lambda: world.clock.sleeping)
        world.clock.advance(AGAIN_S)
        await until(lambda: world.resizer.written)

    play(world, script)


def test_k16_a_share_does_not_grow_on_a_card_of_which_nobody_knows_the_use() -> None:
    world = World()
    world.add("a", gib=10)
    world.books.set_pod(PodFacts("stranger", "x", "s", node="n", twin="GPU-n-0,NVIDIA,all of it,0:;"))
    wished(world, "a", memory="11Gi")
    assert world.refusals[0][1] == "CardUseUnknown"
    wished(world, "a", memory="9Gi")
    assert world.grant("a").gen == 2, "less is always possible"


@pytest.mark.parametrize("shown_first", [False, True], ids=["answer-first", "watch-first"])
def test_a_version_that_is_old_is_read_again(shown_first: bool) -> None:
    """Also where the watch shows the newer one before the write is refused: the books hear nothing of it."""
    world = World()
    world.add("a", gib=10)

    def show() -> None:
        world.before_answer = lambda: None
        world.told("a")

    async def script() -> None:
        world.before_answer = show if shown_first else lambda: None
        world.wish("a", memory="20Gi")
        world.pods["a"]["metadata"]["resourceVersion"] = "9"  # kubelet wrote its status meanwhile
        await until(lambda: world.resizer.written)

    play(world, script)
    assert len(world.bodies) == 2
    assert world.grant("a").gen == 2


def test_a_wish_that_the_watch_shows_before_the_answer_to_a_write_is_not_forgotten() -> None:
    """Whoever sees the new grant may wish again at once; the answer on its way says what was before that."""
    world = World()
    world.add("a", gib=10)

    def wish_again() -> None:
        world.before_answer = lambda: None
        world.told("a")
        world.wish("a", memory="90Gi")

    async def script() -> None:
        world.before_answer = wish_again
        world.wish("a", memory="20Gi")
        await until(lambda: world.refusals)

    play(world, script)
    assert "90 GiB wished; 80 GiB there" in world.refusals[0][2]
    assert world.books.nodes["n"].memory == [60 * GI]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"app":{"memory":"12Gi","cores":"60%"}}', {"app": Wish(12 * GI, 600)}),
        ('{"app":{"cores":30}}', {"app": Wish(None, 300)}),
        ('{"a":{"memory":"1Gi"},"b":{}}', {"a": Wish(GI, None), "b": Wish(None, None)}),
    ],
)
def test_wishes(text: str, found: dict[str, Wish]) -> None:
    assert read_wishes(text, "pod a") == found


@pytest.mark.parametrize(
    "text", ["", "12Gi", "[]", '{"app":12}', '{"app":{"memory":"12 apples"}}', '{"app":{"cores":"0"}}',
             '{"app":{"cards":"2"}}', '{"app":{"memory":-1}}', "[" * 5000],
)  # fmt: skip
def test_wishes_without_meaning(text: str) -> None:
    with pytest.raises(ResizeRefused) as refused:
        read_wishes(text, "pod a")
    assert refused.value.code == "ResizeInvalid"


def test_the_rules_of_the_class_hold() -> None:
    world = World()
    world.add("a", gib=10, cores=30)
    fixed = world.grant("a")
    part = fixed.containers["app"]
    for kind, cores, ceiling, expected in (
        (ShareClass.BURST, 300, 400, (500, 500)),
        (ShareClass.BURST, 300, 1000, (500, 1000)),
        (ShareClass.BEST_EFFORT, 0, 1000, (0, 500)),
        (ShareClass.FIXED, 300, 300, (500, 500)),
    ):
        share = msgspec.structs.replace(part.shares[0], cores=cores, ceiling=ceiling)
        changed = msgspec.structs.replace(part, share_class=kind, shares=(share,))
        after = resized(
            msgspec.structs.replace(fixed, containers={"app": changed}), {"app": Wish(None, 500)}, "pod a"
        ).containers["app"].shares[0]  # fmt: skip
        assert (after.cores, after.ceiling) == expected


def test_what_cannot_change_is_refused_by_name() -> None:
    world = World()
    world.add("a", gib=10)
    grant = world.grant("a")
    assert resized(grant, {"app": Wish(10 * GI, None)}, "pod a") is grant
    with pytest.raises(ResizeRefused, match="containers with shares: app"):
        resized(grant, {"other": Wish(GI, None)}, "pod a")
    whole = msgspec.structs.replace(grant.containers["app"], mode="mig")
    with pytest.raises(ResizeRefused, match="mode mig"):
        resized(msgspec.structs.replace(grant, containers={"app": whole}), {"app": Wish(GI, None)}, "pod a")
