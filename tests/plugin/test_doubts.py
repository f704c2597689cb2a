"""We test these aspects of what cannot be proved: a name without kubelet's checkpoint is no UID; a hand-over never
changes hands; a slice that nothing makes is refused; a cordoned or vanished card is given to nobody and nobody is moved
from it; gates that cannot be written let nobody in and are mended; a pod that HAMi has only planned holds nothing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest

from partage.model import PolicyError, names
from partage.model.grant import Slice
from partage.model.hami_twin import ANNOTATION, BIND_PHASE
from partage.shm import PolicyFile
from partage_plugin import agent as agent_module
from partage_plugin.handover.desk import Claim
from partage_plugin.refusal import Refused
from tests.plugin.test_hami_pods import twin
from tests.plugin.test_handover import refused, run
from tests.plugin.test_life import policy, started, until
from tests.plugin.world import CARDS, GI, Cards, World, card, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partage.devices.backend import Enforcement
    from partage.model.grant import Mode
    from partage.shm import Policy


def test_a_successor_of_the_name_does_not_lend_its_grant(tmp_path: Path) -> None:
    """K11: the checkpoint cannot be read, and the pod was deleted and made again before its container starts."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            await world.pods.put(pod_of("u1", name="web-0", app=part(share(0, GI))))
            entry = await world.kubelet.allocate("u1", "default/web-0", "app")
            world.kubelet.write_raw_checkpoint("garbage")
            await world.pods.delete("u1")
            await world.pods.put(pod_of("u2", name="web-0", app=part(share(0, 60 * GI))))
            assert "u1, u2" in await refused(world, entry)
            assert entry.name not in agent.desk.held
            assert not policy(world, entry).is_open

    run(go())


def test_a_hand_over_never_changes_hands(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            entry = await started(world, "u1", app=part(share(0, GI)))
            other = await world.pods.put(pod_of("u2", app=part(share(0, 60 * GI))))
            with pytest.raises(Refused, match="one container's for ever"):
                await agent.desk.hand_over(Claim(entry.name, other, "app", 1))
            assert policy(world, entry).devices[0].memory == GI

    run(go())


@pytest.mark.parametrize("mode", ["shim", "timeslice", "whole"])
def test_a_slice_that_nothing_makes(tmp_path: Path, mode: Any) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            sliced = msgspec.structs.replace(share(0, 10 * GI), slice=Slice(profile="1g.10gb", start=0, size=1))
            await world.pods.put(pod_of("u1", app=part(sliced, mode=mode)))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "slice" in await refused(world, entry)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][1] == "ModeNotEnforced"

    run(go())


# ---- whole-card safe mode --------------------------------------------------------------------------------------------


def test_no_cordoned_card_is_given_whole(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.cordoned = {CARDS[0]}
        async with world.running(safe_mode=True):
            await world.pods.put(pod_of("u1", text="", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).devices[0].uuid == CARDS[1]
            await world.pods.put(pod_of("u2", text="", app=part()))
            assert "0 of 2 free" in await refused(world, await world.kubelet.allocate("u2", "default/pod-u2", "app"))

    run(go())


def test_a_whole_card_that_is_gone_after_a_restart(tmp_path: Path) -> None:
    """Its container is not moved to the other card under its feet, and its next start says what is missing."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=True):
            await world.pods.put(pod_of("u1", text="", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).devices[0].uuid == CARDS[0]
        world.backend.cards = (card(1),)
        await world.kubelet.start()
        async with world.agent(safe_mode=True) as agent:
            await world.kubelet.registered()
            assert policy(world, entry).devices[0].uuid == CARDS[0]
            assert policy(world, entry).is_open
            assert [one.uuid for one in agent.desk.held[entry.name].policy.devices] == [CARDS[0]]
            with pytest.raises(grpc.aio.AioRpcError):
                await world.kubelet.pre_start(entry)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][1] == "CardMissing"
        await world.kubelet.stop()

    run(go())


# ---- gates -----------------------------------------------------------------------------------------------------------


class Stuck:
    """A policy file whose gates cannot be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "") -> None:
        self.name = name
        update = PolicyFile.update

        def stuck(file: PolicyFile, change: Any) -> Policy:
            is_gates = getattr(change, "__name__", "") == "_with_gates"
            if is_gates and self.name is not None and self.name in str(file.path):
                raise PolicyError(str(file.path), "cannot be written", "a file", "mend the test")
            return update(file, change)

        monkeypatch.setattr(PolicyFile, "update", stuck)

    def release(self) -> None:
        self.name = "no such name"


def test_who_cannot_be_gated_is_not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            stuck = Stuck(monkeypatch)
            await world.pods.put(pod_of("u1", app=part(share(0, GI, 300))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "cannot be written" in await refused(world, entry)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][1] == "HandOverNotWritten"
            stuck.release()
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).devices[0].gated

    run(go())


def test_a_neighbour_that_could_not_be_gated_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran alone on the card and took no turns; the next one has a guarantee."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            alone = await started(world, "u1", app=part(share(0, GI, 0)))
            assert not policy(world, alone).devices[0].gated
            stuck = Stuck(monkeypatch, alone.name)
            await started(world, "u2", app=part(share(0, GI, 300)))
            assert agent.desk.is_behind
            stuck.release()
            await until(lambda: policy(world, alone).devices[0].gated)
            assert not agent.desk.is_behind

    run(go())


# ---- a tenant's lease ------------------------------------------------------------------------------------------------


@contextmanager
def leased(path: Path, kind: int = fcntl.F_RDLCK) -> Iterator[Callable[[], None]]:
    """A lease on a file, until the function is called or the block ends. F_WRLCK: not even readers get in."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for it back
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC)]

    def end() -> None:
        while fds:
            os.close(fds.pop())

    try:
        fcntl.fcntl(fds[0], fcntl.F_SETLEASE, kind)
        yield end
    finally:
        end()
        signal.signal(signal.SIGIO, before)


def test_a_lease_on_a_policy_lets_nobody_else_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no agent runs a tenant takes a lease on its policy: the next agent cannot open it for as long as the kernel
    lets it. What runs keeps its room before who comes first by its grant, and is adopted when the lease is gone."""
    monkeypatch.setattr(agent_module, "SWEEP_AGAIN_S", 0.01)

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 60 * GI)))
        with leased(world.places.root / entry.name / "policy") as end:
            await world.kubelet.start()
            async with world.agent() as agent:
                await world.kubelet.registered()
                assert entry.name not in agent.desk.held
                assert world.watch.names == {entry.name}, "watched although its policy cannot be changed"
                text = grant_text("u2", at=5, app=part(share(0, 60 * GI)))
                await world.pods.put(pod_of("u2", text=text, app=part()))
                other = await world.kubelet.allocate("u2", "default/pod-u2", "app")
                assert "pod-u1" in await refused(world, other)
                end()
                await until(lambda: entry.name in agent.desk.held)
                assert world.watch.names == {entry.name}
            await world.kubelet.stop()

    run(go())


