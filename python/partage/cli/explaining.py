"""Why a pod is not placed, or whether it would be: what `partage explain` and `partage simulate` say, as data.

Made from books and quotas with the functions that the scheduler itself decides with; the same words of refusal are in
its events. JSON of it is the commands' `-o json`. Pure; cannot fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from partage.cli.left_out import is_near, left_out, missing, repelling
from partage.devices.ask import read_ask
from partage.model import AskError, GrantError, names
from partage.model.errors import cut
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.pod import DEFAULT_SCHEDULER
from partage.model.reasons import REASONS, Code, remedy
from partage.model.units import format_cores, format_memory
from partage.scheduler.quota.charge import asked_charge
from partage.scheduler.quota.feed import QuotaRefused, granted
from partage.scheduler.quota.meters import BY_KEY, format_amount, parse_amount
from partage.scheduler.suggest import Suggestion, suggestions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from partage.cli.cluster import ClusterLook
    from partage.model.ask import ContainerAsk, PodAsk
    from partage.model.pod import PodView
    from partage.scheduler.answers import CardVerdict, NodeVerdict
    from partage.scheduler.quota.book import Exceeded
    from partage.scheduler.views import WatchedPod

SUGGESTED: Final = 5
TOLD_MAX: Final = 1000  # characters of what kube-scheduler said


class CardSays(msgspec.Struct, frozen=True, omit_defaults=True):
    """One card: `code` is empty where it fits; memory in bytes, cores in permille."""

    index: int
    uuid: str
    product: str
    code: str
    free_memory: int
    free_cores: int
    free_seats: int
    pods: int
    note: str = ""


class NodeSays(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node: `code` is empty where it fits; `cards` of each container."""

    node: str
    code: str
    text: str
    detail: str = ""
    container: str = ""
    score: int = 0
    chosen: dict[str, tuple[str, ...]] = {}
    cards: dict[str, tuple[CardSays, ...]] = {}


class QuotaSays(msgspec.Struct, frozen=True):
    """A quota without room for the pod, amounts in its own unit."""

    quota: str
    key: str
    asked: str
    used: str
    hard: str
    left: str


class Suggested(msgspec.Struct, frozen=True):
    """A change with which the pod fits on this node; it was tried."""

    text: str
    node: str


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be said of a pod.

    `state`: placed, fits, pending, invalid, nothing (it asks for nothing of ours). `codes`: code -> nodes; `nodes`: the
    best first. `notes`: what else keeps it, such as a gate or another scheduler's name.
    """

    pod: str
    state: str
    asks: tuple[str, ...] = ()
    node: str = ""
    score: int = 0
    quota: QuotaSays | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nodes_total: int = 0
    nodes_fitting: int = 0
    codes: dict[str, int] = {}
    remedies: dict[str, str] = {}
    nodes: tuple[NodeSays, ...] = ()
    suggestions: tuple[Suggested, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing of ours keeps the pod from running."""
        return self.state in {"placed", "fits", "nothing"}


def explain_pod(look: ClusterLook, pod: WatchedPod) -> Explanation:
    """Return what is to be said of a pod of the cluster."""
    if pod.node:
        return _placed(look, pod)
    said = _waiting(look, pod, notes=(*_ended(pod), *_notes(pod, look.ask.schedulers)))
    condition = pod.condition("PodScheduled")
    if said.state == "fits" and condition is not None and condition.status == "False" and condition.message:
        told = cut(condition.message, TOLD_MAX)
        note = f"kube-scheduler looks at more (cpu, volumes, affinity to pods); it said: {told}"
        return msgspec.structs.replace(said, notes=(*said.notes, note))
    if said.state == "fits" and condition is None and not said.notes:
        note = f"no scheduler has looked at it: see `kubectl -n {names.NAMESPACE} get pods` for {pod.scheduler}"
        return msgspec.structs.replace(said, notes=(*said.notes, note))
    return said


def explain_new(look: ClusterLook, pod: PodView) -> Explanation:
    """Return what would be said of a pod that does not exist yet."""
    return _waiting(
        look, pod, notes=_notes(pod, look.ask.schedulers | {DEFAULT_SCHEDULER})
    )  # admission takes those over


# ---- placed ----------------------------------------------------------------------------------------------------------


