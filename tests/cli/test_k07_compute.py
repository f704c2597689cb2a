"""Compute limits that do not hold elsewhere (C017, C022, C024, C042, C043, C045, C046, C047, C048, C049, D14), with
real time and the whole way: `partage run`, the library, the arbiter.

Only one side is asserted tightly, the one that no busy machine can move: a program that may have a part of the device's
time never gets more of it, by the simulated engine's own count. That it gets as much is asserted widely here, where the
fault was that it got next to nothing, and exactly in simulated time (tests/c/arbiter) and by bench/shares.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from partage.sim.machine import Machine as SimulatedMachine
from partage.sim.state import read_state

from .conftest import eventually

WORKER = Path(__file__).with_name("worker.py")
MS = 1_000_000
WINDOW_S = 1.5
SAVED_S = 0.2  # an idle tenant saves this much of its share
TURN_S = 0.02  # the last turn is run to its end


def most(percent: float, launch_s: float = 0.001) -> float:
    """Return the most that a share can get of a window, in percent: with what it saved, its last turn and launch."""
    return percent * (WINDOW_S + SAVED_S) / WINDOW_S + 100 * (TURN_S + launch_s) / WINDOW_S + 1.0


class Worker:
    """A worker under a share of its own."""

    def __init__(self, machine, door: str, kernel_ns: int, *share: str, devices: tuple[int, ...] = (0,)) -> None:
        program = (sys.executable, str(WORKER), door, str(kernel_ns), *map(str, devices))
        self.machine, self.program = machine, machine.start("--memory", "1Gi", *share, program=program)
        self.pids = [self.program.pid]

    def tell(self, *command: object) -> None:
        self.program.process.stdin.write(json.dumps(command) + "\n")
        self.program.process.stdin.flush()

    def hear(self) -> object:
        return json.loads(self.program.process.stdout.readline())

    def ask(self, *command: object) -> object:
        self.tell(*command)
        return self.hear()

    def busy_ns(self, device: int = 0) -> int:
        with SimulatedMachine(Path(self.machine.environment["PARTAGE_SIM_DIR"], "machine")) as there:
            clients = read_state(there).clients
        return sum(client.busy_ns[device] for client in clients if client.pid in self.pids)

    def go(self) -> None:
        """Let it launch, and wait until the engine has seen it."""
        before = self.busy_total()
        self.tell("go")
        eventually(lambda: self.busy_total() > before)

    def busy_total(self) -> int:
        with SimulatedMachine(Path(self.machine.environment["PARTAGE_SIM_DIR"], "machine")) as there:
            return sum(sum(client.busy_ns) for client in read_state(there).clients if client.pid in self.pids)


def shares_of(*asked: tuple[Worker, int]) -> list[float]:
    """Return what each worker gets of each device in one window, in percent."""
    began, before = time.monotonic_ns(), [worker.busy_ns(device) for worker, device in asked]
    time.sleep(WINDOW_S)
    after, took = [worker.busy_ns(device) for worker, device in asked], time.monotonic_ns() - began
    return [100 * (now - past) / took for now, past in zip(after, before, strict=True)]


@pytest.mark.parametrize(
    ("door", "kernel_ns"),
    [("plain", MS), ("ex", MS), ("cooperative", MS), ("graph", MS // 10), ("sync", MS), ("plain", MS // 50)],
    ids=["plain", "extended", "cooperative", "graph", "launch and wait", "tiny"],
)
def test_no_door_and_no_shape_gets_more_than_the_share(machine, door, kernel_ns):
    """C042: every launch; C043: graphs; C047: programs that wait for each kernel, and kernels of 20 us."""
    worker = Worker(machine, door, kernel_ns, "--cores", "20%")
    worker.go()
    (got,) = shares_of((worker, 0))
    assert 5 < got < most(20)


def test_a_huge_launch_is_repaid_and_does_not_freeze(machine):
    """C045: the largest grid, for 300 ms: the share holds over it, and small launches go on in bounded time."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    began = time.monotonic()
    worker.ask("one", 300 * MS)
    worker.ask("one", 300 * MS)
    used = worker.busy_ns() / 1e9
    assert time.monotonic() - began >= used - SAVED_S * 0.2 - TURN_S, "two launches in less time than they last"
    worker.go()
    took = time.monotonic() - began
    assert took >= (used - 0.3 - TURN_S) / 0.2 - SAVED_S, "the first was not repaid before what followed the second"
    assert took < 30


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
    worker = Worker(machine, "plain", MS, "--cores", "33%")
    worker.go()
    (got,) = shares_of((worker, 0))
    assert 15 < got < most(33)


