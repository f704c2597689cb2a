"""The grant of a placement, and HAMi's twin of it: what `bind` writes onto the pod.

Called by the books. What can go wrong: a card whose UUID HAMi's text cannot hold (GrantError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.model import hami_twin
from partage.model.grant import GRANT_VERSION, ContainerGrant, Grant, GrantShare
from partage.model.share import ShareClass, default_weight, times_of

if TYPE_CHECKING:
    from partage.model.ask import ContainerAsk, PodAsk
    from partage.scheduler.answers import PlacedContainer, Placement


def grant_of(ask: PodAsk, placement: Placement, *, term: int, bound_at: int) -> tuple[Grant, str]:
    """Return the grant and the twin; `term`: of the Lease, `bound_at`: Unix µs. Raises GrantError."""
    containers = {
        placed.name: _container(container, placed)
        for container, placed in zip(ask.shape.containers, placement.containers, strict=True)
    }
    grant = Grant(
        v=GRANT_VERSION,
        uid=ask.uid,
        node=placement.node,
        term=term,
        bound_at=bound_at,
        gen=1,
        containers=containers,
    )
    return grant, hami_twin.encode_twin(grant, [name for name, _ in ask.shape.order])


def _container(ask: ContainerAsk, placed: PlacedContainer) -> ContainerGrant:
    cores, ceiling = times_of(ask.share_class, ask.cores)
    if ask.ceiling is not None and ask.share_class is not ShareClass.FIXED:
        ceiling = max(cores, ask.ceiling)
    shares = tuple(
        GrantShare(
            backend=ask.backend,
            uuid=card.uuid,
            memory=card.memory,
            cores=cores,
            ceiling=ceiling,
            weight=ask.weight or default_weight(ask.cores),
        )
        for card in placed.cards
    )
    return ContainerGrant(
        share_class=ask.share_class, priority=ask.priority, mode=placed.mode, shares=shares, oversub=placed.oversub
    )
