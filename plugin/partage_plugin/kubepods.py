"""The pods of this node as the API server tells them: the `Pods` of ports.py over an informer of partage.kube.

What can go wrong: the API server is away; what was known stays known, and `wait_for` and `find` find nothing new.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from lightkube.resources.core_v1 import Pod as KubePod

from partage.devices.quantity import parse_quantity
from partage.kube import Informer, key_of
from partage.model import KubeError
from partage.model.need import Role
from partage_plugin.ports import Pod, PodChange, PodContainer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from partage.kube import Change, Client

FIND_S: Final = 5.0
GONE_MAX: Final = 4096  # pods of which it is remembered when they went


class ClusterPods:
    """Pods by UID. `run` keeps them so."""

    def __init__(self, client: Client, node: str, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._informer: Informer[KubePod] = Informer(client, KubePod, fields={"spec.nodeName": node})
        self._known: dict[str, tuple[KubePod, Pod]] = {}  # by UID: as the API has it, as we need it
        self._all: tuple[Pod, ...] | None = None  # None: not what they are now
        self._gone: OrderedDict[str, tuple[str, str, float]] = OrderedDict()  # by UID: namespace, name, when
        self._now = now
        self._informer.subscribe(self._follow)

    async def run(self) -> None:
        """List and watch until cancelled."""
        await self._informer.run()

    @property
    def is_synced(self) -> bool:
        """Whether the list is whole."""
        return self._informer.is_synced

    @property
    def problem(self) -> str | None:
        """Why the list may be old; None where it is not."""
        return self._informer.problem

    def get(self, uid: str) -> Pod | None:
        """Return the pod with this UID, or None."""
        known = self._known.get(uid)
        return None if known is None else known[1]

    def kube_pod(self, uid: str) -> KubePod | None:
        """Return the pod with this UID as the API has it, or None."""
        return self._informer.get(uid)

    def all(self) -> Sequence[Pod]:
        """Return all pods of this node; the same until one changes."""
        if self._all is None:
            self._all = tuple(pod for _, pod in self._known.values())
        return self._all

    async def wait_synced(self) -> None:
        """Return once the list is whole."""
        await self._informer.wait_synced()

    async def wait_for(self, uid: str, seconds: float) -> Pod | None:
        """Return the pod with this UID as soon as it is known; None where it is not within `seconds`, or deleted."""
        try:
            return self._pod(await self._informer.wait_for(uid, timeout=seconds))
        except (TimeoutError, KubeError):
            return None

    async def find(self, namespace: str, name: str) -> Pod | None:
        """Ask the API server now for the pod of this name; None where there is none here or it does not answer."""
        try:
            async with asyncio.timeout(FIND_S):
                found = pod_of(await self._client.get(KubePod, name, namespace=namespace))
        except (TimeoutError, KubeError):
            return None
        return found if found.node == self._node else None

    def namesakes(self, namespace: str, name: str, seconds: float) -> frozenset[str]:
        """Return the UIDs of all pods that had this name here at any time in the last `seconds`."""
        there = {pod.uid for pod in self.all() if (pod.namespace, pod.name) == (namespace, name)}
        since = self._now() - seconds
        gone = {uid for uid, (*whose, at) in self._gone.items() if whose == [namespace, name] and at >= since}
        return frozenset(there | gone)

    async def changes(self) -> AsyncIterator[PodChange]:
        """Yield every change from now on, what is there already first."""
        queue: asyncio.Queue[PodChange] = asyncio.Queue()

        def tell(change: Change[KubePod]) -> None:
            queue.put_nowait(PodChange(self._pod(change.object), gone=change.kind == "deleted"))

        end: Callable[[], None] = self._informer.subscribe(tell, replay=True)
        with contextlib.ExitStack() as subscribed:
            subscribed.callback(end)
            while True:
                yield await queue.get()

    def _pod(self, found: KubePod) -> Pod:
        known = self._known.get(key_of(found).uid)
        return known[1] if known is not None and known[0] is found else pod_of(found)

    def _follow(self, change: Change[KubePod]) -> None:
        """Keep what we need of each pod; before all others that follow changes."""
        self._all = None
        if change.kind == "deleted":
            self._known.pop(change.key.uid, None)
            self._gone[change.key.uid] = (change.key.namespace, change.key.name, self._now())
            while len(self._gone) > GONE_MAX:
                self._gone.popitem(last=False)
        else:
            self._known[change.key.uid] = (change.object, pod_of(change.object))


def pod_of(found: KubePod) -> Pod:
    """Return what the agent needs to know of a pod as the API has it."""
    meta, spec, status = found.metadata, found.spec, found.status
    key = key_of(found)
    init = (spec.initContainers if spec else None) or []
    apps = (spec.containers if spec else None) or []
    roles = [(one, Role.SIDECAR if one.restartPolicy == "Always" else Role.INIT) for one in init]
    roles += [(one, Role.APP) for one in apps]
    return Pod(
        uid=key.uid,
        namespace=key.namespace,
        name=key.name,
        node=(spec.nodeName if spec else None) or "",
        phase=(status.phase if status else None) or "Pending",
        annotations=dict((meta.annotations if meta else None) or {}),
        containers=tuple(PodContainer(one.name, role, _asks(one), _mounts(one)) for one, role in roles),
    )


def _asks(container: Any) -> dict[str, int]:
    """Return the extended resources of a container: whole numbers, under names with a domain."""
    limits = (container.resources.limits if container.resources else None) or {}
    counts = {name: parse_quantity(value) for name, value in limits.items() if "/" in name}  # 3000 is told as 3k
    return {name: int(one.value) for name, one in counts.items() if one is not None and one.is_whole and one.value}


def _mounts(container: Any) -> tuple[str, ...]:
    """Return where a container has something mounted that its spec asks for: kubelet's file for its last words, too."""
    volumes = [mount.mountPath for mount in container.volumeMounts or ()]
    devices = [device.devicePath for device in container.volumeDevices or ()]
    return (*volumes, *devices, *filter(None, (container.terminationMessagePath,)))
