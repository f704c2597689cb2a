"""We test these aspects of shares in containers (pid and mount namespaces, another user, a read-only root): the library
finds its hand-over and holds its limit; turns come through mappings of other namespaces; what dies in a container is
found and given back outside, by the pid that counts there; a container that starts anew goes on with its ledger; and
whatever a container does to its files, their locks included, its neighbours and the host go on.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace

import pytest

from partage import locks
from partage._abi import lib
from partage.run.processes import find_process
from tests.container.conftest import MIB, Node, Program, Share

UID = 12345
OUT_OF_MEMORY = "2"


def launches_in_turns(share: Share, program: Program) -> bool:
    """Let it launch until it was given a turn for that; an arbiter that a busy machine keeps waiting gives none."""
    served = share.serial()
    for _ in range(20):
        assert program.ask("launch", 30) == "0"
        if share.serial() > served:
            return True
    return False


@pytest.mark.parametrize(("uid", "user_ns"), [(UID, False), (0, True), (0, False)], ids=["user", "user-ns", "root"])
def test_a_container_has_its_share_and_its_turns(node: Node, *, uid: int, user_ns: bool) -> None:
    share = node.share("h-1")
    with share.start(uid, user_ns=user_ns) as program:
        assert program.lines.get("self") == ["1"], program.lines
        assert program.ask("alloc", 200 * MIB) == "0"
        assert program.ask("alloc", 100 * MIB) == OUT_OF_MEMORY
        assert share.entry.ledger().used(share.uuid) == 200 * MIB
        assert launches_in_turns(share, program), "it launched without a turn"
        assert (node.stats().tenants, node.stats().gated, node.stats().devices) == (1, 1, 1)


def test_two_containers_take_turns(node: Node) -> None:
    first, second = node.share("h-1"), node.share("h-2")
    with first.start(UID) as one, second.start(UID + 1) as two:
        one.order("launch", 300)
        two.order("launch", 300)
        assert (one.answer(), two.answer()) == ("0", "0")
        assert min(first.serial(), second.serial()) > 1, "each had more than one turn"


def test_a_process_is_known_by_its_pid_outside_and_given_back_when_it_dies(node: Node) -> None:
    share = node.share("h-1")
    with contextlib.closing(share.watch()) as watcher, share.start(UID) as program:
        assert program.ask("alloc", 64 * MIB) == "0"
        watcher.step()
        (slot,) = share.entry.ledger().slots
        assert (slot.pid, slot.host_pid) == (1, program.host_pid)
        program.kill()
        watcher.settle()
        assert share.entry.ledger().slots == ()
        assert share.entry.ledger().used(share.uuid) == 0


def test_a_container_that_starts_anew_goes_on_with_its_ledger(node: Node) -> None:
    share = node.share("h-1")
    for _ in range(3):
        with share.start(UID) as program:
            assert program.ask("alloc", 200 * MIB) == "0"
            assert program.ask("launch", 3) == "0"
            assert share.entry.ledger().used(share.uuid) == 200 * MIB
            program.kill()  # nobody watches: the next pid 1 gives it back itself


@pytest.mark.parametrize("uid", [UID, 0], ids=["user", "root"])
def test_a_container_writes_its_ledger_and_nothing_else(node: Node, uid: int) -> None:
    with node.share("h-1").start(uid) as program:
        words = program.ask("spoil").split()
        seen = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert seen.pop("ledger") == 0
        assert set(seen.values()) <= {errno.EROFS, errno.EACCES, errno.EBUSY}, seen


@pytest.mark.parametrize("uid", [UID, 0], ids=["user", "root"])
def test_locks_and_leases_of_a_container_hold_nobody_up(node: Node, uid: int) -> None:
    share, beside = node.share("h-1"), node.share("h-2")
    with share.start(uid) as program, beside.start(UID) as neighbour:
        locked = int(program.ask("lock").split()[0])
        assert locked > lib.PTG_SLOTS, "as good as all bytes of its ledger"
        with share.entry.ledger_path.open("r+b") as file:
            assert not locks.try_lock(file.fileno(), lib.PTG_LOCK_WATCH)
        with contextlib.closing(share.watch()) as watcher:
            watcher.step()
            assert [slot.host_pid for slot in share.entry.ledger().slots] == [program.host_pid]
        assert neighbour.ask("launch", 30) == "0"
        assert program.ask("launch", 3) == "0", "it had its slot before"
        share.policy.update(lambda policy: policy.changed(share.uuid, cores=200, ceiling=200))
        assert share.entry.policy().devices[0].cores == 200


def test_an_arbiter_that_comes_is_not_kept_waiting_by_a_lease(node: Node) -> None:
    """Who owns a file, as root in a container does, can make others wait who open it, for 45 s."""
    share, beside = node.share("h-1"), node.share("h-2")
    with share.start(0) as program, beside.start(UID) as neighbour:
        node.rest()
        _, on_policy, on_turns = map(int, program.ask("lock").split())
        assert (on_policy, on_turns) == (errno.EAGAIN, 0), "the policy's writer has it open, nobody else the turns"
        node.serve()
        assert launches_in_turns(beside, neighbour)


def test_a_ledger_does_not_stay_larger_than_it_is(node: Node) -> None:
    share = node.share("h-1")
    size = share.entry.ledger_path.stat().st_size
    with contextlib.closing(share.watch()) as watcher, share.start(UID) as program:
        assert program.ask("alloc", 2 * MIB) == "0"
        assert program.ask("cut", 1 << 30) == "0"
        watcher.step()
        assert share.entry.ledger_path.stat().st_size == size
        assert share.entry.ledger().used(share.uuid) == 2 * MIB


def test_a_ledger_that_its_container_cuts_is_its_own_loss(node: Node) -> None:
    share, beside = node.share("h-1"), node.share("h-2")
    with contextlib.closing(share.watch()) as watcher, share.start(UID) as program, beside.start(UID) as neighbour:
        assert program.ask("alloc", MIB) == "0"
        watcher.step()
        for size in (1 << 21, 8192, lib.PTG_BELL_PAGE, 100, 0):
            assert program.ask("cut", size) == "0"
            watcher.step()
            assert neighbour.ask("launch", 20) == "0"
        assert not share.entry.policy().is_open, "it is closed"


def test_programs_of_the_same_number_are_told_apart(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are pid 1 of their containers, and may have begun within the same tick of the clock."""
    monkeypatch.setattr("partage.run.processes.start_time", lambda _: 7)
    shares = [node.share(f"h-{number}") for number in range(3)]
    with contextlib.ExitStack() as running:
        programs = [running.enter_context(share.start(UID)) for share in shares]
        for program in programs:
            assert program.ask("alloc", MIB) == "0"
        slots = [replace(share.entry.ledger().slots[0], start_time=7) for share in shares]
        assert [find_process(slot) for slot in slots] == [program.host_pid for program in programs]
