"""Figures as Prometheus reads them: ours in base units, and under HAMi's names beside them where wanted.

`Collector` is a prometheus-client collector over one `Figures`; `exposition` writes any collectors down in the text
format, ten times as fast as the library's own writer, since a container's labels are the same in all its series.
A value that is None has no series. Two hand-overs of one container (a new one made before the old one is swept) would
be the same series twice, which spoils a scrape: the open one stands for both. Cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from partage._version import __version__
from partage_plugin.hami_metrics import hami_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partage_plugin.figures import CardFigures, ContainerFigures, Figures

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Number = float | int | bool | None

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


class Collector:
    """The families of one moment, for a prometheus-client registry or for `exposition`."""

    def __init__(self, figures: Figures, node: str, *, hami_names: bool = True) -> None:
        self._figures = figures
        self._node = node
        self._hami_names = hami_names
        self._containers = _distinct(figures.containers)

    def collect(self) -> Iterator[Metric]:
        """Yield all families that have a series."""
        yield from self._cards()
        yield from self._shares()
        yield _family("partage_build_info", "gauge", "The agent's version.", [({"version": __version__}, 1)])
        failures = [({"query": query}, count) for query, count in sorted(self._figures.failures.items())]
        yield _family("partage_query_failures_total", "counter", "Figures that could not be read.", failures)
        if self._hami_names:
            yield from hami_families(self._figures.cards, self._containers, self._node)

    def _cards(self) -> Iterator[Metric]:
        labels = [{"node": self._node, "device_uuid": card.uuid} for card in self._figures.cards]
        pairs = list(zip(labels, self._figures.cards, strict=True))
        for name, (text, value) in _OF_CARD.items():
            yield _family(f"partage_device_{name}", "gauge", text, [(of, value(card)) for of, card in pairs])
        for name, text, value_of in (
            ("memory_promised_bytes", "Memory limits of its containers, summed.", lambda c: c.limit),
            ("cores_promised_ratio", "Guaranteed parts of its time, summed.", lambda c: c.cores / 1000),
            ("shares", "Containers that have a share of it.", lambda _: 1),
        ):
            sums = [
                sum(value_of(found) for found in self._containers if found.device_uuid == card.uuid)
                for card in self._figures.cards
            ]
            yield _family(f"partage_device_{name}", "gauge", text, zip(labels, sums, strict=True))
        told = [
            (of | {"index": str(c.index), "type": c.kind, "backend": c.backend, "mode": c.mode, "reason": c.reason}, 1)
            for of, c in pairs
        ]
        yield _family("partage_device_info", "gauge", "What the card is, and why it does not serve.", told)

    def _shares(self) -> Iterator[Metric]:
        labels = [_labels_of(found, self._node) for found in self._containers]
        pairs = list(zip(labels, self._containers, strict=True))
        for name, (kind, text, value) in _OF_CONTAINER.items():
            yield _family(f"partage_container_{name}", kind, text, [(of, value(found)) for of, found in pairs])
        kinds = [(of | {"kind": kind}, used) for of, found in pairs for kind, used in sorted(found.kinds.items())]
        yield _family("partage_container_memory_kind_bytes", "gauge", "The use that the ledger knows, by kind.", kinds)
        told = [
            (of | {"class": c.share_class, "priority": str(c.priority), "enforcement": c.enforcement}, 1)
            for of, c in pairs
        ]
        yield _family("partage_container_info", "gauge", "How the share is held, and what holds it.", told)


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


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], Number]]) -> Metric:
    family = Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)
    family.samples = [Sample(name, labels, float(value)) for labels, value in samples if value is not None]
    return family


# ---- the text format -------------------------------------------------------------------------------------------------

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def exposition(families: Iterable[Metric]) -> bytes:
    """Return the families in Prometheus' text format, version 0.0.4."""
    written: dict[int, str] = {}  # by identity: a container's labels are one object in all families
    keep: list[dict[str, str]] = []  # so that no identity is used twice
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        kind = family.type if family.type != "unknown" else "untyped"
        lines.append(f"# HELP {name} {family.documentation.translate(_ESCAPES)}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            text = written.get(id(sample.labels))
            if text is None:
                keep.append(sample.labels)
                text = written[id(sample.labels)] = _labels_text(sample.labels)
            lines.append(f"{sample.name}{text} {_number(sample.value)}\n")
    return "".join(lines).encode()


def _labels_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items()) + "}"


def _number(value: float) -> str:
    value = float(value)  # other collectors say int
    return str(int(value)) if value.is_integer() and abs(value) < 1e17 else repr(value)
