"""The agent's life: registration, kubelet's and its own restarts, two at once, resize, clean-up, failed cards."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from partage import locks
from partage.devices.backend import HealthChange
from partage.model import PartageError, names
from partage.shm import PolicyFile, read_ledger, read_policy
from partage_plugin import agent as agents
from partage_plugin import front
from partage_plugin.handover.cdi import CdiDirectory
from partage_plugin.handover.desk import Claim
from partage_plugin.kubelet import register, sockets
from partage_plugin.owner_lock import OwnerLock
from partage_plugin.ports import MonotonicClock
from tests.plugin.kubelet import HANG_S
from tests.plugin.test_handover import refused, run
from tests.plugin.world import CARDS, GI, World, card, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.plugin.kubelet import Entry


async def until(condition: Callable[[], Any], seconds: float = HANG_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def has_memory(world: World, entry: Entry, memory: int) -> bool:
    return bool(policy(world, entry).devices[0].memory == memory)


async def started(world: World, uid: str, **containers: Any) -> Entry:
    """A pod with one container, handed over."""
    await world.pods.put(pod_of(uid, **containers))
    entry = await world.kubelet.allocate(uid, f"default/pod-{uid}", next(iter(containers)))
    await world.kubelet.pre_start(entry)
    return entry


@asynccontextmanager
async def process_in(ledger: Path) -> AsyncIterator[None]:
    """A process with a slot, as seen from outside: a lock on the slot's byte."""
    fd = os.open(ledger, os.O_RDWR | os.O_CLOEXEC)
    try:
        assert locks.try_lock(fd, 0)
        yield
    finally:
        os.close(fd)


def policy(world: World, entry: Entry) -> Any:
    return read_policy(world.places.root / entry.name / "policy")


