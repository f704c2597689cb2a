"""Health of cards: what is a failure, what is none, how a card comes back; one that hangs holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.devices.backend import Card, HealthChange, Inventory
from partage.devices.nvidia import backend, health, xids
from partage.devices.nvidia.cards import Answer
from partage.devices.nvidia.health import HealthBook, HealthWatch
from partage.devices.nvidia.options import APPLICATION_XIDS, HealthOptions, Options
from partage.devices.nvidia.xids import Disturbed, Xid, XidThread
from partage.model import DeviceError
from tests.devices.clock import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from pathlib import Path

    from tests.devices.conftest import OnMachine

WELL = Answer()
LOST = Answer(fault="NVML says: GPU is lost")


def book(**options: object) -> HealthBook:
    return HealthBook(HealthOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", sorted(APPLICATION_XIDS))
def test_a_programs_own_error_is_no_failure_of_the_card(number: int) -> None:
    there = book()
    assert there.xid("GPU-a", number, 0.0) is None
    assert there.reason("GPU-a") == ""


def test_a_card_that_fell_off_the_bus_is_back_when_it_answers_again() -> None:
    there = book()
    assert there.xid("GPU-a", 79, 0.0) == HealthChange("GPU-a", False, "XID 79 (GPU has fallen off the bus)")
    assert there.answered("GPU-a", LOST, 0.1) is None, "the reason stays the first one"
    assert there.answered("GPU-a", WELL, 60.0) == HealthChange("GPU-a", True)
    assert not there.has_failed


def test_a_card_that_answered_all_the_time_is_believed_after_a_while() -> None:
    there = book(patience_s=300.0)
    there.xid("GPU-a", 94, 0.0)
    assert there.answered("GPU-a", WELL, 299.0) is None
    there.xid("GPU-a", 94, 299.0)
    assert there.answered("GPU-a", WELL, 301.0) is None, "it happened again meanwhile"
    assert there.answered("GPU-a", WELL, 599.0) == HealthChange("GPU-a", True)


@pytest.mark.parametrize("number", [79, 119, 120])
def test_a_card_that_only_a_reset_brings_back_is_not_believed_after_a_while(number: int) -> None:
    """A driver without advice answers from what it remembers of a card that is off the bus, or whose GSP is dead."""
    there = book(patience_s=300.0)
    there.xid("GPU-a", number, 0.0)
    assert there.xid("GPU-a", 94, 1.0) is None, "what follows from it is less"
    assert there.answered("GPU-a", WELL, 1e6) is None
    assert there.answered("GPU-a", LOST, 1e6 + 1) is None
    assert there.answered("GPU-a", WELL, 1e6 + 2) == HealthChange("GPU-a", True), "it was away: a reset"
    there.xid("GPU-a", number, 2e6)
    assert there.answered("GPU-a", Answer(action=""), 3e6) == HealthChange("GPU-a", True), "NVML says so"


def test_nvmls_advice_decides_where_the_driver_gives_one() -> None:
    there = book(quiet_s=10.0)
    there.xid("GPU-a", 95, 0.0)
    assert there.answered("GPU-a", Answer(action="a reset of the GPU"), 1e6) is None
    assert there.answered("GPU-a", Answer(action=""), 1e6) == HealthChange("GPU-a", True)
    assert there.answered("GPU-b", Answer(action="a reset of the GPU"), 0.0) == HealthChange(
        "GPU-b", False, "NVML advises a reset of the GPU"
    )
    assert there.answered("GPU-b", Answer(action=""), 1.0) == HealthChange("GPU-b", True)


def test_the_list_of_xids_and_their_watch_can_be_chosen() -> None:
    assert book(ignored_xids=frozenset({79})).xid("GPU-a", 79, 0.0) is None
    assert book(ignored_xids=frozenset()).xid("GPU-a", 13, 0.0) is not None
    assert book(watch_xids=False).xid("GPU-a", 79, 0.0) is None


_STEPS = st.tuples(
    st.sampled_from("ab"), st.sampled_from([13, 48, 79, WELL, LOST, Answer(action="")]), st.floats(0, 500)
)


@given(st.lists(_STEPS))
def test_changes_are_told_once_and_add_up_to_the_state(steps: list[tuple[str, int | Answer, float]]) -> None:
    there, told, now = book(), {"a": True, "b": True}, 0.0
    for uuid, what, passed in steps:
        now += passed
        change = there.xid(uuid, what, now) if isinstance(what, int) else there.answered(uuid, what, now)
        other = "b" if uuid == "a" else "a"
        assert (there.reason(other) == "") == told[other], "no card's fault is another one's"
        if change is not None:
            assert change.uuid == uuid
            assert change.healthy == (change.reason == "")
            told[uuid] = change.healthy
        assert (there.reason(uuid) == "") == told[uuid]
    for uuid in told:
        there.answered(uuid, LOST, now)
        there.answered(uuid, WELL, now)
    assert not there.has_failed, "whatever happened, a card that was away and answers is well"


# ---- the watch -------------------------------------------------------------------------------------------------------


class NoThread:
    """In place of the thread that waits for NVML: the test says what happens."""

    tell: Callable[[Xid | Disturbed], bool]

    def __init__(self, _libraries: Path | None, tell: Callable[[Xid | Disturbed], bool]) -> None:
        NoThread.tell = staticmethod(tell)

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def watch(self, uuids: frozenset[str]) -> None: ...


async def next_of(changes: AsyncGenerator[HealthChange, None], clock: HandClock) -> HealthChange:
    """Return the next change, moving time on until it comes."""
    coming = asyncio.ensure_future(anext(changes))
    for _ in range(10_000):
        await asyncio.sleep(0)
        if coming.done():
            break
        clock.move(0.5)
    return await coming


def test_events_and_questions_in_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "XidThread", NoThread)
    lost: set[str] = set()

    async def probe(uuid: str) -> Answer:
        return LOST if uuid in lost else WELL

    async def go() -> list[HealthChange]:
        clock = HandClock()
        watch = HealthWatch(book(), HealthOptions(), clock, None, probe)
        watch.watch(frozenset({"a", "b"}))
        changes = watch.changes()
        coming = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        NoThread.tell(Xid("a", 31))
        lost.add("a")
        NoThread.tell(Xid("a", 79))
        found = [await coming]
        lost.clear()
        found.append(await next_of(changes, clock))
        lost.add("b")
        found.append(await next_of(changes, clock))
        lost.clear()
        found.append(await next_of(changes, clock))
        await changes.aclose()
        return found

    found = asyncio.run(go())
    assert [(change.uuid, change.healthy) for change in found] == [("a", False), ("a", True), ("b", False), ("b", True)]
    assert found[0].reason.startswith("XID 79")
    assert found[2].reason == LOST.fault


def test_k13_a_storm_of_harmless_xids_keeps_no_card_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that crashes again and again: its XIDs come more often than cards are asked, failed ones and others."""
    monkeypatch.setattr(health, "XidThread", NoThread)
    lost: set[str] = set()

    async def probe(uuid: str) -> Answer:
        return LOST if uuid in lost else WELL

    async def go() -> list[HealthChange]:
        clock = HandClock()
        watch = HealthWatch(book(), HealthOptions(), clock, None, probe)
        watch.watch(frozenset({"a", "b"}))
        changes = watch.changes()
        found: list[HealthChange] = []
        for at_fault in ({"a"}, set()):
            lost.clear()
            lost.update(at_fault)
            coming = asyncio.ensure_future(anext(changes))
            for _ in range(200):
                for _ in range(20):
                    await asyncio.sleep(0)
                if coming.done():
                    break
                NoThread.tell(Xid("b", 31))
                clock.move(0.5)
            assert coming.done(), f"{found}: no card was asked within 100 s of XIDs"
            found.append(await coming)
        await changes.aclose()
        return found

    assert asyncio.run(go()) == [HealthChange("a", False, LOST.fault), HealthChange("a", True)]


