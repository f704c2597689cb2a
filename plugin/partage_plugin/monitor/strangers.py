"""Processes on a card that no ledger knows, and in whose container they are: what runs there past its library.

Called by the reader of figures, with what the driver says of each card's processes. A process of a container is found
by the mounts that it sees: its hand-over's directory is among them. One that has just started has no slot yet, or its
watcher has not found it: so only who is seen twice counts. What can go wrong: a process ends or hides its mounts (then
it is nobody's); the agent does not see the host's processes (likewise).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage_plugin.monitor.whereabouts import hand_overs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from partage.devices.backend import CardUse


class Strangers:
    """Remembers who was seen the time before; used from one thread at a time."""

    def __init__(self, whose: Callable[[Collection[int]], Collection[str]] = hand_overs_of) -> None:
        self._whose = whose
        self._before: dict[str, frozenset[int]] = {}

    def look(self, use: Mapping[str, CardUse], known: Collection[int]) -> dict[str, Collection[str]]:
        """Return card -> hand-overs with a process there that is not `known` and was not the time before."""
        now = {uuid: frozenset(one.processes or ()) - frozenset(known) for uuid, one in use.items()}
        twice = {uuid: pids & self._before.get(uuid, frozenset()) for uuid, pids in now.items()}
        self._before = now
        return {uuid: self._whose(pids) for uuid, pids in twice.items() if pids}
