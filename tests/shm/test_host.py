"""We test these aspects of the arbiter within a Python process (as the node agent hosts it): it serves a root on a
thread of its own, gives turns while Python does nothing, says what it did, says why it cannot serve, and leaves a fault
that is not its own to kill, however often its guard and the ledgers' were asked for."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage import locks
from partage._abi import ffi, lib
from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns, read_turns, ring_turn_bell

UUID = "GPU-00000000-0000-0000-0000-000000000001"
HANG_S = 200


def open_host(root, locks_directory):
    why = ffi.new("char[512]")
    keep = (ffi.new("char[]", str(root).encode()), ffi.new("char[]", str(locks_directory).encode()))
    options = ffi.new("struct ptg_host_options *", {"root": keep[0], "lock_dir": keep[1], "log_fd": -1})
    options.idle_ns = lib.PTG_HOST_FOREVER
    return lib.ptg_host_open(options, why, len(why)), ffi.string(why).decode()


@pytest.fixture
def hand_over(tmp_path):
    """A hand-over with one gated device, watched, whose slot 0 is held."""
    root = tmp_path / "root"
    entry = HandOver(root / "h-1")
    root.mkdir(mode=0o700)
    entry.path.mkdir(mode=0o700)
    create_turns(entry.path / "turns", 1)
    create_ledger(entry.ledger_path, [UUID])
    device = PolicyDevice(uuid=UUID, memory=1 << 30, physical=1 << 34, cores=300, ceiling=300, gated=True)
    fd = os.open(entry.ledger_path, os.O_RDWR | os.O_CLOEXEC)
    assert locks.try_lock(fd, 0)
    with contextlib.closing(PolicyFile.create(entry.policy_path, Policy(devices=(device,)))):
        yield entry
    os.close(fd)


def want_turn(entry) -> None:
    with entry.ledger_path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        ledger = ffi.from_buffer("struct ptg_ledger *", view)
        ledger.high = 1
        ledger.turn[0][0].want_ns = time.monotonic_ns()
        ledger.turn[0][0].want = 1
        ffi.release(ledger)
    ring_turn_bell(entry.ledger_path)


def test_turns_are_given_by_a_thread_of_its_own(hand_over, tmp_path):
    host, why = open_host(hand_over.path.parent, tmp_path)
    assert host != ffi.NULL, why
    assert lib.ptg_host_start(host) == 0
    want_turn(hand_over)
    until = time.monotonic() + HANG_S
    while not read_turns(hand_over.path / "turns").turns[0].is_open:
        assert time.monotonic() < until, "no turn"
    assert read_turns(hand_over.path / "turns").arbiter == os.getpid()
    stats = ffi.new("struct ptg_host_stats *")
    lib.ptg_host_stats(host, stats)
    assert (stats.tenants, stats.gated, stats.devices, stats.foreign, stats.opened >= 1) == (1, 1, 1, 0, True)
    lib.ptg_host_close(host)
    assert not read_turns(hand_over.path / "turns").turns[0].is_open


def test_a_root_that_cannot_be_served_is_a_sentence(hand_over, tmp_path):
    host, _ = open_host(hand_over.path.parent, tmp_path)
    again, why = open_host(hand_over.path.parent, tmp_path)
    assert again == ffi.NULL
    assert why.startswith(f"served by pid {os.getpid()} ")
    lib.ptg_host_close(host)
    assert open_host(tmp_path / "missing", tmp_path)[1].endswith("No such file or directory")


FAULT = """
import mmap, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from partage.shm import WatchedLedger, create_ledger, ring_turn_bell
from tests.shm.test_host import open_host
place = Path(sys.argv[2])
create_ledger(place / "ledger", [])
watched = WatchedLedger(place / "ledger")
host, why = open_host(place, place)
assert host, why
ring_turn_bell(place / "ledger")
with open(place / "own", "w+b") as file:
    os.ftruncate(file.fileno(), 4096)
    view = mmap.mmap(file.fileno(), 4096)
    os.ftruncate(file.fileno(), 0)
    view[0]
"""


def test_a_fault_of_somebody_else_still_kills_as_it_would(tmp_path):
    top = str(Path(__file__).parents[2])
    ended = subprocess.run([sys.executable, "-c", FAULT, top, str(tmp_path)], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGBUS, ended.stderr
