"""What a pod asks for: its containers' resources and its annotations, in the vocabulary of `model/ask.py`.

One function for admission, scheduler, `partage explain` and `partage simulate`, so that all mean the same. All
containers are read at once, and all that is wrong with a pod is named at once (AskError). A pod that asks for nothing
of any vendor's is None, at little cost. Vendors' names and forms stand in `devices/<vendor>/resources.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from partage.devices.enflame.resources import VENDOR as ENFLAME
from partage.devices.escapes import escapes
from partage.devices.kunlun.resources import VENDOR as KUNLUN
from partage.devices.metax.resources import VENDOR as METAX
from partage.devices.neuron.resources import VENDOR as NEURON
from partage.devices.nvidia.resources import VENDOR as NVIDIA
from partage.devices.requests import Amounts, AskOptions, Requested
from partage.devices.wishes import Annotated, read_ceiling, read_class, read_weight, read_wishes
from partage.model import names
from partage.model.ask import ContainerAsk, PodAsk, Shape, Wishes
from partage.model.errors import AskError, Problem
from partage.model.grant import GRANT_BYTES_MAX
from partage.model.pod import PodView
from partage.model.share import CORES_MAX, DEFAULT_PRIORITY, ShareClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import Vendor
    from partage.model.need import Role
    from partage.model.pod import ContainerView

VENDORS: Final[tuple[Vendor, ...]] = (NVIDIA, KUNLUN, METAX, NEURON, ENFLAME)
#: Resources that count cards or shares of them.
KINDS: Final = frozenset(kind for vendor in VENDORS for kind in vendor.kinds)
NAMES: Final = frozenset(name for vendor in VENDORS for name in vendor.names)
DEFAULTS: Final = AskOptions()
CONTAINERS_MAX: Final = 1024  # with shares in one pod; a question has up to 3 MiB of them, and others wait meanwhile
#: Other ways to a card than a share of ours; none of them goes beside one in the same container.
FOREIGN_KINDS: Final = frozenset({"nvidia.com/gpu.shared"})
FOREIGN_PREFIX: Final = "nvidia.com/mig-"
_ANY_KIND: Final = KINDS | FOREIGN_KINDS
_CLASSES: Final = {"p0-system": 0, "p1-onlineserving": 1, "p2-batchtraining": 2}
_BATCH: Final = 2
#: What a grant's text takes at most: of itself, for each container beside its name, for each share.
_GRANT_BYTES: Final = 512
_CONTAINER_BYTES: Final = 100
_SHARE_BYTES: Final = 240


@dataclass(frozen=True, slots=True)
class Found:
    """What one container asks for, and where it stands in the pod."""

    path: str
    role: Role
    container: ContainerView
    amounts: Amounts
    ask: ContainerAsk


@dataclass(frozen=True, slots=True)
class Reading:
    """A pod's ask with what admission needs beside it: how the resources are to stand in the pod."""

    ask: PodAsk
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class _OfPod:
    """What the pod says for all of its containers."""

    share_class: ShareClass | None
    weight: int | None
    ceiling: int | None
    priority: int


def read_ask(pod: PodView | Mapping[str, object], options: AskOptions = DEFAULTS) -> PodAsk | None:
    """Return what the pod asks for, None for nothing of ours; raises AskError with all that is wrong."""
    reading = read_pod(pod, options)
    return reading.ask if reading else None


def as_view(pod: PodView | Mapping[str, object]) -> PodView:
    """Return the fields that are read; raises AskError for one that is not of the API's type."""
    if isinstance(pod, PodView):
        return pod
    try:
        return msgspec.convert(pod, PodView)
    except msgspec.ValidationError as error:
        step = "see `kubectl explain pod.spec`"
        raise AskError("pod", [Problem("pod", str(error), "a pod as the API describes it", step)]) from error