def test_each_card_has_its_own_limit(make_machine):
    """C022, C024: 60 % of one card and 20 % of another, for one program on both."""
    machine = make_machine("zero2")
    worker = Worker(machine, "plain", MS, "--cores", "60%", "--device", "0,1", devices=(0, 1))
    (name,) = machine.hand_overs()
    assert machine.partage("resize", name, "--device", "1", "--cores", "20%").returncode == 0
    other = Worker(machine, "plain", MS, "--cores", "20%", "--device", "0")
    other.go()
    worker.go()
    first, second, beside = shares_of((worker, 0), (worker, 1), (other, 0))
    assert (first < most(60), second < most(20), beside < most(20)) == (True, True, True)
    assert beside > 5, "throttled for what somebody else does"


def test_lower_priority_is_held_back_where_the_higher_works(make_machine):
    """C048: on the card that both use, what is left goes to the higher one; the other card is the lower one's."""
    machine = make_machine("zero2")
    low = Worker(machine, "plain", MS, "--cores", "10%", "--class", "burst", "--priority", "P2", "--device", "1")
    free = Worker(machine, "plain", MS, "--cores", "10%", "--class", "burst", "--priority", "P2", "--device", "0")
    high = Worker(machine, "plain", MS, "--cores", "30%", "--class", "burst", "--priority", "P0", "--device", "1")
    for worker in (low, free, high):
        worker.go()
    time.sleep(SAVED_S)
    shared, alone, first = shares_of((low, 1), (free, 0), (high, 1))
    assert alone > 30, "nobody else is there"
    assert shared < first, "the lower priority got more than the higher"


@pytest.mark.parametrize("share", [(), ("--cores", "100%")], ids=["unset", "all"])
def test_no_limit_costs_no_thread(machine, share):
    """C049: no cores, or all of them, and nobody beside: nothing waits and nothing watches."""
    plain = Worker(machine, "plain", MS, *share)
    plain.go()
    plain.ask("pause")
    assert [name for name in plain.ask("threads") if name.startswith("vgpu")] == []
    limited = Worker(machine, "plain", MS, "--cores", "50%") if not share else None
    if limited:
        limited.go()
        limited.ask("pause")
        assert "vgpu-gate" in limited.ask("threads"), "the name that is looked for is not its name"


def test_a_limit_does_not_go_to_sleep(machine):
    """D14: idle for a while, a neighbour comes and goes, and the limit is there again each time."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    for _ in range(2):
        worker.go()
        assert shares_of((worker, 0))[0] < most(20)
        worker.ask("pause")
        neighbour = Worker(machine, "plain", MS, "--cores", "20%")
        neighbour.go()
        neighbour.ask("pause")
        neighbour.program.finish()


def test_a_kill_at_the_start_leaves_no_process_without_a_limit(machine):
    """C017: one of 17 processes is killed as it begins; together the others get the share, and no more."""
    worker = Worker(machine, "plain", MS, "--cores", "20%")
    command = [sys.executable, str(WORKER), "plain", str(MS), "0"]
    peers = [machine.join(worker.program, command) for _ in range(4)]
    victim = machine.join(worker.program, command)
    victim.process.stdin.write('["go"]\n')
    victim.process.stdin.flush()
    os.kill(victim.pid, signal.SIGKILL)
    worker.pids += [peer.pid for peer in peers]
    for peer in peers:
        peer.process.stdin.write('["go"]\n')
        peer.process.stdin.flush()
    worker.go()
    assert 5 < shares_of((worker, 0))[0] < most(20, 0.02)  # several processes have a launch each in flight
