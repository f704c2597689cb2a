"""What a container gets to reach its cards: from a node's CDI spec without hooks, the driver's files, or simulated."""

from __future__ import annotations

import json
import platform
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from partage.devices.nvidia import cdi_specs
from partage.devices.nvidia.cards import RawCard
from partage.devices.nvidia.driver_files import PLACES, absent_extras
from partage.devices.nvidia.edits import ordinals, real_edits
from partage.devices.nvidia.options import Extras, Options, Roots
from partage.model import DeviceError

if TYPE_CHECKING:
    from tests.devices.conftest import OnMachine

LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"
VERSION = "580.65.06"


def raw(index: int) -> RawCard:
    return RawCard(
        uuid=f"GPU-{index}",
        index=index,
        minor=index + 2,
        name="NVIDIA A100",
        address=f"0000:{index:02x}:00.0",
        total=1 << 36,
        reserved=0,
        used=0,
        idle=True,
        mig=False,
        mig_capable=True,
        numa=0,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a driver: libraries with links as a distribution has them, and device nodes."""
    libraries = tmp_path / LIBRARIES
    libraries.mkdir(parents=True)
    for stem, soname in (("libcuda.so", "1"), ("libnvidia-ml.so", "1"), ("libnvidia-nvvm.so", "4")):
        (libraries / f"{stem}.{VERSION}").write_text(stem)
        (libraries / f"{stem}.{soname}").symlink_to(f"{stem}.{VERSION}")
    (libraries / f"libnvidia-gpucomp.so.{VERSION}").write_text("gpucomp")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/bin/real-smi").write_text("smi")
    (tmp_path / "etc/alternatives/nvidia-smi").symlink_to("/usr/bin/real-smi")
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def options(root: Path, **more: Any) -> Options:
    roots = Roots(driver=root, driver_here=root, dev=root, dev_here=root)
    return Options(**{"roots": roots, "cdi_specs": (root / "cdi-a", root / "cdi-b"), **more})


def test_the_drivers_files_under_the_names_that_programs_load(root: Path) -> None:
    found = real_edits([raw(0)], options(root))
    assert found.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert [(node.container, node.permissions) for node in found.nodes] == [
        ("/dev/nvidia-uvm", "rw"),
        ("/dev/nvidia-uvm-tools", "rw"),
        ("/dev/nvidia2", "rw"),
        ("/dev/nvidiactl", "rw"),
    ]
    at = {mount.container: mount.host for mount in found.mounts}
    for place in PLACES:
        assert at[f"{place}/libcuda.so.1"] == str(root / LIBRARIES / f"libcuda.so.{VERSION}")
        assert at[f"{place}/libcuda.so"] == at[f"{place}/libcuda.so.1"]
        assert at[f"{place}/libnvidia-nvvm.so.4"].endswith(f"libnvidia-nvvm.so.{VERSION}")
        assert at[f"{place}/libnvidia-gpucomp.so.{VERSION}"].endswith(f"libnvidia-gpucomp.so.{VERSION}")
    assert at["/usr/bin/nvidia-smi"] == str(root / "usr/bin/real-smi"), "absolute links lead below the driver's root"
    assert not any(mount.writable for mount in found.mounts)


#: What NVIDIA's packages for forward compatibility hold: all that libcuda loads of the driver ("CUDA Compatibility").
LOADED = (
    "libcudadebugger.so.1",
    f"libnvidia-gpucomp.so.{VERSION}",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-ptxjitcompiler.so.1",
    f"libnvidia-tileiras.so.{VERSION}",
    f"libnvidia-pkcs11-openssl3.so.{VERSION}",
)


@pytest.mark.parametrize("name", LOADED)
def test_all_that_the_driver_loads_is_in_the_container(root: Path, name: str) -> None:
    (root / LIBRARIES / name).touch()
    at = {mount.container for mount in real_edits([raw(0)], options(root)).mounts}
    assert {f"{place}/{name}" for place in PLACES} <= at
    (root / "cdi-a").mkdir()
    made = spec("GPU-0")
    of_host = f"/usr/lib/of-the-host/{name if name.endswith(('.4', VERSION)) else name[:-1] + VERSION}"
    made["containerEdits"]["mounts"].append({"hostPath": of_host, "containerPath": of_host})
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(made))
    at = {mount.container for mount in real_edits([raw(0)], options(root)).mounts}
    assert {f"{place}/{name}" for place in PLACES} <= at, "copied from a spec"


def test_groups_that_a_spec_gives_containers_are_theirs(root: Path) -> None:
    """Of all containers, and of each card: containers of other users open the nodes by them."""
    made = spec("GPU-0", "GPU-1")
    made["containerEdits"]["additionalGids"] = [44, 0]
    (root / "cdi-a").mkdir()
    for device, gids in zip(made["devices"], ([109, 44], [1 << 31]), strict=True):
        device["containerEdits"]["additionalGids"] = gids
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(made))
    assert real_edits([raw(0)], options(root)).groups == (44, 109)
    assert real_edits([raw(1), raw(0)], options(root)).groups == (44, 109, 1 << 31)


@pytest.mark.parametrize("gids", [[-1], ["44"], [1 << 32], [(1 << 32) - 1], [True], list(range(65)), 44])
def test_a_spec_with_groups_that_are_none_is_left_out(root: Path, gids: Any) -> None:
    made = spec("GPU-0")
    made["containerEdits"]["additionalGids"] = gids
    (root / "cdi-a").mkdir()
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(made))
    found = real_edits([raw(0)], options(root))
    assert found.groups == ()
    assert "NVIDIA_CTK_LIBCUDA_DIR" not in found.env, "by the driver's files"


def test_a_driver_root_that_the_agent_sees_elsewhere(root: Path) -> None:
    roots = Roots(driver=Path("/run/nvidia/driver"), driver_here=root, dev_here=root)
    found = real_edits([raw(0)], Options(roots=roots, cdi_specs=()))
    assert {mount.host.split("/usr/")[0] for mount in found.mounts} == {"/run/nvidia/driver"}
    assert {node.host for node in found.nodes} >= {"/dev/nvidia2"}


def test_a_driver_or_a_node_that_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(DeviceError, match="nvidia9"):
        real_edits([raw(7)], options(root))
    (root / LIBRARIES / "libcuda.so.1").unlink()
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1"):
        real_edits([raw(0)], options(root))


def test_a_loop_of_links_is_no_library(root: Path) -> None:
    (root / LIBRARIES / "libcuda.so.1").unlink()
    (root / LIBRARIES / "libcuda.so.1").symlink_to("libcuda.so.1")
    with pytest.raises(DeviceError, match="not found"):
        real_edits([raw(0)], options(root))


def test_extras_as_far_as_the_host_has_them(root: Path) -> None:
    for name in ("nvidia-fs0", "nvidia-fs1", "gdrdrv", "infiniband/uverbs0", "nvidia-caps-imex-channels/channel3"):
        (root / "dev" / name).parent.mkdir(exist_ok=True)
        (root / "dev" / name).touch()
    (root / "etc/cufile.json").touch()
    extras = Extras(gds=True, mofed=True, gdrcopy=True, imex_channels=(3, 4))
    found = real_edits([raw(0)], options(root, extras=extras))
    assert {node.container for node in found.nodes} >= {
        "/dev/nvidia-fs0",
        "/dev/nvidia-fs1",
        "/dev/gdrdrv",
        "/dev/infiniband/uverbs0",
        "/dev/nvidia-caps-imex-channels/channel3",
    }
    assert not any(node.container.endswith(("channel4", "rdma_cm")) for node in found.nodes)
    assert "/etc/cufile.json" in {mount.container for mount in found.mounts}
    roots = options(root).roots
    assert absent_extras(roots, extras) == ("imexChannels 4",), "told in the log: containers begin without it"
    assert absent_extras(replace(roots, dev_here=root / "usr"), extras) == (
        "gds",
        "mofed",
        "gdrcopy",
        "imexChannels 3",
        "imexChannels 4",
    ), "nothing of the host's /dev is seen"
    assert absent_extras(roots, Extras()) == ()


# ---- the node's own spec ---------------------------------------------------------------------------------------------


def spec(*names: str, library: str = f"/usr/lib64/libcuda.so.{VERSION}") -> dict[str, Any]:
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook"]}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
            "deviceNodes": [
                {"path": "/dev/nvidiactl"},
                {"path": "/dev/nvidia-uvm", "hostPath": "/host/dev/nvidia-uvm"},
            ],
            "hooks": [hook],
            "mounts": [{"hostPath": library, "containerPath": library, "options": ["ro", "nosuid", "bind"]}],
        },
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia-of-{name}"}], "hooks": [hook]}}
            for name in names
        ],
    }


def test_the_nodes_spec_is_copied_without_its_hooks(root: Path) -> None:
    (root / "cdi-a").mkdir()
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(spec("GPU-0", "GPU-1", "all")))
    found = real_edits([raw(1)], options(root))
    assert [(node.host, node.container) for node in found.nodes] == [
        ("/dev/nvidia-of-GPU-1", "/dev/nvidia-of-GPU-1"),
        ("/host/dev/nvidia-uvm", "/dev/nvidia-uvm"),
        ("/dev/nvidiactl", "/dev/nvidiactl"),
    ]
    assert found.env == {"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_CTK_LIBCUDA_DIR": "/usr/lib64"}
    at = {mount.container: mount.host for mount in found.mounts}
    library = f"/usr/lib64/libcuda.so.{VERSION}"
    assert at[library] == library
    assert at["/usr/lib64/libcuda.so.1"] == library, "what a hook would have linked is mounted"
    assert at["/usr/local/nvidia/lib64/libcuda.so"] == library


def test_what_is_wrong_with_a_spec_is_said_once(root: Path) -> None:
    """Every card is looked for in it at every look for cards, twice a minute."""
    (root / "cdi-a").mkdir(exist_ok=True)
    (root / "cdi-a" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: ]")
    (root / "cdi-a" / "large.json").write_text(" " * (5 << 20))
    (root / "cdi-a" / "gone.json").symlink_to(root / "nowhere")
    with capture_logs() as said:
        for _ in range(3):
            assert list(cdi_specs.find([root / "cdi-a"], ["0"])) == []
    assert sorted(Path(line["spec"]).name for line in said) == ["gone.json", "large.json", "nvidia.yaml"]


@pytest.mark.parametrize(("by_index", "node"), [(False, "GPU-0"), (True, "0")])
def test_cards_by_uuid_or_index_from_yaml(root: Path, by_index: bool, node: str) -> None:
    (root / "cdi-a").mkdir()
    text = json.dumps(spec("GPU-0", "0")).replace('"name": "0"', '"name": 0')
    (root / "cdi-a" / "nvidia.yaml").write_text(text)
    found = real_edits([raw(0)], options(root, by_index=by_index))
    assert f"/dev/nvidia-of-{node}" in {one.container for one in found.nodes}


def test_of_two_directories_the_later_one_counts_and_a_broken_spec_is_none(root: Path) -> None:
    for directory, library in (("cdi-a", "/a/libcuda.so.1"), ("cdi-b", "/b/libcuda.so.1")):
        (root / directory).mkdir()
        (root / directory / "nvidia.json").write_text(json.dumps(spec("GPU-0", library=library)))
    assert any(mount.host.startswith("/b/") for mount in real_edits([raw(0)], options(root)).mounts)
    (root / "cdi-b" / "nvidia.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{]')
    assert any(mount.host.startswith("/a/") for mount in real_edits([raw(0)], options(root)).mounts)
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps({**spec("GPU-0"), "devices": "none"}))
    assert any(str(root) in mount.host for mount in real_edits([raw(0)], options(root)).mounts), "the driver's files"


def test_a_spec_without_one_of_the_cards_is_not_used_for_the_others(root: Path) -> None:
    (root / "cdi-a").mkdir()
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(spec("GPU-0")))
    found = real_edits([raw(0), raw(1)], options(root))
    assert {"/dev/nvidia2", "/dev/nvidia3"} <= {node.container for node in found.nodes}


def with_nodes(found: dict[str, Any], **nodes: str) -> dict[str, Any]:
    """Return a spec with real nodes for its cards."""
    for device in found["devices"]:
        device["containerEdits"]["deviceNodes"] = [{"path": nodes[device["name"].replace("-", "_")]}]
    return found


@pytest.mark.parametrize("by_index", [False, True])
def test_a_spec_from_before_cards_changed_places_gives_nobody_a_neighbours_card(root: Path, by_index: bool) -> None:
    """A card was taken out, or the bus was walked in another order: the spec's numbers are of before."""
    (root / "cdi-a").mkdir()
    before = with_nodes(
        spec("GPU-0", "0"), GPU_0="/dev/nvidia3", **{"0": "/dev/nvidia3"}
    )  # /dev/nvidia3 is GPU-1's now
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(before))
    found = real_edits([raw(0)], options(root, by_index=by_index))
    assert "/dev/nvidia3" not in {node.container for node in found.nodes}
    assert "/dev/nvidia2" in {node.container for node in found.nodes}, "from the driver's files"
    now = with_nodes(spec("GPU-0", "0"), GPU_0="/dev/nvidia2", **{"0": "/dev/nvidia2"})
    (root / "cdi-a" / "newer.json").write_text(json.dumps(now))
    found = real_edits([raw(0)], options(root, by_index=by_index))
    assert found.env["NVIDIA_CTK_LIBCUDA_DIR"], "of two specs the one that is up to date"
    assert "/dev/nvidia3" not in {node.container for node in found.nodes}


