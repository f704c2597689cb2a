"""What pods ask for, read once for all that are alike.

A pod of a Deployment differs from its siblings by its name alone, and reading what it asks for takes as long as finding
it a node. Used by the extender; what is kept is known by all of the pod that is read. What can go wrong: a pod asks in
a way without meaning; AskError, which is found anew each time, since it names the pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from partage.devices.ask import read_ask
from partage.model.ask import PodAsk

if TYPE_CHECKING:
    from partage.devices.requests import AskOptions
    from partage.model.pod import PodView

KNOWN_MAX: Final = 2048  # kept; then all are forgotten

_encode: Final = msgspec.json.Encoder().encode


class Reader:
    """Reads pods under one set of options."""

    def __init__(self, options: AskOptions) -> None:
        self._options = options
        self._known: dict[bytes, PodAsk | None] = {}

    def read(self, pod: PodView) -> PodAsk | None:
        """Return what a pod asks for, None for nothing of ours; raises AskError."""
        meta = pod.metadata
        key = _encode((pod.spec, meta.annotations))
        try:
            known = self._known[key]
        except KeyError:
            found = read_ask(pod, self._options)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = found
            return found
        if known is None:
            return None
        namespace = meta.namespace or "default"
        return PodAsk(
            meta.uid or "",
            namespace,
            meta.name or meta.generate_name or "",
            known.shape,
            known.scheduler,
            known.priority,
        )
