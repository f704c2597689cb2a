"""A policy that may not be open for changes yet: who watches a container begins without waiting for that.

Made by the agent's watchers. A tenant that runs as root may hold a lease on its policy from a time when no agent had it
open; the kernel takes it away after `fs.lease-break-time` (45 s), and until then nobody opens the file for changes.
Reading goes on meanwhile. What can go wrong: each change raises PolicyError until the file could be opened.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from partage.model import PolicyError
from partage.shm.policy import Policy, PolicyFile, read_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LatePolicy:
    """The policy at `path`; tried to be opened now, and again at each change until it is. Owned by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: PolicyFile | None = None
        with contextlib.suppress(PolicyError):
            self._opened()

    def _opened(self) -> PolicyFile:
        if self._file is None:
            self._file = PolicyFile.open(self.path)
        return self._file

    def read(self) -> Policy:
        """Return what the file says; raises PolicyError."""
        return read_policy(self.path) if self._file is None else self._file.read()

    @property
    def is_gated(self) -> bool:
        """Whether the container takes turns on any device; False where that cannot be read."""
        if self._file is not None:
            return self._file.is_gated
        with contextlib.suppress(PolicyError):
            return any(device.gated for device in self.read().devices)
        return False

    def update(self, change: Callable[[Policy], Policy]) -> Policy:
        """Apply `change` as PolicyFile does; raises PolicyError."""
        return self._opened().update(change)

    def shut(self) -> None:
        """Put the container into the closed state; raises PolicyError."""
        self._opened().shut()

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
