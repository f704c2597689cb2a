"""From kubelet's calls to policy and CDI spec, over real sockets: what each container gets, and what it is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from partage.model import ShareClass, names
from partage.model.need import Role
from partage.shm import read_policy
from tests.plugin.kubelet import HANG_S
from tests.plugin.world import CARDS, GI, World, card, grant_text, part, pod_of, share

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from partage_plugin.ports import Pod
    from tests.plugin.kubelet import Entry


def run(coroutine: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_S):
            await coroutine

    asyncio.run(bounded())


def held_open() -> list[str]:
    """What this process has open, by name; what was removed has a word behind it."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that this directory was read by, or another thread's
            found.append(str(descriptor.readlink()))
    return found


def spec(world: World, entry: Entry) -> dict[str, object]:
    found = json.loads((world.places.cdi / f"partage.io-share-{entry.name}.json").read_text())
    return dict(found["devices"][0])


async def refused(world: World, entry: Entry) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.kubelet.pre_start(entry)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert not read_policy(world.places.root / entry.name / "policy").is_open, "a refused container has an open policy"
    assert not (world.places.cdi / f"partage.io-share-{entry.name}.json").exists()
    return str(caught.value.details())


def test_a_container_gets_its_grant(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            assert len(world.kubelet.devices) == 20
            await world.pods.put(pod_of("u1", app=part(share(1, 8 * GI, 300))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            directory = world.places.root / entry.name
            assert not read_policy(directory / "policy").is_open, "open before its owner is known"
            await world.kubelet.pre_start(entry)

            policy = read_policy(directory / "policy")
            assert policy.is_open
            assert [(d.uuid, d.memory, d.cores, d.ceiling) for d in policy.devices] == [(CARDS[1], 8 * GI, 300, 300)]
            assert policy.share_class == "fixed"
            assert spec(world, entry)["containerEdits"] == {
                "deviceNodes": [{"hostPath": "/dev/test1", "path": "/dev/test1", "permissions": "rw"}],
                "env": [f"VISIBLE={CARDS[1]}"],
                "mounts": [
                    {
                        "hostPath": str(directory),
                        "containerPath": "/run/partage",
                        "options": ["ro", "nosuid", "nodev", "rbind"],
                    }
                ],
            }
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2] == (True, "shim")
            assert world.watch.names == {entry.name}

    run(go())


def test_what_allocate_answers(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            directory = world.places.root / entry.name
            mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in entry.answer.mounts}
            library = world.places.library
            version = next(library.iterdir()).name
            assert mounts == {
                "/run/partage": (str(directory), True),
                "/run/partage/ledger": (str(directory / "ledger"), False),
                "/usr/local/vgpu/libvgpu.so": (str(library / version / "libvgpu.so"), True),
                "/etc/ld.so.preload": (str(library / version / "ld.so.preload"), True),
                "/etc/ld-nix.so.preload": (str(library / version / "ld.so.preload"), True),
            }
            assert dict(entry.answer.envs) == {"PARTAGE_DIR": "/run/partage"}
            assert not entry.answer.devices, "devices are in the CDI spec: here nobody knows the card yet"
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
            assert modes == {"policy": 0o644, "turns": 0o644, "ledger": 0o666}
            assert stat.S_IMODE(directory.stat().st_mode) == 0o755

    run(go())


def test_k08_images_of_nix_get_the_library(tmp_path: Path) -> None:
    """The loader in them has the name of its preload file changed, so that it does not read that of other systems."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            given = {mount.container_path: mount for mount in entry.answer.mounts}
            assert Path(given["/etc/ld-nix.so.preload"].host_path).read_text() == f"{names.CONTAINER_LIBRARY}\n"
            assert given["/etc/ld-nix.so.preload"].read_only

    run(go())


def test_the_library_comes_by_variable_where_asked(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running(preload_by_variable=True):
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert entry.answer.envs["LD_PRELOAD"] == "/usr/local/vgpu/libvgpu.so"
            assert not [mount for mount in entry.answer.mounts if mount.container_path.startswith("/etc")]

    run(go())


def test_k08_a_library_that_somebody_removed_is_put_back_before_anything_starts(tmp_path: Path) -> None:
    """The runtime makes a directory of a mount's source that is missing, and ld.so goes on without any limit."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            given = {mount.container_path: Path(mount.host_path) for mount in entry.answer.mounts}
            library, preload = given[names.CONTAINER_LIBRARY], given["/etc/ld.so.preload"]
            for is_new in (False, True):
                for file in (library, preload):
                    file.unlink()
                    file.mkdir()  # as the runtime does
                if is_new:
                    await world.kubelet.ask("u2", "default/pod-u2", "app", ["x"])
                else:
                    await world.kubelet.pre_start(entry)
                assert library.read_bytes() == world.library.read_bytes()
                assert preload.read_text() == f"{names.CONTAINER_LIBRARY}\n"
        assert not [name for name in held_open() if name.startswith(str(world.places.library))]

    run(go())


def test_k08_who_began_under_a_version_that_is_removed_does_not_start_without_it(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            before = world.places.library / "0.0.1"
            before.mkdir()
            for mount in entry.answer.mounts:
                if mount.container_path == names.CONTAINER_LIBRARY or mount.container_path.startswith("/etc"):
                    mount.host_path = str(before / Path(mount.host_path).name)
                    Path(mount.host_path).write_bytes(b"of that version")
            world.kubelet.write_checkpoint()
            await world.kubelet.pre_start(entry)
            shutil.rmtree(before)
            with pytest.raises(grpc.aio.AioRpcError, match="is gone"):
                await world.kubelet.pre_start(entry)
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2] == (False, "LibraryMissing")

    run(go())


def test_k09_a_container_with_a_volume_over_what_holds_its_limit_does_not_start(tmp_path: Path) -> None:
    """Whoever made its pod, and whether or not somebody looked at it then."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            pod = pod_of("u1", app=part())
            covered = replace(pod.containers[0], mounts=("/data", "/var/run/partage/policy"))
            await world.pods.put(replace(pod, containers=(covered,)))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "/run/partage is the library's" in await refused(world, entry)
            await world.pods.put(replace(pod, containers=(replace(covered, mounts=("/data", "/etc")),)))
            await world.kubelet.pre_start(entry)

    run(go())


def test_names_are_never_used_twice(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            seats = sorted(world.kubelet.devices)[:1]
            entries = [await world.kubelet.allocate("u1", "default/pod-u1", f"c{n}", ids=seats) for n in range(20)]
            assert len({entry.name for entry in entries}) == 20

    run(go())


def test_init_sidecar_and_app_each_get_their_own(tmp_path: Path) -> None:
    """C073: an init container's ids are given to the app again; each name gets its own container's limit."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(
                pod_of(
                    "u1",
                    roles={"init": Role.INIT, "side": Role.SIDECAR},
                    init=part(share(0, 8 * GI)),
                    side=part(share(0, 2 * GI, 100)),
                    app=part(share(0, 4 * GI, 200)),
                )
            )
            init = await world.kubelet.allocate("u1", "default/pod-u1", "init", init=True)
            side = await world.kubelet.allocate("u1", "default/pod-u1", "side")
            app = await world.kubelet.allocate("u1", "default/pod-u1", "app", ids=init.ids)
            for entry in (init, side, app):
                await world.kubelet.pre_start(entry)
            memory = [read_policy(world.places.root / e.name / "policy").devices[0].memory for e in (init, side, app)]
            assert memory == [8 * GI, 2 * GI, 4 * GI]

    run(go())


def test_many_pods_at_once(tmp_path: Path) -> None:
    """C070, C075: 16 containers, every limit unique, all calls at the same time: none crossed, none refused."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():

            async def one(number: int) -> None:
                uid = f"u{number}"
                entry = await world.kubelet.allocate(uid, f"default/pod-{uid}", "app", ids=[seats[number]])
                await world.pods.put(pod_of(uid, app=part(share(number % 2, (number + 1) << 20, 0))))
                await world.kubelet.pre_start(entry)
                assert read_policy(world.places.root / entry.name / "policy").devices[0].memory == (number + 1) << 20

            seats = sorted(world.kubelet.devices)
            async with asyncio.TaskGroup() as tasks:
                for number in range(16):
                    tasks.create_task(one(number))

    run(go())


def test_a_pod_created_again_under_its_name_gets_the_new_limit(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            seats = sorted(world.kubelet.devices)[:1]
            for number in range(5):
                uid, memory = f"u{number}", (number + 1) * GI
                await world.pods.put(pod_of(uid, name="web-0", app=part(share(0, memory))))
                entry = await world.kubelet.allocate(uid, "default/web-0", "app", ids=seats)
                await world.kubelet.pre_start(entry)
                assert read_policy(world.places.root / entry.name / "policy").devices[0].memory == memory
                await world.pods.delete(uid)
                world.kubelet.entries.clear()

    run(go())


def test_room_that_another_clean_up_has_freed_meanwhile(tmp_path: Path) -> None:
    """Two clean-ups go on side by side: what one removes, the other finds no more, and there is room all the same."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running() as agent:
            assert agent.front is not None
            sweep = agent.front.clean_up

            async def second() -> frozenset[str]:
                await sweep()
                return await sweep()

            agent.front.clean_up = second
            for uid in ("u0", "u1"):
                await world.pods.put(pod_of(uid, app=part(share(0, 50 * GI))))
                entry = await world.kubelet.allocate(uid, f"default/pod-{uid}", "app")
                await world.kubelet.pre_start(entry)
                await world.pods.delete(uid)

    run(go())


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        pytest.param(pod_of("u1", text="", app=part()), "GrantMissing", "partage-scheduler", id="C074-no-grant"),
        pytest.param(pod_of("u1", text="{", app=part()), "GrantInvalid", "grant of default/pod-u1", id="malformed"),
        pytest.param(
            pod_of("u1", text=grant_text("u1", node="n2", app=part()), app=part()),
            "GrantInvalid",
            "n2",
            id="other-node",
        ),
        pytest.param(pod_of("u1", text=grant_text("u9", app=part()), app=part()), "GrantInvalid", "u9", id="other-pod"),
        pytest.param(
            pod_of("u1", text=grant_text("u1", gen=1 << 64, app=part()), app=part()),
            "GrantInvalid",
            "gen",
            id="endless-generation",
        ),
        pytest.param(pod_of("u1", other=part()), "ContainerNotGranted", "lists other", id="other-container"),
        pytest.param(pod_of("u1", app=part(share(0), share(1))), "SeatsDiffer", "2 shares", id="other-count"),
        pytest.param(pod_of("u1", app=part(share(uuid="GPU-x"))), "CardMissing", "GPU-x", id="other-card"),
        pytest.param(pod_of("u1", app=part(share(memory=81 * GI))), "ShareTooLarge", "81 GiB", id="too-much"),
    ],
)
def test_a_grant_that_cannot_be_used(tmp_path: Path, pod: Pod, reason: str, words: str) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod)
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            details = await refused(world, entry)
            assert words in details
            assert [event[1] for event in world.told.events] == [reason]
            assert world.told.events[0][2] == details, "the pod's event says something else than kubelet was told"
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][:2] == (False, reason)

    run(go())