def read_pod(pod: PodView | Mapping[str, object], options: AskOptions = DEFAULTS) -> Reading | None:
    """Return the ask with its places, None for nothing of ours; raises AskError with all that is wrong."""
    view = as_view(pod)
    problems: list[Problem] = []
    touched = [(container, role, path) for container, role, path in view.each() if _names_ours(container)]
    _check_ephemeral(view, problems)
    if not touched and not problems:
        return None
    if len(touched) > CONTAINERS_MAX:
        accepted = f"at most {CONTAINERS_MAX} are read, and far fewer fit into a grant"
        problem = Problem("pod", f"{len(touched)} containers with shares", accepted, "make several pods of it")
        raise AskError(view.subject, [problem])
    annotated = Annotated(view.annotations, problems)
    of_pod = _of_pod(view, annotated)
    found: list[Found] = []
    vendors: dict[str, Vendor] = {}
    for container, role, path in touched:
        asked = Requested(container, problems)
        _check_kinds(asked)
        _check_names(asked)
        for vendor in VENDORS:
            if vendor.names.isdisjoint(asked.names):
                continue
            noted = len(problems)
            amounts = vendor.read(asked, view.annotations, options)
            if amounts is None and len(problems) == noted:
                _check_none(asked, vendor)
            if amounts is not None:
                vendors[vendor.name] = vendor
                found.append(Found(path, role, container, amounts, _container_ask(asked, role, amounts, of_pod)))
    if found:
        problems += escapes(view, options)
    _check_together(found, problems)
    wishes = read_wishes(annotated, tuple(vendors.values())) if found else Wishes()
    if problems:
        raise AskError(view.subject, problems)
    if not found:
        return None
    return Reading(_pod_ask(view, tuple(each.ask for each in found), wishes), tuple(found))


def asks_for_shares(view: PodView) -> bool:
    """Whether any container names a resource of ours, whatever it says of it."""
    ephemeral = view.spec.ephemeral_containers or ()
    return any(_names_ours(container) for container, _, _ in view.each()) or any(map(_names_ours, ephemeral))


def _of_pod(view: PodView, annotated: Annotated) -> _OfPod:
    priority = _CLASSES.get(view.spec.priority_class_name or "", DEFAULT_PRIORITY)
    return _OfPod(read_class(annotated), read_weight(annotated), read_ceiling(annotated), priority)


def _names_ours(container: ContainerView) -> bool:
    resources = container.resources
    if resources is None:
        return False
    return not (NAMES.isdisjoint(resources.limits or ()) and NAMES.isdisjoint(resources.requests or ()))


def _check_ephemeral(view: PodView, problems: list[Problem]) -> None:
    """Note ephemeral containers that ask for cards: the API gives them no resources at all."""
    for container in view.spec.ephemeral_containers or ():
        if _names_ours(container):
            accepted = "an ephemeral container has no resources"
            where = f"ephemeral container {container.name}"
            problems.append(Problem(where, "asks for shares", accepted, "use kubectl exec in a container with a share"))


def _check_kinds(asked: Requested) -> None:
    """Note a container that asks for two kinds of shares: it has one hand-over, which cannot be mounted twice."""
    kinds = {name: name for name in asked.names if name in _ANY_KIND or name.startswith(FOREIGN_PREFIX)}
    for vendor in VENDORS:
        for amount, kind in vendor.amounts.items():  # each is of one kind: none is passed over in silence
            if amount in asked:
                kinds.setdefault(kind, amount)
        if not vendor.names.isdisjoint(asked.names) and kinds.keys().isdisjoint(vendor.kinds):
            kinds[vendor.default] = vendor.default  # of which amounts alone ask for one
    if len(kinds) > 1:
        step = "put each into a container of its own, or leave one out"
        value = f"asks for {' and '.join(sorted(kinds.values()))}"
        asked.problems.append(Problem(asked.where, value, "one kind of share", step))


def _check_names(asked: Requested) -> None:
    """Note a resource that only looks like one of a vendor's: what is misspelt would be read as not asked for."""
    for vendor in VENDORS:
        for name in sorted(asked.names) if vendor.look_alikes else ():
            if name.startswith(vendor.look_alikes) and not (name in NAMES or name in FOREIGN_KINDS):
                accepted = f"known: {', '.join(sorted(vendor.names))}"
                asked.note(name, f"'{asked.written(name)}' of what nobody counts", accepted, "write one of these names")


