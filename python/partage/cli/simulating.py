"""Places pods that do not exist in books that nobody else reads: each one finds what the ones before it left.

Called by `partage simulate`. Cannot fail: a pod that fits nowhere is told so, and the next one is tried.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from partage.cli.explaining import Explanation, explain_new
from partage.devices.ask import read_ask
from partage.model import ShareRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.cli.cluster import ClusterLook
    from partage.model.pod import PodView


def place_all(look: ClusterLook, pods: Iterable[PodView]) -> list[Explanation]:
    """Return what becomes of each pod, in their order."""
    said = []
    for pod in pods:
        one = explain_new(look, pod)
        said.append(one)
        ask = read_ask(pod, look.ask.options) if one.state == "fits" else None
        if ask is not None:
            with contextlib.suppress(ShareRefused):  # between the two nothing changes; the books say it all the same
                look.books.reserve(look.quotas.narrowed(pod, ask), one.node, 0.0)
    return said