def _placed(look: ClusterLook, pod: WatchedPod) -> Explanation:
    notes, asks = [*_ended(pod)], []
    try:
        grant = granted(pod)
    except GrantError as error:
        notes.append(str(error))
    else:
        for name, part in grant.containers.items() if grant is not None else ():
            shares = ", ".join(
                f"{share.uuid} {format_memory(share.memory)} {format_cores(share.cores)}" for share in part.shares
            )
            asks.append(f"container {name}: {part.share_class.value}, {shares}")
    if TWIN in pod.annotations and names.GRANT not in pod.annotations:
        notes.append("placed by HAMi, whose device plugin starts its containers; what it has is counted")
    elif names.GRANT not in pod.annotations and _asks(look, pod):
        notes.append(
            f"no grant: {pod.scheduler} placed it, and the node's agent starts no container with a share; delete it, "
            f"and leave schedulerName out or write {names.SCHEDULER}"
        )
    for kind in (names.CONDITION_ENFORCED, names.CONDITION_RESIZED):
        condition = pod.condition(kind)
        if condition is not None:
            notes.append(f"{kind} {condition.status}: {condition.reason or ''}: {condition.message or ''}")
    return Explanation(pod.subject, "placed", tuple(asks), pod.node, notes=tuple(notes))


def _asks(look: ClusterLook, pod: WatchedPod) -> bool:
    try:
        return read_ask(pod, look.ask.options) is not None
    except AskError:
        return True


def _ended(pod: WatchedPod) -> Iterator[str]:
    """Yield that a pod is not to run any more."""
    if pod.is_finished:
        yield f"it has ended ({pod.status.phase}) and holds no share any more"
    elif pod.is_ending:
        yield "it was deleted and is ending; its shares are free once it is gone"


def _notes(pod: PodView, schedulers: Collection[str]) -> tuple[str, ...]:
    """Return what keeps a pod waiting beside cards and quotas."""
    notes = []
    if pod.scheduler not in schedulers:
        notes.append(f"spec.schedulerName is {pod.scheduler}: that scheduler decides; Partage's is {names.SCHEDULER}")
    gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates or ())
    if gates:
        notes.append(f"gates hold it back: {gates}; nobody schedules it before they are taken away")
    return tuple(notes)


# ---- waiting ---------------------------------------------------------------------------------------------------------


def _waiting(look: ClusterLook, pod: PodView, *, notes: tuple[str, ...]) -> Explanation:
    subject = pod.subject
    try:
        ask = read_ask(pod, look.ask.options)
    except AskError as error:
        return Explanation(subject, "invalid", problems=tuple(map(str, error.problems)), notes=notes)
    if ask is None:
        return Explanation(subject, "nothing", notes=notes)
    asks = tuple(_asked(one) for one in ask.shape.containers)
    try:
        narrowed = look.quotas.narrowed(pod, ask)
    except QuotaRefused as refused:
        return _over_quota(look, ask, refused.exceeded, Explanation(subject, "pending", asks, notes=notes))
    out = left_out(pod, look.nodes)
    verdicts = look.books.why(narrowed)
    says = [_node_says(one) if one.node not in out else _out_says(one.node, out[one.node]) for one in verdicts.nodes]
    fitting = [one for one in says if not one.code]
    counts = Counter(Code(one.code) for one in says if one.code)
    told = () if fitting else tuple(islice(_suggested(look, pod, ask, narrowed), SUGGESTED))
    return Explanation(
        subject,
        "fits" if fitting else "pending",
        asks,
        fitting[0].node if fitting else "",
        fitting[0].score if fitting else 0,
        notes=notes,
        nodes_total=len(says),
        nodes_fitting=len(fitting),
        codes={str(code): count for code, count in counts.most_common()},
        remedies={str(code): remedy(code) for code, _ in counts.most_common()},
        nodes=tuple(sorted(says, key=lambda one: one.node in out)),
        suggestions=told,
    )


def _out_says(node: str, code: Code) -> NodeSays:
    return NodeSays(node, str(code), str(code), REASONS[code].meaning)


def _asked(one: ContainerAsk) -> str:
    """Return what a container asks for, in words."""
    memory = "all its memory"
    if one.memory is not None:
        memory = format_memory(one.memory)
    elif one.percent is not None:
        memory = f"{one.percent / 10:g} % of its memory"
    elif one.profile:
        memory = f"slice {one.profile}"
    cores = f", {format_cores(one.cores)} of its cores" if one.cores else ""
    each = " each" if one.cards > 1 else ""
    cards = "card" if one.cards == 1 else "cards"
    return (
        f"container {one.name}: {one.cards} {one.backend} {cards}, {memory}{cores}{each}, class {one.share_class.value}"
    )


