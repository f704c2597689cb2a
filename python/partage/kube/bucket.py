"""How many writes may be made: so many at once, and so many a second after that.

Used by whoever writes to the API server on its own account (events, the agent's conditions), so that what many pods
have to be told at once is a bounded load there. Time comes from the caller. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Writes that may be made: `left` of them, as of `at`."""

    left: float
    at: float

    def take(self, now: float, burst: float, per_s: float) -> bool:
        """Take one out where there is one."""
        if self.due(now, burst, per_s) > 0:
            return False
        self.left -= 1
        return True

    def due(self, now: float, burst: float, per_s: float) -> float:
        """Return the seconds until one may be made; 0 for now."""
        self.left = min(burst, self.left + (now - self.at) * per_s)
        self.at = now
        return 0.0 if self.left >= 1 else (1 - self.left) / per_s
