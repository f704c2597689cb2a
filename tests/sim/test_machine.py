"""The machine file from Python: the same machine as the driver makes, safe to read, not replaced under its users."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from partage._abi import ffi, lib
from partage.cli.sim import sim
from partage.locks import locked
from partage.model import DeviceError, NotFoundError, UsageError, names
from partage.sim import profiles
from partage.sim.machine import SIZE, Machine, create, machine_path
from partage.sim.state import read_state

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTION = ffi.offsetof("struct sim_machine", "fault")


def take_slot(path: Path, slot: int, *, memory: int = 0) -> int:
    """Play a client: its lock, then its words. Returns the descriptor that keeps it alive."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, lib.SIM_LOCK_CLIENT + slot, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    with Machine(path) as machine:
        client = ffi.new("struct sim_client *")
        client.state, client.pid, client.name = 1, os.getpid(), b"tenant"
        client.pid_ns = Path("/proc/self/ns/pid").stat().st_ino
        client.device[0].memory = memory
        machine.write_bytes(bytes(ffi.buffer(client)), "client", slot)
    return fd


@pytest.mark.parametrize("profile", ["h100-80g", "8xh100", "4xa100-pcie", "a100-mig", "zero2"])
def test_python_and_the_driver_make_the_same_machine(
    profile: str, machine_file: Path, run_nvml: Callable[..., str], tmp_path: Path
) -> None:
    run_nvml("", PARTAGE_SIM=profile)  # the driver makes one
    ours = create(profiles.find(profile), tmp_path / "ours")
    with machine_file.open("rb") as theirs, ours.open("rb") as mine:
        made, written = theirs.read(DESCRIPTION), mine.read(DESCRIPTION)
    assert made == written


def test_seed_gives_uuids_of_its_own(tmp_path: Path) -> None:
    uuids = set()
    for seed in (1, 2):
        with Machine(create(profiles.find("zero2"), tmp_path / str(seed), seed=seed)) as machine:
            uuids |= {device.uuid for device in read_state(machine).devices}
    assert len(uuids) == 4


def test_a_machine_is_not_replaced_by_mistake_nor_under_its_users(machine_file: Path) -> None:
    create(profiles.find("zero"))
    with pytest.raises(UsageError, match="exists"):
        create(profiles.find("zero2"))
    tenant = take_slot(machine_file, 3)
    with pytest.raises(UsageError, match="programs use it"):
        create(profiles.find("zero2"), replace=True)
    os.close(tenant)
    create(profiles.find("zero2"), replace=True)
    with Machine() as machine:
        assert machine.ndev == 2
    assert sorted(path.name for path in machine_file.parent.iterdir()) == ["machine", "pids"], "nothing is left behind"


def test_a_machine_that_is_there_is_kept(machine_file: Path) -> None:
    """Also one that programs use; a file that is none, or was left half made, is not kept."""
    run = CliRunner()

    def made(profile: str, *more: str) -> list[str]:
        done = run.invoke(sim, ["create", profile, "--keep", *more], catch_exceptions=False)
        assert done.stdout == f"{machine_file}\n"
        with Machine() as machine:
            return [device.uuid for device in read_state(machine).devices]

    first = made("zero", "--seed", "node-a")
    tenant = take_slot(machine_file, 3)
    assert made("zero2", "--seed", "node-b") == first
    os.close(tenant)
    machine_file.unlink()
    assert not set(made("zero2", "--seed", "node-b")) & set(first)
    with machine_file.open("r+b") as file:
        file.write(bytes(8))  # the magic, which is written last
    with pytest.raises(UsageError, match="exists"):
        made("zero2")


def test_replacing_leaves_the_old_file_whole(machine_file: Path) -> None:
    create(profiles.find("zero"))
    with Machine() as old:
        create(profiles.find("zero2"), replace=True)
        assert old.ndev == 1


def test_state_counts_the_living_only(machine_file: Path) -> None:
    create(profiles.find("zero"))
    first, second = take_slot(machine_file, 0, memory=5 << 20), take_slot(machine_file, 900, memory=7 << 20)
    with Machine() as machine:
        assert read_state(machine).devices[0].used == 12 << 20
        assert [client.slot for client in read_state(machine).clients] == [0, 900]
        os.close(second)
        state = read_state(machine)
        assert state.devices[0].used == 5 << 20
        assert [(client.pid, client.name) for client in state.clients] == [(os.getpid(), "tenant")]
    os.close(first)


def test_no_machine_says_how_to_get_one(machine_file: Path) -> None:
    with pytest.raises(NotFoundError, match="partage sim create"):
        Machine()


@pytest.mark.parametrize("content", [b"x" * 100, struct.pack("<QII", 0x314D495347545250, 99, SIZE)])
def test_a_foreign_file_is_refused(machine_file: Path, content: bytes) -> None:
    machine_file.write_bytes(content)
    with pytest.raises(DeviceError, match="layout"):
        Machine()


def test_a_file_cut_while_open_is_an_error_and_no_signal(machine_file: Path) -> None:
    create(profiles.find("zero"))
    with Machine() as machine:
        os.truncate(machine_file, 4096)
        with pytest.raises(DeviceError, match="was cut"):
            read_state(machine)


def test_the_file_takes_no_space_to_speak_of(machine_file: Path) -> None:
    create(profiles.find("8xh100"))
    assert machine_file.stat().st_size == SIZE
    assert machine_file.stat().st_blocks * 512 < 1 << 20


def ndev_of(path: Path) -> int:
    with Machine(path) as machine:
        return machine.ndev


def test_a_machine_that_is_being_made_is_waited_for(machine_file: Path) -> None:
    create(profiles.find("zero"), machine_file)
    with machine_file.open("r+b") as file:
        magic = file.read(8)
        os.pwrite(file.fileno(), bytes(8), 0)
        opened: list[int] = []
        with locked(file.fileno(), lib.SIM_LOCK_SETUP):
            opening = threading.Thread(target=lambda: opened.append(ndev_of(machine_file)), daemon=True)
            opening.start()
            while "setlk" not in Path(f"/proc/self/task/{opening.native_id}/wchan").read_text():
                assert opening.is_alive()
            os.pwrite(file.fileno(), magic, 0)
        opening.join(200)
    assert opened == [1]


def test_a_machine_that_was_never_finished_is_none(machine_file: Path) -> None:
    machine_file.touch()
    with pytest.raises(NotFoundError, match="never finished"):
        Machine(machine_file)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="PARTAGE_SIM_DIR"):
        create(profiles.find("zero"), tmp_path / "file" / "machine", shared=True)


def test_a_shared_machine_is_for_all_users(machine_file: Path) -> None:
    mask = os.umask(0o077)
    try:
        create(profiles.find("zero"), shared=True)
        create(profiles.find("zero2"), shared=True, replace=True)
    finally:
        os.umask(mask)
    modes = [
        path.stat().st_mode & 0o777 for path in (machine_file.parent, machine_file, machine_file.with_name("pids"))
    ]
    assert modes == [0o755, 0o666, 0o644]


def test_the_machine_of_all_users_comes_before_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system"
    monkeypatch.delenv("PARTAGE_SIM_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(names, "SIM_SYSTEM_DIRECTORY", str(system))
    assert machine_path() == tmp_path / "run" / "partage-sim" / "machine"
    assert create(profiles.find("zero"), shared=True) == machine_path() == system / "machine"
    system.chmod(0o777)
    assert machine_path() == tmp_path / "run" / "partage-sim" / "machine", "anybody could have put that one there"
