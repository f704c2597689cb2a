"""We test these aspects of many doorbells: one thread hears all; each rings its own event, at once and again; one that
rings for ever, is cut or goes keeps nobody else from being heard; there are as many threads as the bells need."""

from __future__ import annotations

import os
import select
import threading
from contextlib import ExitStack

import pytest

from partage._abi import ffi, lib
from partage.shm import Doorbells, WatchedLedger, create_ledger, doorbells

from .conftest import UUID, Tenant


def ready(*events: int, seconds: float = 200) -> list[int]:
    return select.select(events, [], [], seconds)[0]


def heard(event: int) -> None:
    assert ready(event), "not heard"
    os.eventfd_read(event)


@pytest.fixture
def bells():
    before = threading.active_count()
    bells = Doorbells()
    yield bells
    bells.close()
    assert threading.active_count() == before


@pytest.fixture
def many(tmp_path, bells):
    """Ten tenants with their watched ledgers and the events of their bells, quiet."""
    with ExitStack() as stack:
        found = []
        for number in range(10):
            create_ledger(tmp_path / str(number), [UUID])
            tenant = Tenant(tmp_path / str(number))
            stack.callback(tenant.close)
            watched = WatchedLedger(tenant.path)
            stack.callback(watched.close)
            event = watched.start_doorbell(bells)
            stack.callback(os.close, event)
            heard(event)  # at once: what came before counts
            found.append((tenant, watched, event))
        yield found


def test_one_thread_hears_all(many):
    before = threading.active_count()
    assert all(watched._thread is None for _, watched, _ in many)
    for round_ in range(3):
        for tenant, _, event in reversed(many):
            tenant.take(round_)
            heard(event)
    assert threading.active_count() == before
    for tenant, _, _ in many:
        tenant.take(9)
    for _, _, event in many:
        heard(event)


def test_each_rings_its_own(many):
    many[3][0].take(1)
    heard(many[3][2])
    assert ready(*(event for _, _, event in many), seconds=0.1) in ([], [many[3][2]])


def test_a_ring_while_the_bell_is_left_alone_is_heard_after_that(many, monkeypatch):
    monkeypatch.setattr(doorbells, "APART_S", 0.1)
    tenant, _, event = many[0]
    tenant.take(1)
    heard(event)
    tenant.take(2)
    heard(event)


def test_who_rings_for_ever_keeps_nobody_from_being_heard(many):
    noisy, stop = many[0][0], threading.Event()

    def ring() -> None:
        while not stop.is_set():
            noisy.ledger.doorbell += 1
            lib.ptg_futex_wake(ffi.addressof(noisy.ledger, "doorbell"))

    ringing = threading.Thread(target=ring)
    ringing.start()
    try:
        for number in range(5):
            many[5][0].take(number)
            heard(many[5][2])
    finally:
        stop.set()
        ringing.join()


def test_a_ledger_that_is_cut_stays_ready_and_the_others_are_heard(many):
    tenant, _, event = many[0]
    os.ftruncate(tenant.fd, 0)
    many[1][0].take(1)  # whatever it sleeps on, this wakes it
    heard(many[1][2])
    assert ready(event)
    many[2][0].take(1)
    heard(many[2][2])


def test_a_page_that_is_gone_while_it_sleeps(many):
    """The kernel cannot sleep on the list then: the one is found and left out."""
    tenant, watched, event = many[0]
    os.ftruncate(tenant.fd, 0)
    watched._bells[1].listener._drop_cut()
    assert ready(event)
    many[1][0].take(1)
    heard(many[1][2])


def test_one_that_went_is_not_listened_to(many, bells):
    tenant, watched, event = many[0]
    bells.remove(watched._bells[1])
    tenant.take(1)
    many[1][0].take(1)
    heard(many[1][2])
    assert not ready(event, seconds=0)


def test_more_bells_than_one_sleep_takes(tmp_path, bells, monkeypatch):
    """Another thread listens to those beyond, for as long as there are any; room that was left is taken again."""
    monkeypatch.setattr(doorbells, "BELLS_MAX", 2)
    before = threading.active_count()
    found = []
    for number in range(5):
        create_ledger(tmp_path / str(number), [UUID])
        tenant, watched = Tenant(tmp_path / str(number)), WatchedLedger(tmp_path / str(number))
        found.append((tenant, watched, watched.start_doorbell(bells)))
        heard(found[-1][2])
    assert threading.active_count() == before + 3
    for tenant, _, event in found:
        tenant.take(1)
        heard(event)
    for _, watched, event in found[3:]:
        watched.close()
        os.close(event)
    assert threading.active_count() == before + 2
    found[2][0].take(2)
    heard(found[2][2])
    again = WatchedLedger(tmp_path / "4")
    event = again.start_doorbell(bells)
    assert threading.active_count() == before + 2
    heard(event)
    found[4][0].take(2)
    heard(event)
    again.close()
    os.close(event)
    for _, watched, event in found[:3]:
        watched.close()
        os.close(event)
    for tenant, _, _ in found:
        tenant.close()
    assert threading.active_count() == before


def test_on_an_old_kernel_a_thread_of_its_own_listens(tenant, monkeypatch):
    monkeypatch.setattr(doorbells, "is_supported", lambda: False)
    bells = Doorbells()
    watched = WatchedLedger(tenant.path)
    event = watched.start_doorbell(bells)
    assert watched._thread is not None
    heard(event)
    tenant.take(5)
    heard(event)
    watched.close()
    os.close(event)
    bells.close()
