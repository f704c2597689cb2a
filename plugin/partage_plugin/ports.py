"""What the agent asks of the world around it: pods, a place to report to, time. Doubles in tests implement the same.

`Pods` is filled from the API server's watch (partage.kube); a pod is known by its UID, since a name is used again.
Nothing here blocks: what has to reach the API server is queued by whoever implements `Reports`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from partage.model import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from partage.model.need import Role

_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodContainer:
    """One container of a pod's spec; `asks`: extended resource -> count, `mounts`: where it has its own mounted."""

    name: str
    role: Role
    asks: Mapping[str, int] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """What the agent needs to know of a pod; `containers` in the order of the spec, init containers first."""

    uid: str
    namespace: str
    name: str
    node: str
    phase: str = "Pending"
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[PodContainer, ...] = ()

    @property
    def full_name(self) -> str:
        """How people name it: `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_over(self) -> bool:
        """Whether it will never run a container again."""
        return self.phase in _OVER

    @property
    def mirrors(self) -> str:
        """The UID by which kubelet knows the static pod that this one shows; empty for any other pod."""
        return self.annotations.get(names.MIRROR, "")

    @property
    def roles(self) -> tuple[tuple[str, Role], ...]:
        """Its containers and when each runs."""
        return tuple((container.name, container.role) for container in self.containers)

    def container(self, name: str) -> PodContainer | None:
        """Return the container of this name, or None."""
        return next((container for container in self.containers if container.name == name), None)


@dataclass(frozen=True, slots=True)
class PodChange:
    """A pod came or is another than before; `gone`: it exists no more, `pod` is how it was seen last."""

    pod: Pod
    gone: bool = False


class Pods(Protocol):
    """The pods bound to this node."""

    @property
    def is_synced(self) -> bool:
        """Whether the list is whole: a pod that is not in it does not exist, or came within the last moments."""

    def get(self, uid: str) -> Pod | None:
        """Return the pod with this UID, or None."""

    def all(self) -> Collection[Pod]:
        """Return all pods of this node."""

    async def wait_synced(self) -> None:
        """Return once the list is whole."""

    async def wait_for(self, uid: str, seconds: float) -> Pod | None:
        """Return the pod with this UID as soon as it is known; None where it is not within `seconds`."""

    async def find(self, namespace: str, name: str) -> Pod | None:
        """Ask the API server now for the pod of this name; None where there is none or it does not answer."""

    def namesakes(self, namespace: str, name: str, seconds: float) -> Collection[str]:
        """Return the UIDs of all pods that had this name here at any time in the last `seconds`."""

    def changes(self) -> AsyncIterator[PodChange]:
        """Yield every change from now on, until closed; changes of one pod may be told as one."""


class Reports(Protocol):
    """Where people see what became of their pods. Queued, and said once: whoever implements it drops what was told."""

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Put an event onto the pod."""

    def condition(self, pod: Pod, kind: str, *, holds: bool, reason: str, message: str) -> None:
        """Set a condition of the pod's status."""


class Clock(Protocol):
    """Time that only goes forward, whatever the machine's clock does."""

    def now(self) -> float:
        """Return seconds since some moment."""

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""


class MonotonicClock:
    """The machine's."""

    def now(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""
        await asyncio.sleep(seconds)
