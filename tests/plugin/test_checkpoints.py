"""Kubelet's word on which container has which ids: a checkpoint that is garbage or gone, answers that contradict it."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from partage.shm import read_policy
from partage_plugin.kubelet.checkpoint import CHECKPOINT_FILE, Checkpoint, CheckpointError, CheckpointFile, Entry
from partage_plugin.owners import STATIC, UNKNOWN, Owners
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2
from partage_plugin.refusal import Refused
from tests.plugin.kubelet import HANG_S, RESOURCE, Kubelet
from tests.plugin.test_handover import held_open, refused, run
from tests.plugin.world import GI, World, part, pod_of, share

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("text", ["", "garbage", '{"Data":{"Other":1},"Checksum":1}', "{}"])
def test_a_checkpoint_that_nobody_knows(tmp_path: Path, text: str) -> None:
    """PodResources and what was minted decide where they leave no doubt; shared ids are refused."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, 8 * GI))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.kubelet.write_raw_checkpoint(text)
            await world.kubelet.pre_start(entry)
            assert read_policy(world.places.root / entry.name / "policy").devices[0].memory == 8 * GI

            await world.pods.put(pod_of("u2", init=part(share(1)), app=part(share(1))))
            init = await world.kubelet.allocate("u2", "default/pod-u2", "init", init=True)
            app = await world.kubelet.allocate("u2", "default/pod-u2", "app", ids=init.ids)
            world.kubelet.write_raw_checkpoint(text)
            for shared in (init, app):
                assert "exactly one of each" in await refused(world, shared)

    run(go())


@pytest.mark.parametrize("kind", ["directory", "fifo", "terabyte"])
def test_a_checkpoint_that_is_none_of_kubelets(tmp_path: Path, kind: str) -> None:
    """Whatever lies in its place costs neither memory nor time; it is one that cannot be read."""
    place = tmp_path / "kubelet_internal_checkpoint"
    match kind:
        case "directory":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
        case "terabyte":
            place.touch()
            os.truncate(place, 1 << 40)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(CheckpointFile(tmp_path, RESOURCE).read)
        try:
            with pytest.raises(CheckpointError, match=str(place)):
                reading.result(HANG_S)
        finally:
            if kind == "fifo":
                os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK))  # lets go of who waits for a writer
    assert str(place) not in held_open()


