"""What the node agent asks of a vendor: discover, watch health, prepare, release, say how its cards are linked.

One folder beside this file for each vendor implements `Backend`; the agent and the tests hold it to this page. A
backend speaks of cards by UUID, of memory in bytes and of cores in permille; it knows no pod, no kubelet and no file of
ours. One broken card never hides the others: `discover` reports it unhealthy with its reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from partage.model.grant import GrantShare, Mode
    from partage.model.node_devices import DeviceLink, Profile


class Enforcement(enum.Flag):
    """What holds the limits of a container: the bits of the policy file, any number of them; none: nobody does."""

    NONE = 0
    SHIM = 1
    DMEM = 2
    MPS = 4
    MIG = 8
    VENDOR = 16


@dataclass(frozen=True, slots=True)
class Card:
    """One card as found. `physical`: what it carries; `allocatable`: what shares may add up to; `reason`: why not."""

    uuid: str
    index: int
    name: str
    physical: int
    allocatable: int
    seats: int
    numa: int = -1
    mode: Mode = "shim"
    healthy: bool = True
    reason: str = ""
    address: str = ""  # of the bus, as the vendor's tools print it
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All cards of one vendor on the node, by index, and the links between them, by position in `cards`."""

    cards: tuple[Card, ...]
    links: tuple[tuple[DeviceLink, ...], ...]
    facts: Mapping[str, str] = field(default_factory=dict)  # versions and the like, for labels and `doctor`


@dataclass(frozen=True, slots=True)
class CardUse:
    """What a card's driver says of its use: bytes, permille of the time; None where it does not say.

    `processes`: by the pids of this host the bytes that each holds, None where it does not say how much.
    """

    used: int | None = None
    busy: int | None = None
    memory_busy: int | None = None
    processes: Mapping[int, int | None] | None = None


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A card that failed (`healthy` false, with the reason) or came back."""

    uuid: str
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or directory of the host in the container; CDI's mount."""

    host: str
    container: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container; `permissions` as in a device cgroup: some of r, w, m."""

    host: str
    container: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What a container needs to reach its cards and no others. No hooks: they run as root in the image's hands.

    `groups`: to which its processes belong besides, for nodes that are theirs alone; never root's.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[BindMount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    groups: tuple[int, ...] = ()


class Backend(Protocol):
    """A vendor's cards on this node."""

    @property
    def name(self) -> str:
        """The word in grants and annotations: `nvidia`."""

    @property
    def resource(self) -> str:
        """The resource that kubelet counts: `nvidia.com/gpu`."""

    async def discover(self) -> Inventory:
        """Return what there is now; raises DeviceError only where nothing at all can be asked."""

    def watch_health(self) -> AsyncIterator[HealthChange]:
        """Yield each change as it comes, until closed."""

    def use(self) -> Mapping[str, CardUse]:
        """Return card -> its use now, for the cards that answer. Waits for the driver: not for an event loop.

        Raises DeviceError where nothing can be asked.
        """

    async def prepare(self, shares: Sequence[GrantShare]) -> ContainerEdits:
        """Return what a container with these shares needs, in the order of its ordinals; makes slices where needed.

        Raises DeviceError for a card that is not there or not healthy. Asking twice gives the same answer.
        """

    async def release(self, shares: Sequence[GrantShare]) -> None:
        """Give back what `prepare` made; a container that ended, or that never started. Never twice harmful."""

    def enforcement(self, mode: Mode) -> Enforcement:
        """Return what holds the limits of a container of this mode; raises DeviceError for one that cannot be held.

        `NONE` is for the modes that promise no limits: `timeslice` and `whole`.
        """
