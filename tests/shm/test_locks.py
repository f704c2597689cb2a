"""We test these aspects of locks: who waits gets the lock when its holder lets go; a signal ends a wait that would
otherwise go on, whenever it comes, and what was given up takes nothing when the lock comes after all."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from partage import locks

WAIT_S = 200
ROUNDS = 200
main = threading.main_thread().ident


class HeardError(Exception):
    """Raised by the handler of the signal."""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "lock"
    made.touch()
    return made


@pytest.fixture
def open_file(path):
    """Open the file anew at each call."""
    fds = []

    def opened() -> int:
        fds.append(os.open(path, os.O_RDWR))
        return fds[-1]

    yield opened
    for fd in fds:
        os.close(fd)


@pytest.fixture
def heard():
    """Let SIGUSR1 raise."""

    def handler(*_: object) -> None:
        raise HeardError

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lock"]


def until_somebody_waits(fd: int) -> None:
    """Return once a thread of this process waits for the lock that `fd` holds: the kernel lists it behind an arrow."""
    inode = f":{os.fstat(fd).st_ino} "
    while not any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
        os.sched_yield()


def test_who_waits_gets_the_lock_when_its_holder_lets_go(open_file):
    holder, ours, other = open_file(), open_file(), open_file()
    assert locks.try_lock(holder, 0)

    def let_go() -> None:
        until_somebody_waits(holder)
        locks.unlock(holder, 0)

    thread = threading.Thread(target=let_go)
    thread.start()
    with locks.locked(ours, 0):
        assert locks.is_locked(other, 0)
    assert not locks.is_locked(other, 0)
    thread.join()
    assert waiting_threads() == []


def test_a_thread_may_wait_too(open_file):
    holder, ours = open_file(), open_file()
    assert locks.try_lock(holder, 0)
    taken = threading.Event()

    def take() -> None:
        with locks.locked(ours, 0):
            taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    until_somebody_waits(holder)
    assert not taken.is_set()
    locks.unlock(holder, 0)
    assert taken.wait(WAIT_S)
    thread.join()


@pytest.mark.usefixtures("heard")
def test_a_signal_ends_a_wait_that_would_go_on(open_file):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    holder, ours, other = open_file(), open_file(), open_file()
    assert locks.try_lock(holder, 0)

    def disturb() -> None:
        until_somebody_waits(holder)
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=disturb)
    thread.start()
    with pytest.raises(HeardError), locks.locked(ours, 0):
        pytest.fail("it had the lock")
    thread.join()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    (left,) = waiting_threads()
    locks.unlock(holder, 0)
    left.join(WAIT_S)
    assert not locks.is_locked(other, 0), "nobody wants it any more"


def wait_disturbed(fd: int, may_disturb: threading.Event) -> None:
    may_disturb.set()
    with locks.locked(fd, 0):
        pytest.fail("it had the lock")


@pytest.mark.usefixtures("heard")
def test_a_signal_is_heard_whenever_it_comes(open_file):
    holder, ours = open_file(), open_file()
    assert locks.try_lock(holder, 0)
    for _ in range(ROUNDS):
        may = threading.Event()

        def disturb(may=may) -> None:
            may.wait(WAIT_S)
            signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=disturb)
        thread.start()
        with pytest.raises(HeardError):
            wait_disturbed(ours, may)
        thread.join()
    locks.unlock(holder, 0)
    for left in waiting_threads():
        left.join(WAIT_S)
    assert locks.try_lock(holder, 0)