def test_a_refusal_passes(tmp_path: Path) -> None:
    """What was missing and comes is enough: kubelet asks again, the container starts, the condition is taken back."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "not seen" in await refused(world, entry)
            await world.pods.put(pod_of("u1", text="", app=part()))
            await refused(world, entry)
            await world.pods.put(pod_of("u1", app=part()))
            await world.kubelet.pre_start(entry)
            assert read_policy(world.places.root / entry.name / "policy").is_open
            assert world.told.conditions["pod-u1", names.CONDITION_ENFORCED][0]

    run(go())


def test_a_failed_card_is_refused_and_comes_back(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.backend.cards = (card(0, healthy=False, reason="XID 79"), card(1))
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0))))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "XID 79" in await refused(world, entry)
            world.backend.fails = "the driver does not answer"
            await world.pods.put(pod_of("u2", app=part(share(1))))
            other = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            assert "the driver does not answer" in await refused(world, other)
            world.backend.fails = None
            await world.kubelet.pre_start(other)

    run(go())


def test_a_card_promised_twice(tmp_path: Path) -> None:
    """The later grant by (term, bind time) is refused; where it runs already, the earlier one waits for its end."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            early = pod_of("u1", text=grant_text("u1", term=1, at=5, app=part(share(0, 50 * GI))), app=part())
            late = pod_of("u2", text=grant_text("u2", term=1, at=9, app=part(share(0, 50 * GI))), app=part())
            await world.pods.put(late)
            second = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            await world.kubelet.pre_start(second)
            await world.pods.put(early)
            first = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            assert "pod-u2" in await refused(world, first)
            await world.pods.delete("u2")
            await world.kubelet.pre_start(first)

            await world.pods.put(late)
            third = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            assert "100 GiB" in await refused(world, third)

    run(go())


