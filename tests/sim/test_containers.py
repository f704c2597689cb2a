"""What containers see of a simulated machine, and what the host sees of them.

The devices that were given and no others, from a distroless image, as another user, without rights, in namespaces of
their own; the host's own pids.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.sim import profiles
from partage.sim.machine import Machine, create
from partage.sim.state import read_state
from partage.sim.tree import ContainerEdits, Mount, container_edits, write_tree

from .conftest import RunNvml, sim_libraries
from .container import Container, build_image, build_static_image, can_link_statically, may_make

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
UID = 12345

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("cc") or not may_make(),
    reason="making a container needs root, namespaces and a C compiler",
)


@pytest.fixture
def uuids(machine_file: Path, tmp_path: Path) -> Iterator[list[str]]:
    """A machine of eight cards with its tree, for all users; their UUIDs."""
    create(profiles.find("8xh100"), shared=True)
    write_tree(tmp_path / "tree", sim_libraries())
    with Machine() as machine:
        yield [device.uuid for device in read_state(machine).devices]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root of the smallest image."""
    return build_image(tmp_path)


HOST = """
import json
found = []
for i in range(nvmlDeviceGetCount()):
    device = nvmlDeviceGetHandleByIndex(i)
    found.append({p.pid: p.usedGpuMemory for p in nvmlDeviceGetComputeRunningProcesses(device)})
print(json.dumps(found))
"""
USERS = """
import json
device = nvmlDeviceGetHandleByIndex({index})
while True:
    try:
        samples = nvmlDeviceGetProcessUtilization(device, 0)
        break
    except NVMLError as error:  # nothing was measured yet
        assert error.value == NVML_ERROR_NOT_FOUND
print(json.dumps([[s.pid, s.smUtil] for s in samples]))
"""


@pytest.mark.parametrize("user_ns", [False, True], ids=["another-user", "user-namespace"])
def test_a_container_has_its_device_and_the_host_knows_its_pids(
    uuids: list[str], image: Path, run_nvml: RunNvml, *, user_ns: bool
) -> None:
    edits = container_edits(uuids[3])
    with Container(image, edits, 0 if user_ns else UID, 512 * MIB, user_ns=user_ns) as tenant:
        assert "ready" in tenant.lines, tenant.lines
        assert (tenant.lines["cuda"], tenant.lines["nvml"]) == (["1"], ["1"])
        assert tenant.lines["card"] == ["3", uuids[3]], "the minor number is the machine's, the index its own"
        assert tenant.lines["self"] == tenant.lines["pids"] == ["1"], "inside, its own pid namespace counts"
        assert tenant.lines["byte"] == ["7"]
        host = json.loads(run_nvml(HOST))
        assert len(host) == 8, "the host sees all"
        assert list(host[3]) == [str(tenant.host_pid)]
        assert host[3][str(tenant.host_pid)] > 512 * MIB
        assert [list(card) for card in host if card is not host[3]] == [[]] * 7
        ((pid, busy),) = json.loads(run_nvml(USERS.format(index=3)))
        assert (pid, busy > 0) == (tenant.host_pid, True)
    assert json.loads(run_nvml(HOST)) == [{}] * 8


def test_two_containers_of_one_card_know_only_themselves(uuids: list[str], image: Path, run_nvml: RunNvml) -> None:
    edits = container_edits(uuids[0])
    with (
        Container(image, edits, UID, 64 * MIB) as first,
        Container(image, edits, UID + 1, 128 * MIB) as second,
    ):
        assert first.lines["pids"] == second.lines["pids"] == ["1"]
        host = json.loads(run_nvml(HOST))[0]
        used = {int(pid): bytes_ for pid, bytes_ in host.items()}
        assert set(used) == {first.host_pid, second.host_pid}
        assert used[second.host_pid] - used[first.host_pid] == 64 * MIB


def test_the_state_is_found_without_the_environment(uuids: list[str], image: Path) -> None:
    edits = replace(container_edits(uuids[5]), env={})
    with Container(image, edits, UID, MIB) as tenant:
        assert tenant.lines["card"] == ["5", uuids[5]]


