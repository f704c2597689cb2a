"""What the agent under test stands in: cards, pods and reports as doubles, kubelet in-process, files in a directory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from partage.devices.backend import Card, CardUse, ContainerEdits, DeviceNode, Enforcement, HealthChange, Inventory
from partage.model import DeviceError, ShareClass, names
from partage.model.grant import ContainerGrant, Grant, GrantShare, encode_grant
from partage.model.need import Role
from partage.model.node_devices import DeviceLink
from partage_plugin.agent import Agent, Choices
from partage_plugin.monitor.whereabouts import Place
from partage_plugin.places import Places
from partage_plugin.ports import Pod, PodChange, PodContainer
from tests.plugin.kubelet import HANG_S, RESOURCE, Kubelet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from partage.model.grant import Mode
    from partage.run.handover import HandOver

GI = 1 << 30
NODE = "n1"
CARDS = tuple(f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in range(2))


def card(index: int, **changes: Any) -> Card:
    base = Card(CARDS[index], index, "TEST CARD", 80 * GI, 80 * GI, seats=10, numa=0)
    return replace(base, **changes)


class Cards:
    """A backend whose cards a test chooses."""

    name = "nvidia"
    resource = RESOURCE

    def __init__(self, *cards: Card) -> None:
        self.cards = cards or (card(0), card(1))
        self.fails: str | None = None
        self.processes: dict[str, dict[int, int | None] | None] = {}  # by card: what the driver says of each
        self.cannot_hold: frozenset[str] = frozenset()
        self.released: list[tuple[GrantShare, ...]] = []
        self.changes: asyncio.Queue[HealthChange] = asyncio.Queue()

    async def discover(self) -> Inventory:
        if self.fails is not None:
            raise DeviceError("cards", self.fails, "cards are needed", "mend the test")
        links = tuple(tuple(DeviceLink() for _ in self.cards) for _ in self.cards)
        return Inventory(tuple(self.cards), links)

    async def watch_health(self) -> AsyncIterator[HealthChange]:
        while True:
            yield await self.changes.get()

    async def prepare(self, shares: Sequence[GrantShare]) -> ContainerEdits:
        if self.fails is not None:
            raise DeviceError("cards", self.fails, "cards are needed", "mend the test")
        uuids = [share.uuid for share in shares]
        nodes = tuple(DeviceNode(f"/dev/test{CARDS.index(uuid)}", f"/dev/test{CARDS.index(uuid)}") for uuid in uuids)
        return ContainerEdits(env={"VISIBLE": ",".join(uuids)}, nodes=nodes)

    def use(self) -> dict[str, CardUse]:
        if self.fails is not None:
            raise DeviceError("cards", self.fails, "cards are needed", "mend the test")
        return {one.uuid: CardUse(processes=self.processes.get(one.uuid, {})) for one in self.cards}

    async def release(self, shares: Sequence[GrantShare]) -> None:
        self.released.append(tuple(shares))

    def enforcement(self, mode: Mode) -> Enforcement:
        if mode in self.cannot_hold:
            raise DeviceError("cards", f"mode {mode}", "another mode is needed", "mend the test")
        return Enforcement.NONE if mode in {"whole", "timeslice"} else Enforcement.SHIM


class PodList:
    """The pods of the node as the API server would tell them."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.synced = asyncio.Event()
        self.synced.set()
        self._queues: list[asyncio.Queue[PodChange]] = []
        self._told = asyncio.Condition()
        self.unreachable = False
        self.ever: list[Pod] = []

    @property
    def is_synced(self) -> bool:
        return self.synced.is_set()

    def get(self, uid: str) -> Pod | None:
        return self.pods.get(uid)

    def all(self) -> list[Pod]:
        return list(self.pods.values())

    async def wait_synced(self) -> None:
        await self.synced.wait()

    async def wait_for(self, uid: str, seconds: float) -> Pod | None:
        try:
            async with asyncio.timeout(0.2 if seconds else 0), self._told:
                await self._told.wait_for(lambda: uid in self.pods)
        except TimeoutError:
            return None
        return self.pods[uid]

    async def find(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def namesakes(self, namespace: str, name: str, seconds: float) -> set[str]:
        return {pod.uid for pod in self.ever if (pod.namespace, pod.name) == (namespace, name)}

    async def changes(self) -> AsyncIterator[PodChange]:
        queue: asyncio.Queue[PodChange] = asyncio.Queue()
        self._queues.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.remove(queue)

    async def put(self, pod: Pod) -> Pod:
        async with self._told:
            self.pods[pod.uid] = pod
            self.ever.append(pod)
            self._told.notify_all()
        for queue in self._queues:
            queue.put_nowait(PodChange(pod))
        return pod

    async def delete(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        for queue in self._queues:
            queue.put_nowait(PodChange(pod, gone=True))


@dataclass
class Told:
    """What was reported: events as (pod, reason), the latest condition by (pod, kind)."""

    events: list[tuple[str, str, str]] = field(default_factory=list)
    conditions: dict[tuple[str, str], tuple[bool, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = asyncio.Event()

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        self.events.append((pod.name, reason, message))
        self.changed.set()

    def condition(self, pod: Pod, kind: str, *, holds: bool, reason: str, message: str) -> None:
        self.conditions[pod.name, kind] = (holds, reason, message)
        self.changed.set()

    async def until(self, condition, seconds: float = HANG_S) -> None:  # type: ignore[no-untyped-def]
        async with asyncio.timeout(seconds):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


class Watched:
    """Who would watch what runs."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, entry: HandOver) -> None:
        self.names.add(entry.name)

    def remove(self, name: str) -> None:
        self.names.discard(name)


def share(index: int = 0, memory: int = 8 * GI, cores: int = 300, **changes: Any) -> GrantShare:
    base = GrantShare(
        backend="nvidia", uuid=CARDS[index], memory=memory, cores=cores, ceiling=cores or 1000, weight=100
    )
    return base if not changes else GrantShare(**{**_fields(base), **changes})


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def part(*shares: GrantShare, mode: Mode = "shim", kind: ShareClass = ShareClass.FIXED) -> ContainerGrant:
    kind = kind if shares and shares[0].cores else ShareClass.BURST
    return ContainerGrant(share_class=kind, priority=1, mode=mode, shares=shares or (share(),))


def grant_text(
    uid: str, *, node: str = NODE, term: int = 0, at: int = 1000, gen: int = 1, **containers: ContainerGrant
) -> str:
    return encode_grant(Grant(v=1, uid=uid, node=node, term=term, bound_at=at, gen=gen, containers=containers))


def pod_of(
    uid: str,
    *,
    text: str | None = None,
    roles: dict[str, Role] | None = None,
    name: str = "",
    **containers: ContainerGrant,
) -> Pod:
    """A pod with a grant for these containers; `text`: another text in its place, empty: no grant."""
    known = roles or {}
    text = grant_text(uid, node=NODE, term=0, at=1000, gen=1, **containers) if text is None else text
    return Pod(
        uid=uid,
        namespace="default",
        name=name or f"pod-{uid}",
        node=NODE,
        annotations={names.GRANT: text} if text else {},
        containers=tuple(
            PodContainer(container, known.get(container, Role.APP), {RESOURCE: len(given.shares)})
            for container, given in containers.items()
        ),
    )


@dataclass
class World:
    """Everything around one agent, which `agent()` runs."""

    top: Path

    def __post_init__(self) -> None:
        self.places = Places(
            root=self.top / "run",
            cdi=self.top / "cdi",
            plugins=self.top / "kubelet",
            pod_resources=self.top / "pr/kubelet.sock",
            library=self.top / "lib",
            locks=self.top / "locks",
        )
        self.places.locks.mkdir()
        self.library = self.top / "libvgpu.so"
        self.library.write_bytes(b"\x7fELF and so on")
        self.kubelet = Kubelet(self.places.plugins, self.places.pod_resources)
        self.backend = Cards()
        self.pods = PodList()
        self.told = Told()
        self.watch = Watched()
        self.cordoned: set[str] = set()
        self.places_of: dict[int, Place] = {}  # where each process is

    def make(self, **choices: Any) -> Agent:
        return Agent(
            choices=Choices(node=NODE, **choices),
            places=self.places,
            backend=self.backend,
            pods=self.pods,
            reports=self.told,
            watch=self.watch,
            library=self.library,
            cordoned=self.cordoned_now,
            place_of=lambda pid: self.places_of.get(pid, Place()),
        )

    async def cordoned_now(self) -> set[str]:
        return self.cordoned

    @asynccontextmanager
    async def agent(self, **choices: Any) -> AsyncIterator[Agent]:
        """Run an agent; leaving it is its end by cancellation."""
        agent = self.make(**choices)
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task  # raises what it failed by

    @asynccontextmanager
    async def running(self, **choices: Any) -> AsyncIterator[Agent]:
        """Run kubelet and an agent that has registered with it."""
        await self.kubelet.start()
        try:
            async with self.agent(**choices) as agent:
                await self.kubelet.registered()
                yield agent
        finally:
            await self.kubelet.stop()