def test_a_spec_of_a_driver_that_is_not_loaded_is_left_alone(root: Path) -> None:
    """Its files are gone, and no container with it starts (Igalia/webkit-container-sdk#23); or they fit no module."""
    (root / "cdi-a").mkdir()
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(spec("GPU-0", library="/usr/lib64/libcuda.so.535.161.07")))
    found = real_edits([raw(0)], options(root), VERSION)
    assert not any("535" in mount.host for mount in found.mounts)
    assert {str(root / LIBRARIES / f"libcuda.so.{VERSION}")} <= {mount.host for mount in found.mounts}
    (root / LIBRARIES / "libcuda.so.1").unlink()
    with pytest.raises(
        DeviceError, match=r"nvidia\.json.*is of driver 535\.161\.07, 580\.65\.06 is loaded.*cdi generate"
    ):
        real_edits([raw(0)], options(root), VERSION)
    assert real_edits([raw(0)], options(root), "535.161.07").mounts
    wsl = spec("GPU-0", library="/usr/lib/wsl/drivers/a/libcuda.so.1.1")
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(wsl))
    assert any("wsl" in mount.host for mount in real_edits([raw(0)], options(root), VERSION).mounts)


def test_k13_libraries_of_a_driver_that_waits_for_a_reboot_are_given_to_nobody(root: Path) -> None:
    """An update has put them there and the kernel has the old module still: every program would end with error 803."""
    assert real_edits([raw(0)], options(root), VERSION).mounts
    assert real_edits([raw(0)], options(root)).mounts, "where NVML does not say what is loaded, nothing can be told"
    with pytest.raises(DeviceError, match=r"libcuda\.so\.580\.65\.06: of driver 580\.65\.06, 575\.57\.08 is loaded"):
        real_edits([raw(0)], options(root), "575.57.08")
    of_wsl = root / LIBRARIES / "libcuda.so.1.1"
    (root / LIBRARIES / f"libcuda.so.{VERSION}").rename(of_wsl)
    (root / LIBRARIES / "libcuda.so.1").unlink()
    (root / LIBRARIES / "libcuda.so.1").symlink_to(of_wsl.name)
    assert real_edits([raw(0)], options(root), VERSION).mounts, "a file that names no driver says nothing"