def test_a_directory_that_others_can_write_is_not_the_machine_of_all(
    uuids: list[str], image: Path, machine_file: Path
) -> None:
    edits = replace(container_edits(uuids[5]), env={})
    machine_file.parent.chmod(0o777)
    with Container(image, edits, UID, MIB) as tenant:
        assert tenant.lines["error"] == ["cuInit", "802"]


def test_the_state_may_lie_elsewhere(uuids: list[str], image: Path) -> None:
    edits = container_edits(uuids[5])
    state, *libraries = edits.mounts
    moved = replace(edits, mounts=(replace(state, target="/elsewhere"), *libraries))
    with Container(image, replace(moved, env={names.ENV_SIM_DIR: "/elsewhere"}), UID, MIB) as tenant:
        assert tenant.lines["card"] == ["5", uuids[5]]


def test_a_program_that_carries_the_driver_in_itself(uuids: list[str], tmp_path: Path, run_nvml: RunNvml) -> None:
    archive = sim_libraries() / "libcuda_static.a"
    if not archive.exists():
        pytest.skip(f"no {archive}: run make build")
    if not can_link_statically(tmp_path):
        pytest.skip("no static C library here")
    edits = container_edits(uuids[7])
    alone = replace(edits, mounts=edits.mounts[:1])  # no libraries
    with Container(build_static_image(tmp_path, archive), alone, 64 * MIB) as tenant:
        assert (tenant.lines["cuda"], "ready" in tenant.lines) == (["1"], True)
        host = json.loads(run_nvml(HOST))
        assert list(host[7]) == [str(tenant.host_pid)]
        with Machine() as machine:
            assert [client.pid for client in read_state(machine).clients] == [tenant.host_pid]


def _without(edits: ContainerEdits, name: str) -> ContainerEdits:
    return replace(edits, nodes=tuple(node for node in edits.nodes if node.target != f"/dev/{name}"))


@pytest.mark.parametrize(
    ("missing", "code"),
    [("nvidiactl", "100"), ("nvidia-uvm", "999"), ("nvidia2", "100")],
    ids=["control", "uvm", "card"],
)
def test_a_missing_node_is_a_missing_device(uuids: list[str], image: Path, missing: str, code: str) -> None:
    with Container(image, _without(container_edits(uuids[2]), missing), UID, MIB) as tenant:
        assert tenant.lines["error"] == ["cuInit", code]


@pytest.mark.parametrize("forged", ["file", "other-node", "null"])
def test_a_node_cannot_be_forged(uuids: list[str], image: Path, tmp_path: Path, forged: str) -> None:
    """What a container could put into /dev itself: a file like it, the node that it has, a device that it may make."""
    edits = container_edits(uuids[2])
    real = next(node for node in edits.nodes if node.target == "/dev/nvidia2")
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "tree" / "dev" / "nvidia4").read_bytes())
    copy.chmod(0o666)
    source = {"file": copy, "other-node": real.source, "null": Path("/dev/null")}[forged]
    more = replace(edits, nodes=(*edits.nodes, Mount(source, "/dev/nvidia4", ("rw", "nosuid"))))
    more = replace(more, env={**more.env, names.ENV_SIM_DEV: "/dev"})
    with Container(image, more, UID, MIB) as tenant:
        assert tenant.lines["nvml"] == ["1"]
        assert tenant.lines["card"] == ["2", uuids[2]]


def test_a_machine_of_one_user_is_closed_to_others(machine_file: Path, image: Path, tmp_path: Path) -> None:
    create(profiles.find("zero"))
    write_tree(tmp_path / "tree", sim_libraries())
    with Machine() as machine:
        (uuid,) = [device.uuid for device in read_state(machine).devices]
    with Container(image, container_edits(uuid), UID, MIB) as tenant:
        assert tenant.lines["error"] == ["cuInit", "802"], "CUDA_ERROR_SYSTEM_NOT_READY"
