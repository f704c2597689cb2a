"""From grant to policy: what one container's part of a grant says, as libvgpu.so reads it.

Called when a container is handed over and when its grant is changed under it (resize). What the policy knows and no
grant says stays as it is: the watcher's corrections, whether turns are taken. Cannot fail: a grant was checked before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from partage.shm import Policy, PolicyDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partage.devices.backend import Card, Enforcement
    from partage.model.grant import ContainerGrant, GrantShare

_OVERSUBSCRIBED: Final = 1  # flags of the policy file


def policy_of(
    grant: ContainerGrant,
    *,
    generation: int,
    cards: Mapping[str, Card],
    enforcement: Enforcement,
    context_of: Callable[[str], int | None],
) -> Policy:
    """Return the open policy of a container; `context_of`: bytes one context takes on a card, where that is known."""
    return Policy(
        devices=tuple(
            _device_of(share, position, cards[share.uuid].physical, context_of(share.uuid))
            for position, share in enumerate(grant.shares)
        ),
        is_open=True,
        share_class=grant.share_class.value,
        priority=grant.priority,
        enforcement=enforcement.value,
        flags=_OVERSUBSCRIBED if grant.oversub else 0,
        generation=generation,
    )


def _device_of(share: GrantShare, position: int, physical: int, context: int | None) -> PolicyDevice:
    return PolicyDevice(
        uuid=share.uuid,
        memory=share.memory,
        physical=physical,
        cores=share.cores,
        ceiling=share.ceiling,
        weight=share.weight,
        turn=position,
        context=context,
    )


def carried_over(wanted: Policy, present: Policy) -> Policy:
    """Return `wanted` with what the present policy knows of the same devices beyond any grant."""
    known = {device.uuid: device for device in present.devices}
    return replace(
        wanted,
        devices=tuple(
            device
            if (before := known.get(device.uuid)) is None
            else replace(
                device,
                overhead=before.overhead,
                context=before.context if before.context is not None else device.context,
                gated=before.gated,
                audit_ns=before.audit_ns,
            )
            for device in wanted.devices
        ),
    )
