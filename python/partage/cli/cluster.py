"""A cluster as the scheduler sees it, read once: books, quotas and pods, for commands that ask and change nothing.

Called by `partage explain` and `partage simulate`. Three lists of the API server (nodes, pods, quotas) and how pods are
read there, with the user's own rights; what the user may not list is a KubeError that names it. Reservations of the
running scheduler are not seen: a pod between filter and binding counts as waiting.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lightkube.resources.core_v1 import ResourceQuota

from partage.cli.ask_settings import AskSource, read_options
from partage.devices.ask import DEFAULTS, read_ask
from partage.kube import Client, load_config
from partage.model import NotFoundError
from partage.scheduler.books import Books
from partage.scheduler.facts_of import node_facts, pod_facts
from partage.scheduler.quota.book import QuotaBook
from partage.scheduler.quota.feed import QuotaFeed, reads
from partage.scheduler.quota.limits import read_limit
from partage.scheduler.views import WatchedNode, WatchedPod

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from partage.devices.requests import AskOptions
    from partage.scheduler.cards import CardKind

MANAGER = "partage-cli"
BY_DEFAULT = AskSource(DEFAULTS)


@dataclass(slots=True)
class ClusterLook:
    """What was read. `nodes`: by name, as the API has them; `pods`: by namespace and name; `ask`: how pods are read."""

    books: Books
    quotas: QuotaFeed
    nodes: dict[str, WatchedNode] = field(default_factory=dict)
    pods: dict[tuple[str, str], WatchedPod] = field(default_factory=dict)
    ask: AskSource = BY_DEFAULT

    def pod(self, namespace: str, name: str) -> WatchedPod:
        """Return a pod; raises NotFoundError."""
        found = self.pods.get((namespace, name))
        if found is None:
            subject, limit = f"pod {namespace}/{name}", "a pod of that name"
            raise NotFoundError(subject, "not found", limit, f"see `kubectl -n {namespace} get pods`")
        return found


def look_of(
    nodes: Iterable[WatchedNode],
    pods: Iterable[WatchedPod],
    quotas: Iterable[ResourceQuota],
    ask: AskSource = BY_DEFAULT,
) -> ClusterLook:
    """Return the books of these objects."""
    books = Books(defaults=ask.defaults)
    of_node = {node.name: node for node in nodes}
    of_pod = {(pod.metadata.namespace or "", pod.metadata.name or ""): pod for pod in pods}
    for node in of_node.values():
        books.set_node(node_facts(node))
    for pod in of_pod.values():
        facts = pod_facts(pod)
        if facts is not None:
            books.set_pod(facts)
    feed = quota_feed(books, of_pod, ask.options)
    for quota in quotas:
        limit = read_limit(quota)
        if limit.hard:
            feed.set_limit(limit)
    feed.forget_overdue(datetime.now(UTC))
    books.promises = feed
    return ClusterLook(books, feed, of_node, of_pod, ask)


def quota_feed(books: Books, pods: dict[tuple[str, str], WatchedPod], options: AskOptions) -> QuotaFeed:
    """Return the quotas over books."""

    def card(node: str, uuid: str) -> CardKind | None:
        state = books.nodes.get(node)
        return state.kinds[state.place[uuid]] if state is not None and uuid in state.place else None

    read = reads(lambda pod: read_ask(pod, options))
    return QuotaFeed(QuotaBook(), read=read, pods=pods.values, card=card, sizes=books.sizes)


async def _read(kubeconfig: str | None, context: str | None, config: Path | None) -> ClusterLook:
    async with Client.connect(load_config(kubeconfig, context), manager=MANAGER) as client:
        nodes, pods, quotas, ask = await asyncio.gather(
            client.list(WatchedNode), client.list(WatchedPod), client.list(ResourceQuota), read_options(client, config)
        )
    return look_of(nodes.items, pods.items, quotas.items, ask)


def read_cluster(kubeconfig: str | None, context: str | None, config: Path | None = None) -> ClusterLook:
    """Read the cluster that a kubeconfig names, and pods as `config`, the scheduler's file, or the cluster says.

    Raises KubeError, and UsageError for a file without meaning.
    """
    return asyncio.run(_read(kubeconfig, context, config))
