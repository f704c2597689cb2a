"""We test these aspects of directories of the host that cannot be written: the agent is not ready and says which, why
and what to do; it goes on and is ready by itself when they can be; a failure that passes says nothing."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from partage.model import LaunchError
from partage_plugin import agent as agents
from partage_plugin import shown
from partage_plugin.handover.store import HandOverError, Store
from partage_plugin.library import install
from partage_plugin.writing import TRIALS, Directory, Writing
from tests.plugin.test_handover import held_open, run
from tests.plugin.test_life import started, until
from tests.plugin.world import World, part, pod_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partage_plugin.agent import Agent

PODS: Any = SimpleNamespace(is_synced=True, problem="")


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "PLACES_EVERY_S", 0.01)


@pytest.fixture
def mounted() -> Iterator[Callable[[Path], None]]:
    """Makes a directory a file system of its own."""
    there: list[Path] = []

    def mount(path: Path) -> None:
        path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", str(path)]
        if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("needs the right to mount a file system")
        there.append(path)

    yield mount
    for path in there:
        subprocess.run(["umount", str(path)], check=True)


def remount(path: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(path)], check=True)


def fill(path: Path) -> None:
    with (path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def not_ready(agent: Agent) -> list[str]:
    return shown.not_ready(agent, PODS)


@pytest.mark.usefixtures("_often")
def test_a_read_only_directory_is_told_before_any_pod_fails(tmp_path: Path, mounted: Callable[[Path], None]) -> None:
    """The one with hand-overs cannot become so while the agent has files in it open."""

    async def go() -> None:
        world = World(tmp_path)
        place = world.places.cdi
        mounted(place)
        async with world.running() as agent:
            await until(lambda: agent.is_ready)  # kubelet has registered it, and lists a moment later
            remount(place, "ro")
            await until(lambda: not_ready(agent))
            (reason,) = not_ready(agent)
            assert reason.startswith(f"{place}: Read-only file system")
            assert "remount it writable" in reason
            assert agent.is_ready, "kubelet is served on"
            remount(place, "rw")
            await until(lambda: not not_ready(agent))
            await started(world, "u1", app=part())

    run(go())


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("which", ["root", "cdi"])
def test_a_full_directory_is_told_after_a_pod_failed_by_it(
    tmp_path: Path, mounted: Callable[[Path], None], which: str
) -> None:
    async def go() -> None:
        world = World(tmp_path)
        place = getattr(world.places, which)
        mounted(place)
        async with world.running() as agent:
            await started(world, "u0", app=part())
            await until(lambda: not agent.writing.problems)
            fill(place)
            await world.pods.put(pod_of("u1", app=part()))
            with pytest.raises(grpc.aio.AioRpcError, match="No space"):
                await world.kubelet.pre_start(await world.kubelet.allocate("u1", "default/pod-u1", "app"))
            await until(lambda: not_ready(agent))
            (reason,) = not_ready(agent)
            assert reason.startswith(f"{place}: No space left on device")
            assert "free space" in reason
            (place / "filler").unlink()
            await until(lambda: not not_ready(agent))
            await started(world, "u2", app=part())
            assert not any("tried" in path.name for path in place.iterdir()), "something was left of a trial"

    run(go())


def test_wherever_room_ends_it_is_doubted_and_no_descriptor_stays(
    tmp_path: Path, mounted: Callable[[Path], None]
) -> None:
    """A policy is written by a mapping, which says otherwise than a call that there is no room."""
    mounted(tmp_path / "root")
    store, left, page = Store(tmp_path / "root"), 0, 4096
    store.open()
    store.try_out()
    while True:
        fill(store.root)
        filler = store.root / "filler"
        os.truncate(filler, filler.stat().st_size - left * page)
        try:
            store.mint()
        except HandOverError:
            assert store.is_doubted, f"{left} pages were left"
        else:
            break
        filler.unlink()
        store.try_out()
        assert not store.is_doubted
        assert not [name for name in held_open() if name.startswith(str(store.root))], f"{left} pages were left"
        left += 1
    assert left > 1


@pytest.mark.usefixtures("_often")
def test_a_library_that_cannot_be_put_back_is_told(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            await until(lambda: agent.is_ready)
            source = world.library.read_bytes()
            world.library.unlink()
            (installed,) = world.places.library.glob("*/libvgpu.so")
            installed.unlink()
            await until(lambda: not_ready(agent))
            assert str(installed) in not_ready(agent)[0] or str(world.library) in not_ready(agent)[0]
            world.library.write_bytes(source)
            await until(lambda: not not_ready(agent))
            assert installed.read_bytes() == source

    run(go())


def test_what_passes_is_not_told_and_what_is_well_is_not_tried() -> None:
    tried: list[bool] = []
    fails, doubted = True, False

    def try_out() -> None:
        tried.append(fails)
        if fails:
            raise LaunchError("/run", "is full", "room is needed", "make room")

    writing = Writing(Directory(lambda: doubted, try_out))
    writing.look()
    assert not tried
    doubted = True
    for _ in range(3):  # one that failed, and then could be written
        fails = True
        writing.look()
        assert writing.problems == []
        fails = False
        writing.look()
    fails = True
    for _ in range(TRIALS):
        writing.look()
    assert writing.problems == ["/run: is full; room is needed; make room"]
    doubted = fails = False
    writing.look()
    assert writing.problems == []
    before = len(tried)
    writing.look()
    assert len(tried) == before


def test_a_library_that_is_not_there_is_named_and_not_where_it_would_go(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as refused:
        install(tmp_path / "none.so", tmp_path / "host")
    assert str(refused.value).startswith(f"{tmp_path / 'none.so'}: cannot be read (No such file or directory); ")
    assert "`library`" in refused.value.step
