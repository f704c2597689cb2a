"""We test these aspects of the watcher: a slot is matched with its process by number, start time and namespace; what a
process holds beyond its ledger becomes overhead, and overhead never lifts a limit; a broken ledger closes the share."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from partage._abi import ffi
from partage.devices.nvidia.usage import Usage
from partage.model import DeviceError
from partage.run import watcher
from partage.run.handover import HandOver
from partage.run.processes import find_process, start_time
from partage.run.watcher import CORRECT_EVERY_S, CORRECT_LAST_S, LOOK_EMPTY_S, LOOK_EVERY_S, LOOK_LAST_S, Watcher
from partage.shm import Policy, PolicyDevice, PolicyFile, Slot, create_ledger, read_policy
from tests.devices.clock import HandClock
from tests.shm.conftest import UUID, Tenant, tenant  # noqa: F401 -- a fixture

GIB = 1 << 30
UNIT = 4096
NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino


def slot_of(pid: int, **changes) -> Slot:
    made = Slot(0, 1, pid, 0, start_time(pid) or 0, NAMESPACE, "x", ())
    return replace(made, **changes)


class FakeNvml:
    """Says what it is told to say, and remembers when it was asked."""

    def __init__(self, clock: HandClock) -> None:
        self.seen: dict[int, int] = {}
        self.asked: list[float] = []
        self.knows: set[str] | None = None  # None: any device
        self.usage = Usage(self, clock.now)
        self._clock = clock

    def processes(self, uuid: str) -> dict[int, int]:
        self.asked.append(self._clock.now())
        if self.knows is not None and uuid not in self.knows:
            raise DeviceError(uuid, "not found", "a device of this machine", "none")
        return dict(self.seen)

    def samples_since(self, _uuid: str, _since: int, _until: int) -> dict[int, tuple[int, int]]:
        return {}


class Scene:
    """A hand-over watched by this process, whose only tenant is this process too."""

    def __init__(self, directory: Path, player: Tenant, context: int | None, beside: Scene | None = None) -> None:
        self.tenant = player
        self.clock = beside.clock if beside else HandClock()
        self.nvml = beside.nvml if beside else FakeNvml(self.clock)
        device = PolicyDevice(uuid=UUID, memory=4 * GIB, physical=80 * GIB, context=context)
        self.policy = PolicyFile.create(directory / "policy", Policy(devices=(device,)))
        self.path = directory / "policy"
        self.watcher = Watcher(HandOver(directory), self.policy, self.nvml, now=self.clock.now)  # type: ignore[arg-type]

    def look(self) -> PolicyDevice:
        """Let the watcher do a round after its longest pause."""
        self.clock.move(CORRECT_LAST_S)
        self.watcher.step()
        return read_policy(self.path).devices[0]

    def pauses(self, seconds: float) -> list[float]:
        """Let the watcher do its rounds for so long; return the seconds before each."""
        until = self.clock.now() + seconds
        made: list[float] = []
        while (pause := self.watcher.timeout()) is not None and self.clock.now() + pause <= until:
            made.append(pause)
            self.clock.move(pause)
            self.watcher.step()
        self.clock.move(until - self.clock.now())
        return made

    def pass_time(self, seconds: float) -> list[float]:
        """Let the watcher do its rounds for so long; return how long after the begin NVML was asked."""
        begin, known = self.clock.now(), len(self.nvml.asked)
        self.pauses(seconds)
        return [moment - begin for moment in self.nvml.asked[known:]]

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


def test_the_overhead_goes_with_the_last_process(scene):
    child = subprocess.Popen(["sleep", "600"])
    scene.tenant.take(0, pid=child.pid, start=start_time(child.pid))
    scene.tenant.charge(0, 100)
    scene.nvml.seen = {child.pid: 100 * UNIT + GIB}
    assert scene.look().overhead == GIB
    scene.nvml.seen = {}
    child.kill()
    child.wait()
    scene.tenant.die(0)
    scene.watcher.settle()
    assert read_policy(scene.path).devices[0].overhead == 0
    charge_myself(scene, 100)
    scene.nvml.seen = {os.getpid(): 100 * UNIT + 12345}
    assert scene.look().overhead == 12345, "the one before says nothing about the next"


def test_an_overhead_that_another_watcher_left_goes_where_nobody_holds_anything(scene):
    scene.policy.update(lambda policy: policy.changed(UUID, overhead=GIB))
    scene.tenant.take(0, start=1)  # nobody can be found, and the lock is held
    scene.watcher.step()
    assert read_policy(scene.path).devices[0].overhead == GIB, "who has the lock may hold the memory"
    scene.tenant.die(0)
    scene.watcher.step()
    assert read_policy(scene.path).devices[0].overhead == 0


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


def gaps_of(moments: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(moments)]


def test_looks_are_close_together_after_news_and_then_rare(scene):
    charge_myself(scene, 100)
    scene.watcher.step()
    gaps = gaps_of(scene.pass_time(60))
    assert gaps[0] < 0.1
    assert all(later >= sooner - 1e-9 for sooner, later in itertools.pairwise(gaps))
    assert gaps[-1] == pytest.approx(CORRECT_LAST_S)


def test_while_the_ledger_changes_nvml_is_asked_once_a_second_and_when_somebody_rings_at_once(scene):
    charge_myself(scene, 100)
    scene.watcher.step()
    scene.pass_time(60)
    scene.tenant.charge(0, 1)
    first, second = scene.pass_time(60)[:2]
    assert first <= LOOK_LAST_S
    assert second - first <= CORRECT_EVERY_S
    for _ in range(10):
        scene.tenant.charge(0, 1)
        asked = scene.pass_time(1)
    assert len(asked) == 1
    scene.pass_time(60)
    for key, _ in scene.watcher.selector.select(10):  # the bell, which rings at once for what came before
        scene.watcher.handle(key)
    assert scene.watcher.timeout() == 0


def test_what_does_not_change_is_looked_at_seldom_and_what_does_once_a_second(scene):
    charge_myself(scene, 100)
    scene.watcher.step()
    assert max(scene.pauses(60)) == pytest.approx(LOOK_LAST_S)
    assert len(scene.pauses(60)) <= 60 / LOOK_LAST_S * 2
    scene.tenant.charge(0, 1)
    scene.clock.move(scene.watcher.timeout())
    scene.watcher.step()
    assert scene.watcher.timeout() <= LOOK_EVERY_S


def test_a_ledger_that_nobody_uses_is_looked_at_even_more_seldom_until_somebody_does(scene):
    scene.watcher.step()
    assert max(scene.pauses(120)) == pytest.approx(LOOK_EMPTY_S)
    charge_myself(scene, 100)
    scene.clock.move(scene.watcher.timeout())
    scene.watcher.step()
    assert max(scene.pauses(120)) == pytest.approx(LOOK_LAST_S)


@pytest.fixture
def other(tmp_path, scene):
    """Another hand-over beside `scene`, with the same clock and NVML."""
    create_ledger(tmp_path / "ledger-of-another", [UUID])
    (tmp_path / "another").mkdir()
    (tmp_path / "ledger-of-another").rename(tmp_path / "another" / "ledger")
    made = Scene(tmp_path / "another", Tenant(tmp_path / "another" / "ledger"), None, scene)
    yield made
    made.close()
    made.tenant.close()


def test_watchers_share_what_nvml_says_and_each_is_told_what_is_newer_than_its_last_look(scene, other):
    charge_myself(scene, 100)
    scene.nvml.seen = {os.getpid(): 100 * UNIT + GIB}
    charge_myself(other, 50)
    for watched in (scene, other):
        watched.watcher.step()
    scene.pass_time(60)
    other.look()
    known = len(scene.nvml.asked)
    scene.clock.move(CORRECT_LAST_S)
    for watched in (scene, other):
        watched.watcher.step()
    assert len(scene.nvml.asked) == known + 1, "one answer serves both"
    assert read_policy(other.path).devices[0].overhead == 50 * UNIT + GIB
    other.tenant.charge(0, 10)
    scene.clock.move(0.5)
    other.look()
    assert len(scene.nvml.asked) == known + 2, "an answer from before the charge is none"
    assert read_policy(other.path).devices[0].overhead == 50 * UNIT + GIB, "it is believed the second time"


def test_where_nothing_changes_an_answer_of_some_seconds_ago_serves_another_watcher(scene, other):
    for watched in (scene, other):
        charge_myself(watched, 100)
    for _ in range(60):
        scene.clock.move(1)
        for watched in (scene, other):
            watched.watcher.step()
    known = len(scene.nvml.asked)
    scene.look()
    scene.clock.move(3)
    other.watcher.step()
    assert len(scene.nvml.asked) == known + 1, "one answer serves both"
    scene.clock.move(CORRECT_LAST_S)
    other.watcher.step()
    assert len(scene.nvml.asked) == known + 2, "it is too old now"


def test_a_resize_by_somebody_else_survives_corrections(scene):
    charge_myself(scene, 100)
    other = PolicyFile.open(scene.path)
    other.update(lambda policy: policy.changed(UUID, memory=GIB))
    other.close()
    scene.nvml.seen = {os.getpid(): 100 * UNIT + 4096}
    assert (scene.look().memory, scene.look().overhead) == (GIB, 4096)


def test_a_truncated_ledger_closes_the_share(scene, monkeypatch):
    """By the time that it is said, the share is closed: who reads of it may rely on it."""
    open_when_told = []

    class Log:
        def warning(self, *_: object, **__: object) -> None:
            open_when_told.append(read_policy(scene.path).is_open)

    monkeypatch.setattr(watcher, "log", Log())
    os.truncate(scene.tenant.path, 4096)
    scene.watcher.step()
    assert not read_policy(scene.path).is_open
    assert open_when_told == [False]
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


def test_k09_a_ledger_that_names_ever_new_devices_does_not_grow_its_watcher(tmp_path, scene):
    """The header is its tenant's to write: what is kept of each name would fill the node agent in half an hour."""
    charge_myself(scene, 1)
    scene.nvml.knows = {UUID}
    offset = ffi.offsetof("struct ptg_ledger", "uuid")
    kept = []
    for round_ in range(20):
        with (tmp_path / "ledger").open("r+b") as file:
            file.seek(offset)
            file.write(f"GPU-{round_:036}".encode())
        scene.look()
        kept.append(sum(len(value) for value in vars(scene.watcher).values() if isinstance(value, dict)))
    assert max(kept) <= kept[0], kept
    assert read_policy(scene.path).is_open
