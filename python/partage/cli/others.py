"""How much of the processors' time work that is not ours has: the demo and the benches ask before they judge a clock.

A program that is not run launches nothing and answers late, whatever its share is. Counted by the kernel for the whole
machine, less what this process, those that it has started and collected, and the ones it names have used. Cannot fail:
a named process that has ended meanwhile counts as others' work from then on.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

BUSY: Final = 25.0  # percent, had by other work: beyond, what a clock says of ours proves nothing
_STAT: Final = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Processors:
    """Ticks of all processors so far: had by others, and all there were."""

    others: float
    total: float

    @classmethod
    def now(cls, pids: Iterable[int] = ()) -> Self:
        """Count now; `pids`: processes of ours that are not children, or are not collected yet."""
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, _STAT.read_text().split()[1:9])
        taken = user + nice + system + irq + softirq + steal
        ours = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK") + sum(map(_used, pids))
        return cls(taken - ours, float(taken + idle + iowait))

    def others_since(self, before: Self) -> float:
        """Return the percent of all processors' time that others had since then."""
        return 100.0 * (self.others - before.others) / max(self.total - before.total, 1.0)


def _used(pid: int) -> int:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])  # utime and stime, of all its threads
    return 0
