"""We test these aspects (C008, C036) of what the driver keeps for itself, on a small card whose contexts and modules
cost memory: the view inside a share agrees with the card's own count; neighbours are never the ones who are refused;
a share smaller than a context still answers; memory of the dead is gone from ledger and card alike."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from partage.run.handover import HandOver

MIB = 1 << 20
GIB = 1 << 30
GRANULE = 2 * MIB
OUT_OF_MEMORY = 2
CONTEXT = 300 * MIB
MODULE = 50 * MIB
PROFILE = f"""
name = "small"
[[device]]
name = "Card SIMULATED"
memory = {4 * GIB}
context = {CONTEXT}
module = {MODULE}
sms = 4
cc_major = 8
clock_khz = 1000000
memory_clock_khz = 1000000
bus_width = 256
l2_bytes = "4 MiB"
architecture = 7
power_limit_mw = 100000
"""


@pytest.fixture
def card(make_machine, tmp_path):
    """One card of 4 GiB: 300 MiB a context, 50 MiB a module."""
    machine = make_machine("zero")
    profile = tmp_path / "small.toml"
    profile.write_text(PROFILE)
    made = machine.partage("sim", "create", str(profile))
    assert made.returncode == 0, made.stderr
    return machine


def real_use(machine) -> dict[int, int]:
    """Return the bytes of the card by process, in the words of the simulator itself."""
    shown = json.loads(machine.partage("sim", "show", "--json").stdout)
    return {client["pid"]: sum(client["memory"]) for client in shown["clients"]}


def share_of(program) -> HandOver:
    return HandOver(Path(program.environment()["PARTAGE_DIR"]))


def used_by(entry: HandOver) -> int:
    return entry.ledger().devices[0].used + entry.policy().devices[0].overhead


def settled(card, program) -> int:
    """Wait until the watcher has seen what the process really holds; return that."""
    real = real_use(card)[program.pid]
    program.until(lambda: used_by(share_of(program)) == real)
    return real


def test_the_view_inside_is_the_cards_own_count(card):
    program = card.start("--memory", "1Gi", narrated=True)
    assert settled(card, program) == CONTEXT
    for _ in range(3):
        assert program.ask("module") == 0
    assert program.ask("alloc", 100 * MIB) == 0
    real = settled(card, program)
    assert real == CONTEXT + 3 * MODULE + 100 * MIB
    assert program.ask("info") == [GIB - real, GIB]
    assert program.ask("nvml") == [real, GIB]


def test_four_full_slices_fill_the_card_and_each_is_refused_at_its_own_limit(card):
    programs = [card.start("--memory", "1Gi", narrated=True) for _ in range(4)]
    for program in programs:
        assert program.ask("module") == 0
        settled(card, program)
    for program in programs:
        assert program.ask("fill", GRANULE) == (GIB - CONTEXT - MODULE) // GRANULE * GRANULE
        assert GIB - GRANULE < real_use(card)[program.pid] <= GIB
    greedy, *others = programs
    assert greedy.ask("alloc", GRANULE) == OUT_OF_MEMORY
    for other in others:
        assert other.ask("free") == 0
        assert other.ask("alloc", GRANULE) == 0, "what it freed is its own"


def test_a_share_smaller_than_a_context_still_answers(card):
    program = card.start("--memory", "100Mi", narrated=True)
    assert settled(card, program) == CONTEXT
    assert program.ask("info") == [0, 100 * MIB]
    used, total = program.ask("nvml")
    assert used <= total == 100 * MIB
    assert program.ask("alloc", 1) == OUT_OF_MEMORY


@pytest.mark.parametrize("profile", ["h100-80g", "v100"])
def test_after_kill_9_the_ledger_says_what_the_card_says(make_machine, profile):
    machine = make_machine(profile)
    first = machine.start("--memory", "20Gi", narrated=True)
    second = machine.join(first)
    assert first.ask("alloc", GIB) == 0
    assert second.ask("alloc", 3 * GIB) == 0
    assert second.ask("module") == 0
    entry = share_of(first)
    os.kill(second.pid, signal.SIGKILL)
    first.until(lambda: entry.ledger().reclaimed == 1)
    (device,) = json.loads(machine.partage("sim", "show", "--json").stdout)["devices"]
    assert entry.ledger().used(device["uuid"]) == device["used"]
    first.until(lambda: entry.policy().devices[0].overhead == 0)