def _node_says(verdict: NodeVerdict) -> NodeSays:
    cards = {name: tuple(map(_card_says, each)) for name, each in verdict.cards.items()}
    if verdict.unfit is None:
        placed = verdict.placement.containers if verdict.placement else ()
        chosen = {part.name: tuple(card.uuid for card in part.cards) for part in placed}
        return NodeSays(verdict.node, "", "fits", score=verdict.score, chosen=chosen, cards=cards)
    unfit = verdict.unfit
    return NodeSays(verdict.node, str(unfit.code), unfit.text, unfit.detail, unfit.container, cards=cards)


def _card_says(card: CardVerdict) -> CardSays:
    return CardSays(
        card.index,
        card.uuid,
        card.product,
        str(card.code or ""),
        card.free_memory,
        card.free_cores,
        card.free_seats,
        card.pods,
        card.note,
    )


# ---- what would help -------------------------------------------------------------------------------------------------


def changes(look: ClusterLook, ask: PodAsk, out: Collection[str] = ()) -> Iterator[Suggestion]:
    """Yield changes with which a pod that fits nowhere fits, of those the quotas allow; `out`: not on these nodes."""
    nodes = [state for name, state in look.books.nodes.items() if name not in out]
    for one in suggestions(ask, nodes, look.books.defaults):
        if _allowed(look, one.ask):
            yield one


def _suggested(look: ClusterLook, pod: PodView, ask: PodAsk, narrowed: PodAsk) -> Iterator[Suggested]:
    """Yield what helps; a pod that the quotas keep to small cards could also have less of a larger one."""
    out = left_out(pod, look.nodes)
    yield from _let_in(look, pod, narrowed, out)
    for one in changes(look, narrowed, out):
        yield Suggested(one.text, one.node)
    most = narrowed.shape.wishes.card_at_most
    found = [name for name in look.books.filter(ask).fitting if name not in out] if most is not None else ()
    if found:
        yield Suggested("have the namespace's quota raised: a part of larger cards is more than it allows", found[0])


def _let_in(look: ClusterLook, pod: PodView, ask: PodAsk, out: Mapping[str, Code]) -> Iterator[Suggested]:
    """Yield what lets the pod onto nodes that would take it."""
    for name in look.books.filter(ask, [name for name, code in out.items() if code is Code.NODE_CORDONED]).fitting[:1]:
        yield Suggested(f"let pods onto node {name} again: `kubectl uncordon {name}`", name)
    for name in look.books.filter(ask, [name for name, code in out.items() if code is Code.NODE_TAINT]).fitting[:1]:
        taints = ", ".join(
            f"{one.key}={one.value}:{one.effect}" if one.value else f"{one.key}:{one.effect}"
            for one in repelling(pod, look.nodes[name])
        )
        yield Suggested(f"tolerate {taints} in spec.tolerations", name)
    selected = [
        name
        for name, code in out.items()
        if code is Code.NODE_SELECTOR
        and not look.nodes[name].spec.unschedulable
        and not repelling(pod, look.nodes[name])
    ]
    for name in look.books.filter(ask, selected).fitting[:1]:
        wrong = missing(pod, look.nodes[name])
        parts = [f"leave {', '.join(wrong)} out of spec.nodeSelector"] if wrong else []
        parts += [] if is_near(pod, look.nodes[name]) else ["let spec.affinity.nodeAffinity take the node"]
        yield Suggested("; ".join(parts), name)


def _allowed(look: ClusterLook, ask: PodAsk) -> bool:
    return look.quotas.book.exceeds(ask.uid, asked_charge(ask.shape)) is None


def _over_quota(look: ClusterLook, ask: PodAsk, exceeded: Exceeded, said: Explanation) -> Explanation:
    quota = QuotaSays(exceeded.quota, exceeded.key, exceeded.asked, exceeded.used, exceeded.hard, exceeded.left)
    told = tuple(Suggested(text, node) for text, _, node in quota_changes(look, ask, exceeded))
    return msgspec.structs.replace(
        said,
        quota=quota,
        codes={str(Code.QUOTA): len(look.books.nodes)},
        remedies={str(Code.QUOTA): remedy(Code.QUOTA)},
        nodes_total=len(look.books.nodes),
        suggestions=told,
    )


