"""Compute limits that do not hold elsewhere (C017, C022, C024, C042, C043, C045, C046, C047, C048, C049, D14), with the
whole way: `partage run`, the library, the arbiter.

What is counted here: every launch passes the gate, whatever its door and shape, and whoever has used up what it may
waits there for a turn. How much time that gives is shown in simulated time (tests/c/arbiter) and measured by
bench/shares.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from partage.run.handover import HandOver
from partage.shm import read_turn_lines

from .conftest import TurnWord

WORKER = Path(__file__).with_name("worker.py")
MS = 1_000_000
AHEAD = 64  # launches that a process may make before it writes down how many it made
WORK = 300  # launches of 1 ms: more than an idle tenant has saved, several times


class Worker:
    """A worker under a share of its own."""

    def __init__(self, machine, door: str, kernel_ns: int, *share: str, devices: tuple[int, ...] = (0,), **how) -> None:
        program = (sys.executable, str(WORKER), door, str(kernel_ns), *map(str, devices))
        self.program = machine.start("--memory", "1Gi", *share, program=program, **how)
        self.hand_over = HandOver(Path(self.program.environment()["PARTAGE_DIR"]))

    def tell(self, *command: object) -> None:
        self.program.process.stdin.write(json.dumps(command) + "\n")
        self.program.process.stdin.flush()

    def hear(self) -> object:
        return json.loads(self.program.process.stdout.readline())

    def ask(self, *command: object) -> object:
        self.tell(*command)
        return self.hear()

    def launches(self, device: int = 0) -> int:
        """Return how many launches passed the gate of a device, as the processes of the share have written down."""
        return sum(line[device].launches for line in self._lines())

    def waits(self, device: int = 0) -> int:
        """Return how often a launch had to wait there."""
        return sum(line[device].waits for line in self._lines())

    def _lines(self):
        ledger = self.hand_over.ledger()
        return read_turn_lines(
            self.hand_over.ledger_path, [slot.index for slot in ledger.slots], len(ledger.devices)
        ).values()


def counted(worker: Worker, made: int, device: int = 0) -> bool:
    """Whether so many launches passed the gate, no more and no fewer."""
    return made - AHEAD <= worker.launches(device) <= made


@pytest.mark.parametrize(
    ("door", "kernel_ns", "count"),
    [
        ("plain", MS, WORK),
        ("ex", MS, WORK),
        ("cooperative", MS, WORK),
        ("graph", MS // 10, WORK),
        ("sync", MS, WORK),
        ("plain", MS // 50, 50 * WORK),
    ],
    ids=["plain", "extended", "cooperative", "graph", "launch and wait", "tiny"],
)
def test_no_door_and_no_shape_gets_more_than_the_share(machine, door, kernel_ns, count):
    """C042: every launch; C043: graphs; C047: programs that wait for each kernel, and kernels of 20 us."""
    worker = Worker(machine, door, kernel_ns, "--cores", "20%")
    worker.ask("launch", count)
    assert counted(worker, count)
    assert worker.waits() > 1


def test_a_huge_launch_is_repaid_and_does_not_freeze(machine):
    """C045: the largest grid, for 300 ms: what follows it waits, and goes on then."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    worker.ask("one", 300 * MS)
    before = worker.waits()
    worker.ask("one", 300 * MS)
    between = worker.waits()
    assert between > before, "the second did not wait for the first one's debt"
    worker.ask("launch", 1)
    assert worker.waits() > between


def test_a_small_card_gives_what_was_asked(make_machine, tmp_path):
    """C046: 33 % of a card of 20 multiprocessors is no hundredth of it."""
    profile = tmp_path / "small.toml"
    profile.write_text(
        'name = "small"\n[[device]]\nname = "Small SIMULATED"\nmemory = "8 GiB"\nsms = 20\ncc_major = 7\n'
        'clock_khz = 1400000\nmemory_clock_khz = 5000000\nbus_width = 128\nl2_bytes = "1 MiB"\narchitecture = 5\n'
        'power_limit_mw = 50000\nswitch_us = 0\n[[cost]]\npattern = "*spin_ns*"\nduration_arg = 0\n'
    )
    machine = make_machine("zero")
    assert machine.partage("sim", "create", str(profile)).returncode == 0
    small = Worker(machine, "plain", MS, "--cores", "33%")
    beside = Worker(machine, "plain", MS, "--cores", "1%")
    beside.tell("go")
    small.ask("launch", WORK)
    assert counted(small, WORK)
    assert beside.launches() < small.launches(), "33 shares of a hundred came to no more than one"


