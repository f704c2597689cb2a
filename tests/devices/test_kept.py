"""We test these aspects of cards that failed with an XID where the driver gives no advice: a restart of the agent heals
none, a reset, a reboot, another load of the driver and a while without an agent do; whatever lies in the file's place
harms nobody."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partage.devices.backend import Card, HealthChange, Inventory
from partage.devices.nvidia import backend, health, kept
from partage.devices.nvidia.health import HealthWatch
from partage.devices.nvidia.kept import FILE, GAP_S, KeptXid, KeptXids
from partage.devices.nvidia.options import HealthOptions, Options
from partage.devices.nvidia.xids import Xid
from tests.devices.clock import HandClock
from tests.devices.test_health import LOST, WELL, NoThread, book, next_of

if TYPE_CHECKING:
    from partage.devices.nvidia.cards import Answer

OFF_THE_BUS = "XID 79 (GPU has fallen off the bus)"
CONTAINED = "XID 94 (contained memory error)"
ONE = {"a": KeptXid(79, 1.0)}


class Looks:
    """A discovery that finds two cards, both well for all that the driver says."""

    unfit: dict[str, str] = {}  # noqa: RUF012 -- never written

    def __init__(self, *_: object, **__: object) -> None: ...

    def look(self, _: object) -> Inventory:
        return Inventory(tuple(Card(uuid, 0, "card", 1, 1, 10) for uuid in "ab"), ())

    def known(self) -> dict[str, object]:
        return {}


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "XidThread", NoThread)
    monkeypatch.setattr(backend, "Discovery", Looks)
    monkeypatch.setattr(backend.NvidiaBackend, "_open", lambda _: None)
    monkeypatch.setattr(kept, "era", lambda: "this boot, this driver")


def test_a_restart_of_the_agent_heals_no_card(tmp_path: Path) -> None:
    """The next agent has it unhealthy from its first look on, and goes by the same rules."""
    clock, at_fault = HandClock(), set[str]()

    async def probe(uuid: str) -> Answer:
        return LOST if uuid in at_fault else WELL

    async def life() -> tuple[list[str], backend.NvidiaBackend]:
        cards = backend.NvidiaBackend(Options(), clock, None, state=tmp_path)
        cards._watch._probe = probe
        return [card.reason for card in (await cards.discover()).cards], cards

    async def go() -> None:
        reasons, cards = await life()
        assert reasons == ["", ""]
        changes = cards.watch_health()
        for uuid, number in (("a", 79), ("b", 94)):
            coming = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            NoThread.tell(Xid(uuid, number))
            assert (await coming).uuid == uuid
        cards.close()  # killed: nothing more is written
        clock.move(GAP_S / 2)
        reasons, cards = await life()
        assert reasons == [OFF_THE_BUS, CONTAINED]
        changes = cards.watch_health()
        assert await next_of(changes, clock) == HealthChange("b", True)
        assert clock.now() == pytest.approx(HealthOptions().patience_s, abs=20), "not from the restart on"
        at_fault.add("a")
        again = asyncio.ensure_future(anext(changes))
        for _ in range(100):
            await asyncio.sleep(0)
            clock.move(0.5)
        at_fault.clear()
        assert not again.done()
        cards.close()
        reasons, cards = await life()
        assert reasons == [OFF_THE_BUS, ""]
        assert await next_of(cards.watch_health(), clock) == HealthChange("a", True), "it was away: a reset"
        assert not (tmp_path / FILE).exists()
        assert (await life())[0] == ["", ""]

    asyncio.run(go())


def test_what_a_reset_may_have_healed_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = KeptXids(tmp_path)
    there.write(ONE, 100.0)
    assert there.read(100.0 + GAP_S) == ONE
    assert there.read(100.1 + GAP_S) == {}, "nobody was there for so long"
    assert there.read(99.0) == {}, "another boot's clock"
    monkeypatch.setattr(kept, "era", lambda: "another")
    assert there.read(100.0) == {}
    monkeypatch.setattr(kept, "era", lambda: "")
    there.write(ONE, 100.0)
    assert there.read(100.0) == {}, "who does not know which boot it is cannot tell"


def test_another_load_of_the_driver_is_another_era(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    driver = tmp_path / "nvidia"
    monkeypatch.setattr(kept, "_DRIVER", driver)
    found = [kept.era()]
    driver.mkdir()
    found.append(kept.era())
    (tmp_path / "takes its inode").mkdir()
    driver.rename(tmp_path / "unloaded")
    driver.mkdir()
    found.append(kept.era())
    assert len(set(found)) == 3
    assert kept.era() == found[-1]
    monkeypatch.setattr(kept, "_BOOT", tmp_path / "none")
    assert kept.era() == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        b'{"era": "this boot, this driver", "at": 0, "cards": {"a": {"xid": "x", "since": 0}}}',
        b'{"era": "this boot, this driver", "at": 0, "cards": {"a": {"xid": -1, "since": 0}}}',
        b'{"era": "this boot, this driver", "at": 1e400, "cards": {}}',
        b'{"era": "this boot, this driver", "at": 0, "cards": {}}' + b" " * (64 << 10),
        None,
    ],
)
def test_garbage_in_its_place_says_nothing(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / FILE
    if text is None:
        os.mkfifo(path)
    else:
        path.write_bytes(text)
    there = KeptXids(tmp_path)
    assert there.read(0.0) == {}
    there.write(ONE, 0.0)
    assert there.read(0.0) == ONE
    there.write({}, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_failure_any_more_is_none_after_a_restart() -> None:
    for options in ({"ignored_xids": frozenset({79})}, {"watch_xids": False}):
        there = book(**options)
        there.restore(ONE, 5.0)
        assert not there.has_failed
    there = book(patience_s=300.0)
    there.restore({"a": KeptXid(94, 1e9)}, 5.0)
    assert there.answered("a", WELL, 305.0) == HealthChange("a", True), "no card waits for a time to come"


def test_a_directory_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    async def go() -> HealthChange:
        watch = HealthWatch(book(), HealthOptions(), HandClock(), None, lambda _: probe())
        watch.kept = KeptXids(tmp_path / "none")
        watch.watch(frozenset({"a"}))
        changes = watch.changes()
        coming = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        NoThread.tell(Xid("a", 79))
        found = await coming
        await changes.aclose()
        return found

    async def probe() -> Answer:
        return WELL

    assert asyncio.run(go()) == HealthChange("a", False, OFF_THE_BUS)


def test_a_directory_in_its_place_costs_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert KeptXids(tmp_path).read(0.0) == {}
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that this directory was read by
            found.append(descriptor.readlink())
    assert tmp_path / FILE not in found
