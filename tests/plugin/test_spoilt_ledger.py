"""A container that writes over its ledger: it is closed, its pod says so, and nobody else notices."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import queue
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
import structlog

from partage.model import LedgerBusyError, names
from partage.run.handover import HandOver
from partage.run.watcher import Watcher
from partage.shm import LatePolicy, Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage_plugin import front
from partage_plugin.handover.store import Store
from partage_plugin.monitor import hub as hub_room
from partage_plugin.monitor.hub import Hub
from tests.plugin.test_doubts import leased
from tests.plugin.test_handover import run
from tests.plugin.test_life import policy, process_in, started, until
from tests.plugin.world import GI, Cards, World, part, pod_of, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partage.devices.backend import ContainerEdits
    from partage.model.grant import GrantShare

UUID = "GPU-a"
PATIENCE_S = 200


def hand_over(place: Path) -> HandOver:
    place.mkdir()
    entry = HandOver(place)
    device = PolicyDevice(uuid=UUID, memory=GI, physical=8 * GI, context=0)
    PolicyFile.create(entry.policy_path, Policy(devices=(device,))).close()
    create_turns(entry.path / names.TURNS_FILE, 1)
    create_ledger(entry.ledger_path, [UUID])
    return entry


def test_the_watcher_says_once_whose_ledger_it_was(tmp_path: Path) -> None:
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    hub = Hub(lambda: None, on_closed=lambda *what: told.put(what))
    entries = [hand_over(tmp_path / name) for name in ("spoilt", "beside", "too")]
    hub.start()
    try:
        for entry in entries:
            hub.add(entry)
        run(until(lambda: all(entry.is_locked() for entry in entries)))  # watched
        for entry in (entries[0], entries[2]):
            with entry.ledger_path.open("r+b") as file:
                file.write(b"\xff" * 4096)
        names_told = {told.get(timeout=PATIENCE_S)[0] for _ in range(2)}
    finally:
        hub.stop()
    assert names_told == {"spoilt", "too"}
    assert told.empty()
    assert [entry.policy().is_open for entry in entries] == [False, True, False]


def test_one_that_is_spoilt_before_it_is_watched_is_closed_and_said_once(tmp_path: Path) -> None:
    """As after a restart of the agent; nobody else is watched, so nothing is due any more."""
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    hub = Hub(lambda: None, on_closed=lambda *what: told.put(what))
    entry, later = hand_over(tmp_path / "spoilt"), hand_over(tmp_path / "later")
    with entry.ledger_path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    hub.start()
    try:
        hub.add(entry)
        name, why = told.get(timeout=PATIENCE_S)
        assert (name, "magic" in why, entry.policy().is_open) == ("spoilt", True, False)
        hub.add(later)
        run(until(later.is_locked))  # the thread lives
    finally:
        hub.stop()
    assert told.empty()
    assert later.policy().is_open


def without_capabilities() -> None:
    """Let this thread, and those it starts, be root by its uid alone, as the agent is."""
    none = ctypes.create_string_buffer(24)
    assert ctypes.CDLL(None, use_errno=True).capset(struct.pack("Ii", 0x20080522, 0), none) == 0


def test_k09_one_that_its_tenant_took_from_us_is_closed_and_said(tmp_path: Path) -> None:
    """Root in a container may give its ledger away; an agent that comes then could not see what the container uses.
    Its next start has a ledger of ours again."""

    def go() -> None:
        told: queue.Queue[tuple[str, str]] = queue.Queue()
        hub = Hub(lambda: None, on_closed=lambda *what: told.put(what))
        entry = hand_over(tmp_path / "taken")
        entry.ledger_path.chmod(0)
        hub.start()
        try:
            hub.add(entry)
            assert told.get(timeout=PATIENCE_S) == ("taken", ANY)
            assert not entry.policy().is_open
        finally:
            hub.stop()
        store = Store(tmp_path)
        taken = entry.ledger_path.stat().st_ino
        assert store.ensure("taken", may_run=True).ledger_path.stat().st_ino == taken
        assert store.ensure("taken").ledger().slots == ()

    with ThreadPoolExecutor(1, initializer=without_capabilities) as thread:
        thread.submit(go).result()


def test_one_that_cannot_be_opened_now_is_not_spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may hold a lease on it, which the kernel ends; it is said once and tried again."""
    tries: list[HandOver] = []

    def watcher(entry: HandOver, *rest: Any, **more: Any) -> Watcher:
        tries.append(entry)
        return Watcher(entry, *rest, **more)

    monkeypatch.setattr(hub_room, "RETRY_S", 0.01)
    monkeypatch.setattr(hub_room, "Watcher", watcher)
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    hub = Hub(lambda: None, on_closed=lambda *what: told.put(what))
    entry = hand_over(tmp_path / "leased")
    away = entry.ledger_path.rename(tmp_path / "away")
    with structlog.testing.capture_logs() as said:
        hub.start()
        try:
            hub.add(entry)
            run(until(lambda: len(tries) > 2))
            away.rename(entry.ledger_path)
            run(until(entry.is_locked))
        finally:
            hub.stop()
    assert told.empty()
    assert entry.policy().is_open
    assert len(said) == 1


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), ValueError("a defect")])
def test_k09_what_fails_about_one_tenant_leaves_the_others_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Descriptors that its processes use up, or a defect that it has found: it is tried again, all others go on."""
    fails = threading.Event()
    fails.set()
    met: set[str] = set()

    class Failing(Watcher):
        def __init__(self, entry: HandOver, *rest: Any, **more: Any) -> None:
            super().__init__(entry, *rest, **more)
            self._of = entry.name

        def step(self) -> None:
            super().step()
            if self._of == "bad" and fails.is_set():
                raise error
            met.add(self._of)

    monkeypatch.setattr(hub_room, "RETRY_S", 0.01)
    monkeypatch.setattr(hub_room, "Watcher", Failing)
    hub = Hub(lambda: None)
    hub.start()
    try:
        hub.add(hand_over(tmp_path / "bad"))
        hub.add(hand_over(tmp_path / "later"))
        run(until(lambda: "later" in met))
        assert hub.is_alive
        fails.clear()
        run(until(lambda: "bad" in met))
    finally:
        hub.stop()
    assert not hub.is_alive


def test_k12_a_driver_that_comes_after_the_agent_is_asked_by_its_watchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do by NVML (overhead, the audit of turns) is not off for as long as the agent lives."""
    asked: queue.Queue[Any] = queue.Queue()

    def watcher(_entry: object, _policy: object, nvml: object, **_: object) -> None:
        asked.put(nvml)
        raise LedgerBusyError("ledger", "not now", "tried again", "none")

    monkeypatch.setattr(hub_room, "Watcher", watcher)

    class Driver:
        def close(self) -> None: ...

    driver = Driver()
    drivers = iter([None, driver])
    hub = Hub(lambda: next(drivers))  # type: ignore[arg-type, return-value]
    hub.start()
    try:
        for name in ("first", "second", "third"):
            hub.add(hand_over(tmp_path / name))
        found = [asked.get(timeout=PATIENCE_S) for _ in range(3)]
    finally:
        hub.stop()
    assert found == [None, driver, driver]


