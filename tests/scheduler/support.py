"""Nodes, pods and asks for tests, so that a test reads like a sentence. Memory in GiB where a name ends in `gib`."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from partage.model.ask import ContainerAsk, PodAsk, Shape, Wishes
from partage.model.grant import encode_grant
from partage.model.need import Role
from partage.model.node_devices import DeviceLink, NodeDevice, NodeDevices, SafeMode
from partage.model.share import ShareClass
from partage.model.units import GI
from partage.scheduler.facts import NodeFacts, PodFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partage.scheduler.books import Books

RESOURCE = "nvidia.com/gpu"
PCIE = DeviceLink(kind="system")
_uids = count(1)


def nvlinks(lanes: int = 4, *, kind: Any = "nvlink") -> DeviceLink:
    return DeviceLink(kind=kind, lanes=lanes)


def groups(*members: Sequence[int], lanes: int = 4) -> Callable[[int, int], DeviceLink]:
    """Links of cards in groups that are joined by NVLink; by PCIe between them."""
    return lambda a, b: nvlinks(lanes) if any(a in group and b in group for group in members) else PCIE


NO_NVLINK = groups()


def card(node: str, index: int, **fields: Any) -> NodeDevice:
    values: dict[str, Any] = {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "backend": "nvidia",
        "kind": "NVIDIA A100-SXM4-80GB",
        "mode": "shim",
        "physical": 80 * GI,
        "memory": 80 * GI,
        "cores": 1000,
        "seats": 10,
        "numa": 0,
        "health": True,
    }
    return NodeDevice(**(values | fields))


def devices(
    cards: Sequence[NodeDevice],
    link: Callable[[int, int], DeviceLink] = NO_NVLINK,
    *,
    oversub: int = 1000,
    safe: tuple[SafeMode, ...] = (),
) -> NodeDevices:
    size = range(len(cards))
    links = tuple(tuple(DeviceLink() if a == b else link(min(a, b), max(a, b)) for b in size) for a in size)
    return NodeDevices(v=1, gen=1, agent="test", oversub=oversub, devices=tuple(cards), links=links, safe=safe)


def node(
    name: str = "n",
    cards: int | Sequence[dict[str, Any]] = 8,
    link: Callable[[int, int], DeviceLink] = NO_NVLINK,
    *,
    oversub: int = 1000,
    safe: tuple[SafeMode, ...] = (),
    **facts: Any,
) -> NodeFacts:
    each = [{}] * cards if isinstance(cards, int) else cards
    made = [card(name, index, **fields) for index, fields in enumerate(each)]
    return NodeFacts(name, devices(made, link, oversub=oversub, safe=safe), **facts)


def want(name: str = "app", *, gib: float | None = None, **fields: Any) -> ContainerAsk:
    values: dict[str, Any] = {
        "name": name,
        "role": Role.APP,
        "backend": "nvidia",
        "resource": RESOURCE,
        "cards": 1,
        "memory": None if gib is None else int(gib * GI),
        "percent": None,
        "cores": 0,
        "share_class": ShareClass.FIXED if fields.get("cores") else ShareClass.BURST,
        "priority": 1,
    }
    return ContainerAsk(**(values | fields))


def whole(cards: int = 1, name: str = "app", **fields: Any) -> ContainerAsk:
    return want(name, cards=cards, cores=1000, **fields)


def shape(*containers: ContainerAsk, **wishes: Any) -> Shape:
    ordered = sorted(containers, key=lambda one: one.role is Role.APP)
    return Shape(tuple(ordered), Wishes(**wishes), tuple((one.name, one.role) for one in ordered))


def ask(*containers: ContainerAsk, uid: str = "", **wishes: Any) -> PodAsk:
    uid = uid or f"u{next(_uids)}"
    return PodAsk(uid, "default", f"pod-{uid}", shape(*containers, **wishes), "partage-scheduler")


def bound(books: Books, pod: PodAsk, on: str, *, term: int = 1, bound_at: int = 1, **fields: Any) -> PodFacts:
    """The pod as the API shows it once it is bound to where it is reserved."""
    grant, _ = books.grant_for(pod.uid, on, term=term, bound_at=bound_at)
    seats = dict(books.reservation(pod.uid).placement.seats)  # type: ignore[union-attr]
    values: dict[str, Any] = {"node": on, "grant": encode_grant(grant), "order": pod.shape.order, "seats": seats}
    return PodFacts(pod.uid, pod.namespace, pod.name, **(values | fields))


def place(books: Books, pod: PodAsk, on: str, **fields: Any) -> PodFacts:
    """Reserve, bind, and tell the books what the API says then."""
    books.reserve(pod, on, 0.0)
    facts = bound(books, pod, on, **fields)
    books.set_pod(facts)
    return facts
