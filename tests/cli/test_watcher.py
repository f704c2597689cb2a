"""We test these aspects of the watcher: a slot is matched with its process by number, start time and namespace; what a
process holds beyond its ledger becomes overhead, and overhead never lifts a limit; a broken ledger closes the share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from partage.run.handover import HandOver
from partage.run.processes import find_process, start_time
from partage.run.watcher import Watcher
from partage.shm import Policy, PolicyDevice, PolicyFile, Slot, read_policy
from tests.shm.conftest import UUID, Tenant, tenant  # noqa: F401 -- a fixture

GIB = 1 << 30
UNIT = 4096
NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino


def slot_of(pid: int, **changes) -> Slot:
    made = Slot(0, 1, pid, 0, start_time(pid) or 0, NAMESPACE, "x", ())
    return replace(made, **changes)


class FakeNvml:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def processes(self, _uuid: str) -> dict[int, int]:
        return dict(self.seen)


class Scene:
    """A hand-over watched by this process, whose only tenant is this process too."""

    def __init__(self, directory: Path, player: Tenant, context: int | None) -> None:
        self.tenant = player
        self.nvml = FakeNvml()
        device = PolicyDevice(uuid=UUID, memory=4 * GIB, physical=80 * GIB, context=context)
        self.policy = PolicyFile.create(directory / "policy", Policy(devices=(device,)))
        self.path = directory / "policy"
        self.watcher = Watcher(HandOver(directory), self.policy, self.nvml)  # type: ignore[arg-type]

    def look(self) -> PolicyDevice:
        """Let the watcher do a round now, as if its second were over."""
        self.watcher._correct_at = 0
        self.watcher.step()
        return read_policy(self.path).devices[0]

    def close(self) -> None:
        self.watcher.close()
        self.policy.close()


@pytest.fixture
def scene(tmp_path, tenant):  # noqa: F811
    made = Scene(tmp_path, tenant, None)
    yield made
    made.close()


def test_a_living_process_is_found_and_no_other_of_its_number():
    assert find_process(slot_of(os.getpid())) == os.getpid()
    assert find_process(slot_of(os.getpid(), start_time=1)) is None
    assert find_process(slot_of(0)) is None
    assert find_process(slot_of(-1)) is None


def test_an_ended_process_is_not_found_even_before_it_is_collected():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    slot = slot_of(process.pid)
    assert find_process(slot) == process.pid
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find_process(slot) is None
    process.communicate()


def test_a_process_whose_first_thread_ended_is_alive():
    code = "import threading,ctypes; t=threading.Thread(target=input); t.start(); ctypes.CDLL(None).pthread_exit(None)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    slot = slot_of(process.pid)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert find_process(slot) == process.pid
    process.kill()
    process.communicate()


def test_the_number_of_a_thread_is_no_process():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    fields = Path(f"/proc/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    assert start_time(thread.native_id) is None
    assert find_process(slot_of(thread.native_id, start_time=int(fields[19]))) is None
    over.set()
    thread.join()


def test_a_process_of_another_pid_namespace_is_found_by_its_inner_number():
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-p", "-f", "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot make a pid namespace here")
    script = "import os; print(os.getpid(), os.stat('/proc/self/ns/pid').st_ino, flush=True); input()"
    command = [unshare, "-p", "-f", "--mount-proc", sys.executable, "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    inner, namespace = map(int, process.stdout.readline().split())
    outer = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    found = find_process(Slot(0, 1, inner, 0, start_time(outer) or 0, namespace, "x", ()))
    process.communicate("\n")
    assert (inner, found) == (1, outer)


def charge_myself(scene, units: int, context: int = 0) -> None:
    scene.tenant.take(0, start=start_time(os.getpid()))
    scene.tenant.charge(0, units)
    scene.tenant.ledger.slot[0].device[0].context = context


def test_what_the_ledger_does_not_know_becomes_overhead(scene):
    charge_myself(scene, 100)
    scene.nvml.seen = {os.getpid(): 100 * UNIT + 12345}
    assert scene.look().overhead == 12345
    assert scene.tenant.ledger.slot[0].host_pid == os.getpid()


def test_other_peoples_processes_do_not_count(scene):
    charge_myself(scene, 100)
    scene.nvml.seen = {os.getpid(): 100 * UNIT, os.getppid(): GIB}
    assert scene.look().overhead == 0


def test_less_overhead_is_believed_the_second_time(scene):
    charge_myself(scene, 100)
    scene.nvml.seen = {os.getpid(): 100 * UNIT + GIB}
    assert scene.look().overhead == GIB
    scene.nvml.seen = {os.getpid(): 100 * UNIT}
    assert scene.look().overhead == GIB, "a reading may have met a free half-way"
    assert scene.look().overhead == 0


def test_a_context_seen_alone_and_twice_becomes_the_estimate(scene):
    charge_myself(scene, 100, context=100)
    scene.nvml.seen = {os.getpid(): 300 * UNIT}
    assert scene.look().context is None, "it may be half made"
    assert scene.look().context == 300 * UNIT
    scene.tenant.charge(0, 50)
    scene.nvml.seen = {os.getpid(): 200 * UNIT}
    scene.look()
    assert scene.look().context == 300 * UNIT, "more than a context is charged"


def test_the_smallest_context_is_the_estimate(scene):
    charge_myself(scene, 200, context=200)
    for real, estimate in ((600, 600), (300, 300), (500, 300)):  # two contexts, one, one with code
        scene.nvml.seen = {os.getpid(): real * UNIT}
        scene.look()
        assert scene.look().context == estimate * UNIT


def test_a_correction_never_lifts_the_limit(scene):
    charge_myself(scene, 256, context=256)
    scene.nvml.seen = {os.getpid(): 100 * UNIT}
    for _ in range(3):
        device = scene.look()
        assert scene.tenant.ledger.device[0].word >> 32 == 256
        assert device.overhead == 0, "when the context goes, 256 units go; -156 would stay behind"
    assert device.context == 100 * UNIT, "the next one costs what it costs"


def test_looks_are_close_together_after_news_and_then_rare(scene):
    charge_myself(scene, 100)
    scene.watcher.step()
    gaps = []
    for _ in range(10):
        gaps.append(scene.watcher._correct_in)
        scene.look()
    assert gaps[0] < 0.1
    assert gaps == sorted(gaps)
    assert gaps[-1] == 1.0


def test_a_resize_by_somebody_else_survives_corrections(scene):
    charge_myself(scene, 100)
    other = PolicyFile.open(scene.path)
    other.update(lambda policy: policy.changed(UUID, memory=GIB))
    other.close()
    scene.nvml.seen = {os.getpid(): 100 * UNIT + 4096}
    assert (scene.look().memory, scene.look().overhead) == (GIB, 4096)


def test_a_truncated_ledger_closes_the_share(scene):
    os.truncate(scene.tenant.path, 4096)
    scene.watcher.step()
    assert not read_policy(scene.path).is_open
    assert scene.watcher.timeout() is None
    os.truncate(scene.tenant.path, 1056768)


def test_a_slot_whose_process_never_was_is_given_back(scene):
    scene.tenant.take(3, start=1)
    scene.tenant.charge(3, 7)
    scene.watcher.step()
    assert scene.tenant.ledger.device[0].word >> 32 == 7, "its lock is held: somebody lives there"
    scene.tenant.die(3)
    scene.watcher.step()
    assert scene.tenant.ledger.device[0].word >> 32 == 0
