"""Whether the host's directories can be written, for `/readyz`: where they cannot, no container starts on this node.

Each pod that fails by it is told; whoever looks after the node sees it here. Owned by the agent, which calls `look`
every few seconds. A directory is tried out, by making what a container needs there and removing it, only while there
is a reason to doubt it: at the agent's start, after something could not be written, and where it says itself that it is
read-only; what watches it (the container runtime) is woken by nothing else. One failed pod is no reason to call
anybody: two trials in a row have to fail. The first that does not fail ends it. What can go wrong is what is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import PartageError

if TYPE_CHECKING:
    from collections.abc import Callable

TRIALS: Final = 2  # that fail in a row until somebody is told

log = structlog.get_logger("partage.agent")


@dataclass(slots=True)
class Directory:
    """One of the host's. `is_doubted`: whether it has to be tried out; `try_out` raises PartageError."""

    is_doubted: Callable[[], bool]
    try_out: Callable[[], object]
    failed: int = 0  # trials in a row
    error: PartageError | None = None


class Writing:
    """What is known of these directories. Used from one thread."""

    def __init__(self, *directories: Directory) -> None:
        self._directories = list(directories)

    def add(self, directory: Directory) -> None:
        """Look after this one, too."""
        self._directories.append(directory)

    def look(self) -> None:
        """Try out what there is reason to doubt."""
        for directory in self._directories:
            if directory.failed or directory.is_doubted():
                self._try_out(directory)

    @staticmethod
    def _try_out(directory: Directory) -> None:
        try:
            directory.try_out()
        except PartageError as error:
            directory.failed += 1
            directory.error = error
            if directory.failed == TRIALS:
                log.error("a directory cannot be written: no container starts here", error=str(error))
            return
        if directory.failed >= TRIALS:
            log.warning("a directory can be written again", before=str(directory.error))
        directory.failed, directory.error = 0, None

    @property
    def problems(self) -> list[str]:
        """What cannot be written, where, and what to do; empty: nothing is known against any of them."""
        return [str(one.error) for one in self._directories if one.failed >= TRIALS]
