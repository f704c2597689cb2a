"""This node's object at the API server, for `node.py`: annotations and labels read and merged, nothing else touched.

A merge patch names only what is set, so whatever others write beside it stays. What can go wrong: KubeError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkube.resources.core_v1 import Node

from partage_plugin.node import NodeMeta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.kube.client import Client


class KubeNode:
    """The Node of this name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    async def read(self) -> NodeMeta:
        """Return its annotations, labels and container runtime as they are now; raises KubeError."""
        found = await self._client.get(Node, self._name)
        info = found.status.nodeInfo if found.status is not None else None
        runtime = info.containerRuntimeVersion if info is not None else ""
        meta = found.metadata
        return NodeMeta(*((meta.annotations or {}, meta.labels or {}) if meta is not None else ({}, {})), runtime)

    async def merge(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Set these, and leave all others; raises KubeError."""
        parts = {"annotations": dict(annotations), "labels": dict(labels)}
        await self._client.patch(Node, self._name, {"metadata": {key: part for key, part in parts.items() if part}})
