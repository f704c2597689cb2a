"""What processes use of each device, asked of NVML once for all who want to know at about the same time.

The node agent watches a hundred containers with one session, and each watcher looks at the same few devices: NVML costs
milliseconds on a busy card. So an answer is kept, and serves everybody for whom it is young enough; each says how young
that is. Called by watchers and their auditors, in one thread; reached as `Nvml.usage`. An error is raised to whoever
asked and not kept: the next one asks again. NVML stamps samples with the machine's clock; where that is set back, what
is newer than the latest sample would be nothing for as long: so what lies ahead of the clock counts as never seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEPT_US: Final = 10_000_000  # samples that are so much older than the latest are nobody's news
AHEAD_US: Final = 5_000_000  # of the machine's clock: no sample is, unless that was set back


class Source(Protocol):
    """What is asked: an NVML session, or a test's."""

    def processes(self, uuid: str) -> dict[int, int]:
        """Return pid -> bytes on the device with this UUID."""
        ...

    def samples_since(self, uuid: str, since: int, until: int) -> dict[int, tuple[int, int]]:
        """Return pid -> (µs of NVML's clock, percent) of its latest sample after `since`, and not after `until`."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """pid -> bytes on one device; asked for at `began_at`, seconds of the monotonic clock."""

    began_at: float
    memory: Mapping[int, int]


@dataclass(slots=True)
class _Samples:
    began_at: float
    latest_us: int = 0
    by_pid: dict[int, tuple[int, int]] = field(default_factory=dict)


class Usage:
    """Answers of one session, kept by device. Moments are seconds of `now`, the clock of all who ask.

    `wall_us` is the machine's clock, µs since the epoch.
    """

    def __init__(
        self,
        source: Source,
        now: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._source = source
        self._now = now
        self._wall_us = wall_us
        self._readings: dict[str, Reading] = {}
        self._samples: dict[str, _Samples] = {}

    def memory(self, uuid: str, after: float) -> Reading:
        """Return a reading that was begun after this moment; raises DeviceError."""
        kept = self._readings.get(uuid)
        if kept is None or kept.began_at <= after:
            began_at = self._now()
            kept = self._readings[uuid] = Reading(began_at, self._source.processes(uuid))
        return kept

    def busy(self, uuid: str, seen_us: int, after: float) -> tuple[dict[int, int], int]:
        """Return pid -> percent of its latest sample that is later than `seen_us`, and when the latest of all is from.

        Samples are asked for where those there are were asked for before `after`. NVML keeps those of processes that
        have ended; `seen_us` (µs of its clock) leaves out what was counted. Raises DeviceError.
        """
        kept = self._samples.get(uuid)
        if kept is None or kept.began_at <= after:
            kept = self._samples[uuid] = self._ask_samples(uuid, kept)
        seen_us = seen_us if seen_us <= kept.latest_us else 0  # else the clock was set back: all of these are new
        return {pid: percent for pid, (at_us, percent) in kept.by_pid.items() if at_us > seen_us}, kept.latest_us

    def _ask_samples(self, uuid: str, kept: _Samples | None) -> _Samples:
        before = kept or _Samples(0.0)
        began_at, wall_us = self._now(), self._wall_us()
        if before.latest_us > wall_us + AHEAD_US:
            before = _Samples(0.0, wall_us)
        found = self._source.samples_since(uuid, before.latest_us, wall_us + AHEAD_US)
        latest_us = max((at_us for at_us, _ in found.values()), default=before.latest_us)
        young = {pid: sample for pid, sample in before.by_pid.items() if sample[0] > latest_us - KEPT_US}
        return _Samples(began_at, latest_us, young | found)