def quota_changes(look: ClusterLook, ask: PodAsk, exceeded: Exceeded) -> Iterator[tuple[str, PodAsk, str]]:
    """Yield text, changed ask and node of what helps against a quota: to ask for what is left, or a higher limit."""
    meter = BY_KEY[exceeded.key]
    left = parse_amount(meter, exceeded.left)
    resource = exceeded.key.removeprefix("limits.")
    for number, one in enumerate(ask.shape.containers):
        each = left // one.cards // meter.unit * meter.unit
        less = {"memory": {"memory": each, "percent": None}, "cores": {"cores": each}, "cards": {"cards": left}}
        if each < 1 or not meter.counts(one.backend, one.resource):
            continue
        container = replace(one, **less[meter.kind])  # type: ignore[arg-type]
        containers = (*ask.shape.containers[:number], container, *ask.shape.containers[number + 1 :])
        changed = replace(ask, shape=replace(ask.shape, containers=containers))
        fitting = look.books.filter(changed).fitting if _allowed(look, changed) else ()
        if fitting:
            shown = format_amount(meter, left if meter.kind == "cards" else each, like="")
            yield f"ask for {resource}: {shown} in container {one.name}", changed, fitting[0]
    fitting = look.books.filter(ask).fitting
    if fitting:
        text = f"have {exceeded.key} of resourcequota {exceeded.quota} raised to {_sum(exceeded)}, now {exceeded.hard}"
        yield text, ask, fitting[0]


def _sum(exceeded: Exceeded) -> str:
    meter = BY_KEY[exceeded.key]
    amount = parse_amount(meter, exceeded.used) + parse_amount(meter, exceeded.asked)
    like = exceeded.hard if exceeded.hard.endswith("Mi") else ""
    return format_amount(meter, amount, like=like)


# ---- for people ------------------------------------------------------------------------------------------------------


def lines(said: Explanation, *, nodes: int) -> Iterator[str]:
    """Yield the explanation for people; `nodes`: of so many the cards are shown."""
    where = f" on node {said.node}" if said.node else ""
    score = f", {said.score} of 10 points" if said.state == "fits" and said.score else ""
    yield f"{said.pod}: {_STATES[said.state]}{where}{score}"
    yield from _indented(said.asks)
    yield from _indented(said.problems)
    yield from _indented(said.notes)
    if said.quota is not None:
        quota = said.quota
        yield (
            f"  resourcequota {quota.quota}: {quota.key}: {quota.asked} asked, {quota.used} used, {quota.hard} allowed"
        )
    if said.nodes_total or said.codes:
        parts = [f"{said.nodes_fitting} fit", *(f"{count} {code}" for code, count in said.codes.items())]
        yield f"{said.nodes_total} nodes: {', '.join(parts)}"
    yield from _indented(f"{code}: {text}" for code, text in said.remedies.items())
    for node in said.nodes[:nodes]:
        yield from _node_lines(node)
    if len(said.nodes) > nodes > 0:
        yield f"and {len(said.nodes) - nodes} nodes more (--nodes shows them)"
    if said.suggestions:
        yield "any one of these is enough:"
        yield from _indented(f"{one.text} (then on node {one.node})" for one in said.suggestions)


_STATES: Final = {
    "placed": "placed",
    "fits": "fits",
    "pending": "fits nowhere",
    "invalid": "asks in a way that has no meaning",
    "nothing": "asks for no share",
}


def _indented(texts: Iterable[str]) -> Iterator[str]:
    return (f"  {text}" for text in texts)


def _node_lines(node: NodeSays) -> Iterator[str]:
    container = f", container {node.container}" if node.container else ""
    detail = f": {node.detail}" if node.detail else ""
    yield f"node {node.node}: {node.text}{container}{detail}"
    for name, cards in node.cards.items():
        chosen = node.chosen.get(name, ())
        for card in cards:
            mark = "chosen" if card.uuid in chosen else card.code or "fits"
            free = f"{format_memory(card.free_memory)}, {format_cores(card.free_cores)}, {card.free_seats} seats"
            note = f"; {card.note}" if card.note else ""
            yield f"  {name}: card {card.index} {card.uuid} {card.product}: {mark}; free {free}; {card.pods} pods{note}"
