"""We test these aspects of shares that are made smaller (K15): they are confirmed once use is below, by the container's
ledger and by the driver's word; a ledger that its tenant made look small confirms nothing; nor does a driver that does
not say, and the pod is told why."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest

from partage.model import names
from partage.shm.ledger import UNIT
from partage_plugin import shrinking
from partage_plugin.monitor.whereabouts import Place, place_of
from tests.plugin.test_handover import run
from tests.plugin.test_life import policy, started
from tests.plugin.world import CARDS, GI, World, grant_text, part, pod_of, share
from tests.shm.conftest import Tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plugin.kubelet import Entry

KIND = ("pod-u1", names.CONDITION_RESIZED)
CONFIRMED = (True, "ShareResized", "generation 2")
PID, OTHER = 4711, 4712
SMALLER = pod_of("u1", text=grant_text("u1", gen=2, app=part(share(0, 4 * GI, held=8 * GI))), app=part())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "EVERY_S", 0.01)


@asynccontextmanager
async def smaller(tmp_path: Path, *, charged: int) -> AsyncIterator[tuple[World, Entry, Tenant]]:
    """A pod of 8 GiB whose process holds 6 by the driver's word, and `charged` by its ledger; 4 are left to it."""
    world = World(tmp_path)
    async with world.running():
        entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        world.places_of[PID] = Place(hand_overs=frozenset({entry.name}))
        world.backend.processes[CARDS[0]] = {PID: 6 * GI}
        with closing(Tenant(world.places.root / entry.name / "ledger")) as tenant:
            tenant.ledger.ndev, tenant.ledger.uuid[0] = 1, CARDS[0].encode()  # as its first process writes it
            tenant.take(3)
            tenant.charge(3, charged // UNIT)
            yield world, entry, tenant


async def told(world: World, holds: bool, reason: str) -> str:
    """Wait until the pod's condition says so, and return its message."""
    await world.told.until(lambda said: said.conditions.get(KIND, ())[:2] == (holds, reason))
    return world.told.conditions[KIND][2]


def test_k15_memory_that_is_given_back_is_confirmed_once_it_is_not_used_any_more(tmp_path: Path) -> None:
    """Also by an agent that came meanwhile."""

    async def go() -> None:
        async with smaller(tmp_path, charged=6 * GI) as (world, entry, tenant):
            await world.pods.put(SMALLER)
            said = await told(world, False, "ShareStillUsed")
            assert f"generation 2: container 'app' uses 6 GiB of card {CARDS[0]}, its share is 4 GiB" in said
            assert policy(world, entry).devices[0].memory == 4 * GI, "it gets no more from now on"
            tenant.charge(3, -2 * GI // UNIT)
            await told(world, False, "ShareStillUsed")
        world.told.conditions.clear()
        async with world.running():
            await world.pods.put(SMALLER)
            await told(world, False, "ShareStillUsed")
            world.backend.processes[CARDS[0]] = {PID: 4 * GI}
            await told(world, True, "ShareResized")
            assert world.told.conditions[KIND] == CONFIRMED

    run(go())


def _sets_its_count_back(tenant: Tenant) -> None:
    tenant.ledger.device[0].word = 0


def _frees_its_slot(tenant: Tenant) -> None:
    tenant.ledger.device[0].word = 0
    tenant.ledger.slot[3].state = 0


def _wipes_the_file(tenant: Tenant) -> None:
    tenant.path.write_bytes(bytes(tenant.path.stat().st_size))


@pytest.mark.parametrize("garbage", [_sets_its_count_back, _frees_its_slot, _wipes_the_file])
def test_k15_a_ledger_that_was_made_look_small_confirms_nothing(tmp_path: Path, garbage: Any) -> None:
    async def go() -> None:
        async with smaller(tmp_path, charged=6 * GI) as (world, _, tenant):
            garbage(tenant)
            await world.pods.put(SMALLER)
            await world.told.until(lambda said: KIND in said.conditions)
            holds, reason, said = world.told.conditions[KIND]
            assert not holds
            assert reason == ("ShareUseUnknown" if garbage is _wipes_the_file else "ShareStillUsed"), said
            if garbage is not _wipes_the_file:
                assert f"uses 6 GiB of card {CARDS[0]} by the driver's word, its share is 4 GiB" in said
                world.backend.processes[CARDS[0]] = {}
                await told(world, True, "ShareResized")

    run(go())


@pytest.mark.parametrize(
    ("processes", "fails", "why"),
    [
        (None, None, "lists no processes"),
        ({PID: None}, None, f"does not say what process {PID} of container 'app' holds"),
        ({}, "fell off the bus", "fell off the bus"),
    ],
    ids=["no-list", "no-amount", "no-answer"],
)
def test_k15_what_the_driver_does_not_say_is_not_confirmed(
    tmp_path: Path, processes: dict[int, int | None] | None, fails: str | None, why: str
) -> None:
    """In MIG mode it lists processes without what they hold; where it hangs it says nothing."""

    async def go() -> None:
        async with smaller(tmp_path, charged=GI) as (world, _, _):
            world.backend.processes[CARDS[0]], world.backend.fails = processes, fails
            await world.pods.put(SMALLER)
            said = await told(world, False, "ShareUseUnknown")
            assert why in said
            assert "stays promised to it" in said
            world.backend.processes[CARDS[0]], world.backend.fails = {PID: GI}, None
            await told(world, True, "ShareResized")

    run(go())


def test_k15_whose_a_process_is(tmp_path: Path) -> None:
    """One that hides its mounts is its pod's by its cgroup; a neighbour's and the host's are nobody's here."""

    async def go() -> None:
        async with smaller(tmp_path, charged=GI) as (world, entry, _):
            world.backend.processes[CARDS[0]] = {PID: 3 * GI, OTHER: 2 * GI}
            world.places_of[OTHER] = Place(pods=frozenset({"u1"}))
            await world.pods.put(SMALLER)
            assert "uses 5 GiB" in await told(world, False, "ShareStillUsed")
            world.places_of[OTHER] = Place(frozenset({"u2"}), frozenset({"f" * 32}))
            await told(world, True, "ShareResized")
            assert entry.name in world.places_of[PID].hand_overs

    run(go())


def test_where_a_process_is_stands_in_its_cgroup_and_mounts(tmp_path: Path) -> None:
    """Both drivers of cgroups; the agent's own namespace of them puts dots before it."""
    uid, name = "6f1c2d3e-0000-4111-8222-333344445555", "a" * 32
    for pid, cgroup in (
        (1, f"0::/../../kubepods-burstable-pod{uid.replace('-', '_')}.slice/cri-containerd-{'b' * 64}.scope\n"),
        (2, f"0::/kubepods/besteffort/pod{uid}/{'b' * 64}\n"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroup)
        assert place_of(pid, tmp_path) == Place(frozenset({uid}))
        (tmp_path / str(pid) / "mountinfo").write_text(
            f"1 2 0:1 /run/partage/{name} /run/partage ro - tmpfs tmpfs rw\n"
        )
        assert place_of(pid, tmp_path) == Place(frozenset({uid}), frozenset({name}))
    assert place_of(3, tmp_path) == Place()