def test_k13_an_xid_while_cards_are_looked_for_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look lasts, longest where a card has just failed; what it saw before that is not the last word."""
    monkeypatch.setattr(health, "XidThread", NoThread)
    monkeypatch.setattr(health, "ask", lambda _: WELL)
    monkeypatch.setattr(backend, "Nvml", lambda _: None)
    looks, may_end = threading.Semaphore(0), threading.Semaphore(0)

    class Looks:
        unfit: Mapping[str, str] = MappingProxyType({})

        def __init__(self, *_: object, **__: object) -> None: ...

        def look(self, _: object) -> Inventory:
            looks.release()
            assert may_end.acquire(timeout=200)
            return Inventory(tuple(Card(uuid, 0, "card", 1, 1, 10) for uuid in "ab"), ())

        def known(self) -> dict[str, object]:
            return {}

    monkeypatch.setattr(backend, "Discovery", Looks)

    async def go() -> list[list[str]]:
        cards = backend.NvidiaBackend(Options(), HandClock(), None)
        found: list[list[str]] = []
        may_end.release()
        found.append([card.reason for card in (await cards.discover()).cards])
        changes = cards.watch_health()
        coming = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        looking = asyncio.gather(cards.discover(), cards.discover())  # a reload of settings asks beside the clock
        assert await asyncio.to_thread(looks.acquire, timeout=200)
        assert await asyncio.to_thread(looks.acquire, timeout=200)
        NoThread.tell(Xid("b", 79))
        assert (await coming).uuid == "b"
        may_end.release()
        found += [[card.reason for card in inventory.cards] for inventory in await looking]
        await changes.aclose()
        cards.close()
        return found

    failed = ["", "XID 79 (GPU has fallen off the bus)"]
    assert asyncio.run(go()) == [["", ""], failed, failed]


def test_a_card_for_which_the_driver_hangs_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "XidThread", NoThread)

    async def go() -> list[HealthChange]:
        clock, let_go = HandClock(), asyncio.Event()

        async def probe(uuid: str) -> Answer:
            if uuid == "hung":
                await let_go.wait()
            return LOST if uuid == "lost" else WELL

        watch = HealthWatch(book(), HealthOptions(), clock, None, probe)
        watch.watch(frozenset({"hung", "lost", "well"}))
        changes = watch.changes()
        found = [await next_of(changes, clock), await next_of(changes, clock)]
        let_go.set()
        found.append(await next_of(changes, clock))
        await changes.aclose()
        return found

    found = asyncio.run(go())
    assert {(change.uuid, change.healthy) for change in found[:2]} == {("hung", False), ("lost", False)}
    assert next(change.reason for change in found if change.uuid == "hung").startswith("the driver did not answer")
    assert found[2] == HealthChange("hung", True)


def test_a_card_that_comes_back_ends_the_pause_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Disturbed | Xid] = []
    failed, again = threading.Event(), threading.Event()
    monkeypatch.setattr(xids, "PAUSE_S", 600.0)
    monkeypatch.setattr(xids, "PAUSE_LAST_S", 600.0)
    monkeypatch.setattr(xids, "Nvml", lambda _: contextlib.nullcontext())

    def serve(thread: XidThread) -> None:
        thread._changed.clear()
        if told:
            again.set()
            thread.stop()
            return
        raise DeviceError("a card", "lost", "answers", "none")

    monkeypatch.setattr(XidThread, "_serve", serve)

    def tell(what: Disturbed | Xid) -> bool:
        told.append(what)
        failed.set()
        return True

    thread = XidThread(None, tell)
    thread.start()
    assert failed.wait(200)
    thread.watch(frozenset({"a card"}))
    assert again.wait(200), "watched again although the pause is not over"
    thread.join()


def test_an_xid_is_the_cards_whatever_handle_it_comes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvml.h says that an event has its device, not that it is by the handle that was registered; NULL: of no card."""
    uuids: dict[int | None, str | bytes] = {1: b"GPU-a", 2: "GPU-b", 3: "GPU-a", 4: "GPU-of-another"}

    def uuid_of(handle: ctypes.c_void_p) -> str | bytes:
        if handle.value not in uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return uuids[handle.value]

    events = [SimpleNamespace(device=ctypes.c_void_p(at), eventType=8, eventData=48) for at in (1, 2, 3, 4, 5, None)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", uuid_of)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", lambda *_: events.pop(0))
    told: list[Disturbed | Xid] = []

    def tell(what: Disturbed | Xid) -> bool:
        told.append(what)
        return True

    thread = XidThread(None, tell)
    while events:
        thread._wait(None, {1: "GPU-a", 2: "GPU-b"}, 0)
    assert told[:3] == [Xid("GPU-a", 48), Xid("GPU-b", 48), Xid("GPU-a", 48)]
    assert [type(what) for what in told[3:]] == [Disturbed] * 3, "every card is asked"


