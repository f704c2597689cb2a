"""An extender whose watch lags, breaks and lists anew, an API server whose answers to bindings are lost, and pods that
come, end, and are bound by others: `disturb` lets all of it happen at random and says what must hold."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from partage.model import names
from partage.model.grant import parse_grant
from partage.model.need import granted_need
from partage.model.units import MI
from partage.scheduler.bind import UNKNOWN_S
from partage.scheduler.quota.feed import UNSEEN_S
from partage.scheduler.quota.limits import Limit
from partage.scheduler.views import WatchedPod
from tests.cluster.scheduling import node, share_pod
from tests.scheduler.extending import LOST, NOT_REACHED, Desk, FakeApi, answer

if TYPE_CHECKING:
    from partage.kube.poster import Answer

MEMORY = "limits.nvidia.com/gpumem"
CARDS, CARD_MIB, QUOTA_MIB = 2, 80 * 1024, 300_000
STEPS = 120
GRACE_S = 30
FAULTS = ((LOST, True), (LOST, False), (answer(500), True), (answer(429), False), (NOT_REACHED, False))
Json = dict[str, Any]


@dataclass
class Api(FakeApi):
    """Notes every change, as a watch would tell it."""

    log: list[tuple[str, Json]] = field(default_factory=list)
    version: int = 0

    def tell(self, kind: str, pod: Json) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((kind, copy.deepcopy(pod)))

    def add(self, pod: Json, uid: str) -> Json:
        made = super().add(pod, uid)
        self.tell("put", self.pods[made["metadata"]["name"]])
        return made

    def _bind(self, order: Json) -> Answer:
        pod = self.pods.get(order["metadata"]["name"])
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            return answer(409, "pod is being deleted, cannot be assigned to a host")
        done = super()._bind(order)
        if done.status == 201:
            self.tell("put", self.pods[order["metadata"]["name"]])
        return done

    def change(self, name: str, **parts: Json) -> None:
        for part, values in parts.items():
            self.pods[name].setdefault(part, {}).update(values)
        self.tell("put", self.pods[name])

    def delete(self, name: str) -> None:
        self.tell("removed", self.pods.pop(name))


class World:
    """A desk beside this API; `asked`: pods that kube-scheduler knows and that are unbound, as far as it knows."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes = [node(name, CARDS) for name in ("a", "b", "c")]
        self.desk = Desk(*self.nodes)
        api = self.api = Api()
        self.desk.api = api
        self.desk.binder._poster = api
        self.desk.binder._client = api  # type: ignore[assignment]
        watch, extender, duties = self.desk.watch, self.desk.extender, self.desk.duties
        watch.on_pod = lambda pod: (extender.saw(pod), duties.saw(pod))  # type: ignore[func-returns-value,assignment]
        watch.on_gone = lambda uid: (extender.gone(uid), duties.gone(uid))  # type: ignore[func-returns-value,assignment]
        duties.quotas.set_limit(Limit("default", "q", {MEMORY: QUOTA_MIB * MI}))
        self.seen = self.listed = self.made = 0  # events told, those before the last list, pods
        self.attempts: dict[str, list[str]] = {}  # pod -> nodes that filter returned last
        self.scripts: list[asyncio.Task[str]] = []

    # ---- what may happen ----

    async def comes(self) -> None:
        self.made += 1
        name = f"p{self.made}"
        again = self.random.random() < 0.2 and self.made > 1 and f"p{self.made - 1}" not in self.api.pods
        if again:  # the name of one that is gone
            name = f"p{self.made - 1}"
        memory, cards = self.random.choice((10_000, 30_000, 45_000, 80_000)), self.random.choice((1, 1, 2))
        self.api.add(share_pod(name, memory=memory, cards=cards, cores=10), f"uid-{self.made}")

    def unbound(self) -> list[Json]:
        return [pod for pod in self.api.pods.values() if not pod["spec"].get("nodeName")]

    async def asks(self) -> None:
        for pod in self.random.sample(self.unbound(), min(2, len(self.unbound()))):
            fitting = self.desk.filter(copy.deepcopy(pod))
            if len(fitting) > 1 and self.random.random() < 0.8:
                self.desk.prioritize(copy.deepcopy(pod), fitting)
            self.attempts[pod["metadata"]["uid"]] = fitting

    async def binds(self) -> None:
        for pod in self.unbound():
            fitting = self.attempts.pop(pod["metadata"]["uid"], [])
            if fitting and self.random.random() < 0.8:
                if self.random.random() < 0.3:
                    self.api.next.extend(self.random.choice(FAULTS) for _ in range(self.random.choice((1, 2, 5))))
                bind = asyncio.ensure_future(self.desk.bind(copy.deepcopy(pod), self.random.choice(fitting)))
                self.scripts.append(bind)
                if self.random.random() < 0.1:
                    bind.cancel()

    async def flashes_by(self) -> None:
        """A pod comes, is bound, and is gone before anything is told of it."""
        await self.comes()
        pod = self.api.pods[next(reversed(self.api.pods))]
        fitting = self.desk.filter(copy.deepcopy(pod))
        if fitting:
            await self.desk.bind(copy.deepcopy(pod), fitting[0])
        self.api.delete(pod["metadata"]["name"])

    async def another_binds(self) -> None:
        """Somebody binds a pod of ours by hand, without a grant."""
        for pod in self.unbound()[:1]:
            self.api.change(pod["metadata"]["name"], spec={"nodeName": self.random.choice("abc")})

    async def ends(self) -> None:
        if self.api.pods:
            name = self.random.choice(sorted(self.api.pods))
            kind = self.random.randrange(4)
            if kind == 0:
                due = (self.desk.clock.date() + timedelta(seconds=GRACE_S)).isoformat()
                self.api.change(name, metadata={"deletionTimestamp": due, "deletionGracePeriodSeconds": GRACE_S})
            elif kind == 1 and self.api.pods[name]["spec"].get("nodeName"):
                self.api.change(name, status={"phase": "Succeeded"})
            else:
                self.api.delete(name)

    async def watch_tells(self) -> None:
        for kind, pod in self.api.log[self.seen : self.seen + self.random.randint(1, 6)]:
            self.seen += 1
            self.tell(kind, pod)

    def tell(self, kind: str, pod: Json) -> None:
        pods = self.desk.watch.pods
        view = msgspec.convert(pod, WatchedPod)
        pods._tell((pods._store.put if kind == "put" else pods._store.remove)(view))

    async def old_news(self) -> None:
        """An event of this stream comes again."""
        if self.seen > self.listed:
            self.tell(*self.random.choice(self.api.log[self.listed : self.seen]))

    async def lists_anew(self) -> None:
        """Everything in between is never told."""
        self.seen = self.listed = len(self.api.log)
        pods = self.desk.watch.pods
        pods._tell(pods._store.replace([msgspec.convert(pod, WatchedPod) for pod in self.api.pods.values()]))

    async def time_passes(self) -> None:
        self.desk.clock.time += self.random.choice((1.0, 20.0, 40.0, 130.0))
        await self.desk.extender.settle()

    async def a_moment(self) -> None:
        for _ in range(self.random.randint(1, 20)):
            await asyncio.sleep(0)

    async def step(self) -> None:
        happens = [self.comes] * 4 + [self.asks] * 5 + [self.binds] * 4
        happens += [self.ends] * 3 + [self.watch_tells] * 5 + [self.a_moment] * 3 + [self.time_passes, self.old_news]
        happens += [self.flashes_by]
        happens += [self.lists_anew, self.another_binds] if self.random.random() < 0.3 else []
        await self.random.choice(happens)()

    # ---- what must hold ----

    def living(self) -> list[tuple[Json, Any]]:
        """Pods that have cards, with their grants."""
        found = []
        for pod in self.api.pods.values():
            text = pod["metadata"].get("annotations", {}).get(names.GRANT)
            if text and pod.get("status", {}).get("phase") != "Succeeded":
                uid, on = pod["metadata"]["uid"], pod["spec"]["nodeName"]
                found.append((pod, parse_grant(text, uid=uid, node=on, pod=pod["metadata"]["name"])))
        return found

    def check(self) -> None:
        used: dict[str, int] = {}
        total = 0
        for pod, grant in self.living():
            seen = msgspec.convert(pod, WatchedPod)
            is_stuck = seen.overdue_at is not None and seen.overdue_at < self.desk.clock.date()
            for uuid, need in granted_need(grant, seen.order).items():
                used[uuid] = used.get(uuid, 0) + need.memory
                total += 0 if is_stuck else need.memory  # its cards are its own still
        assert max(used.values(), default=0) <= CARD_MIB * MI
        assert total <= QUOTA_MIB * MI
        assert self.desk.books.recount() == ()

    async def quiet(self) -> None:
        """Let everything end, and be told."""
        await asyncio.gather(*self.scripts, return_exceptions=True)
        self.api.next.clear()
        await (self.lists_anew if self.random.random() < 0.5 else self._told_all)()
        for _ in range(4):
            self.desk.clock.time += max(UNKNOWN_S, UNSEEN_S) + 1
            await self.desk.extender.settle()

    async def _told_all(self) -> None:
        while self.seen < len(self.api.log):
            await self.watch_tells()

    def check_quiet(self) -> None:
        books, quotas = self.desk.books, self.desk.duties.quotas
        assert len(self.desk.binder) == 0
        assert not any(use.reserved for state in books.nodes.values() for use in state.pods.values())
        free: dict[str, int] = {}
        for state in books.nodes.values():
            free |= zip(state.uuids, state.memory, strict=True)
        for pod, grant in self.living():
            for uuid, need in granted_need(grant, msgspec.convert(pod, WatchedPod).order).items():
                free[uuid] += need.memory
        assert set(free.values()) == {CARD_MIB * MI}
        counted = {uid for uid in quotas.book._where if quotas.book.charge(uid)}
        assert counted <= {pod["metadata"]["uid"] for pod in self.api.pods.values()}, "nobody who is gone"


def disturb(seed: int) -> None:
    """Play one world; raises AssertionError for the first thing that does not hold."""

    async def play() -> None:
        world = World(seed)
        for _ in range(STEPS):
            await world.step()
            world.check()
        await world.quiet()
        world.check()
        world.check_quiet()

    asyncio.run(play())
