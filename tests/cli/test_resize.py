"""We test these aspects of `partage resize`: growth and shrinking hold at the program's next allocation; what is in use
is never taken away; a card's promise is kept here too."""

from __future__ import annotations

from pathlib import Path

import pytest

GIB = 1 << 30
OUT_OF_MEMORY = 2


def name_of(program) -> str:
    return Path(program.environment()["PARTAGE_DIR"]).name


def test_growth_and_shrinking_hold_at_once(machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 5 * GIB) == OUT_OF_MEMORY
    result = machine.partage("resize", name_of(program), "--memory", "6Gi")
    assert result.returncode == 0
    assert "memory 4 GiB -> 6 GiB" in result.stdout
    assert program.ask("info") == [6 * GIB, 6 * GIB]
    assert program.ask("alloc", 5 * GIB) == 0
    assert machine.partage("resize", name_of(program), "--memory", "5Gi").returncode == 0
    assert program.ask("alloc", 2 << 20) == OUT_OF_MEMORY


def test_shrinking_below_use_takes_nothing_and_says_so(machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 3 * GIB) == 0
    result = machine.partage("resize", name_of(program), "--memory", "1Gi")
    assert result.returncode == 0
    assert "2 GiB over" in result.stderr
    assert program.ask("alloc", 4096) == OUT_OF_MEMORY
    assert program.ask("info") == [0, GIB]
    assert program.ask("free") == 0
    assert program.ask("alloc", GIB) == 0


def test_a_card_is_not_promised_twice_by_growth(machine):
    first, second = machine.start("--memory", "40Gi"), machine.start("--memory", "30Gi")
    result = machine.partage("resize", name_of(first), "--memory", "60Gi")
    assert result.returncode == 3
    assert name_of(second) in result.stderr
    assert first.ask("info")[1] == 40 * GIB
    assert machine.partage("resize", name_of(second), "--memory", "10Gi").returncode == 0
    assert machine.partage("resize", name_of(first), "--memory", "60Gi").returncode == 0
    assert first.ask("info")[1] == 60 * GIB


def test_a_name_may_be_shortened_where_it_is_clear(machine):
    first = machine.start("--memory", "4Gi")
    assert machine.partage("resize", "python", "--memory", "5Gi").returncode == 0
    machine.start("--memory", "4Gi")
    result = machine.partage("resize", "python", "--memory", "5Gi")
    assert result.returncode == 5
    assert name_of(first) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch", "--memory", "1Gi"], 5, "not running"),
        (["nosuch"], 2, "nothing to change"),
        (["nosuch", "--memory", "0"], 2, "accepted"),
    ],
)
def test_each_refusal_says_why(machine, arguments, code, words):
    result = machine.partage("resize", *arguments)
    assert (result.returncode, words in result.stderr) == (code, True)