# ---- with the simulated driver ---------------------------------------------------------------------------------------

WATCHED = """
class Now:
    def now(self):
        return asyncio.get_running_loop().time()
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

async def main():
    with Nvml(libraries) as nvml, Machine() as there:
        cards = [read_card(index).uuid for index in range(nvml.count())]
        options = HealthOptions(probe_s=600, probe_failed_s=0.05)
        watch = HealthWatch(HealthBook(options), options, Now(), libraries)
        watch.watch(frozenset(cards))
        changes = watch.changes()
        async def step():
            change = await asyncio.wait_for(changes.__anext__(), 200)
            return [cards.index(change.uuid), change.healthy, change.reason]
        coming = asyncio.ensure_future(step())
        found = []
        async def strike(what):
            # The set of events sees what comes after it was made: strike until it is seen.
            while not coming.done():
                what()
                await asyncio.wait([coming], timeout=0.2)
            return coming.result()
        {body}
        await changes.aclose()
        print(json.dumps(found))
asyncio.run(main())
"""


def test_a_lost_card_fails_alone_and_comes_back(on_machine: OnMachine) -> None:
    body = """
        found.append(await strike(lambda: faults.lose_device(there, 5)))
        coming = asyncio.ensure_future(step())
        await asyncio.wait([coming], timeout=0.2)
        faults.restore_device(there, 5)
        found.append(await coming)
        coming = asyncio.ensure_future(step())
        found.append(await strike(lambda: (faults.raise_xid(there, 2, 31), faults.raise_xid(there, 5, 48))))
    """
    found = on_machine("8xh100", WATCHED.replace("{body}", body.strip()))
    assert found[0][:2] == [5, False]
    assert found[1] == [5, True, ""]
    assert found[2] == [5, False, "XID 48 (double-bit ECC error)"], "watched again, and an XID 31 before it is nothing"


