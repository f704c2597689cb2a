"""What our agents wrote onto nodes, to take it off when the product goes.

The API server keeps for every field who wrote it; what stands there under the agent's name and nobody else's is ours,
whatever it is called, and labels that another program writes too (NVIDIA's feature discovery) stay. Called by `partage
forget`, right after the release was taken off: each API server goes on for a moment with the policy that guards the
annotation. What can go wrong is KubeError: no right to list or patch nodes, or that policy is still there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage.kube.conditions import mark_node
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lightkube.resources.core_v1 import Node

    from partage.kube.client import Client

AGENT: Final = "partage-agent"  # as the agent names itself to the API server
GONE_S: Final = 10.0  # for as long as that an API server may know a policy that was removed
AGAIN_S: Final = 0.5
_KINDS: Final = ("annotations", "labels")
_GUARD: Final = "ValidatingAdmissionPolicy 'partage-devices'"


@dataclass(frozen=True, slots=True)
class Traces:
    """Annotations and labels of one node that are ours alone."""

    node: str
    annotations: tuple[str, ...]
    labels: tuple[str, ...]


def traces_on(node: Node) -> Traces:
    """Return what our agent alone wrote there and still stands."""
    meta = node.metadata
    ours: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    others: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for entry in (meta.managedFields if meta else None) or ():
        fields = (entry.fieldsV1 or {}).get("f:metadata", {})
        for kind in _KINDS:
            found = {name[2:] for name in fields.get(f"f:{kind}", {}) if name.startswith("f:")}
            (ours if entry.manager == AGENT else others)[kind] |= found
    there = {"annotations": (meta.annotations if meta else None) or {}, "labels": (meta.labels if meta else None) or {}}
    left = {kind: tuple(sorted((ours[kind] - others[kind]) & there[kind].keys())) for kind in _KINDS}
    return Traces((meta.name if meta else None) or "", left["annotations"], left["labels"])


async def forget(client: Client, found: Traces, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> bool:
    """Take it off the node; return whether there was anything."""
    waited = 0.0
    while True:
        try:
            return await mark_node(
                client, found.node, annotations=dict.fromkeys(found.annotations), labels=dict.fromkeys(found.labels)
            )
        except KubeError as error:
            if _GUARD not in str(error.value):
                raise
            if waited >= GONE_S:
                step = "take the release off first (helm uninstall); the policy goes with it"
                raise KubeError(error.subject, error.value, error.limit, step, status=error.status) from error
        await sleep(AGAIN_S)
        waited += AGAIN_S
