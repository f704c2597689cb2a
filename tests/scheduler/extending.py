"""An extender over real books without any API server: a poster that answers what the test says, questions as JSON."""

from __future__ import annotations

import copy
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from partage.devices.requests import AskOptions
from partage.kube.poster import Answer
from partage.model import KubeError, names
from partage.scheduler.bind import Binder
from partage.scheduler.books import Books
from partage.scheduler.duties import Duties
from partage.scheduler.extender import Extender
from partage.scheduler.facts_of import node_facts, pod_facts
from partage.scheduler.leader import Term
from partage.scheduler.protocol import Args, BindArgs, read_args
from partage.scheduler.tell import Tell
from partage.scheduler.views import WatchedNode, WatchedPod
from partage.scheduler.watch import Watch
from tests.cluster.scheduling import node, share_pod
from tests.kube.support import FakeClock

if TYPE_CHECKING:
    from lightkube.resources.events_v1 import Event

    from partage.kube import Client

Json = dict[str, Any]
BOUND = Answer(201)


def answer(status: int, message: str = "") -> Answer:
    return Answer(status, "Reason", message)


LOST = Answer(0, message="no whole answer")
NOT_REACHED = Answer(0, message="not reached", is_sent=False)


@dataclass
class FakeApi:
    """Pods by name; takes Bindings as the API server does, unless the test says what becomes of the next one."""

    pods: dict[str, Json] = field(default_factory=dict)
    posts: list[Json] = field(default_factory=list)
    next: deque[tuple[Answer, bool]] = field(default_factory=deque)  # answer, and whether it happens all the same
    reads: int = 0
    writes: list[Json] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    read_fails: int = 0

    def add(self, pod: Json, uid: str) -> Json:
        made = json.loads(json.dumps(pod))
        made["metadata"] |= {"uid": uid, "namespace": "default"}
        self.pods[made["metadata"]["name"]] = made
        return copy.deepcopy(made)

    async def post(self, path: str, body: bytes) -> Answer:
        order = json.loads(body)
        self.posts.append(order)
        said, happens = self.next.popleft() if self.next else (None, True)
        done = self._bind(order) if happens else None
        return said or done or BOUND

    def _bind(self, order: Json) -> Answer:
        pod = self.pods.get(order["metadata"]["name"])
        if pod is None:
            return answer(404, "not found")
        if pod["metadata"]["uid"] != order["metadata"]["uid"]:
            return answer(409, "Precondition failed: UID")
        if pod["spec"].get("nodeName"):
            return answer(409, f"pod is already assigned to node {pod['spec']['nodeName']}")
        pod["spec"]["nodeName"] = order["target"]["name"]
        pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | order["metadata"]["annotations"]
        return BOUND

    async def get(self, resource: type, name: str, *, namespace: str) -> WatchedPod:
        self.reads += 1
        if self.read_fails:
            self.read_fails -= 1
            raise KubeError("GET pod", "no answer", "an answer", "wait")
        if name not in self.pods:
            raise KubeError("GET pod", "404", "not there", "nothing", status=404)
        return msgspec.convert(self.pods[name], WatchedPod)

    async def patch(self, resource: type, name: str, body: Json, **_: object) -> None:
        self.writes.append(body)

    async def create(self, obj: Event) -> None:
        self.events.append(obj)


class Desk:
    """An extender, its world, and what kube-scheduler would do with it."""

    def __init__(self, *nodes: Json, options: AskOptions | None = None, reserved_s: float = 30.0) -> None:
        self.api = FakeApi()
        self.clock = FakeClock(jumps=True)
        self.is_leader = True
        self.books = Books(reserved_s=reserved_s)
        client = cast("Client", self.api)
        self.binder = Binder(self.api, client, self.clock, self.leads)
        self.watch = Watch(client, self.books, self.clock)
        self.tell = Tell(client, self.clock, "test")
        options = options or AskOptions()
        self.duties = Duties(client, self.books, self.watch, self.clock, options=options, instance="test", term=7)
        self.extender = Extender(
            books=self.books,
            watch=self.watch,
            binder=self.binder,
            quotas=self.duties.quotas,
            evictor=self.duties.evictor,
            waker=self.duties.waker,
            tell=self.tell,
            clock=self.clock,
            term=Term(7),
            options=options,
        )
        self.nodes = [one["metadata"]["name"] for one in nodes]
        for one in nodes:
            self.books.set_node(node_facts(msgspec.convert(one, WatchedNode)))

    async def leads(self) -> bool:
        return self.is_leader

    def pod(self, name: str, **wish: Any) -> Json:
        """A pod that exists, `uid-<name>`."""
        return self.api.add(share_pod(name, **wish), f"uid-{name}")

    def args(self, pod: Json, nodes: list[str] | None = None) -> Args:
        return read_args(json.dumps({"Pod": pod, "NodeNames": self.nodes if nodes is None else nodes}).encode())

    def filter(self, pod: Json, nodes: list[str] | None = None) -> list[str]:
        return self.extender.filter(self.args(pod, nodes)).node_names or []

    def prioritize(self, pod: Json, nodes: list[str]) -> list[tuple[str, int]]:
        return [(one.host, one.score) for one in self.extender.prioritize(self.args(pod, nodes))]

    def choose(self, pod: Json) -> str:
        """Filter and prioritize as kube-scheduler does; return its choice, empty where there is none."""
        fitting = self.filter(pod)
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        scores = self.prioritize(pod, fitting)
        return max(scores, key=lambda one: one[1])[0]

    async def bind(self, pod: Json, to: str) -> str:
        """Return bind's error, empty: bound."""
        meta = pod["metadata"]
        return (await self.extender.bind(BindArgs(meta["name"], "default", meta["uid"], to))).error

    def show(self, name: str) -> None:
        """Let the watch show a pod as it is."""
        pod = msgspec.convert(self.api.pods[name], WatchedPod)
        facts = pod_facts(pod)
        if facts is not None:
            self.books.set_pod(facts)
        self.extender.saw(pod)

    def gone(self, name: str) -> None:
        """Let the pod be deleted and the watch say so."""
        uid = self.api.pods.pop(name)["metadata"]["uid"]
        self.books.drop_pod(uid)
        self.extender.gone(uid)

    def grant(self, name: str) -> Json:
        return cast("Json", json.loads(self.api.pods[name]["metadata"]["annotations"][names.GRANT]))


def one_card(name: str = "n1") -> Json:
    return node(name, 1)