def test_what_the_driver_loads_by_its_version_is_found_in_images_of_any_distribution(root: Path) -> None:
    (root / "cdi-a").mkdir()
    made = spec("GPU-0")
    path = f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}"
    made["containerEdits"]["mounts"].append({"hostPath": path, "containerPath": path})
    (root / "cdi-a" / "nvidia.json").write_text(json.dumps(made))
    at = {mount.container: mount.host for mount in real_edits([raw(0)], options(root)).mounts}
    assert all(at[f"{place}/libnvidia-gpucomp.so.{VERSION}"] == path for place in PLACES)


# ---- order -----------------------------------------------------------------------------------------------------------


def test_a_cards_place_in_the_grant_is_its_ordinal() -> None:
    assert ordinals([raw(3)]) == {}
    assert ordinals([raw(1), raw(4)]) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = ordinals([raw(4), raw(1), raw(2)])
    assert found == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,0,1"}
    by_bus = [raw(1), raw(2), raw(4)]
    assert [by_bus[int(at)] for at in found["CUDA_VISIBLE_DEVICES"].split(",")] == [raw(4), raw(1), raw(2)]
    same_board = [replace(raw(1), address="0001:00:00.0"), replace(raw(2), address="0000:ff:00.0")]
    assert ordinals(same_board)["CUDA_VISIBLE_DEVICES"] == "1,0"


