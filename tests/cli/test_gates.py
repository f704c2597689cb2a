"""We test these aspects of taking turns: who is gated by whose share; that the decision follows programs that come, go
and are resized; that an arbiter serves exactly while somebody is gated, one for all, and comes back when it dies."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from partage.model import LaunchError, names
from partage.run import arbiter, gates
from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, read_turns

from .conftest import until_ended

OUT_OF_MEMORY = 2


def share(uuid="GPU-a", *, cores=0, ceiling=1000) -> PolicyDevice:
    return PolicyDevice(uuid=uuid, memory=1 << 30, physical=1 << 34, cores=cores, ceiling=ceiling)


def policy(*shares: PolicyDevice) -> Policy:
    return Policy(devices=shares)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (share(), [], False),
        (share(cores=300), [], False),  # a guarantee alone needs nobody's turn
        (share(cores=300, ceiling=300), [], True),
        (share(ceiling=500), [], True),
        (share(), [share()], False),
        (share(), [share(cores=1)], True),
        (share(), [share(ceiling=999)], True),
        (share(cores=300), [share()], False),
        (share(), [share("GPU-b", cores=300, ceiling=300)], False),
    ],
)
def test_who_is_gated(own, others, expected):
    decided = gates.gated(policy(own), [policy(other) for other in others])
    assert [device.gated for device in decided.devices] == [expected]


def test_each_device_is_decided_alone():
    decided = gates.gated(policy(share("GPU-a"), share("GPU-b")), [policy(share("GPU-b", cores=10))])
    assert [device.gated for device in decided.devices] == [False, True]


# ---- live ------------------------------------------------------------------------------------------------------------


def hand_over(program) -> HandOver:
    return HandOver(Path(program.environment()["PARTAGE_DIR"]))


def is_gated(program) -> bool:
    return any(device.gated for device in hand_over(program).policy().devices)


def turns(program):
    return read_turns(hand_over(program).path / names.TURNS_FILE)


def test_nobody_takes_turns_without_need(machine):
    first, second = machine.start("--memory", "1Gi"), machine.start("--memory", "1Gi")
    assert not is_gated(first)
    assert not is_gated(second)
    assert arbiter.serving(machine.root) is None


def test_a_guarantee_gates_its_neighbours_while_it_lasts(machine):
    free = machine.start("--memory", "1Gi")
    promised = machine.start("--memory", "1Gi", "--cores", "30%")
    assert is_gated(free)
    assert is_gated(promised)
    pid = arbiter.serving(machine.root)
    machine.until(lambda: turns(free).arbiter == turns(promised).arbiter == pid)
    os.kill(promised.pid, signal.SIGKILL)
    promised.finish()
    assert not is_gated(free)
    until_ended(pid)
    assert arbiter.serving(machine.root) is None


def test_one_arbiter_serves_all_programs_of_a_user(machine):
    machine.start("--memory", "1Gi", "--cores", "30%")
    pid = arbiter.serving(machine.root)
    machine.start("--memory", "1Gi", "--cores", "30%")
    assert arbiter.serving(machine.root) == pid


def test_k07_a_program_whose_hand_over_somebody_removed_keeps_its_limit_and_its_exit_code(machine):
    """As a login's end does with XDG_RUNTIME_DIR: the arbiter cannot come back, and nobody else is to end for that."""
    program = machine.start("--memory", "1Gi", "--cores", "30%")
    assert program.ask("alloc", 1 << 29) == 0
    pid = arbiter.serving(machine.root)
    shutil.rmtree(machine.root)
    os.kill(pid, signal.SIGKILL)
    until_ended(pid)
    assert program.ask("alloc", 1 << 29) == 0
    assert program.ask("alloc", 1 << 21) == OUT_OF_MEMORY
    program.process.stdin.write('["exit", 7]\n')
    assert program.finish()[0] == 7


def test_a_lone_share_below_the_card_takes_turns(machine):
    assert is_gated(machine.start("--memory", "1Gi", "--cores", "30%"))


def test_resizing_gates_and_frees_neighbours(machine):
    first, second = machine.start("--memory", "1Gi"), machine.start("--memory", "1Gi")
    name = hand_over(first).name
    assert machine.partage("resize", name, "--cores", "40%").returncode == 0
    assert is_gated(second)
    assert arbiter.serving(machine.root)
    assert machine.partage("resize", name, "--class", "best-effort").returncode == 0
    assert machine.partage("resize", name, "--class", "best-effort", "--cores", "100%").returncode == 0
    assert not is_gated(second)


def test_the_arbiter_has_nothing_of_its_starter(machine, tmp_path):
    with (tmp_path / "private").open("w") as private:
        os.set_inheritable(private.fileno(), True)
        machine.start("--memory", "1Gi", "--cores", "30%", LD_PRELOAD="")
        pid = arbiter.serving(machine.root)
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 -- not all are paths
        assert str(tmp_path / "private") not in links
        assert not any("pipe:" in link or "/pts/" in link for link in links)
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    assert "libvgpu" not in Path(f"/proc/{pid}/maps").read_text()
    mode = stat.S_IMODE((machine.root / names.ARBITER_LOG).stat().st_mode)
    assert mode == 0o600


def test_an_arbiter_that_dies_is_replaced(machine):
    program = machine.start("--memory", "1Gi", "--cores", "30%")
    machine.start("--memory", "1Gi", "--cores", "30%")
    for _ in range(3):
        before = arbiter.serving(machine.root)
        os.kill(before, signal.SIGKILL)
        machine.until(lambda before=before: arbiter.serving(machine.root) not in {None, 0, before})
        machine.until(lambda: turns(program).arbiter == arbiter.serving(machine.root))


def test_a_share_of_time_needs_the_arbiters_program(machine, tmp_path):
    library = tmp_path / "libvgpu.so"
    library.symlink_to(Path(__file__).parents[2] / "build/lib/libvgpu.so")
    arguments = ("run", "--memory", "1Gi", "--cores", "30%", "--", "true")
    result = machine.partage(*arguments, PARTAGE_LIBRARY=str(library))
    assert result.returncode != 0
    assert f"{tmp_path / names.ARBITER}: not found" in result.stderr
    (tmp_path / names.ARBITER).write_text("#!/bin/sh\necho broken >&3\n")
    (tmp_path / names.ARBITER).chmod(0o700)
    result = machine.partage(*arguments, PARTAGE_LIBRARY=str(library))
    assert "broken" in result.stderr
    assert machine.hand_overs() == []


# ---- locks of devices ------------------------------------------------------------------------------------------------


def test_locks_of_real_devices_lie_where_nobody_can_replace_them(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setattr(names, "LOCK_DIRECTORIES", (str(tmp_path / "missing"), str(tmp_path)))
    with pytest.raises(LaunchError, match="1777"):
        arbiter.lock_directory(simulated=False)
    if os.geteuid() == 0:
        tmp_path.chmod(0o1777)
        assert arbiter.lock_directory(simulated=False) == tmp_path


def test_locks_of_simulated_devices_lie_beside_the_machine(machine):
    machine.start("--memory", "1Gi", "--cores", "30%")
    assert arbiter.lock_directory(simulated=True) == Path(machine.environment["PARTAGE_SIM_DIR"])
    assert list(arbiter.lock_directory(simulated=True).glob("partage-*.lock"))