def test_cores_promised_twice(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, GI, 700))))
            await world.kubelet.pre_start(await world.kubelet.allocate("u1", "default/pod-u1", "app"))
            await world.pods.put(pod_of("u2", app=part(share(0, GI, 400))))
            assert "110 %" in await refused(world, await world.kubelet.allocate("u2", "default/pod-u2", "app"))

    run(go())


def test_who_shares_a_card_takes_turns(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)

        def gated(entry: Entry) -> bool:
            return read_policy(world.places.root / entry.name / "policy").devices[0].gated

        async with world.running():
            await world.pods.put(pod_of("u1", app=part(share(0, GI, 0))))
            free = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            await world.kubelet.pre_start(free)
            assert not gated(free), "nobody on the card asks for a guarantee"
            await world.pods.put(pod_of("u2", app=part(share(0, GI, 300))))
            held = await world.kubelet.allocate("u2", "default/pod-u2", "app")
            await world.kubelet.pre_start(held)
            assert gated(held)
            assert gated(free), "a neighbour's guarantee is not kept by one who takes no turns"
            await world.pods.delete("u2")
            async with asyncio.timeout(HANG_S):
                while (world.places.root / held.name).exists():
                    await asyncio.sleep(0.01)
            assert not gated(free)

    run(go())


@pytest.fixture
def small_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of its own with room for next to nothing."""
    path = tmp_path / "cdi"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_cdi_directory_that_is_full_or_read_only(tmp_path: Path, small_directory: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            filler = small_directory / "filler"
            filler.write_bytes(bytes(4096))
            assert "No space left" in await refused(world, entry)
            assert list(small_directory.iterdir()) == [filler], "something half-written was left behind"
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,ro", str(small_directory)], check=True)
            assert "Read-only" in await refused(world, entry)
            subprocess.run(["mount", "-o", "remount,rw", str(small_directory)], check=True)
            await world.kubelet.pre_start(entry)
            assert [path.name for path in small_directory.iterdir()] == [f"partage.io-share-{entry.name}.json"]

    run(go())


def test_a_cdi_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A full or foreign directory: refused with the reason, nothing half-written, and in order again afterwards."""

    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            await world.pods.put(pod_of("u1", app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            world.places.cdi.write_text("a file where the directory should be")
            assert "device specs" in await refused(world, entry)
            world.places.cdi.unlink()
            world.places.cdi.mkdir()
            blocker = world.places.cdi / f".partage.io-share-{entry.name}"
            blocker.mkdir()
            assert "device specs" in await refused(world, entry)
            blocker.rmdir()
            await world.kubelet.pre_start(entry)
            assert [path.name for path in world.places.cdi.iterdir()] == [f"partage.io-share-{entry.name}.json"]

    run(go())


def test_burst_keeps_its_class(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.running():
            burst = share(0, GI, 300, ceiling=600, weight=250)
            text = grant_text("u1", app=part(burst, kind=ShareClass.BURST))
            await world.pods.put(pod_of("u1", text=text, app=part()))
            entry = await world.kubelet.allocate("u1", "default/pod-u1", "app")
            await world.kubelet.pre_start(entry)
            policy = read_policy(world.places.root / entry.name / "policy")
            device = policy.devices[0]
            assert (policy.share_class, device.cores, device.ceiling, device.weight) == ("burst", 300, 600, 250)

    run(go())