def test_registers_when_kubelet_comes_later(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.agent():
            await until(lambda: list(world.places.plugins.glob("partage-*.sock")))
            await world.kubelet.start()
            await world.kubelet.registered()
            request = world.kubelet.requests[0]
            assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
            assert request.options.pre_start_required
            assert "/" not in request.endpoint
        await world.kubelet.stop()

    run(go())


def test_kubelet_restarts(tmp_path: Path) -> None:
    """C077, C078: sockets are gone, the agent serves and registers anew; what was handed over is still there."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            first = world.kubelet.requests[-1].endpoint
            for _ in range(2):
                await world.kubelet.restart()
                await world.kubelet.registered()
            assert world.kubelet.requests[-1].endpoint != first, "the name of a socket was used twice"
            assert len(world.kubelet.devices) == 20
            assert policy(world, entry).devices[0].memory == 8 * GI
            await world.kubelet.pre_start(entry)
            assert agent.is_ready

    run(go())


def test_k12_a_kubelet_that_starts_may_have_made_the_node_anew(tmp_path: Path) -> None:
    """Somebody deleted it: what was said on it is said again at once."""

    async def go() -> None:
        world = World(tmp_path)
        told = asyncio.Event()

        async def tell() -> None:
            told.set()

        async with world.running() as agent:
            agent.tell_node = tell
            await world.kubelet.restart()
            await told.wait()

    run(go())


def test_k12_no_name_is_given_to_kubelet_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet 1.37 refuses one that it has, and then neither follows what is there nor sees its end."""
    monkeypatch.setattr(register, "FOLLOWED_S", 0.5)

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            world.kubelet.follow_no_more()
            await world.kubelet.until(lambda kubelet: len(kubelet.requests) > 1 and kubelet.devices)
            await started(world, "u1", app=part())

    run(go())


def test_k12_new_rights_make_no_other_socket(tmp_path: Path) -> None:
    """As `chmod -R` or `restorecon -R` do in kubelet's directory: it follows us still, and would refuse us."""
    path = tmp_path / "kubelet.sock"
    _dead_socket(path)
    before = sockets.identity(path)
    path.chmod(0o700)
    path.rename(tmp_path / "aside")
    (tmp_path / "aside").rename(path)
    assert sockets.identity(path) == before


def test_its_socket_vanishes(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            (world.places.plugins / world.kubelet.requests[0].endpoint).unlink()
            await world.kubelet.until(lambda kubelet: len(kubelet.requests) > 1 and kubelet.devices)
            await started(world, "u1", app=part())

    run(go())


def test_k12_sockets_that_somebody_removed_under_a_kubelet_that_runs(tmp_path: Path) -> None:
    """It cannot be registered with until it restarts, but it still follows us: its pods get their shares meanwhile."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            for _ in range(3):
                for path in world.places.plugins.iterdir():
                    path.unlink()
                await until(lambda: list(world.places.plugins.glob("partage-*.sock")))
            await started(world, "u1", app=part(share(1)))
            assert len(world.kubelet.healthy()) == 20
            assert len(world.kubelet.requests) == 1
            await world.kubelet.restart()
            await world.kubelet.registered()
            await started(world, "u2", app=part())
            assert agent.is_ready

    run(go())


def test_k12_no_inotify_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs use up the machine's instances: kubelet is found all the same, by looking."""

    def used_up() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(register, "Inotify", used_up)

    async def go() -> None:
        world = World(tmp_path)
        async with world.agent():
            await until(lambda: list(world.places.plugins.glob("partage-*.sock")))
            await world.kubelet.start()
            await world.kubelet.registered()
            await world.kubelet.restart()
            await world.kubelet.registered()
        await world.kubelet.stop()

    run(go())


def test_killed_between_allocate_and_pre_start(tmp_path: Path) -> None:
    """The container does not start without the agent; after its return it does, with its own grant."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(1, 5 * GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
        await world.kubelet.start()
        with pytest.raises(AssertionError, match="no plugin"):
            await world.kubelet.pre_start(entry)
        async with world.agent():
            await world.kubelet.registered()
            assert policy(world, entry).devices[0].memory == 5 * GI, "not rebuilt before it registered"
            await world.kubelet.pre_start(entry)
        await world.kubelet.stop()

    run(go())


def test_reboot(tmp_path: Path) -> None:
    """/run is empty, kubelet's checkpoint is there: everything that it names is whole before the agent registers."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        shutil.rmtree(world.places.root)
        shutil.rmtree(world.places.cdi)
        await world.pods.put(pod_of("u1", text=grant_text("u1", gen=2, app=part(share(0, 6 * GI))), app=part()))
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            assert policy(world, entry).devices[0].memory == 6 * GI
            assert CdiDirectory(world.places.cdi).names() == {entry.name}
            assert {path.name for path in (world.places.root / entry.name).iterdir()} == {"policy", "turns", "ledger"}
        await world.kubelet.stop()

    run(go())


def test_a_pod_that_is_gone_keeps_nothing_open(tmp_path: Path) -> None:
    """After a reboot nothing is made of a name in the checkpoint whose pod does not exist: at once nothing is left."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        shutil.rmtree(world.places.root)
        world.pods.pods.clear()
        await world.kubelet.start()
        async with world.agent() as agent:
            await world.kubelet.registered()
            assert not (world.places.root / entry.name).exists()
            assert not agent.desk.held
        await world.kubelet.stop()

    run(go())


def test_an_agents_restart_adopts_what_runs(tmp_path: Path) -> None:
    """Where the API server does not know the pod any more, what runs keeps the limits it has, and they count."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 50 * GI)))
            ledger = world.places.root / entry.name / "ledger"
            before = ledger.stat().st_ino
        world.pods.pods.clear()
        await world.kubelet.start()
        async with process_in(ledger), world.agent() as agent:
            await world.kubelet.registered()
            assert policy(world, entry).devices[0].memory == 50 * GI
            assert ledger.stat().st_ino == before
            assert world.watch.names == {entry.name}
            assert set(agent.desk.held) == {entry.name}
            await world.pods.put(pod_of("u2", app=part(share(0, 50 * GI))))
            assert "100 GiB" in await refused(world, await world.kubelet.allocate("u2", "default/pod-u2", "app"))
        await world.kubelet.stop()

    run(go())


def test_the_api_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet gets its seats all the same; containers wait, and start when pods are known."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
        world.pods.pods.clear()
        world.pods.synced.clear()
        monkeypatch.setattr(front, "SYNC_S", 0.01)
        shutil.rmtree(world.places.root)
        shutil.rmtree(world.places.cdi)
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            await refused(world, entry)
            await world.pods.put(pod_of("u1", app=part(share(0, 8 * GI))))
            world.pods.synced.set()
            await world.kubelet.pre_start(entry)
            assert policy(world, entry).devices[0].memory == 8 * GI
        await world.kubelet.stop()

    run(go())


def test_two_agents_at_once(tmp_path: Path) -> None:
    """A rolling update: the new one waits while the old one serves, then takes over; nobody's socket goes."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as old:
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            new = world.make()
            task = asyncio.create_task(new.run())
            await started(world, "u2", app=part(share(0, 8 * GI)))
            assert len(world.kubelet.requests) == 1
            assert new.is_standby
            assert new.is_ready, "a rollout waits for the new one to be ready before it ends the old one"
            assert not old.is_standby
        await world.kubelet.start()
        await world.kubelet.registered()
        assert not new.is_standby
        assert (world.places.plugins / world.kubelet.requests[-1].endpoint).is_socket()
        await world.kubelet.pre_start(entry)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.kubelet.stop()

    run(go())


def test_k12_two_agents_with_other_settings_do_not_fight_over_the_registration(tmp_path: Path) -> None:
    """They have nothing in common but kubelet: one serves, the other waits and takes over after it, as of one root."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as old:
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            world.places = replace(world.places, root=tmp_path / "other", cdi=tmp_path / "other-cdi")
            new = world.make()
            task = asyncio.create_task(new.run())
            await until((tmp_path / "other").is_dir)
            await world.kubelet.restart()
            await world.kubelet.registered()
            await world.kubelet.pre_start(entry)
            assert (new.is_standby, new.is_ready, old.registrar is not None) == (True, True, True)
            assert not (tmp_path / "other" / entry.name).exists()
        await world.kubelet.start()
        await world.kubelet.registered()
        assert not new.is_standby
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.kubelet.stop()

    run(go())


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waits-already", "comes-after"])
def test_k12_two_agents_do_not_serve_at_once_where_the_lock_file_is_removed(tmp_path: Path, is_waiting: bool) -> None:
    """What cleans /run removes it, too: the one that serves is met at the next file, or has met another one there."""

    async def go() -> None:
        clock = MonotonicClock()
        serving, other, third = (OwnerLock(tmp_path, clock, name) for name in ("serving", "other", "third"))
        await serving.take()
        waits = asyncio.ensure_future(other.take()) if is_waiting else None
        await asyncio.sleep(0)
        (tmp_path / ".agent").unlink()
        serving.keep()
        serving.keep()
        waits = waits or asyncio.ensure_future(other.take())
        await asyncio.wait([waits], timeout=0.5)
        assert not waits.done()
        (tmp_path / ".agent").unlink()
        await waits
        with pytest.raises(PartageError, match="other"):
            serving.keep()
        serving.let_go()
        other.keep()
        other.let_go()
        await third.take()
        third.let_go()

    run(go())


def test_k12_a_directory_that_was_removed_under_its_mount_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container runtime reads the one that was made anew; the next agent has that one mounted."""
    monkeypatch.setattr(agents, "PLACES_EVERY_S", 0.05)

    async def go() -> None:
        world = World(tmp_path)
        world.places.cdi.mkdir()
        fd = os.open(world.places.cdi, os.O_RDONLY)
        world.places = replace(world.places, cdi=Path(f"/proc/self/fd/{fd}"))  # as a mount goes on showing it
        task = asyncio.create_task(world.make().run())
        await asyncio.wait([task], timeout=0.5)
        assert not task.done()
        (tmp_path / "cdi").rmdir()
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert "was removed from the host" in str(caught.value.exceptions[0])
        os.close(fd)

    run(go())


def test_leftover_sockets(tmp_path: Path) -> None:
    """A killed agent's socket is removed, a living one's and a stranger's are not."""

    async def go() -> None:
        world = World(tmp_path)
        await world.kubelet.start()
        dead = world.places.plugins / "partage-nvidia.com-gpu-1.sock"
        living = world.places.plugins / "partage-nvidia.com-gpu-2.sock"
        stranger = world.places.plugins / "vendor.sock"
        servers = [grpc.aio.server(), grpc.aio.server()]
        for server, path in zip(servers, (living, stranger), strict=True):
            server.add_insecure_port(f"unix://{path}")
            await server.start()
        _dead_socket(dead)
        async with world.agent():
            await world.kubelet.registered()
            assert not dead.exists()
            assert living.exists()
            assert stranger.exists()
        for server in servers:
            await server.stop(0)
        await world.kubelet.stop()

    run(go())


def _dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_a_resize_holds_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI, 300)))
            for gen, memory, cores in ((2, 4 * GI, 300), (3, 12 * GI, 600)):
                text = grant_text("u1", gen=gen, app=part(share(0, memory, cores)))
                await world.pods.put(pod_of("u1", text=text, app=part()))
                want = (True, "ShareResized", f"generation {gen}")
                await world.told.until(
                    lambda told, want=want: told.conditions.get(("pod-u1", names.CONDITION_RESIZED)) == want
                )
                now = policy(world, entry)
                assert (now.generation, now.devices[0].memory, now.devices[0].cores) == (gen, memory, cores)

    run(go())


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [(part(share(1, 8 * GI)), "ResizeMovesCards"), (part(share(0, 60 * GI)), "CardOverpromised")],
    ids=["other-card", "no-room"],
)
def test_a_resize_that_cannot_be(tmp_path: Path, wanted: Any, reason: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await started(world, "u0", app=part(share(0, 30 * GI, 100)))
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            await world.pods.put(pod_of("u1", text=grant_text("u1", gen=2, app=wanted), app=part()))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert world.told.conditions["pod-u1", names.CONDITION_RESIZED][:2] == (False, reason)
            now = policy(world, entry)
            assert (now.generation, now.devices[0].memory) == (1, 8 * GI)

    run(go())


@pytest.mark.parametrize(
    "text",
    [
        grant_text("u1", gen=1 << 64, app=part(share(0, 9 * GI))),
        grant_text("u1", gen=2, app=part(share(0, 9 * GI))).replace('"shares":[', '"shares":[],"was":['),
        grant_text("u2", gen=2, app=part(share(0, 9 * GI))),
        "{" * (1 << 20),
    ],
    ids=["endless-generation", "no-shares", "another-pods", "a-megabyte"],
)
def test_a_grant_that_is_spoilt_under_a_running_container(tmp_path: Path, text: str) -> None:
    """It goes on with what it has, its pod says why, and others start beside it; also after the agent's restart."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert world.told.conditions["pod-u1", names.CONDITION_RESIZED][:2] == (False, "GrantInvalid")
            assert policy(world, await started(world, "u3", app=part(share(0, GI)))).is_open
        await world.kubelet.start()
        async with world.agent():
            await world.kubelet.registered()
            now = policy(world, entry)
            assert (now.is_open, now.generation, now.devices[0].memory) == (True, 1, 8 * GI)
        await world.kubelet.stop()

    run(go())


def test_a_closed_container_stays_closed_at_a_resize(tmp_path: Path) -> None:
    """Its watcher closed it (its tenant cut the ledger): more memory is no reason to let it go on without one."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            with closing(PolicyFile.open(world.places.root / entry.name / "policy")) as file:
                file.shut()
            await world.pods.put(pod_of("u1", text=grant_text("u1", gen=2, app=part(share(0, 9 * GI))), app=part()))
            await world.told.until(lambda told: ("pod-u1", names.CONDITION_RESIZED) in told.conditions)
            assert not policy(world, entry).is_open
            await world.kubelet.pre_start(entry)  # the container starts anew
            assert policy(world, entry).is_open

    run(go())


@pytest.mark.parametrize("how", ["deleted", "failed"])
def test_what_a_pod_leaves_is_removed(tmp_path: Path, how: str) -> None:
    """Kubelet's checkpoint still names it: the pod decides."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            kept = await started(world, "u0", app=part(share(1, GI)))
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            if how == "deleted":
                await world.pods.delete("u1")
            else:
                pod = pod_of("u1", app=part())
                await world.pods.put(type(pod)(pod.uid, pod.namespace, pod.name, pod.node, "Failed", pod.annotations))
            await until(lambda: not (world.places.root / entry.name).exists())
            assert set(agent.desk.held) == {kept.name}
            assert CdiDirectory(world.places.cdi).names() == {kept.name}
            assert world.watch.names == {kept.name}
            assert [shares[0].uuid for shares in world.backend.released] == [CARDS[0]]

    run(go())


def test_what_starts_while_others_are_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two leftovers is opened anew while the other is removed."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            entries = {uid: await started(world, uid, app=part()) for uid in ("u1", "u2")}
            pods = {uid: world.pods.pods[uid] for uid in entries}
            kept: list[str] = []

            async def release(_: Any) -> None:
                if not kept:
                    (uid,) = (uid for uid, entry in entries.items() if entry.name in agent.desk.held)
                    kept.append(entries[uid].name)
                    await agent.desk.hand_over(Claim(entries[uid].name, pods[uid], "app", 1))

            monkeypatch.setattr(world.backend, "release", release)
            world.kubelet.entries.clear()
            world.kubelet.write_checkpoint()
            for uid in entries:
                world.pods.pods.pop(uid)
            removed = await agent._sweeper.sweep()
            assert removed == {entry.name for entry in entries.values()} - set(kept)
            assert set(agent.desk.held) == set(kept)
            assert agent.desk.held[kept[0]].entry.policy().is_open

    run(go())


def test_each_removal_waits_for_what_is_more_urgent(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            for uid in ("u1", "u2"):
                await started(world, uid, app=part())
            world.kubelet.entries.clear()
            world.kubelet.write_checkpoint()
            world.pods.pods.clear()
            there: list[int] = []

            async def urgent() -> None:
                there.append(len(agent.desk.held))

            await agent._sweeper.sweep(between=urgent)
            assert (there, len(agent.desk.held)) == ([2, 1], 0)

    run(go())


def test_a_failed_card_withdraws_its_free_seats(tmp_path: Path) -> None:
    """C084: 10 seats, 3 handed over: 7 fewer; what runs keeps its ids; all are back when the card is."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            for number in range(3):
                await started(world, f"u{number}", app=part(share(0, GI, 0)))
            held = {seat for entry in world.kubelet.entries for seat in entry.ids}
            world.backend.changes.put_nowait(HealthChange(CARDS[0], healthy=False, reason="XID 79"))
            await world.kubelet.until(lambda kubelet: len(kubelet.healthy()) == 13)
            assert held <= world.kubelet.healthy()
            world.backend.changes.put_nowait(HealthChange(CARDS[0], healthy=True))
            await world.kubelet.until(lambda kubelet: len(kubelet.healthy()) == 20)

    run(go())


def test_no_cards_at_first(tmp_path: Path) -> None:
    """C080, C083: nothing is registered while there is nothing, and no restart is needed when there is."""

    async def go() -> None:
        world = World(tmp_path)
        world.backend.fails = "no driver"
        clock = Clock()
        await world.kubelet.start()
        agent = world.make()
        agent._clock = clock
        task = asyncio.create_task(agent.run())
        await clock.slept()
        assert not agent.is_ready
        assert not world.kubelet.requests
        world.backend.fails = None
        clock.release()
        await world.kubelet.registered()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.kubelet.stop()

    run(go())


class Clock:
    """Sleeps until released."""

    def __init__(self) -> None:
        self._released = asyncio.Event()
        self._asked = asyncio.Event()

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self._asked.set()
        await self._released.wait()
        self._released.clear()

    async def slept(self) -> None:
        await self._asked.wait()

    def release(self) -> None:
        self._released.set()


# ---- whole-card safe mode ----------------------------------------------------------------------------------------


def test_safe_mode_gives_free_whole_cards(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running(safe_mode=True) as agent:
            await started(world, "u0", app=part(share(0, GI)))
            await world.pods.put(pod_of("u1", text="", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            await world.kubelet.pre_start(entry)
            device = policy(world, entry).devices[0]
            assert (device.uuid, device.memory) == (CARDS[1], 80 * GI)
            assert agent.front is not None
            assert agent.front.safe_grants() == {"default/pod-u1": (CARDS[1],)}
            await world.pods.put(pod_of("u2", text="", app=part()))
            assert "0 of 2 free" in await refused(world, await world.kubelet.allocate("u2", "default/pod-u2", "app"))
        await world.kubelet.start()
        async with world.agent(safe_mode=True) as again:
            await world.kubelet.registered()
            assert again.front is not None
            assert again.front.safe_grants() == {"default/pod-u1": (CARDS[1],)}
        await world.kubelet.stop()

    run(go())


def test_seats_are_steered_to_the_planned_card(tmp_path: Path) -> None:
    """Only where one pod can be meant; with two pending any seat will do."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(1, GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert entry.ids[0].startswith(CARDS[1])
            await world.pods.put(pod_of("u2", app=part(share(1, GI))))
            other = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            assert other.ids[0].startswith(CARDS[0])

    run(go())


def test_numa_is_promised_only_where_it_cannot_be_wrong(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            assert {device.topology.nodes[0].ID for device in world.kubelet.devices.values()} == {0}
        world.backend.cards = (card(0, numa=0), card(1, numa=1))
        async with world.running():
            assert not any(device.topology.nodes for device in world.kubelet.devices.values())

    run(go())


# ---- containers that start again and again -------------------------------------------------------------------------


def test_fifty_starts_a_minute(tmp_path: Path) -> None:
    """The same container: nothing is written again and nothing is said again."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await started(world, "u1", app=part(share(0, 8 * GI)))
            spec = world.places.cdi / f"partage.io-share-{entry.name}.json"
            before = (spec.stat().st_ino, (world.places.root / entry.name / "policy").read_bytes())
            for _ in range(50):
                await world.kubelet.pre_start(entry)
            assert (spec.stat().st_ino, (world.places.root / entry.name / "policy").read_bytes()) == before
            assert not world.told.events

    run(go())


@pytest.mark.parametrize("how", ["cut", "scribbled", "gone"])
def test_a_ledger_that_its_tenant_spoilt(tmp_path: Path, how: str) -> None:
    """The container's next start has a good one, and the neighbours never noticed; while it runs it is left alone."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            kept = await started(world, "u0", app=part(share(0, GI)))
            entry = await started(world, "u1", app=part(share(0, GI)))
            ledger = world.places.root / entry.name / "ledger"
            if how == "cut":
                os.truncate(ledger, 100)
            elif how == "scribbled":
                ledger.write_bytes(b"x" * ledger.stat().st_size)
            else:
                ledger.unlink()
            if how != "gone":
                spoilt = ledger.stat().st_ino
                async with process_in(ledger):
                    await world.kubelet.pre_start(entry)
                    assert ledger.stat().st_ino == spoilt
            await world.kubelet.pre_start(entry)
            assert not read_ledger(ledger).slots
            assert world.watch.names == {kept.name, entry.name}
            assert policy(world, kept).is_open

    run(go())
