"""We test these aspects of what `partage top` says about compute: what was got is taken from the arbiter where it
answers, from the processes where it does not, from NVML where nobody takes turns; it is of the time between two looks;
waits and degraded processes show; a trend goes back thirty looks; and no claim of a tenant's makes it more than the
device."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from partage._abi import lib
from partage.cli import look as module
from partage.cli import top
from partage.cli.look import look
from partage.model import DeviceError
from partage.run import handover
from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from tests.shm.conftest import UUID, Tenant, write_line, write_turn

SECOND = 1_000_000_000
MS = 1_000_000


class Stage:
    """One hand-over with one process, and a clock."""

    def __init__(self, path, monkeypatch):
        self.entry, self.now, self.busy = HandOver(path / "share-1"), 100 * SECOND, {}
        self.entry.path.mkdir()
        create_turns(self.turns, 1)
        create_ledger(self.entry.ledger_path, [UUID])
        device = PolicyDevice(UUID, 24 << 30, 80 << 30, cores=300, ceiling=300, gated=True)
        self.policy = PolicyFile.create(self.entry.policy_path, Policy((device,), share_class="fixed"))
        self.tenant = Tenant(self.entry.ledger_path)
        self.tenant.take(0, pid=4711)
        monkeypatch.setattr(handover, "living", lambda: [self.entry])
        monkeypatch.setattr(module, "devices_of_machine", lambda: ([], ()))
        monkeypatch.setattr(module, "utilization_of", lambda uuids: dict.fromkeys(uuids, self.busy))
        monkeypatch.setattr(module.time, "monotonic_ns", lambda: self.now)

    @property
    def turns(self):
        return self.entry.path / "turns"

    def say(self, **values):
        write_line(self.entry.ledger_path, 0, 0, **values)

    def give(self, **values):
        write_turn(self.turns, 0, 99, **values)

    def look(self, before=None, seconds=1.0):
        if before is not None:
            self.now += int(seconds * SECOND)
        view = look(before)
        return view, view.shares[0]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.tenant.close()


def test_what_was_got_is_what_the_arbiter_charged_between_two_looks(stage):
    stage.give(word=1, charged_ns=5 * SECOND, heartbeat_ns=1)
    stage.say(flight_ns=9 * SECOND)  # a claim: not believed where the arbiter counts
    view, row = stage.look()
    assert (row.compute_got, row.waited, row.got_by, row.turn_open) == (None, None, "", True)
    stage.give(word=1, charged_ns=5 * SECOND + 150 * MS)
    stage.say(flight_ns=10 * SECOND, waited_ns=80 * MS, waits=4)
    view, row = stage.look(view, 0.5)
    assert (row.compute_got, row.got_by, row.waited) == (300, "turns", 160 * MS)
    assert (view.interval_ns, row.charged_ns, row.arbiter) == (SECOND // 2, 5 * SECOND + 150 * MS, 99)
    assert (row.processes[0].pid, row.processes[0].waits) == (4711, 4)


def test_an_arbiter_that_counts_anew_gives_nothing_negative(stage):
    stage.give(charged_ns=5 * SECOND)
    view, _ = stage.look()
    stage.give(charged_ns=100 * MS)
    assert stage.look(view)[1].compute_got == 0


def test_without_an_arbiter_the_processes_say_what_they_had(stage):
    view, _ = stage.look()
    stage.say(flight_ns=100 * MS, degraded=1, busy_ns=stage.now + 900 * MS, want=2, want_ns=stage.now + 700 * MS)
    view, row = stage.look(view)
    assert (row.compute_got, row.got_by, row.degraded, row.waited) == (200, "flight", True, 300 * MS)
    assert row.processes[0].want == 2
    stage.give(charged_ns=SECOND)  # one has come, and the process still goes by its private bucket
    stage.say(flight_ns=400 * MS, degraded=1)
    assert stage.look(view)[1].got_by == "flight"


def test_who_takes_no_turns_is_seen_by_nvml(stage):
    stage.policy.update(lambda policy: policy.changed(UUID, gated=False))
    stage.busy = {4711: 42, 1: 58}
    view, row = stage.look()
    assert row.compute_got is None
    view, row = stage.look(view)
    assert (row.compute_got, row.got_by) == (420, "nvml")
    stage.tenant.ledger.slot[0].state = lib.PTG_SLOT_FREE
    view, row = stage.look(view)
    assert (row.compute_got, row.processes, row.trend) == (None, (), (420, None))


def test_nvml_that_fails_is_a_note(stage, monkeypatch):
    def fails(uuids):
        raise DeviceError("NVML", "gone", "an answer", "run `partage doctor`")

    stage.policy.update(lambda policy: policy.changed(UUID, gated=False))
    monkeypatch.setattr(module, "utilization_of", fails)
    view, row = stage.look(stage.look()[0])
    assert (row.compute_got, row.trend) == (0, (0,))
    assert any("gone" in note for note in view.notes)


def test_nothing_claimed_makes_it_more_than_the_device(stage):
    view, _ = stage.look()
    stage.say(flight_ns=2**64 - 1, busy_ns=1, waited_ns=2**64 - 1, want=1, want_ns=1)
    after, row = stage.look(view)
    assert row.compute_got == 1000
    assert json.loads(top.to_json(after))["shares"][0]["processes"][0]["flight_ns"] == 2**53
    stage.say(flight_ns=0, busy_ns=2**63, want=1, want_ns=2**63)
    _, row = stage.look(view)
    assert (row.compute_got, row.waited) == (0, 0)


def test_a_trend_goes_back_thirty_looks(stage):
    stage.give(charged_ns=1)
    view, _ = stage.look()
    for number in range(40):
        stage.give(charged_ns=1 + (number + 1) * 500 * MS)
        view, row = stage.look(view)
    assert row.trend == (500,) * module.FRAMES
    assert top.trend((None, 0, 124, 500, 999, 1000)) == " ▁▁▅██"


def test_the_table_says_it(stage):
    stage.give(charged_ns=0)
    view, _ = stage.look()
    stage.give(charged_ns=287 * MS)
    stage.say(waited_ns=120 * MS, degraded=0, want=1)
    text = printed(stage.look(view)[0])
    assert "29%" in text
    assert "120 ms/s" in text
    assert "▃" in text
    assert "waits" in text
    stage.say(degraded=1)
    assert "degraded" in printed(stage.look(view)[0])


def printed(view):
    console = Console(width=160, file=io.StringIO())
    console.print(top.render(view, 160))
    return console.file.getvalue()