def test_a_card_that_is_lost_before_anybody_listens_is_found(on_machine: OnMachine) -> None:
    body = """
        faults.lose_device(there, 5)  # the thread that listens has not begun
        found.append(await coming)
    """
    found = on_machine("8xh100", WATCHED.replace("{body}", body.strip()))
    assert found[0][:2] == [5, False]


def test_a_card_that_never_stopped_answering_is_back_when_nvml_has_nothing_to_advise(on_machine: OnMachine) -> None:
    body = """
        options = watch.options = watch._book.options = HealthOptions(probe_failed_s=0.05, quiet_s=0.1)
        found.append(await strike(lambda: faults.raise_xid(there, 4, 79)))
        coming = asyncio.ensure_future(step())
        await asyncio.wait([coming], timeout=0.5)
        found.append(coming.done())
        faults.restore_device(there, 4)
        found.append(await coming)
    """
    found = on_machine("8xh100", WATCHED.replace("{body}", body.strip()))
    assert found[0][:2] == [4, False]
    assert found[1] is False, "NVML advises a reset"
    assert found[2] == [4, True, ""]


def test_a_card_that_needs_a_reset_is_unhealthy_from_the_first_look(on_machine: OnMachine) -> None:
    cards = on_machine(
        "8xh100",
        """
        from partage.devices.nvidia.discover import Discovery
        with Nvml(libraries) as nvml, Machine() as there:
            faults.raise_xid(there, 1, 48)
            faults.raise_xid(there, 2, 31)
            print(json.dumps(shown(Discovery(Options()).look(nvml))))
        """,
    )["cards"]
    assert [card[6] for card in cards] == [index != 1 for index in range(8)]
    assert cards[1][7] == "NVML advises a reset of the GPU"