# ---- the backend on a simulated machine ------------------------------------------------------------------------------

BACKEND = """
from partage.devices.nvidia.backend import NvidiaBackend
from partage.model import DeviceError
from partage.model.grant import GrantShare
from partage.sim import tree
class Now:
    def now(self):
        return asyncio.get_running_loop().time()
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)
def share(uuid):
    return GrantShare(backend="nvidia", uuid=uuid, memory=1, cores=0, ceiling=1000, weight=1)
async def refused(backend, uuid):
    try:
        await backend.prepare([share(uuid)])
    except DeviceError as error:
        return str(error)
async def main():
    backend = NvidiaBackend(Options(), Now(), libraries)
    cards = (await backend.discover()).cards
    {body}
    backend.close()
asyncio.run(main())
"""


def test_the_simulated_cards_of_a_grant_by_ordinal(on_machine: OnMachine, tmp_path: Path) -> None:
    body = f"""
    without = await refused(backend, cards[0].uuid)
    tree.write_tree(Path({str(tmp_path / "tree")!r}), libraries)
    edits = await backend.prepare([share(cards[5].uuid), share(cards[2].uuid)])
    again = await backend.prepare([share(cards[5].uuid), share(cards[2].uuid)])
    from dataclasses import replace
    backend.configure(replace(Options(), one_card_only=True))
    try:
        await backend.prepare([share(cards[0].uuid), share(cards[1].uuid)])
    except DeviceError as error:
        two = str(error)
    shown = sorted(m.container for m in edits.mounts)
    print(json.dumps([without, dict(edits.env), shown, edits == again, two]))
    """
    without, env, mounts, same, two = on_machine("8xh100", BACKEND.replace("{body}", body.strip()))
    assert "partage sim tree" in without
    assert env["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {"/dev/nvidia2", "/dev/nvidia5", "/dev/nvidiactl"} <= set(mounts)
    assert not {f"/dev/nvidia{minor}" for minor in (0, 1, 3, 4, 6, 7)} & set(mounts)
    assert same
    assert "failRequestsGreaterThanOne" in two


def test_a_card_that_no_container_could_be_given_takes_no_shares(on_machine: OnMachine, tmp_path: Path) -> None:
    """Nodes of devices that come late, a driver that the agent cannot see, an old spec: said on the node, and over."""
    body = f"""
    from partage.devices.nvidia import backend as there
    from partage.devices.nvidia.nvml import Nvml
    from partage.devices.nvidia.options import Roots
    there.Nvml = lambda _: Nvml(libraries)  # as if it were the real driver's
    root = Path({str(tmp_path)!r}) / "root"
    place = root / {LIBRARIES!r}
    place.mkdir(parents=True)
    (root / "dev").mkdir()
    options = Options(roots=Roots(root, root, root, root), cdi_specs=())
    real = NvidiaBackend(options, Now(), None)
    found = [[card.reason for card in (await real.discover()).cards]]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (place / name).touch()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{{minor}}" for minor in range(7))):
        (root / "dev" / name).touch()
    found.append([card.reason for card in (await real.discover()).cards])
    (root / "dev" / "nvidia7").touch()
    found.append([card.healthy for card in (await real.discover()).cards])
    real.close()
    print(json.dumps(found))
    """
    nothing, late, all_there = on_machine("8xh100", BACKEND.replace("{body}", body.strip()))
    assert all("cannot be given to containers: libcuda.so.1" in reason for reason in nothing)
    assert late[:7] == [""] * 7
    assert "/dev/nvidia7: not there" in late[7]
    assert all_there == [True] * 8


@pytest.mark.skipif(
    find_library("nvidia-ml") is not None, reason="NVIDIA's driver is installed here: its NVML is found"
)
def test_nvml_is_found_below_the_drivers_root_where_no_runtime_gave_it(on_machine: OnMachine, tmp_path: Path) -> None:
    """A node without NVIDIA's runtime: the driver lies in a directory that the agent sees, which may come late."""
    body = f"""
    import shutil
    from partage.devices.nvidia.options import Roots
    root = Path({str(tmp_path)!r}) / "root"
    (root / "lib64").mkdir(parents=True)
    real = NvidiaBackend(Options(roots=Roots(root, root, root, root), cdi_specs=()), Now(), None)
    try:
        found = [await real.discover()]
    except DeviceError as error:
        found = [str(error)]
    shutil.copy(libraries / "libnvidia-ml.so.1", root / "lib64")
    found.append(len((await real.discover()).cards))
    real.close()
    print(json.dumps(found))
    """
    alone = BACKEND.replace("    backend = NvidiaBackend(Options(), Now(), libraries)\n", "").replace(
        "    cards = (await backend.discover()).cards\n", ""
    )
    absent, there = on_machine("8xh100", alone.replace("{body}", body.strip()).replace("    backend.close()\n", ""))
    assert "Not Found" in absent
    assert there == 8


def test_a_directory_with_nothing_but_the_driver(tmp_path: Path) -> None:
    for name in ("lib64/libcuda.so.1", "lib64/libnvidia-ml.so.1", "bin/nvidia-smi", "dev/nvidia2", "dev/nvidiactl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "dev/nvidia-uvm").touch()
    at = {mount.container: mount.host for mount in real_edits([raw(0)], options(tmp_path)).mounts}
    assert at["/usr/bin/nvidia-smi"] == str(tmp_path / "bin/nvidia-smi")
    assert at["/usr/local/nvidia/lib64/libcuda.so.1"] == str(tmp_path / "lib64/libcuda.so.1")


def test_only_cards_that_are_there_and_well_are_prepared(on_machine: OnMachine, tmp_path: Path) -> None:
    body = f"""
    tree.write_tree(Path({str(tmp_path / "tree")!r}), libraries)
    unknown = await refused(backend, "GPU-unknown")
    changes = backend.watch_health()
    coming = asyncio.ensure_future(anext(changes))
    with Machine() as there:
        while not coming.done():
            faults.raise_xid(there, 1, 48)
            await asyncio.wait([coming], timeout=0.2)
    failed = await refused(backend, cards[1].uuid)
    healthy = [card.healthy for card in (await backend.discover()).cards]
    await changes.aclose()
    print(json.dumps([unknown, failed, healthy, await refused(backend, cards[0].uuid)]))
    """
    unknown, failed, healthy, well = on_machine("8xh100", BACKEND.replace("{body}", body.strip()))
    assert "not on this node" in unknown
    assert "XID 48" in failed
    assert healthy == [index != 1 for index in range(8)]
    assert well is None


def test_modes_whose_limits_nothing_here_holds_are_refused(on_machine: OnMachine) -> None:
    body = """
    found = {}
    for mode in ("shim", "timeslice", "whole", "mig", "mps", "vendor"):
        try:
            found[mode] = backend.enforcement(mode).name
        except DeviceError as error:
            found[mode] = [error.subject, error.value, error.limit, error.step]
    print(json.dumps(found))
    """
    found = on_machine("8xh100", BACKEND.replace("{body}", body.strip()))
    assert (found["shim"], found["timeslice"], found["whole"]) == ("SHIM", "NONE", "NONE")
    for mode in ("mig", "mps", "vendor"):
        subject, value, limit, step = found[mode]
        assert (subject, value) == ("backend nvidia", f"mode {mode}")
        assert "mode shim" in limit
        assert "timeslice and whole" in limit
        assert step
