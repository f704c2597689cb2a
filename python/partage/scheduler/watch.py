"""The API server's pods and nodes, told to the books as they change.

    watch = Watch(client, books, clock)
    tasks.create_task(watch.run())
    await watch.wait_synced()           # a whole list of each: the books are what the API server has
    watch.pod(uid); watch.problem

Owned by one term of the scheduler: a new term makes new books and lists anew. An update that says nothing new to the
books (kubelet's status, a repeated event) does not reach them. What cannot be read is flagged where it stands, by an
event on the node and in the books' refusals, and everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

import structlog

from partage.kube import Change, Informer
from partage.scheduler.facts_of import node_facts, pod_facts
from partage.scheduler.views import WatchedNode, WatchedPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partage.kube import Client, Clock
    from partage.scheduler.facts import NodeFacts, PodFacts

log = structlog.get_logger("partage.scheduler")


class Told(Protocol):
    """The part of the books that is told."""

    def set_node(self, node: NodeFacts) -> None:
        """Take over what is known of a node."""

    def drop_node(self, name: str) -> None:
        """Forget a node."""

    def set_pod(self, pod: PodFacts) -> None:
        """Take over what is known of a pod."""

    def drop_pod(self, uid: str) -> None:
        """Forget a pod."""


class Watch:
    """Two informers and what they told."""

    def __init__(self, client: Client, books: Told, clock: Clock) -> None:
        self._books = books
        self._nodes: Informer[WatchedNode] = Informer(client, WatchedNode, clock=clock)
        self._pods: Informer[WatchedPod] = Informer(client, WatchedPod, clock=clock)
        self._told: dict[str, PodFacts] = {}
        self._told_nodes: dict[str, NodeFacts] = {}
        #: How often a pod came to a node or went from one.
        self.moves = 0
        self._nodes.subscribe(self._node)
        self._pods.subscribe(self._pod)
        self.on_pod: Callable[[WatchedPod], None] = lambda _: None
        self.on_gone: Callable[[str], None] = lambda _: None
        self.on_unreadable: Callable[[str, str], None] = lambda _name, _problem: None

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run(), name="nodes")
            tasks.create_task(self._pods.run(), name="pods")

    async def wait_synced(self) -> None:
        """Return once all nodes and all pods have been told."""
        await self._nodes.wait_synced()
        await self._pods.wait_synced()

    @property
    def problem(self) -> str:
        """Why the API server is not watched; empty: it is."""
        return "; ".join(filter(None, (self._nodes.problem, self._pods.problem)))

    @property
    def stale_for(self) -> float:
        """Seconds since the API server was last heard of pods or of nodes, whichever is longer."""
        return max(self._nodes.stale_for, self._pods.stale_for)

    @property
    def pods(self) -> Informer[WatchedPod]:
        """All pods."""
        return self._pods

    @property
    def nodes(self) -> Informer[WatchedNode]:
        """All nodes."""
        return self._nodes

    def pod(self, uid: str) -> WatchedPod | None:
        """Return the pod with this UID, or None."""
        return self._pods.get(uid)

    @property
    def unreadable(self) -> dict[str, str]:
        """Node -> what is wrong with what it says of its cards."""
        return {name: facts.problem for name, facts in self._told_nodes.items() if facts.problem}

    def node_names(self) -> Iterable[str]:
        """Return the names of all nodes."""
        return [node.name for node in self._nodes]

    def bound(self) -> dict[str, list[str]]:
        """Return node -> UIDs of the pods that are bound to it, as long as `moves` is what it is."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for pod in self._pods:
            if pod.node:
                found[pod.node].append(pod.uid)
        return found

    def facts(self, nodes: Iterable[str], uids: Iterable[str]) -> tuple[list[NodeFacts], list[PodFacts]]:
        """Return what the API server has of these nodes and pods now, made anew from its objects: for an audit."""
        there = [node for name in nodes if (node := self._nodes.named("", name)) is not None]
        pods = [pod for uid in uids if (pod := self._pods.get(uid)) is not None]
        return list(map(node_facts, there)), [facts for pod in pods if (facts := pod_facts(pod)) is not None]

    def _node(self, change: Change[WatchedNode]) -> None:
        name = change.object.name
        if change.kind == "deleted":
            self._told_nodes.pop(name, None)
            self._books.drop_node(name)
            return
        facts, before = node_facts(change.object), self._told_nodes.get(name)
        if facts == before:
            return
        self._told_nodes[name] = facts
        self._books.set_node(facts)
        if facts.problem and (before is None or facts.problem != before.problem):
            log.warning("a node's devices cannot be read", node=name, problem=facts.problem)
            self.on_unreadable(name, facts.problem)

    def _pod(self, change: Change[WatchedPod]) -> None:
        uid, pod = change.key.uid, change.object
        if change.kind == "deleted" or change.old is None or change.old.node != pod.node:
            self.moves += 1
        if change.kind == "deleted":
            if self._told.pop(uid, None) is not None:
                self._books.drop_pod(uid)
            self.on_gone(uid)
            return
        facts, before = pod_facts(pod), self._told.get(uid)
        if facts != before:
            if facts is None:
                del self._told[uid]
                self._books.drop_pod(uid)
            else:
                self._told[uid] = facts
                self._books.set_pod(facts)
        self.on_pod(pod)
