"""Ephemeral containers, which somebody adds to a pod that is there (`kubectl debug`): without a share or card.

One that is privileged, in a pod with shares, would see every card of its node, whatever the pod was granted. Those that
were there before cannot be changed, so only the new ones are judged. Called by `decide`; pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.admission.mutate import asks_for_cards, comes_near, hide_cards
from partage.admission.patch import Patch
from partage.admission.validate import left_alone
from partage.devices.ask import asks_for_shares
from partage.devices.escapes import privileged, unconfined
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.names import GRANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.admission.options import AdmissionOptions
    from partage.model import Problem
    from partage.model.pod import ContainerView, PodView

STEP: Final = "debug the node instead (kubectl debug node/...), or add one without it"


def added_to(pod: PodView, before: PodView) -> list[tuple[int, ContainerView]]:
    """Return the ephemeral containers that are new, with their places."""
    known = {container.name for container in before.spec.ephemeral_containers or ()}
    return [
        (number, container)
        for number, container in enumerate(pod.spec.ephemeral_containers or ())
        if container.name not in known
    ]


def problems_of_added(pod: PodView, before: PodView, options: AdmissionOptions) -> Iterator[Problem]:
    """Yield what lets new ephemeral containers out of a pod's shares."""
    granted = not pod.annotations.keys().isdisjoint((GRANT, TWIN))
    if not granted and not (asks_for_shares(pod) and not left_alone(pod, options)):
        return
    for _, container in added_to(pod, before):
        where = f"ephemeral container {container.name}"
        yield from privileged(container, where, STEP)
        yield from unconfined(container, where, options.ask)


def patch_of_added(pod: PodView, before: PodView, options: AdmissionOptions) -> tuple[dict[str, object], ...]:
    """Return what tells new ephemeral containers of no card: those that name some, and in a pod with cards all."""
    patch = Patch()
    alone = comes_near(pod) or any(asks_for_cards(container) for container, _, _ in pod.each())
    for number, container in added_to(pod, before):
        if options.hide_cards:
            hide_cards(patch, container, f"/spec/ephemeralContainers/{number}", alone=alone)
    return tuple(patch.operations)