def test_a_checkpoint_that_is_gone(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            (world.places.plugins / "kubelet_internal_checkpoint").unlink()
            world.kubelet.answers_resources = False
            assert "0 containers" in await refused(world, entry)
            world.kubelet.answers_resources = True
            await world.kubelet.pre_start(entry)

    run(go())


def test_ids_that_kubelet_gave_to_nobody(tmp_path: Path) -> None:
    """C065: a self-described pod is no answer; without an entry nothing is handed out."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.kubelet.entries.clear()
            world.kubelet.write_checkpoint()
            assert "no entry" in await refused(world, entry)

    run(go())


@pytest.mark.parametrize(("container", "ids"), [("app", ("another-seat",)), ("beside", None)], ids=["ids", "container"])
def test_podresources_contradicts(tmp_path: Path, container: str, ids: tuple[str, ...] | None) -> None:
    """Asked about the pod that the checkpoint names, it gives its container other ids, or these to another one."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            entry.container, entry.ids = container, ids or entry.ids
            request = api_pb2.PreStartContainerRequest(devices_ids=world_ids(world))
            with pytest.raises(grpc.aio.AioRpcError, match="PodResources says default/pod-u1, container"):
                await world.kubelet.plugin().PreStartContainer(request, timeout=HANG_S)

    run(go())


def world_ids(world: World) -> tuple[str, ...]:
    """Return the ids of the one container that the checkpoint has."""
    (entry,) = CheckpointFile(world.places.plugins, RESOURCE).read().entries
    return tuple(entry.ids)


@pytest.mark.parametrize("gives", [True, False], ids=["get", "no-get"])
def test_kubelet_is_not_made_to_count_its_devices_anew(tmp_path: Path, *, gives: bool) -> None:
    """A `List` frees what kubelet has chosen and not handed out yet, of any plugin: a checkpoint spares it."""

    async def go() -> None:
        world = World(tmp_path)
        world.kubelet.gives_resources = gives
        async with world.running():
            await world.pods.put(pod_of("u1", init=part(share(0)), app=part(share(0))))
            init = await world.kubelet.allocate("u1", "default/pod-u1", "init", init=True)
            app = await world.kubelet.allocate("u1", "default/pod-u1", "app", ids=init.ids)
            for entry in (init, app):
                await world.kubelet.pre_start(entry)
                assert read_policy(world.places.root / entry.name / "policy").is_open
            assert world.kubelet.listed_resources == 0

    run(go())


def test_a_pod_that_podresources_does_not_know(tmp_path: Path) -> None:
    """Kubelet does not know the pod any more: its checkpoint has a UID, and says whose it was."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", name="web-0", app=part()))
            entry = await world.kubelet.allocate("u1", "default/web-0", "app")
            world.kubelet.entries.clear()
            await world.kubelet.pre_start(entry)
            assert read_policy(world.places.root / entry.name / "policy").is_open

    run(go())


@pytest.mark.parametrize("text", ["older", "garbage"])
def test_a_checkpoint_that_does_not_tell_is_written_again(tmp_path: Path, text: str) -> None:
    """Kubelet's threads overtake each other and leave a file from before the answer: it is not left at that."""

    async def go() -> None:
        world = World(tmp_path)
        kubelet = world.kubelet
        kubelet.writes_at_lists = True
        async with world.running():
            await world.pods.put(pod_of("u1", init=part(share(1)), app=part(share(1))))
            before = (world.places.plugins / CHECKPOINT_FILE).read_text() if text == "older" else text
            init = await kubelet.allocate("u1", "default/pod-u1", "init", init=True)
            app = await kubelet.allocate("u1", "default/pod-u1", "app", ids=init.ids)
            kubelet.write_raw_checkpoint(before)
            lists = kubelet.lists
            await refused(world, init)
            await kubelet.until(lambda kubelet: kubelet.lists > lists)
            for entry in (init, app):
                await kubelet.pre_start(entry)
                assert read_policy(world.places.root / entry.name / "policy").is_open

    run(go())


@pytest.mark.parametrize(
    ("entries", "reason", "is_asked"),
    [
        pytest.param((), UNKNOWN, True, id="not-in-it"),
        pytest.param((Entry("a" * 32, "app", frozenset({"s"}), "h"),), STATIC, False, id="in-it"),
    ],
)
def test_kubelet_writes_its_checkpoint_again_only_where_that_may_help(
    entries: tuple[Entry, ...], reason: str, is_asked: bool
) -> None:
    """It has to tell all seats for it: a hundred containers that wait for the API server do not make it do so."""
    checkpoint = SimpleNamespace(read=lambda: Checkpoint(entries, frozenset()))
    pods = SimpleNamespace(get=lambda _: None, all=tuple)
    owners = Owners(checkpoint, None, None, pods)  # type: ignore[arg-type]
    asked: list[bool] = []
    owners.write_again = lambda: asked.append(True)
    with pytest.raises(Refused) as caught:
        asyncio.run(owners.of(["s"]))
    assert caught.value.reason == reason
    assert bool(asked) == is_asked


@dataclass
class Busy(Kubelet):
    """Refuses the first of two that ask it at once, as beyond its limit of asks, and lets the second wait for long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = 0
        self.both, self.goes_on = asyncio.Event(), asyncio.Event()

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked += 1
        if self.asked == 1:
            await self.both.wait()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self.both.set()
        await self.goes_on.wait()
        return await super().Get(request, context)  # type: ignore[no-untyped-call]


def test_k11_a_cross_check_that_cannot_be_made_ends_no_other(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        kubelet = world.kubelet = Busy(world.places.plugins, world.places.pod_resources)
        async with world.running():
            entries = []
            for uid in ("u1", "u2"):
                await world.pods.put(pod_of(uid, app=part(share())))
                entries.append(await kubelet.allocate(uid, f"default/pod-{uid}", "app"))
            starts = [asyncio.create_task(kubelet.pre_start(entry)) for entry in entries]
            await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
            kubelet.goes_on.set()
            await asyncio.gather(*starts)
            for entry in entries:
                assert read_policy(world.places.root / entry.name / "policy").is_open

    run(go())


def test_an_answer_of_another_plugin(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            ours = api_pb2.ContainerAllocateResponse.FromString(entry.answer.SerializeToString())
            entry.answer.ClearField("cdi_devices")
            world.kubelet.write_checkpoint()
            entry.answer = ours
            assert "somebody else" in await refused(world, entry)

    run(go())
