"""What a pod needs of a card at once: one rule, used by the books, by quota and by the agent's sum.

Init containers run one after the other and before the apps; sidecars (init containers that are restarted always) run
on beside all that come after them. So the need is the larger of (all apps + all sidecars) and, over every init
container, (it + the sidecars before it), each amount for itself. Cannot fail.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partage.model.grant import Grant


class Role(enum.Enum):
    """When a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Need:
    """Memory in bytes, cores in permille, seats: of one card."""

    memory: int = 0
    cores: int = 0
    seats: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.memory + other.memory, self.cores + other.cores, self.seats + other.seats)

    def at_least(self, other: Need) -> Need:
        """Return the larger of each amount."""
        return Need(max(self.memory, other.memory), max(self.cores, other.cores), max(self.seats, other.seats))


def need_of(containers: Iterable[tuple[Role, Mapping[str, Need]]]) -> dict[str, Need]:
    """Return card -> need of a pod whose containers, in the order of its spec (init ones first), ask for these."""
    highest: dict[str, Need] = {}  # while init containers run
    sidecars: dict[str, Need] = {}
    apps: dict[str, Need] = {}
    for role, asked in containers:
        for card, need in asked.items():
            if role is Role.INIT:
                beside = sidecars.get(card, Need()) + need
                highest[card] = highest.get(card, Need()).at_least(beside)
            else:
                running = sidecars if role is Role.SIDECAR else apps
                running[card] = running.get(card, Need()) + need
    return {
        card: (apps.get(card, Need()) + sidecars.get(card, Need())).at_least(highest.get(card, Need()))
        for card in sorted({*highest, *sidecars, *apps})
    }


def granted_need(grant: Grant, roles: Iterable[tuple[str, Role]]) -> dict[str, Need]:
    """Return card -> need of a granted pod; `roles` are its containers in the order of its spec.

    A container that the grant does not list has no share; one that the spec does not list does not run.
    """
    return need_of((role, _shares_of(grant, name)) for name, role in roles)


def _shares_of(grant: Grant, name: str) -> dict[str, Need]:
    container = grant.containers.get(name)
    if container is None:
        return {}
    return {share.uuid: Need(share.counted, share.cores, 1) for share in container.shares}