def test_k09_descriptors_that_are_used_up_are_not_leaked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = hand_over(tmp_path / "h")

    def used_up(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", used_up)
    with closing(LatePolicy(entry.policy_path)) as its_policy:
        open_ = Path("/proc/self/fd")
        before = len(list(open_.iterdir()))
        for _ in range(3):
            with pytest.raises(OSError, match="Too many"):
                Watcher(entry, its_policy, None, sole=True)
        assert len(list(open_.iterdir())) == before


class Slow(Cards):
    """Prepares when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may: Callable[[], bool] = lambda: True

    async def prepare(self, shares: Sequence[GrantShare]) -> ContainerEdits:
        await until(self.may)
        return await super().prepare(shares)


@pytest.mark.parametrize("has_process", [True, False], ids=["process", "no-process"])
@pytest.mark.parametrize("closed_first", [True, False], ids=["closed-while-rebuilt", "closed-after"])
def test_one_that_was_spoilt_while_the_agent_was_away_is_closed_and_said(
    tmp_path: Path, closed_first: bool, has_process: bool
) -> None:
    """It stays the one that its container has mounted, until that is started anew."""

    async def go() -> None:
        world = World(tmp_path)
        world.backend = backend = Slow()
        async with world.running():
            entry = await started(world, "u1", app=part(share(memory=GI)))
        ledger = world.places.root / entry.name / "ledger"
        loop = asyncio.get_running_loop()

        def closed(name: str, why: str) -> None:
            loop.call_soon_threadsafe(agent.ledger_spoilt, name, why)

        def enforced() -> tuple[bool, str]:
            return world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2]

        hub = Hub(lambda: None, on_closed=closed)
        await world.kubelet.start()
        async with AsyncExitStack() as ends:
            ends.push_async_callback(world.kubelet.stop)
            ends.callback(hub.stop)
            world.watch = hub  # type: ignore[assignment]
            async with process_in(ledger) if has_process else AsyncExitStack():
                ledger.write_bytes(b"\xff" * ledger.stat().st_size)
                if closed_first:
                    hub.start()
                    backend.may = lambda: not policy(world, entry).is_open
                agent = await ends.enter_async_context(world.agent())
                await world.kubelet.registered()
                if not closed_first:
                    hub.start()
                await until(lambda: not policy(world, entry).is_open)
                await until(lambda: enforced() == (False, front.LEDGER_SPOILT))
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).is_open
            assert enforced()[0]
            await until(HandOver(ledger.parent).is_watched)

    run(go())


def test_it_is_said_once_its_pod_is_known(tmp_path: Path) -> None:
    """The agent is back before the API server is: what it adopted is closed at once, and said when there is a pod."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(memory=GI)))
        pod = world.pods.get("u1")
        assert pod is not None
        await world.pods.delete("u1")
        await world.kubelet.start()
        async with world.agent() as agent:
            await world.kubelet.registered()
            agent.ledger_spoilt(entry.name, "ledger x: no magic")
            assert not world.told.events
            await world.pods.put(pod_of("u2", app=part()))
            await world.pods.put(pod)
            await until(lambda: world.told.events)
            ((name, reason, message),) = [event[:3] for event in world.told.events]
            assert (name, reason) == ("pod-u1", front.LEDGER_SPOILT)
            assert "'app'" in message
            await world.pods.put(replace(pod, phase="Running"))
            assert len(world.told.events) == 1, "said once"
        await world.kubelet.stop()

    run(go())


def test_many_looks_at_once_leave_the_interpreter_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = [10.0], []
    hub = Hub(lambda: None, now=lambda: now[0])

    def step(watched: Any, _: Any, *, has_events: bool) -> None:
        steps.append(watched.entry.name)
        watched.due = now[0] + 5

    monkeypatch.setattr(hub, "_step", step)
    for number in range(2 * hub_room.AT_ONCE + 1):
        watched = hub._watched[str(number)] = hub_room._Watched(HandOver(tmp_path / str(number)))
        watched.watcher = object()  # type: ignore[assignment]
    pauses: list[float] = []
    while not pauses or pauses[-1] < 1:
        hub._round([])
        pauses.append(hub._timeout() or 0.0)
    assert pauses == [hub_room.APART_S, hub_room.APART_S, 5.0]
    assert len(steps) == len(set(steps)) == len(hub._watched)


def test_a_container_whose_policy_is_under_a_lease_is_watched(tmp_path: Path) -> None:
    """Its policy is corrected, or closed where its ledger is spoilt, as soon as the lease is gone."""
    entry = hand_over(tmp_path / "leased")
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    hub = Hub(lambda: None, on_closed=lambda *what: told.put(what))
    with leased(entry.policy_path) as end:
        hub.start()
        try:
            hub.add(entry)
            run(until(entry.is_locked))
            with entry.ledger_path.open("r+b") as file:
                file.write(b"\xff" * 4096)
            assert told.get(timeout=PATIENCE_S)[0] == "leased"
            assert entry.policy().is_open, "it cannot be closed yet"
            end()
            run(until(lambda: not entry.policy().is_open))
        finally:
            hub.stop()


def test_it_is_said_on_its_pod(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            entry = await started(world, "u1", app=part(share(memory=GI)))
            beside = await started(world, "u2", app=part(share(memory=GI)))
            agent.ledger_spoilt(entry.name, "ledger x: no magic; as the library writes it; delete it")
            agent.ledger_spoilt("0" * 32, "of nobody")
            (event,) = [event for event in world.told.events if event[1] == front.LEDGER_SPOILT]
            assert (event[0], "no magic" in event[2]) == ("pod-u1", True)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2] == (False, front.LEDGER_SPOILT)
            assert world.told.conditions["pod-u2", names.CONDITION_ENFORCED][0] is True
            with closing(PolicyFile.open(world.places.root / entry.name / "policy")) as file:
                file.shut()
            await world.kubelet.pre_start(entry)  # its container is started anew
            assert policy(world, entry).is_open
            assert policy(world, beside).is_open
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][0] is True

    run(go())


def test_the_end_is_rung_for_though_it_has_come_already() -> None:
    """The thread may see the last order by the bell of the one before it."""
    hub = Hub(lambda: None)
    orders = hub._orders

    class Early:
        empty, get = orders.empty, orders.get

        def put(self, order: Any) -> None:
            orders.put(order)
            os.eventfd_write(hub._bell, 1)
            hub._thread.join(PATIENCE_S)

    hub._orders = Early()  # type: ignore[assignment]
    hub.start()
    hub.stop()
    assert not hub.is_alive
    hub._orders = orders
    hub.remove("nobody")  # who comes after the end is no trouble
