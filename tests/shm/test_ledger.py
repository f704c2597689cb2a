"""We test these aspects of the ledger seen from outside: totals and processes are read as charged; a dead process's
charge returns, also one killed before its last step; a live one's never does; the doorbell wakes its watcher; a tenant
that scribbles or truncates hurts itself alone; and no byte string raises anything but LedgerError."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from partage._abi import lib
from partage.model import LedgerError
from partage.shm import WatchedLedger, create_ledger, read_ledger
from partage.shm import ledger as module

from .conftest import UUID, Tenant

UNIT = module.UNIT


def totals_agree(snapshot) -> bool:
    return all(
        device.used == sum(slot.devices[i].used for slot in snapshot.slots) for i, device in enumerate(snapshot.devices)
    )


def test_a_new_ledger_is_empty_and_names_its_devices(tmp_path):
    create_ledger(tmp_path / "ledger", [UUID, "GPU-b"])
    snapshot = read_ledger(tmp_path / "ledger")
    assert [device.uuid for device in snapshot.devices] == [UUID, "GPU-b"]
    assert (snapshot.slots, snapshot.used(UUID), snapshot.used("GPU-none")) == ((), 0, 0)


def test_charges_are_read_per_process(tenant):
    tenant.take(0, pid=11, name=b"first")
    tenant.take(1023, pid=12, name=b"last")
    tenant.charge(0, 3)
    tenant.charge(1023, 5)
    tenant.charge(0, -1)
    snapshot = read_ledger(tenant.path)
    assert snapshot.used(UUID) == 7 * UNIT
    assert [(slot.index, slot.pid, slot.name, slot.devices[0].used) for slot in snapshot.slots] == [
        (0, 11, "first", 2 * UNIT),
        (1023, 12, "last", 5 * UNIT),
    ]


def test_what_has_not_changed_is_not_read_again(tenant):
    tenant.take(0)
    watched = WatchedLedger(tenant.path)
    before = watched.read()
    assert watched.read() is before
    tenant.charge(0, 1)
    after = watched.read()
    assert (before.devices[0].used, after.devices[0].used) == (0, UNIT)
    watched.close()


def test_a_watcher_sees_what_its_tenant_hides(tenant):
    watched = WatchedLedger(tenant.path)
    tenant.take(700, pid=11)
    assert [slot.pid for slot in watched.read().slots] == [11]
    tenant.ledger.high = 0
    assert [slot.pid for slot in watched.read().slots] == [11]
    assert read_ledger(tenant.path).slots == (), "who looks for the first time is told that none was taken"
    watched.close()


def test_a_change_that_nobody_completed_is_counted(tenant):
    tenant.take(4)
    tenant.charge(4, 9, complete=False)
    assert totals_agree(read_ledger(tenant.path))


@pytest.mark.parametrize("complete", [True, False])
def test_a_dead_process_gives_back_exactly_its_own(tenant, complete):
    tenant.take(0)
    tenant.take(1)
    tenant.charge(0, 100)
    tenant.charge(1, 10)
    tenant.charge(1, 7, complete=complete)
    watched = WatchedLedger(tenant.path)
    assert not watched.reclaim(1), "its lock is held: it lives"
    assert read_ledger(tenant.path).used(UUID) == 117 * UNIT
    tenant.die(1)
    assert watched.reclaim(1)
    snapshot = watched.read()
    assert snapshot.used(UUID) == 100 * UNIT
    assert totals_agree(snapshot)
    assert [slot.index for slot in snapshot.slots] == [0]
    assert snapshot.reclaimed == 1
    watched.close()


def test_reclaiming_twice_changes_nothing(tenant):
    tenant.take(0)
    tenant.take(3)
    tenant.charge(0, 1)
    tenant.charge(3, 2)
    tenant.die(3)
    watched = WatchedLedger(tenant.path)
    assert watched.reclaim(3)
    assert watched.reclaim(3)
    assert watched.read().used(UUID) == UNIT
    assert watched.read().reclaimed == 1
    watched.close()


def test_a_slot_lock_that_outlives_its_process_is_overruled_by_the_pidfd(tenant):
    tenant.take(0)
    tenant.charge(0, 4)
    watched = WatchedLedger(tenant.path)
    assert not watched.reclaim(0)
    assert watched.reclaim(0, dead=True)
    assert watched.read().used(UUID) == 0
    watched.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=30), st.integers(0, 3))
def test_any_history_leaves_totals_equal_to_processes(tmp_path_factory, history, victim):
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    create_ledger(path, [UUID])
    tenant = Tenant(path)
    for index in range(4):
        tenant.take(index)
    expected = [0, 0, 0, 0]
    for index, units, complete in history:
        tenant.charge(index, units, complete=complete)
        expected[index] += units
    tenant.die(victim)
    watched = WatchedLedger(path)
    assert watched.reclaim(victim)
    expected[victim] = 0
    snapshot = watched.read()
    assert snapshot.used(UUID) == sum(expected) * UNIT
    assert totals_agree(snapshot)
    watched.close()
    tenant.close()


def test_the_doorbell_wakes_the_watcher(tenant):
    watched = WatchedLedger(tenant.path)
    bell = watched.start_doorbell()
    assert select.select([bell], [], [], 200)[0], "ready at once: what came before counts"
    os.eventfd_read(bell)
    tenant.take(5)
    assert select.select([bell], [], [], 200)[0]
    watched.close()
    os.close(bell)


def test_one_watcher_at_a_time_and_the_next_after_it(tenant):
    watched = WatchedLedger(tenant.path)
    with pytest.raises(LedgerError, match="watched by another"):
        WatchedLedger(tenant.path)
    watched.close()
    WatchedLedger(tenant.path).close()


def test_a_truncated_ledger_is_an_error_and_not_the_end_of_its_watcher(tenant):
    tenant.take(700)
    tenant.charge(700, 4)
    tenant.die(700)
    watched = WatchedLedger(tenant.path)
    bell = watched.start_doorbell()
    os.ftruncate(tenant.fd, 4096)
    with pytest.raises(LedgerError):
        watched.reclaim(700)
    with pytest.raises(LedgerError):
        watched.read()
    watched.set_host_pid(700, 1)
    watched.close()
    os.close(bell)


def test_names_are_safe_on_a_terminal(tenant):
    tenant.take(0, name=b"\x1b[31mred\xff")
    assert read_ledger(tenant.path).slots[0].name == "?[31mred�"


@given(st.binary(max_size=64))
@example(b"\0" * module.READ_SIZE)
@example(b"\0" * module.SIZE)
def test_no_byte_string_raises_anything_but_ledger_error(data):
    with pytest.raises(LedgerError):
        module.decode(data)


active = st.integers(0, 8192 + 4 * 1024 - 1)  # header and the slots that are in use


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(active, st.integers(0, 255)), min_size=1, max_size=40))
def test_a_mutated_ledger_reads_or_is_refused(tenant, mutations):
    if 0 not in tenant.held:
        tenant.take(0)
        tenant.charge(0, 3)
    data = bytearray(tenant.path.read_bytes())
    for position, value in mutations:
        data[position] = value
    try:
        snapshot = module.decode(bytes(data))
    except LedgerError:
        return
    assert len(snapshot.devices) <= lib.PTG_DEVICES
    assert all(name.isprintable() or name == "" for name in (slot.name for slot in snapshot.slots))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(active, st.integers(0, 255)), min_size=1, max_size=40))
def test_a_mutated_ledger_cannot_hold_its_watcher(tmp_path_factory, mutations):
    path = tmp_path_factory.mktemp("mutated") / "ledger"
    create_ledger(path, [UUID])
    with path.open("r+b") as file:
        for position, value in mutations:
            file.seek(position)
            file.write(bytes([value]))
    try:
        watched = WatchedLedger(path)
    except LedgerError:
        return
    for index in range(5):
        try:
            watched.reclaim(index, dead=True)
        except LedgerError:
            continue
    watched.close()


def test_missing_file_and_fifo_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none", tmp_path / "fifo", tmp_path):
        with pytest.raises(LedgerError, match=str(path)):
            read_ledger(path)


@pytest.mark.parametrize("size", [0, 8, 5000])
def test_a_listener_whose_page_was_cut_away_can_be_ended(tenant, size):
    watched = WatchedLedger(tenant.path)
    bell = watched.start_doorbell()
    assert select.select([bell], [], [], 200)[0]
    asleep_in(watched._thread.native_id, "futex")
    os.ftruncate(tenant.fd, size)
    closing = threading.Thread(target=watched.close, daemon=True)
    closing.start()
    closing.join(200)
    assert not closing.is_alive()
    assert not watched._thread.is_alive()
    os.close(bell)


def asleep_in(thread: int, what: str) -> None:
    """Wait until a thread of this process sleeps in the kernel function that `what` names."""
    path = Path(f"/proc/self/task/{thread}/wchan")
    until = time.monotonic() + 200
    while what not in path.read_text() and time.monotonic() < until:
        pass


def test_a_link_in_a_ledgers_place_is_not_followed(tenant):
    link = tenant.path.with_name("link")
    link.symlink_to(tenant.path)
    with pytest.raises(LedgerError, match=str(link)):
        read_ledger(link)
    with pytest.raises(LedgerError, match=str(link)):
        WatchedLedger(link)
