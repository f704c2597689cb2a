"""We test these aspects of what NVML says of processes: an answer serves all for whom it is young enough, nobody else;
samples that were counted are not told again, to each watcher apart; an error is not kept."""

from __future__ import annotations

import pynvml
import pytest

from partage.devices.nvidia.nvml import Nvml
from partage.devices.nvidia.usage import KEPT_US, Usage
from partage.model import DeviceError

from .clock import HandClock

CARD, OTHER = "GPU-a", "GPU-b"


class Source:
    """Says what it is told to say, and counts how often it is asked."""

    def __init__(self) -> None:
        self.memory = {1: 100}
        self.samples = {1: (1_000_000, 50)}
        self.asked: list[str] = []
        self.since: list[int] = []
        self.fails = False

    def processes(self, uuid: str) -> dict[int, int]:
        self.asked.append(uuid)
        if self.fails:
            raise DeviceError(uuid, "lost", "a card that answers", "restore it")
        return dict(self.memory)

    def samples_since(self, uuid: str, since: int, until: int) -> dict[int, tuple[int, int]]:
        self.asked.append(uuid)
        self.since.append(since)
        return {pid: sample for pid, sample in self.samples.items() if since < sample[0] <= until}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> HandClock:
    made = HandClock()
    made.move(100)
    return made


@pytest.fixture
def usage(source: Source, clock: HandClock) -> Usage:
    return Usage(source, clock.now)


def test_an_answer_serves_all_for_whom_it_is_young_enough(usage: Usage, source: Source, clock: HandClock) -> None:
    first = usage.memory(CARD, after=90)
    assert (first.began_at, first.memory) == (100, {1: 100})
    clock.move(5)
    assert usage.memory(CARD, after=99) is first
    assert source.asked == [CARD]
    assert usage.memory(CARD, after=100).began_at == 105, "one from that very moment may be from before it"
    usage.memory(OTHER, after=0)
    assert source.asked == [CARD, CARD, OTHER]


def test_an_error_is_told_to_who_asked_and_the_next_one_asks_again(usage: Usage, source: Source) -> None:
    source.fails = True
    with pytest.raises(DeviceError, match="lost"):
        usage.memory(CARD, after=0)
    source.fails = False
    assert usage.memory(CARD, after=0).memory == {1: 100}


def test_each_watcher_is_told_a_sample_once(usage: Usage, source: Source, clock: HandClock) -> None:
    assert usage.busy(CARD, 0, after=99) == ({1: 50}, 1_000_000)
    assert usage.busy(CARD, 0, after=99) == ({1: 50}, 1_000_000), "another watcher"
    assert usage.busy(CARD, 1_000_000, after=99) == ({}, 1_000_000)
    assert source.since == [0]
    clock.move(1)
    source.samples = {2: (2_000_000, 70)}
    assert usage.busy(CARD, 1_000_000, after=100) == ({2: 70}, 2_000_000)
    assert usage.busy(CARD, 0, after=100) == ({1: 50, 2: 70}, 2_000_000)
    assert source.since == [0, 1_000_000]


def test_samples_of_the_dead_are_forgotten(usage: Usage, source: Source, clock: HandClock) -> None:
    usage.busy(CARD, 0, after=0)
    clock.move(1)
    source.samples = {2: (1_000_000 + KEPT_US, 70)}
    assert usage.busy(CARD, 0, after=100) == ({2: 70}, 1_000_000 + KEPT_US)


def test_k07_a_clock_that_is_set_back_hides_nobodys_use(source: Source, clock: HandClock) -> None:
    """What launches past the library is found by these samples: an hour without any would be its hour."""
    hour = 3_600_000_000
    wall = [2 * hour]
    usage = Usage(source, clock.now, lambda: wall[0])
    source.samples = {1: (2 * hour, 50)}
    assert usage.busy(CARD, 0, after=clock.now()) == ({1: 50}, 2 * hour)
    wall[0] = hour
    seen = 2 * hour
    for second in range(1, 4):
        clock.move(1)
        wall[0] += 1_000_000
        source.samples = {1: (wall[0], 60 + second), 2: (2 * hour, 99)}  # NVML keeps what was stamped before
        found, seen = usage.busy(CARD, seen, after=clock.now())
        assert found == ({} if second == 1 else {1: 60 + second}), f"in second {second} after it was set back"
        assert seen == wall[0]


def test_k13_a_card_that_failed_is_asked_by_another_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset the one from before is stale: what the card uses would never be seen again."""
    handles = iter(["first", "second"])
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda _: next(handles))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGraphicsRunningProcesses_v3", lambda _: [])
    stale: set[str] = set()

    def running(handle: str) -> list[object]:
        if handle in stale:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return []

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v3", running)
    nvml = Nvml(None)
    assert [nvml.processes(CARD) for _ in range(2)] == [{}, {}], "one handle serves as long as it works"
    stale.add("first")
    with pytest.raises(DeviceError):
        nvml.processes(CARD)
    assert nvml.processes(CARD) == {}
