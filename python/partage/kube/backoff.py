"""How long to wait before trying again: growing steps with jitter, so that a thousand clients do not come back at once.

Used by the client for one request and by the informer for its watch. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits of `first_s`, twice that, four times that … up to `most_s`, each cut to a random part of at least half."""

    first_s: float
    most_s: float

    def wait(self, failures: int, random: Random) -> float:
        """Return the seconds to wait after so many failures in a row, the first is 1."""
        whole = min(self.most_s, self.first_s * float(1 << min(failures - 1, 30)))
        return whole * random.uniform(0.5, 1.0)
