"""What processes use of each device, asked of NVML once for all who want to know at about the same time.

The node agent watches a hundred containers with one session, and each watcher looks at the same few devices: NVML costs
milliseconds on a busy card. So an answer is kept, and serves everybody for whom it is young enough; each says how young
that is. Called by watchers and their auditors, in one thread; reached as `Nvml.usage`. An error is raised to whoever
asked and not kept: the next one asks again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEPT_US: Final = 10_000_000  # samples that are so much older than the latest are nobody's news


class Source(Protocol):
    """What is asked: an NVML session, or a test's."""

    def processes(self, uuid: str) -> dict[int, int]:
        """Return pid -> bytes on the device with this UUID."""
        ...

    def samples_since(self, uuid: str, since: int) -> dict[int, tuple[int, int]]:
        """Return pid -> (µs of the device's clock, percent) of its latest sample after `since`."""
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
    """Answers of one session, kept by device. Moments are seconds of `now`, the clock of all who ask."""

    def __init__(self, source: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._now = now
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
        new = {pid: percent for pid, (at_us, percent) in kept.by_pid.items() if at_us > seen_us}
        return new, max(seen_us, kept.latest_us)

    def _ask_samples(self, uuid: str, kept: _Samples | None) -> _Samples:
        before = kept or _Samples(0.0)
        began_at = self._now()
        found = self._source.samples_since(uuid, before.latest_us)
        latest_us = max((at_us for at_us, _ in found.values()), default=before.latest_us)
        young = {pid: sample for pid, sample in before.by_pid.items() if sample[0] > latest_us - KEPT_US}
        return _Samples(began_at, latest_us, young | found)
