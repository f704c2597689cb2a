"""What the agent shows of itself: whose hand-overs are open, its cards, and why it is not ready.

Read by the figures and the pages (monitor/reader.py, web.py), from another thread too; nothing here changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage_plugin.figures import CardFigures
from partage_plugin.monitor.reader import Held

if TYPE_CHECKING:
    from partage_plugin.agent import Agent
    from partage_plugin.cards import Cards
    from partage_plugin.kubepods import ClusterPods


def held_of(agent: Agent) -> list[Held]:
    """Return the open hand-overs with whose they are."""
    found: list[Held] = []
    for held in list(agent.desk.held.values()):
        namespace, _, pod = held.pod.partition("/")
        found.append(Held(held.entry, namespace, pod, held.container))
    return found


def card_figures(cards: Cards) -> list[CardFigures]:
    """Return the cards as the backend found them."""
    return [
        CardFigures(
            uuid=card.uuid,
            index=card.index,
            kind=card.name,
            backend="nvidia",
            mode=card.mode,
            physical=card.physical,
            allocatable=card.allocatable,
            seats=card.seats,
            is_healthy=card.healthy,
            reason=card.reason,
        )
        for card in list(cards.by_uuid.values())
    ]


def not_ready(agent: Agent, pods: ClusterPods) -> list[str]:
    """Return why containers cannot be started here now; nothing where they can, or another agent does it still."""
    if agent.is_standby:
        return []
    reasons: list[str] = []
    if not agent.cards.by_uuid:
        reasons.append("no cards were found yet")
    if not agent.is_ready:
        foreign = agent.registrar.foreign if agent.registrar is not None else None
        reasons.append(f"another device plugin serves these cards: {foreign}" if foreign else "kubelet does not follow")
    if not pods.is_synced:
        reasons.append(f"pods are not known: {pods.problem}")
    return reasons + agent.writing.problems