def test_each_card_has_its_own_limit(make_machine):
    """C022, C024: 60 % of one card and 20 % of another, for one program on both."""
    machine = make_machine("zero2")
    worker = Worker(machine, "plain", MS, "--cores", "60%", "--device", "0,1", devices=(0, 1))
    name = worker.hand_over.name
    assert machine.partage("resize", name, "--device", "1", "--cores", "20%").returncode == 0
    assert [device.cores for device in worker.hand_over.policy().devices] == [600, 200]
    other = Worker(machine, "plain", MS, "--cores", "20%", "--device", "0")
    worker.tell("go")
    other.ask("launch", WORK)
    assert counted(other, WORK), "throttled for what somebody else does"
    worker.ask("pause")
    assert min(worker.waits(0), worker.waits(1)) > 0
    assert other.waits() > 1


def test_lower_priority_is_held_back_where_the_higher_works(make_machine):
    """C048: on the card that both use, what is left goes to the higher one; the other card is the lower one's."""
    machine = make_machine("zero2")
    low = Worker(machine, "plain", MS, "--cores", "10%", "--class", "burst", "--priority", "P2", "--device", "1")
    free = Worker(machine, "plain", MS, "--cores", "10%", "--class", "burst", "--priority", "P2", "--device", "0")
    high = Worker(machine, "plain", MS, "--cores", "30%", "--class", "burst", "--priority", "P0", "--device", "1")
    turn = TurnWord(high.hand_over.path / "turns")
    low.tell("go")
    high.tell("go")
    turn.until(lambda: high.launches() > 0)
    above, below = high.launches(), low.launches()  # at the end in the other order: this test may stand still
    turn.until(lambda: high.launches() > above + 2 * WORK)
    below = low.launches() - below
    assert below < high.launches() - above, "the lower priority got more than the higher"
    high.ask("pause")
    free.ask("launch", WORK)
    assert free.waits() == 0, "nobody else is there on its card"


@pytest.mark.parametrize("share", [(), ("--cores", "100%")], ids=["unset", "all"])
def test_no_limit_costs_no_thread(machine, share):
    """C049: no cores, or all of them, and nobody beside: nothing waits and nothing watches."""
    plain = Worker(machine, "plain", MS, *share)
    plain.ask("launch", 3)
    assert [name for name in plain.ask("threads") if name.startswith("vgpu")] == []
    limited = Worker(machine, "plain", MS, "--cores", "50%") if not share else None
    if limited:
        limited.ask("launch", 3)
        deadline = time.monotonic() + 100
        while "vgpu-gate" not in limited.ask("threads"):  # a thread gives itself its name, once it runs
            assert time.monotonic() < deadline, "the name that is looked for is not its name"


def test_a_limit_does_not_go_to_sleep(machine):
    """D14: idle for a while, a neighbour comes and goes, and the limit is there again each time."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    for _ in range(2):
        before = worker.waits()
        worker.ask("launch", WORK)
        assert worker.waits() > before + 1
        neighbour = Worker(machine, "plain", MS, "--cores", "20%")
        neighbour.ask("launch", 3)
        neighbour.program.finish()


def test_a_kill_at_the_start_leaves_no_process_without_a_limit(machine):
    """C017: one of 17 processes is killed as it begins; the others go on, each through the gate."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    command = [sys.executable, str(WORKER), "plain", str(MS), "0"]
    peers = [machine.join(worker.program, command) for _ in range(4)]
    victim = machine.join(worker.program, command)
    victim.process.stdin.write('["go"]\n')
    victim.process.stdin.flush()
    os.kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    for peer in peers:
        peer.process.stdin.write(json.dumps(["launch", WORK // 4]) + "\n")
        peer.process.stdin.flush()
    for peer in peers:
        assert json.loads(peer.process.stdout.readline()) == []
    assert worker.launches() >= WORK - len(peers) * AHEAD
    assert worker.waits() > 1
