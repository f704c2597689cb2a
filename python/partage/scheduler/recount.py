"""Are the books right, and can everything in them hold: a recount from pods and nodes, and cards promised twice.

Called by the books' owner now and then, by tests after every step, and shown as metrics. What is counted incrementally
is added up anew from what the API said and from what is reserved; each difference is a defect. Two grants that cannot
both hold come from outside (a leader that was frozen past its term, the agent's safe mode, a card that shrank): both
stay counted, and the later one by (term, time of binding, UID) is named, which is the one that the agent refuses.
Cannot fail.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partage.model.need import Need
from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from partage.scheduler.cards import NodeState, PodUse

Counted = dict[str, dict[str, tuple[Need, int]]]  # node -> card -> what pods have of it, and how many


@dataclass(frozen=True, slots=True)
class Difference:
    """A card, or the device ids of a resource, of which the books keep another sum than there is."""

    node: str
    what: str
    kept: object
    counted: object


@dataclass(frozen=True, slots=True)
class Overpromise:
    """A pod whose share of a card cannot hold beside those of the pods before it.

    `memory`: bytes of that share; `is_bound`: whether it has it, rather than being promised it for later.
    """

    node: str
    uuid: str
    uid: str
    subject: str
    before: tuple[str, ...]
    product: str
    memory: int
    is_bound: bool


def differences(nodes: Mapping[str, NodeState], uses: Iterable[tuple[str, str, PodUse]]) -> tuple[Difference, ...]:
    """Return where the books differ from the sum of `uses`: (node, UID, what the pod has there)."""
    by_node: dict[str, dict[str, PodUse]] = defaultdict(dict)
    for node, uid, use in uses:
        by_node[node][uid] = use
    found = [Difference(name, "pods", (), tuple(sorted(by_node[name]))) for name in sorted(by_node.keys() - nodes)]
    for name in sorted(nodes):
        found += _of_node(nodes[name], by_node.get(name, {}))
    return tuple(found)


def _of_node(state: NodeState, uses: Mapping[str, PodUse]) -> Iterator[Difference]:
    if state.pods != uses:
        yield Difference(state.name, "pods", tuple(sorted(state.pods)), tuple(sorted(uses)))
    everybody = [*uses.values(), *state.given().values()]
    for at, (uuid, kind) in enumerate(zip(state.uuids, state.kinds, strict=True)):
        needs = [use.need[uuid] for use in everybody if uuid in use.need]
        total = sum(needs, Need())
        kept = (
            kind.line - state.memory[at],
            CORES_MAX - state.cores[at],
            kind.seats - state.seats[at],
            state.tenants[at],
        )
        counted = total.memory, total.cores, total.seats, len(needs)
        if kept != counted:
            yield Difference(state.name, uuid, kept, counted)
        troubles = [use.trouble for use in everybody if uuid in use.closes]
        closed = min(troubles) if troubles else None
        if state.closed.get(uuid) != closed:
            yield Difference(state.name, f"{uuid} closed", state.closed.get(uuid), closed)
    seats: dict[str, int] = defaultdict(int)
    for use in everybody:
        for resource, count in use.seats.items():
            seats[resource] += count
    counts = {resource: count for resource, count in seats.items() if count}
    if state.seats_used != counts:
        yield Difference(state.name, "device ids", state.seats_used, counts)


def overpromised(state: NodeState) -> Iterator[Overpromise]:
    """Yield the pods on a node that cannot have what was promised to them."""
    if min((*state.memory, *state.cores, *state.seats), default=0) >= 0:
        return
    everybody = sorted({**state.pods, **state.given()}.items(), key=lambda item: item[1].order)
    for at, (uuid, kind) in enumerate(zip(state.uuids, state.kinds, strict=True)):
        if min(state.memory[at], state.cores[at], state.seats[at]) >= 0:
            continue
        total = Need()
        before: list[str] = []
        for uid, use in everybody:
            need = use.need.get(uuid)
            if need is None:
                continue
            sums = total + need
            line = kind.physical if not before and need.cores == CORES_MAX else kind.line
            if sums.memory > line or sums.cores > CORES_MAX or sums.seats > kind.seats:
                who = (uid, use.subject, tuple(before))
                yield Overpromise(state.name, uuid, *who, kind.product, need.memory, not use.reserved)
            else:
                total = sums
                before.append(use.subject)
