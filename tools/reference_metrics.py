"""The page of figures: every family that agent, scheduler and webhook export, with type, labels and help, and HAMi's.

Called by reference.py; read from the programs' own pages (`sample_figures.py`), so it says what they say. What can go
wrong: a family that the samples there do not bring about is missing; `make test` fails where dashboard or rules ask
for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families
from sample_figures import agent_page, scheduler_families

from partage.admission.server import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

_ABOUT: Final = """
Agent (`partage-agent`), scheduler and webhook each answer on port 9445 of their pod, page `/metrics`. Amounts are
bytes, seconds, and ratios from 0 to 1; *cores* are parts of a card's time. A value that is not known has no series.
Alert rules and a dashboard that use them come with the chart (`metrics.rules`, `metrics.dashboards`). Beside these
agent and scheduler say `partage_build_info`, and the agent `process_*` of itself.
""".strip()
_ABOUT_HAMI: Final = """
For dashboards and alerts that were made for HAMi; `metrics.hamiNames: false` of agent and scheduler leaves them out.
All have the label `zone="vGPU"`. Here *ratio* means percent, 0 to 100, but for `hami_node_gpu_memory_allocated_ratio`.
Names with capital letters are the older ones of its node monitor (`legacyMetrics`). Not said are the older ones of its
scheduler (`GPUDeviceMemoryLimit`, `vGPUMemoryAllocated` …), `hami_build_info`, and those of MIG instances
(`hami_mig_device_info`, `hami_node_gpu_mig_instance_info`, `MigInfo`), of which none are made.
""".strip()
_OURS: Final = "partage_"
_EVERYWHERE: Final = frozenset({"partage_build_info"})
_HAMI_EVERYWHERE: Final = frozenset({"zone"})


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


def _families(found: Iterable[Metric]) -> list[_Family]:
    """Return families by name, each with the labels of its series."""
    made = {}
    for one in found:
        labels = {label: None for sample in one.samples for label in sample.labels if label != "le"}
        name = one.name + ("_total" if one.type == "counter" else "")
        made[name] = _Family(name, one.type, one.documentation, tuple(labels))
    return sorted(made.values(), key=lambda one: one.name)


def _table(families: Iterable[_Family], *, without: frozenset[str] = frozenset()) -> str:
    lines = ["| name | type | labels | value |", "|---|---|---|---|"]
    for one in families:
        labels = ", ".join(label for label in one.labels if label not in without)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(lines)


def page(note: str) -> str:
    """Return the page."""
    agent = _families(text_string_to_metric_families(agent_page()))
    scheduler, webhook = _families(scheduler_families()), _families(Tally().families())
    parts = ["# Figures", note, _ABOUT]
    for title, families in (("The agent", agent), ("The scheduler", scheduler), ("The webhook", webhook)):
        own = [one for one in families if one.name.startswith(_OURS) and one.name not in _EVERYWHERE]
        parts += [f"## {title}", _table(own)]
    parts += ["## Under HAMi's names", _ABOUT_HAMI]
    for title, families in (("agent", agent), ("scheduler", scheduler)):
        theirs = [one for one in families if not one.name.startswith(_OURS)]
        parts += [f"By the {title}:", _table(theirs, without=_HAMI_EVERYWHERE)]
    return "\n\n".join(parts) + "\n"