def _check_none(asked: Requested, vendor: Vendor) -> None:
    """Note amounts of a container that asks for no card of the vendor's: nobody would hold them."""
    for name in sorted(filter(asked.is_some, vendor.names)):
        accepted, step = f"{vendor.default} beside it, 1 or more", f"leave {name} out, or ask for a card"
        asked.note(name, f"'{asked.written(name)}' of no card", accepted, step)


def _check_together(found: list[Found], problems: list[Problem]) -> None:
    """Note what no grant can be written for: two containers of one name, or more shares than it has room for."""
    asks = [each.ask for each in found]
    places: dict[str, str] = {}
    for each in found:
        name = each.ask.name
        if not name or places.setdefault(name, each.path) != each.path:
            accepted, value = "containers with shares have names, each its own", "named twice" if name else "no name"
            problems.append(Problem(f"container {name or each.path}", value, accepted, "rename it"))
    size = _GRANT_BYTES + sum(_CONTAINER_BYTES + len(ask.name) + ask.cards * _SHARE_BYTES for ask in asks)
    if size > GRANT_BYTES_MAX:
        value = f"{len(asks)} containers with shares of {sum(ask.cards for ask in asks)} cards"
        accepted = f"a pod's grant has at most {GRANT_BYTES_MAX >> 10} KiB, this one would have {size >> 10}"
        problems.append(Problem("pod", value, accepted, "make several pods of it"))


def _container_ask(asked: Requested, role: Role, amounts: Amounts, of_pod: _OfPod) -> ContainerAsk:
    """Return the ask of one container: its class, and what follows from it."""
    cores = amounts.cores or 0
    share_class = of_pod.share_class or amounts.share_class or _class_of(amounts.priority, cores)
    ceiling = of_pod.ceiling
    if share_class is ShareClass.FIXED and not cores:
        accepted, step = "a fixed share is exactly its cores", "name cores, or leave the class out"
        asked.problems.append(Problem(asked.where, "class fixed without cores", accepted, step))
    low, high = cores, cores if share_class is ShareClass.FIXED else CORES_MAX
    if share_class is not ShareClass.BEST_EFFORT and not low <= (low if ceiling is None else ceiling) <= high:
        accepted = "a ceiling is at least the guarantee, and a fixed share's is its guarantee"
        value = f"class {share_class.value}, cores {cores / 10:g} %, ceiling {(ceiling or 0) / 10:g} %"
        asked.problems.append(Problem(asked.where, value, accepted, f"raise or leave out {names.CEILING}"))
    if share_class is ShareClass.BEST_EFFORT:
        cores, ceiling = 0, ceiling or cores or None
    return ContainerAsk(
        name=asked.name,
        role=role,
        backend=amounts.backend,
        resource=amounts.resource,
        cards=amounts.cards,
        memory=amounts.memory,
        percent=amounts.percent,
        cores=cores,
        share_class=share_class,
        priority=of_pod.priority if amounts.priority is None else amounts.priority,
        weight=of_pod.weight,
        ceiling=ceiling,
        mode=amounts.mode,
        profile=amounts.profile,
    )


def _class_of(priority: int | None, cores: int) -> ShareClass:
    """Return the class of a container of which nobody says it."""
    if priority == _BATCH:
        return ShareClass.BURST if cores else ShareClass.BEST_EFFORT
    return ShareClass.FIXED if cores else ShareClass.BURST


def _pod_ask(view: PodView, containers: tuple[ContainerAsk, ...], wishes: Wishes) -> PodAsk:
    meta = view.metadata
    return PodAsk(
        uid=meta.uid or "",
        namespace=meta.namespace or "default",
        name=meta.name or meta.generate_name or "",
        shape=Shape(containers, wishes, tuple((container.name, role) for container, role, _ in view.each())),
        scheduler=view.scheduler,
        priority=view.spec.priority or 0,
    )