BEFORE_KERNEL_S = 30  # the kernel itself takes a lease away after 45 s


def test_k12_a_lease_on_a_ledger_keeps_no_agent_from_registering(tmp_path: Path) -> None:
    """Nobody else has it open while no agent runs. It is its tenant's own: who comes does not wait, and adopts."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 60 * GI)))
        ledger = world.places.root / entry.name / "ledger"
        inode = ledger.stat().st_ino
        with leased(ledger, fcntl.F_WRLCK):
            await world.kubelet.start()
            async with world.agent() as agent:
                async with asyncio.timeout(BEFORE_KERNEL_S):
                    await world.kubelet.registered()
                assert policy(world, entry).is_open
                assert (entry.name in agent.desk.held, ledger.stat().st_ino) == (True, inode)
                await world.kubelet.pre_start(entry)  # its container is started anew
                assert policy(world, entry).is_open
                assert ledger.stat().st_ino != inode, "it starts with a ledger that can be read"
            await world.kubelet.stop()

    run(go())


def test_k09_a_lease_on_the_library_keeps_no_other_container_from_starting(tmp_path: Path) -> None:
    """All containers map the same files: while an agent is there none of them can be had alone, and one that comes
    where a tenant has a lease on one does not wait for it."""

    async def go() -> None:
        world = World(tmp_path)
        before = world.places.library / "0.0.1" / names.LIBRARY
        before.parent.mkdir(parents=True)
        before.write_bytes(b"of a release before")
        async with world.running():
            files = list(world.places.library.glob("*/*"))
            assert len(files) == 3
            for file in files:
                with pytest.raises(BlockingIOError), leased(file, fcntl.F_WRLCK):
                    pass
        preload = next(world.places.library.glob("*/ld.so.preload"))
        with leased(preload, fcntl.F_WRLCK):
            await world.kubelet.start()
            async with asyncio.timeout(BEFORE_KERNEL_S), world.agent():
                await world.kubelet.registered()
                fd = os.open(preload, os.O_RDONLY | os.O_NONBLOCK)
                assert os.read(fd, 100).decode() == f"{names.CONTAINER_LIBRARY}\n"
                os.close(fd)
            await world.kubelet.stop()

    run(go())


# ---- a defect of ours ------------------------------------------------------------------------------------------------


def test_k09_a_defect_that_one_pod_has_found_ends_nobody_elses_agent(tmp_path: Path) -> None:
    """Neither when its grant changes nor when an agent comes: it goes on with what it has, all others as ever."""

    class Defective(Cards):
        def enforcement(self, mode: Mode) -> Enforcement:
            if mode == "timeslice":
                message = "a defect"
                raise ValueError(message)
            return super().enforcement(mode)

    async def go() -> None:
        world = World(tmp_path)
        world.backend = Defective()
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, GI)))
            found = grant_text("u1", gen=2, app=part(share(0, 2 * GI), mode="timeslice"))
            await world.pods.put(pod_of("u1", text=found, app=part()))
            beside = await started(world, "u2", app=part(share(0, GI)))
        await world.kubelet.start()
        async with world.agent() as agent:
            await world.kubelet.registered()
            assert set(agent.desk.held) == {entry.name, beside.name}
            assert policy(world, entry).devices[0].memory == GI
            await started(world, "u3", app=part(share(0, GI)))
        await world.kubelet.stop()

    run(go())


# ---- pods of HAMi ----------------------------------------------------------------------------------------------------


def test_what_hami_only_planned_stops_no_restart(tmp_path: Path) -> None:
    """Our container ran first; it starts again although HAMi has planned a pod beside it. One that has its devices
    counts as what runs, and for new pods of ours both count."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 60 * GI, 0)))
            planned = replace(
                pod_of("h1", text="", app=part()), annotations={ANNOTATION: twin(0, 60 * 1024)}, phase="Pending"
            )
            await world.pods.put(planned)
            await world.kubelet.pre_start(entry)
            await world.pods.put(pod_of("u2", app=part(share(0, 19 * GI, 0))))
            other = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            assert "pod-h1" in await refused(world, other)
            await world.pods.put(replace(planned, annotations={**planned.annotations, BIND_PHASE: "success"}))
            with pytest.raises(grpc.aio.AioRpcError, match="pod-h1"):
                await world.kubelet.pre_start(entry)

    run(go())
