"""The tree that stands for a driver installation: its files, its nodes, and that programs go by the nodes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partage.model import NotFoundError, UsageError
from partage.sim import profiles
from partage.sim.machine import Machine, create
from partage.sim.state import read_state
from partage.sim.tree import LIBRARY_PLACES, container_edits, write_tree

from .conftest import sim_libraries

if TYPE_CHECKING:
    from .conftest import RunNvml

MINORS = """
for i in range(nvmlDeviceGetCount()):
    print(nvmlDeviceGetMinorNumber(nvmlDeviceGetHandleByIndex(i)), end=" ")
"""


@pytest.fixture
def root(machine_file: Path, tmp_path: Path) -> Path:
    """A machine of eight cards and its tree."""
    create(profiles.find("8xh100"))
    return write_tree(tmp_path / "tree", sim_libraries())


def devices() -> list[str]:
    with Machine() as machine:
        return [device.uuid for device in read_state(machine).devices]


def some_nodes(root: Path, place: Path, *wanted: str) -> str:
    """A directory that has some of the nodes: hard links, since those keep what a node is known by."""
    place.mkdir()
    for name in wanted:
        (place / name).hardlink_to(root / "dev" / name)
    return str(place)


def test_the_kernels_files_say_what_the_cards_are(root: Path) -> None:
    assert "615.71.05" in (root / "proc/driver/nvidia/version").read_text()
    cards = sorted((root / "proc/driver/nvidia/gpus").iterdir())
    assert [card.name for card in cards][:2] == ["0000:1a:00.0", "0000:1b:00.0"]
    lines = dict(line.split(":", 1) for line in (cards[5] / "information").read_text().splitlines())
    assert (lines["GPU UUID"].strip(), lines["Device Minor"].strip()) == (devices()[5], "5")
    assert "SIMULATED" in lines["Model"]
    numa = [(root / "sys/bus/pci/devices" / card.name / "numa_node").read_text().strip() for card in cards]
    assert numa == ["0"] * 4 + ["1"] * 4
    assert (root / "sys/bus/pci/devices/0000:1a:00.0/vendor").read_text() == "0x10de\n"


def test_the_numbers_of_mig_capabilities_are_nvidias(root: Path) -> None:
    lines = dict(line.split() for line in (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
    assert lines["config"] == "1"
    assert (lines["gpu0/gi1/access"], lines["gpu0/gi1/ci0/access"]) == ("12", "13")


def test_all_nodes_are_seen_on_the_host(root: Path, run_nvml: RunNvml) -> None:
    assert run_nvml(MINORS).split() == list("01234567")


def test_programs_see_the_devices_whose_nodes_they_can_open(root: Path, tmp_path: Path, run_nvml: RunNvml) -> None:
    place = some_nodes(root, tmp_path / "some", "nvidiactl", "nvidia-uvm", "nvidia2", "nvidia6")
    assert run_nvml(MINORS, PARTAGE_SIM_DEV=place).split() == ["2", "6"]
    uuids = devices()
    body = f"""
    print(nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID("{uuids[6]}")))
    try:
        nvmlDeviceGetHandleByUUID("{uuids[5]}")
    except NVMLError as error:
        print(error.value == NVML_ERROR_NOT_FOUND)
    """
    assert run_nvml(body, PARTAGE_SIM_DEV=place).split() == ["1", "True"]


def test_a_copy_of_a_node_is_none(root: Path, tmp_path: Path, run_nvml: RunNvml) -> None:
    place = Path(some_nodes(root, tmp_path / "some", "nvidiactl", "nvidia1"))
    (place / "nvidia0").write_bytes((root / "dev" / "nvidia0").read_bytes())
    (place / "nvidia2").symlink_to(place / "nvidia1")
    assert run_nvml(MINORS, PARTAGE_SIM_DEV=str(place)).split() == ["1"]


def test_without_the_control_node_there_is_no_driver(root: Path, tmp_path: Path, run_nvml: RunNvml) -> None:
    place = some_nodes(root, tmp_path / "some", "nvidia1")
    with pytest.raises(AssertionError, match="Driver Not Loaded"):
        run_nvml(MINORS, PARTAGE_SIM_DEV=place)


def test_writing_it_again_keeps_the_nodes(root: Path, tmp_path: Path) -> None:
    before = (root / "dev" / "nvidia3").stat().st_ino
    (root / "dev" / "nvidia3").chmod(0o600)
    assert write_tree(root, sim_libraries()) == root
    after = (root / "dev" / "nvidia3").stat()
    assert (after.st_ino, stat.S_IMODE(after.st_mode)) == (before, 0o666)
    assert not list((root / "usr/lib64").glob(".*"))


def test_a_machine_without_nodes_shows_everything(root: Path, tmp_path: Path, run_nvml: RunNvml) -> None:
    create(profiles.find("8xh100"), replace=True)
    assert run_nvml(MINORS, PARTAGE_SIM_DEV=str(tmp_path)).split() == list("01234567")
    with pytest.raises(NotFoundError, match="partage sim tree"):
        container_edits(devices()[0])


def test_what_a_container_gets(root: Path, machine_file: Path) -> None:
    uuids = devices()
    edits = container_edits(uuids[1], uuids[4])
    nodes = {node.target: node.source for node in edits.nodes}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia4"} <= set(nodes)
    assert "/dev/nvidia0" not in nodes
    assert all(source.is_file() and os.access(source, os.W_OK) for source in nodes.values())
    targets = {mount.target: mount for mount in edits.mounts}
    for place in LIBRARY_PLACES:
        assert targets[f"{place}/libcuda.so.1"].source == root / "usr/lib64/libcuda.so.1"
        assert "ro" in targets[f"{place}/libnvidia-ml.so.1"].options
    state = targets[edits.env["PARTAGE_SIM_DIR"]]
    assert (state.source, "rw" in state.options) == (machine_file.parent, True)
    assert "LD_LIBRARY_PATH" not in edits.env
    spec = edits.cdi()
    assert set(spec) == {"env", "mounts"}, "no hooks"
    assert {"hostPath", "containerPath", "options"} == set(spec["mounts"][0])


def test_a_mig_instance_needs_its_capabilities(machine_file: Path, tmp_path: Path, run_nvml: RunNvml) -> None:
    create(profiles.find("a100-mig"))
    root = write_tree(tmp_path / "tree", sim_libraries())
    with Machine() as machine:
        found = read_state(machine).devices
    instances = [device for device in found if device.uuid.startswith("MIG")]
    edits = container_edits(instances[1].uuid)
    wanted = [str(node.source.relative_to(root / "dev")) for node in edits.nodes]
    assert sum(name.startswith("nvidia-caps/") for name in wanted) == 2
    place = tmp_path / "some"
    for name in wanted:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).hardlink_to(root / "dev" / name)
    body = """
    card = nvmlDeviceGetHandleByIndex(0)
    for i in range(nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            print(nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(card, i)))
        except NVMLError:
            break
    """
    assert run_nvml(body).split() == [device.uuid for device in instances]
    assert run_nvml(body, PARTAGE_SIM_DEV=str(place)).split() == [instances[1].uuid]


def test_refusals(machine_file: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="sim create"):
        write_tree(tmp_path / "tree", sim_libraries())
    create(profiles.find("zero"))
    with pytest.raises(NotFoundError, match="libcuda"):
        write_tree(tmp_path / "tree", tmp_path)
    with pytest.raises(UsageError, match="shorter"):
        write_tree(tmp_path / ("x" * 250), sim_libraries())
    write_tree(tmp_path / "tree", sim_libraries())
    with pytest.raises(NotFoundError, match="GPU-none"):
        container_edits("GPU-none")
