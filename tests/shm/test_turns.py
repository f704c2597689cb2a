"""We test these aspects of turns seen from outside: the lines of processes are read as written, only those asked for,
with what is going on at the moment; the turns file is read as the arbiter writes it; whatever is cut or foreign is told
apart from an empty one; and no byte that a tenant writes raises anything but LedgerError."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage._abi import ffi, lib
from partage.model import LedgerError
from partage.shm import create_ledger, create_turns, read_turn_lines, read_turns, read_turns_size
from partage.shm import ledger as ledger_module

from .conftest import LINE, write_line, write_turn


@pytest.fixture
def ledger(tmp_path):
    create_ledger(tmp_path / "ledger", ["GPU-a", "GPU-b"])
    return tmp_path / "ledger"


def test_lines_are_read_per_process_and_device(ledger):
    write_line(ledger, 0, 3, busy_ns=5, idle_ns=4, want=2, degraded=1, want_ns=7, flight_ns=8, waited_ns=9, waits=10)
    write_line(ledger, 1, 1023, launches=11)
    found = read_turn_lines(ledger, [1023, 3], 2)
    assert list(found) == [3, 1023]
    first = found[3][0]
    assert (first.busy_ns, first.idle_ns, first.want, first.degraded, first.want_ns) == (5, 4, 2, True, 7)
    assert (first.flight_ns, first.waited_ns, first.waits, first.launches) == (8, 9, 10, 0)
    assert found[1023][1].launches == 11
    assert found[1023][0].launches == found[3][1].launches == 0


def test_what_goes_on_is_counted_to_the_moment(ledger):
    write_line(ledger, 0, 0, busy_ns=1000, flight_ns=50, want=1, want_ns=1200, waited_ns=5)
    (line,) = read_turn_lines(ledger, [0], 1)[0]
    assert (line.flight_at(1300), line.waited_at(1300)) == (350, 105)
    assert (line.flight_at(900), line.waited_at(900)) == (50, 5), "a claim that lies in the future counts nothing"
    write_line(ledger, 0, 0, flight_ns=350, waited_ns=105, want_ns=1200)
    (line,) = read_turn_lines(ledger, [0], 1)[0]
    assert (line.flight_at(9999), line.waited_at(9999)) == (350, 105)


def test_only_what_is_needed_is_read(ledger, monkeypatch):
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read.append(n) or real(fd, n, at))
    read_turn_lines(ledger, [0, 1, 2], 1)
    assert sum(read) == 3 * LINE
    read.clear()
    ledger_module.read_ledger(ledger)
    assert sum(read) == ledger_module.READ_SIZE < 1 << 15


@pytest.mark.parametrize("size", [0, ledger_module.READ_SIZE, ledger_module.READ_SIZE + 4 * LINE])
def test_a_cut_ledger_is_refused(ledger, size):
    os.truncate(ledger, size)
    with pytest.raises(LedgerError):
        read_turn_lines(ledger, [5], 2)
    with pytest.raises(LedgerError, match="a ledger has"):
        ledger_module.read_ledger(ledger)


def test_nothing_is_read_for_nobody(tmp_path):
    assert read_turn_lines(tmp_path / "missing", [], 2) == {}
    assert read_turn_lines(tmp_path / "missing", [-1, lib.PTG_SLOTS], 2) == {}
    with pytest.raises(LedgerError, match="No such file"):
        read_turn_lines(tmp_path / "missing", [0], 2)


@given(st.binary(min_size=LINE, max_size=LINE))
def test_no_line_breaks_its_reader(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("line") / "ledger"
    create_ledger(path, ["GPU-a"])
    with path.open("r+b") as file:
        file.seek(ffi.offsetof("struct ptg_ledger", "turn"))
        file.write(data)
    (line,) = read_turn_lines(path, [0], 1)[0]
    assert line.flight_at(0) >= 0
    assert line.waited_at(2**64) >= line.waited_ns


# ---- the turns file --------------------------------------------------------------------------------------------------


def test_a_new_turns_file_gives_nobody_a_turn(tmp_path):
    create_turns(tmp_path / "turns", 2)
    found = read_turns(tmp_path / "turns")
    assert found is not None
    assert (found.arbiter, len(found.turns), read_turns_size(tmp_path / "turns")) == (0, 2, 2)
    assert not any(turn.is_open or turn.is_answered(1) or turn.charged_ns for turn in found.turns)


def test_turns_are_read_as_the_arbiter_writes_them(tmp_path):
    path = tmp_path / "turns"
    create_turns(path, 2)
    write_turn(path, 1, 77, word=5, flags=lib.PTG_TURN_SHORT, serial=3, deadline_ns=9, heartbeat_ns=1000)
    write_turn(path, 1, 77, outstanding_us=500, fallback=300, charged_ns=12)
    found = read_turns(path)
    assert found is not None
    turn = found.turns[1]
    assert (found.arbiter, turn.is_open, turn.is_short, turn.is_watched) == (77, True, True, False)
    assert (turn.serial, turn.deadline_ns, turn.outstanding_us, turn.fallback, turn.charged_ns) == (3, 9, 500, 300, 12)
    assert turn.is_answered(1000 + lib.PTG_PATIENCE_NS)
    assert not turn.is_answered(1001 + lib.PTG_PATIENCE_NS)
    assert not found.turns[0].is_open


@pytest.mark.parametrize("change", [b"", b"\0" * 64, b"PRTGTRN1"])
def test_what_is_no_turns_file_is_none(tmp_path, change):
    (tmp_path / "turns").write_bytes(change)
    assert read_turns(tmp_path / "turns") is None
    assert read_turns_size(tmp_path / "missing") is None
