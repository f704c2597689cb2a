"""Figures of the scheduler: how long answers take, what is refused for what, and what is promised of every card.

`Requests` is counted into by the extender's HTTP side; the other families are made of the present term and of what the
books have promised, under HAMi's names beside ours where wanted. Only the leader has series of cards and pods, so that
two replicas never show the same. Cannot fail.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Histogram

from partage import __version__
from partage.exposition import Number, family
from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from partage.scheduler.books import Books
    from partage.scheduler.term import Reign

BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ZONE: Final = {"zone": "vGPU"}
PERCENT: Final = 10  # permille of it


class Requests:
    """What was asked, and how long it took."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._seconds = Histogram(
            "partage_scheduler_request_seconds",
            "Time from a whole question to its answer.",
            ["verb"],
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._by_verb = {verb: self._seconds.labels(verb) for verb in ("filter", "prioritize", "bind")}
        self._errors: dict[tuple[str, str], int] = {}
        self._filters = 0
        self._nodes = 0

    def now(self) -> float:
        """Return seconds for `took`."""
        return time.perf_counter()

    def took(self, verb: str, begin: float) -> None:
        """Count an answer."""
        self._by_verb[verb].observe(time.perf_counter() - begin)

    def count(self, verb: str, why: str) -> None:
        """Count a question without an answer."""
        self._errors[verb, why] = self._errors.get((verb, why), 0) + 1

    def filtered(self, nodes: int) -> None:
        """Count the nodes that a filter returned."""
        self._filters += 1
        self._nodes += nodes

    def families(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._registry.collect()
        errors = [({"verb": verb, "reason": why}, count) for (verb, why), count in sorted(self._errors.items())]
        yield family("partage_scheduler_request_errors_total", "counter", "Questions without an answer.", errors)
        text = "Nodes that filters returned, all together."
        yield family("partage_scheduler_filtered_nodes_total", "counter", text, [({}, self._nodes)])


@dataclass(frozen=True, slots=True)
class CardRow:
    """What is promised of one card: bytes, permille, seats, pods."""

    node: str
    uuid: str
    index: int
    product: str
    line: int
    promised: int
    cores: int
    seats: int
    pods: int


@dataclass(frozen=True, slots=True)
class PodRow:
    """What one pod was promised of one card: bytes and permille."""

    namespace: str
    pod: str
    node: str
    uuid: str
    memory: int
    cores: int


@dataclass(frozen=True, slots=True)
class Promised:
    """The books of one moment, taken quickly: what is made of it may then take its time in a thread."""

    cards: list[CardRow]
    pods: list[PodRow]

    @classmethod
    def of(cls, books: Books) -> Promised:
        """Return what the books have now."""
        cards: list[CardRow] = []
        pods: list[PodRow] = []
        for state in books.nodes.values():
            for at, kind in enumerate(state.kinds):
                promised, cores = kind.line - state.memory[at], CORES_MAX - state.cores[at]
                row = (state.name, state.uuids[at], kind.index, kind.product, kind.line, promised, cores)
                cards.append(CardRow(*row, kind.seats, state.tenants[at]))
            for uid, use in state.pods.items():
                pod = books.pods.get(uid)
                if pod is not None:
                    pods += [
                        PodRow(pod.namespace, pod.name, state.name, uuid, need.memory, need.cores)
                        for uuid, need in use.need.items()
                    ]
        return cls(cards, pods)


def state_families(reign: Reign | None, problem: str) -> list[Metric]:
    """Return the families of the present term; None: this replica does not lead, for the reason in `problem`."""
    leads = {"problem": problem} if reign is None and problem else {}
    found = [
        family("partage_build_info", "gauge", "The scheduler's version.", [({"version": __version__}, 1)]),
        family("partage_scheduler_leader", "gauge", "1 where these books count.", [(leads, reign is not None)]),
    ]
    return found if reign is None else [*found, *_of_term(reign)]


def _of_term(reign: Reign) -> Iterator[Metric]:
    """Yield what one term counts."""
    binds = [({"result": result}, count) for result, count in sorted(reign.extender.results.items())]
    refusals = [({"code": code}, count) for code, count in sorted(reign.tell.refusals.items())]
    unreadable = [({"node": name}, 1) for name in sorted(reign.watch.unreadable)]
    rows: tuple[tuple[str, str, str, list[tuple[dict[str, str], Number]]], ...] = (
        ("term", "gauge", "Number of the Lease's term.", [({}, reign.term.number)]),
        ("ready", "gauge", "1 once all pods and nodes of this term are listed.", [({}, reign.is_ready)]),
        ("binds_total", "counter", "Binds, by what became of them.", [*binds]),
        ("binds_open", "gauge", "Binds whose end the watch has not shown yet.", [({}, len(reign.binder))]),
        ("binds_unknown", "gauge", "Binds of which nobody knows the end.", [({}, reign.binder.unknown)]),
        ("refusals_total", "counter", "Pods that no node took, by the code of most nodes.", [*refusals]),
        ("pods_waiting", "gauge", "Pods that were told that they wait.", [({}, reign.tell.waiting)]),
        ("reservations", "gauge", "Places promised and not yet bound.", [({}, reign.books.kept)]),
        ("overpromised_bytes", "gauge", "Memory of pods that cannot have it beside earlier ones.", _lost(reign.books)),
        ("watch_stale_seconds", "gauge", "Time since the API server was heard.", [({}, reign.watch.stale_for)]),
        ("node_unreadable", "gauge", "1 for a node whose devices cannot be read.", [*unreadable]),
        ("conditions_total", "counter", "Conditions written onto pods.", [({}, reign.tell.written)]),
        ("told_dropped_total", "counter", "Events and conditions without room.", [({}, reign.tell.dropped)]),
        ("quota_writes_total", "counter", "Writes of quotas' status.", [({}, reign.duties.status.written)]),
        ("evictions_total", "counter", "Pods evicted for others.", [({}, reign.duties.evictor.evictions)]),
        ("resizes_total", "counter", "Grants of running pods rewritten.", [({}, reign.duties.resizer.written)]),
        ("audits_total", "counter", "How often the books were counted anew.", [({}, reign.audits)]),
        ("books_differences", "gauge", "Differences that the last count found.", [({}, reign.differences)]),
    )
    for name, kind, text, samples in rows:
        yield family(f"partage_scheduler_{name}", kind, text, samples)


def _lost(books: Books) -> list[tuple[dict[str, str], Number]]:
    """Return the memory of bound pods that others before them have, by node and kind of card: series only of trouble.

    A place that is kept while victims end is none.
    """
    found: Counter[tuple[str, str]] = Counter()
    for one in books.overpromised():
        if one.is_bound:
            found[one.node, one.product] += one.memory
    return [({"node": node, "product": product}, memory) for (node, product), memory in sorted(found.items())]


def promised_families(promised: Promised, *, hami_names: bool) -> Iterator[Metric]:
    """Yield what is promised of every card and to every pod."""
    labels = [{"node": card.node, "device_uuid": card.uuid} for card in promised.cards]
    for name, text, value in _OF_CARD:
        samples = [(of, value(card)) for of, card in zip(labels, promised.cards, strict=True)]
        yield family(f"partage_scheduler_device_{name}", "gauge", text, samples)
    if hami_names:
        yield from _hami_cards(promised.cards)
        yield from _hami_pods(promised.pods)


_OF_CARD: Final[tuple[tuple[str, str, Callable[[CardRow], Number]], ...]] = (
    ("memory_allocatable_bytes", "Memory that shares may add up to.", lambda c: c.line),
    ("memory_promised_bytes", "Memory that pods were promised.", lambda c: c.promised),
    ("cores_promised_ratio", "Guaranteed parts of its time, summed.", lambda c: c.cores / CORES_MAX),
    ("seats", "Containers that can have a share.", lambda c: c.seats),
    ("pods", "Pods that have a share.", lambda c: c.pods),
)
_HAMI_CARD: Final[tuple[tuple[str, str, Callable[[CardRow], Number]], ...]] = (
    ("hami_gpu_memory_limit_bytes", "Device memory that can be promised.", lambda c: c.line),
    ("hami_gpu_core_limit_ratio", "Device cores that can be promised, percent.", lambda _: 100),
    ("hami_gpu_shared_count", "Pods that share the device.", lambda c: c.pods),
    ("hami_gpu_core_allocated_ratio", "Device cores promised, percent.", lambda c: c.cores / PERCENT),
    (
        "hami_node_gpu_memory_allocated_ratio",
        "Part of the device's memory that is promised, 0 to 1.",
        lambda c: c.promised / c.line if c.line else None,
    ),
)


def _hami_cards(cards: list[CardRow]) -> Iterator[Metric]:
    """Yield the families of HAMi's scheduler about cards."""
    labels = [
        ZONE
        | {
            "node": card.node,
            "device_uuid": card.uuid,
            "device_index": str(card.index),
            "device_type": card.product,
        }
        for card in cards
    ]
    for name, text, value in _HAMI_CARD:
        yield family(name, "gauge", text, [(of, value(card)) for of, card in zip(labels, cards, strict=True)])
    more = [of | {"device_cores": f"{card.cores / PERCENT:g}"} for of, card in zip(labels, cards, strict=True)]
    promised = [(of, card.promised) for of, card in zip(more, cards, strict=True)]
    yield family("hami_gpu_memory_allocated_bytes", "gauge", "Device memory promised.", promised)
    wide = [of | {"device_memory_limit": str(card.line >> 20)} for of, card in zip(more, cards, strict=True)]
    text = "Device memory promised, with all of the device's figures as labels."
    yield family("hami_node_gpu_overview", "gauge", text, list(zip(wide, [c.promised for c in cards], strict=True)))


def _hami_pods(pods: list[PodRow]) -> Iterator[Metric]:
    """Yield what every pod was promised of each card: of all its containers together, which HAMi calls index 0."""
    labels = [
        ZONE
        | {
            "namespace": row.namespace,
            "node": row.node,
            "pod": row.pod,
            "container_index": "0",
            "device_uuid": row.uuid,
        }
        for row in pods
    ]
    memory = [(of, row.memory) for of, row in zip(labels, pods, strict=True)]
    yield family("hami_vgpu_memory_allocated_bytes", "gauge", "Device memory promised to a pod.", memory)
    cores = [(of, row.cores / PERCENT) for of, row in zip(labels, pods, strict=True)]
    yield family("hami_vgpu_core_allocated_ratio", "gauge", "Device cores promised to a pod, percent.", cores)
