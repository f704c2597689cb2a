"""Whole-card safe mode: a pod without a grant gets free whole cards, where the administrator switched that on.

Off by default: such a pod (fixed nodeName, admission down) is then refused. Only a pod that asks for plain
`nvidia.com/gpu: n` can be meant, never one that asks for memory or cores. The books learn which cards are taken from
the node's annotation; where they raced us, the sum of grants refuses the later one. What can go wrong is Refused.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from partage.model import ShareClass, hami_twin, names
from partage.model.grant import ContainerGrant, Grant, GrantShare
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from partage.devices.backend import Card
    from partage_plugin.ports import Pod

NO_CARD: Final = "NoWholeCardFree"
TERM: Final = 1 << 62  # after every scheduler's: what was promised by the books comes first
GENERATION: Final = 0  # of a policy that no scheduler's grant stands behind
_WHOLE: Final = 1000  # permille


class SafeMode:
    """Gives whole cards. Remembers nothing: what was given stands in the policies and on the node."""

    def __init__(self, node: str, resource: str, backend: str, now_us: Callable[[], int] | None = None) -> None:
        self._node = node
        self._resource = resource
        self._backend = backend
        self._now_us = now_us or (lambda: time.time_ns() // 1000)

    def applies(self, pod: Pod) -> bool:
        """Whether this is a pod without a grant that asks for whole cards and nothing else of ours."""
        vendor = self._resource.partition("/")[0]
        asked = {name for container in pod.containers for name in container.asks if name.partition("/")[0] == vendor}
        is_granted = names.GRANT in pod.annotations or hami_twin.ANNOTATION in pod.annotations  # the latter by HAMi
        return not is_granted and asked == {self._resource}

    def grant(self, pod: Pod, cards: Mapping[str, Card], busy: Collection[str]) -> Grant:
        """Return a grant of free whole cards for every container of the pod that asks; raises Refused."""
        free = [uuid for uuid, card in cards.items() if card.healthy and uuid not in busy]
        wanted = {container.name: container.asks.get(self._resource, 0) for container in pod.containers}
        total = sum(wanted.values())
        if total > len(free):
            value = f"{total} whole cards asked, {len(free)} of {len(cards)} free"
            limit = "a pod without a grant gets whole cards only"
            step = f"let {names.SCHEDULER} place it, or wait for a card"
            raise Refused(NO_CARD, (f"pod {pod.full_name}", value, limit, step))
        given = iter(free)
        return self.granted(
            pod.uid,
            {
                name: [(uuid, cards[uuid].physical) for uuid in islice(given, count)]
                for name, count in wanted.items()
                if count
            },
        )

    def granted(self, uid: str, given: Mapping[str, Collection[tuple[str, int]]]) -> Grant:
        """Return the grant that says that the containers of a pod have these whole cards, each with its memory."""
        return Grant(
            v=1,
            uid=uid,
            node=self._node,
            term=TERM,
            bound_at=self._now_us(),
            gen=GENERATION,
            containers={
                name: ContainerGrant(
                    share_class=ShareClass.BURST,
                    priority=1,
                    mode="whole",
                    shares=tuple(self._share(uuid, memory) for uuid, memory in cards),
                )
                for name, cards in given.items()
            },
        )

    def _share(self, uuid: str, memory: int) -> GrantShare:
        return GrantShare(
            backend=self._backend,
            uuid=uuid,
            memory=memory,
            cores=_WHOLE,
            ceiling=_WHOLE,
            weight=_WHOLE,
        )
