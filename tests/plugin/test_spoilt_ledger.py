"""A container that writes over its ledger: it is closed, its pod says so, and nobody else notices."""

from __future__ import annotations

import queue
from contextlib import closing
from typing import TYPE_CHECKING

from partage.model import names
from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage_plugin import front
from partage_plugin.monitor.hub import Hub
from tests.plugin.test_handover import run
from tests.plugin.test_life import policy, started, until
from tests.plugin.world import GI, World, part, share

if TYPE_CHECKING:
    from pathlib import Path

UUID = "GPU-a"
PATIENCE_S = 30


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