def test_a_card_that_cannot_be_shared_does_not_come_back_as_healthy(on_machine: OnMachine) -> None:
    found = on_machine(
        "8xh100",
        """
        from dataclasses import replace
        from partage.devices.nvidia.backend import NvidiaBackend
        from partage.devices.nvidia.waterline import WaterLine, WaterLines
        class Now:
            def now(self):
                return asyncio.get_running_loop().time()
            async def sleep(self, seconds):
                await asyncio.sleep(seconds)
        async def main():
            health = HealthOptions(probe_s=0.05, probe_failed_s=0.05, quiet_s=0.0)
            options = Options(health=health, water=WaterLines(WaterLine(overhead=1 << 50)))
            backend = NvidiaBackend(options, Now(), libraries)
            cards = (await backend.discover()).cards
            changes = backend.watch_health()
            async def step():
                change = await asyncio.wait_for(anext(changes), 200)
                return [change.uuid == cards[0].uuid, change.healthy]
            found = [[card.healthy for card in cards]]
            with Machine() as there:
                for card in (0, 1):  # the first comes back in silence, so the next that is told is the second's
                    faults.lose_device(there, card)
                    found.append(await step())
                    faults.restore_device(there, card)
            await changes.aclose()
            backend.close()
            print(json.dumps(found))
        asyncio.run(main())
        """,
    )
    assert found == [[False] * 8, [True, False], [False, False]]


def test_what_was_heard_while_a_discovery_looked_is_newer_than_what_it_found(on_machine: OnMachine) -> None:
    """A look takes its time; a card that came back or failed meanwhile would else be shown wrong until the next one."""
    found = on_machine(
        "8xh100",
        """
        from partage.devices.nvidia.backend import NvidiaBackend
        from partage.devices.nvidia.cards import Answer
        class Now:
            def now(self):
                return asyncio.get_running_loop().time()
            async def sleep(self, seconds):
                await asyncio.sleep(seconds)
        async def main():
            backend = NvidiaBackend(Options(), Now(), libraries)
            uuids = [card.uuid for card in (await backend.discover()).cards]
            loop, book, look = asyncio.get_running_loop(), backend._book, backend._discovery.look
            def meanwhile(*arguments):
                inventory = look(*arguments)
                seen.extend(card.healthy for card in inventory.cards[:4])
                book.answered(uuids[1], Answer(), loop.time())
                book.xid(uuids[2], 48, loop.time())
                return inventory
            backend._discovery.look, seen = meanwhile, []
            with Machine() as there:
                faults.lose_device(there, 1)
                faults.lose_device(there, 3)
                cards = (await backend.discover()).cards
            backend.close()
            print(json.dumps([seen, [card.healthy for card in cards[:4]], cards[2].reason]))
        asyncio.run(main())
        """,
    )
    assert found == [[True, False, True, False], [True, True, False, False], "XID 48 (double-bit ECC error)"]


def test_the_stream_ends_at_once_and_its_thread_after_it(on_machine: OnMachine) -> None:
    found = on_machine(
        "8xh100",
        WATCHED.replace(
            "{body}",
            """
        import threading
        found.append(await strike(lambda: faults.raise_xid(there, 0, 79)))
        thread = watch._thread
        await changes.aclose()
        found.append(watch._thread is None)
        await asyncio.to_thread(thread.join)
        found.append([one.name for one in threading.enumerate() if one.name == "partage-xids"])
    """.strip(),
        ),
    )
    assert found[1:] == [True, []]
