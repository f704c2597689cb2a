"""We test these aspects of hand-overs of which somebody on the node removed the policy or the turns alone: the next
clean-up puts back what nobody can have mapped, just as it was, watched and with its neighbours as before; a start of
the container always does; where programs run, what is written reaches them still and the pod says what to do."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.shm import PolicyFile, read_turns
from partage_plugin import agent as agents
from tests.plugin.test_handover import run
from tests.plugin.test_life import policy, process_in, started, until
from tests.plugin.world import GI, World, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from pathlib import Path

    from partage.shm import PolicyDevice
    from tests.plugin.kubelet import Entry

FILES = (names.POLICY_FILE, names.TURNS_FILE)
ENFORCED = ("pod-u1", names.CONDITION_ENFORCED)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean-ups follow each other at once."""
    monkeypatch.setattr(agents, "SWEEP_EVERY_S", 0.01)
    monkeypatch.setattr(agents, "SWEEP_GATHER_S", 0.0)


def place(world: World, entry: Entry) -> Path:
    return world.places.root / entry.name


def correct(world: World, entry: Entry) -> PolicyDevice:
    """What its watcher found out stands in the policy alone."""
    with closing(PolicyFile.open(place(world, entry) / names.POLICY_FILE)) as file:
        before = file.read().devices[0]
        return file.update(lambda now: now.changed(before.uuid, overhead=5 << 20)).devices[0]


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("lost", FILES)
def test_a_clean_up_puts_back_what_nobody_has_mapped(tmp_path: Path, lost: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            beside = await started(world, "u0", app=part(share(0, GI, 0)))
            entry = await started(world, "u1", app=part(share(0, 8 * GI, 300)))
            before, neighbour = correct(world, entry), policy(world, beside)
            path = place(world, entry) / lost
            path.unlink()
            await until(path.exists)
            assert policy(world, entry).devices == (before,)
            assert policy(world, entry).is_open
            assert path.stat().st_mode & 0o777 == 0o644
            assert read_turns(place(world, entry) / names.TURNS_FILE) is not None
            assert policy(world, beside) == neighbour
            await until(lambda: world.watch.names == {beside.name, entry.name})
            text = grant_text("u1", gen=2, app=part(share(0, 4 * GI, 300)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert policy(world, entry).devices[0].memory == 4 * GI

    run(go())


@pytest.mark.parametrize("lost", FILES)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_start_puts_it_back(tmp_path: Path, lost: str, *, is_open: bool) -> None:
    """No clean-up has come by. `is_open`: its container ran before; else it was only minted."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, 8 * GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            if is_open:
                await world.kubelet.pre_start(entry)
            (place(world, entry) / lost).unlink()
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).is_open
            assert policy(world, entry).devices[0].memory == 8 * GI
            assert read_turns(place(world, entry) / names.TURNS_FILE) is not None

    run(go())


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("lost", FILES)
def test_where_programs_run_its_pod_is_told(tmp_path: Path, lost: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            path = place(world, entry) / lost
            with closing(PolicyFile.open(place(world, entry) / names.POLICY_FILE)) as mapped:
                async with process_in(place(world, entry) / "ledger"):
                    path.unlink()
                    await world.told.until(lambda told: told.conditions[ENFORCED][1] == "HandOverDamaged")
                    assert not path.exists(), "its processes would follow no change any more"
                    assert "restart the container" in world.told.conditions[ENFORCED][2]
                    text = grant_text("u1", gen=2, app=part(share(0, 4 * GI)))
                    await world.pods.put(pod_of("u1", text=text, app=part()))
                    await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
                    assert mapped.read().devices[0].memory == 4 * GI
                await world.told.until(lambda told: told.conditions[ENFORCED][0])
            assert policy(world, entry).devices[0].memory == 4 * GI
            assert path.exists()
            assert [reason for _, reason, _ in world.told.events].count("HandOverDamaged") == 1

    run(go())


@pytest.mark.usefixtures("_often")
def test_a_closed_one_comes_back_closed(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            path = place(world, entry) / names.POLICY_FILE
            with closing(PolicyFile.open(path)) as file:
                file.shut()
            path.unlink()
            await until(path.exists)
            assert not policy(world, entry).is_open

    run(go())
