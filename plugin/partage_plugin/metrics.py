"""Figures as Prometheus reads them: ours in base units, and under HAMi's names beside them where wanted.

`MetricsPage` writes one `Figures` after the other; what a container's labels look like is kept from one to the next,
since they are the same in all its series and in all scrapes. A value that is None has no series. Two hand-overs of one
container (a new one made before the old one is swept) would be the same series twice, which spoils a scrape: the open
one stands for both. Used from one thread at a time; cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage._version import __version__
from partage.text_format import Number, and_labels, family, labels_text
from partage_plugin.hami_metrics import container_labels, container_labels_before, hami_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partage_plugin.figures import CardFigures, ContainerFigures, Figures

# name -> type, help, value
_OF_CONTAINER: Final[dict[str, tuple[str, str, Callable[[ContainerFigures], Number]]]] = {
    "memory_used_bytes": ("gauge", "Device memory in use, contexts and modules included.", lambda c: c.used),
    "memory_limit_bytes": ("gauge", "Device memory that the container may use.", lambda c: c.limit),
    "memory_overhead_bytes": (
        "gauge",
        "Part of the use that the driver reports and no call asked for.",
        lambda c: c.overhead,
    ),
    "compute_ratio": ("gauge", "Part of the card's time in the last seconds.", lambda c: _ratio(c.got)),
    "compute_seconds_total": ("counter", "Card time charged to the container.", lambda c: _seconds(c.charged_ns)),
    "cores_guaranteed_ratio": ("gauge", "Part of the card's time that is guaranteed.", lambda c: _ratio(c.cores)),
    "cores_ceiling_ratio": ("gauge", "Part of the card's time that it never exceeds.", lambda c: _ratio(c.ceiling)),
    "wait_seconds_total": (
        "counter",
        "Time that its processes waited for turns, summed over them.",
        lambda c: _seconds(c.waited_ns),
    ),
    "waits_total": ("counter", "How often a process waited for a turn.", lambda c: c.waits),
    "launches_total": ("counter", "Launches that passed the gate.", lambda c: c.launches),
    "refusals_total": ("counter", "Allocations refused because of the limit.", lambda c: c.refusals),
    "processes": ("gauge", "Processes on the card.", lambda c: c.processes),
    "idle_seconds": (
        "gauge",
        "Time since its last work on the card ended; 0 while some is in flight.",
        lambda c: c.idle_s,
    ),
    "hooked": ("gauge", "1 where all its processes on the card have the library in them.", lambda c: c.hooked),
    "open": ("gauge", "1 where its policy lets it allocate.", lambda c: c.is_open),
}
_OF_CARD: Final[dict[str, tuple[str, Callable[[CardFigures], Number]]]] = {
    "memory_bytes": ("Memory that the card carries.", lambda c: c.physical),
    "memory_allocatable_bytes": ("Memory that shares may add up to.", lambda c: c.allocatable),
    "memory_used_bytes": ("Memory in use, as the driver says.", lambda c: c.used),
    "utilization_ratio": ("Part of the time with work on the card, as the driver says.", lambda c: _ratio(c.busy)),
    "seats": ("Containers that can have a share of the card.", lambda c: c.seats),
    "healthy": ("1 where the card serves.", lambda c: c.is_healthy),
}


def _ratio(permille: int | None) -> float | None:
    return None if permille is None else permille / 1000


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


@dataclass(frozen=True, slots=True)
class Labelled:
    """A container on a card with its labels: ours, HAMi's, and HAMi's of the generation before."""

    figures: ContainerFigures
    ours: str
    hami: str
    hami_before: str


_Key = tuple[str, str, str, str, int]


class MetricsPage:
    """The page of one node."""

    def __init__(self, node: str, *, hami_names: bool = True) -> None:
        self._node = node
        self._hami_names = hami_names
        self._labels: dict[_Key, tuple[str, str, str]] = {}

    def text(self, figures: Figures) -> str:
        """Return all families that have a series."""
        containers = self._labelled(_distinct(figures.containers))
        parts = [*self._cards(figures.cards, containers), *self._shares(containers)]
        version = labels_text({"version": __version__})
        parts.append(family("partage_build_info", "gauge", "The agent's version.", [(version, 1)]))
        failures = [(labels_text({"query": query}), count) for query, count in sorted(figures.failures.items())]
        name = "partage_query_failures_total"
        parts.append(family(name, "counter", "Figures that could not be read.", failures))
        if self._hami_names:
            parts += hami_families(figures.cards, containers, self._node)
        return "".join(parts)

    def _labelled(self, containers: list[ContainerFigures]) -> list[Labelled]:
        """Return the containers with their labels; those of containers that are no more are forgotten."""
        before, self._labels = self._labels, {}
        found: list[Labelled] = []
        for one in containers:
            key = (one.namespace, one.pod, one.container, one.device_uuid, one.ordinal)
            texts = before.get(key)
            if texts is None:
                ours = labels_text(_labels_of(one, self._node))
                texts = (ours, labels_text(container_labels(one)), labels_text(container_labels_before(one)))
            self._labels[key] = texts
            found.append(Labelled(one, *texts))
        return found

    def _cards(self, cards: tuple[CardFigures, ...], containers: list[Labelled]) -> Iterator[str]:
        labels = [labels_text({"node": self._node, "device_uuid": card.uuid}) for card in cards]
        pairs = list(zip(labels, cards, strict=True))
        for name, (text, value) in _OF_CARD.items():
            yield family(f"partage_device_{name}", "gauge", text, [(of, value(card)) for of, card in pairs])
        for name, text, value_of in (
            ("memory_promised_bytes", "Memory limits of its containers, summed.", lambda c: c.limit),
            ("cores_promised_ratio", "Guaranteed parts of its time, summed.", lambda c: c.cores / 1000),
            ("shares", "Containers that have a share of it.", lambda _: 1),
        ):
            sums: dict[str, float] = dict.fromkeys((card.uuid for card in cards), 0)
            for one in containers:
                if one.figures.device_uuid in sums:
                    sums[one.figures.device_uuid] += value_of(one.figures)
            yield family(f"partage_device_{name}", "gauge", text, zip(labels, sums.values(), strict=True))
        told = [
            (
                and_labels(
                    of,
                    {"index": str(c.index), "type": c.kind, "backend": c.backend, "mode": c.mode, "reason": c.reason},
                ),
                1,
            )
            for of, c in pairs
        ]
        yield family("partage_device_info", "gauge", "What the card is, and why it does not serve.", told)

    def _shares(self, containers: list[Labelled]) -> Iterator[str]:
        for name, (kind, text, value) in _OF_CONTAINER.items():
            series = [(one.ours, value(one.figures)) for one in containers]
            yield family(f"partage_container_{name}", kind, text, series)
        kinds = [
            (and_labels(one.ours, {"kind": kind}), used)
            for one in containers
            for kind, used in sorted(one.figures.kinds.items())
        ]
        text = "The use that the ledger knows, by kind."
        yield family("partage_container_memory_kind_bytes", "gauge", text, kinds)
        told = [
            (
                and_labels(
                    one.ours, {"class": c.share_class, "priority": str(c.priority), "enforcement": c.enforcement}
                ),
                1,
            )
            for one in containers
            for c in (one.figures,)
        ]
        yield family("partage_container_info", "gauge", "How the share is held, and what holds it.", told)


def _labels_of(found: ContainerFigures, node: str) -> dict[str, str]:
    return {
        "node": node,
        "namespace": found.namespace,
        "pod": found.pod,
        "container": found.container,
        "device_uuid": found.device_uuid,
    }


def _distinct(containers: Iterable[ContainerFigures]) -> list[ContainerFigures]:
    """Return one of each container and card: the open one, else the one told last."""
    best: dict[tuple[str, str, str, str], ContainerFigures] = {}
    for found in containers:
        key = (found.namespace, found.pod, found.container, found.device_uuid)
        if key not in best or found.is_open or not best[key].is_open:
            best[key] = found
    return list(best.values())
