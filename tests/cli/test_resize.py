"""We test these aspects of `partage resize`: growth and shrinking hold at the program's next allocation; what is in use
is never taken away; a card's promise is kept here too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partage.shm import read_policy

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
    assert "2 GiB over the new limit" in result.stdout
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
    assert len(result.stderr.splitlines()) == 1


def test_one_of_two_devices_is_resized(make_machine):
    machine = make_machine("zero2")
    program = machine.start("--memory", "4Gi", "--device", "0,1")
    refused = machine.partage("resize", name_of(program), "--memory", "5Gi")
    assert (refused.returncode, "name one with --device" in refused.stderr) == (2, True)
    assert machine.partage("resize", name_of(program), "--memory", "5Gi", "--device", "1").returncode == 0
    shares = json.loads(machine.partage("top", "--json").stdout)["shares"]
    assert [share["limit"] for share in shares] == [4 * GIB, 5 * GIB]


def test_resizes_at_once_leave_one_of_them_and_keep_the_card(machine):
    first, second = machine.start("--memory", "30Gi"), machine.start("--memory", "30Gi")
    names = [name_of(first), name_of(second)]
    commands = [["resize", name, "--memory", f"{size}Gi"] for size in (35, 45, 49) for name in names]
    at_once = [
        subprocess.Popen(
            [sys.executable, "-m", "partage", *command],
            env=machine.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    assert {process.wait(200) for process in at_once} <= {0, 3}
    limits = [program.ask("info")[1] // GIB for program in (first, second)]
    assert set(limits) <= {30, 35, 45, 49}
    assert sum(limits) <= 80


def test_a_tenants_environment_raises_nothing(machine):
    program = machine.start("--memory", "4Gi", CUDA_DEVICE_MEMORY_LIMIT="64g", CUDA_DISABLE_CONTROL="true")
    assert program.ask("info") == [4 * GIB, 4 * GIB]
    assert machine.partage("resize", name_of(program), "--memory", "6Gi").returncode == 0
    assert program.ask("info") == [6 * GIB, 6 * GIB]
    assert program.ask("alloc", 7 * GIB) == OUT_OF_MEMORY


# ---- compute ---------------------------------------------------------------------------------------------------------


def policy_of(program):
    return read_policy(Path(program.environment()["PARTAGE_DIR"]) / "policy")


def test_cores_class_priority_and_weight_change_while_it_runs(machine):
    program = machine.start("--memory", "4Gi", "--cores", "30%")
    name = name_of(program)
    result = machine.partage("resize", name, "--cores", "60%", "--priority", "P0")
    assert "cores 30 % -> 60 %, ceiling 30 % -> 60 %, priority P1 -> P0, weight 300 -> 600" in result.stdout
    share, policy = policy_of(program).devices[0], policy_of(program)
    assert (share.cores, share.ceiling, share.weight, policy.priority, share.memory) == (600, 600, 600, 0, 4 * GIB)
    assert machine.partage("resize", name, "--class", "burst", "--weight", "7").returncode == 0
    share, policy = policy_of(program).devices[0], policy_of(program)
    assert (share.cores, share.ceiling, share.weight, policy.share_class) == (600, 1000, 7, "burst")
    assert machine.partage("resize", name, "--cores", "20%").returncode == 0
    assert policy_of(program).devices[0].weight == 7  # somebody asked for it
    assert machine.partage("resize", name, "--class", "best-effort").returncode == 0
    share = policy_of(program).devices[0]
    assert (share.cores, share.ceiling) == (0, 200)
    assert machine.partage("resize", name, "--class", "fixed").returncode == 0
    share = policy_of(program).devices[0]
    assert (share.cores, share.ceiling) == (200, 200)
    assert policy_of(program).generation == 6


def test_a_share_without_cores_cannot_become_fixed(machine):
    name = name_of(machine.start("--memory", "4Gi"))
    result = machine.partage("resize", name, "--class", "fixed")
    assert (result.returncode, "add --cores" in result.stderr) == (2, True)
    assert machine.partage("resize", name, "--class", "fixed", "--cores", "10%").returncode == 0


def test_guarantees_beyond_the_card_are_refused_with_their_sum(machine):
    first, second = (machine.start("--memory", "4Gi", "--cores", cores) for cores in ("30%", "60%"))
    result = machine.partage("resize", name_of(first), "--cores", "50%")
    assert result.returncode == 3
    assert "cores 50 % asked, 110 % with all promised" in result.stderr
    assert f"40 % is free (held by {name_of(second)})" in result.stderr
    assert policy_of(first).devices[0].cores == 300
    result = machine.partage("run", "--memory", "1Gi", "--cores", "10.1%", "--", "true")
    assert result.returncode == 3
    assert "100.1 % with all promised" in result.stderr


@pytest.mark.parametrize("cores", ["0", "101", "-1", "30.55%", "half"])
@pytest.mark.parametrize("command", ["run", "resize"])
def test_cores_that_are_no_amount_name_the_accepted_forms(machine, command, cores):
    arguments = {
        "run": ["run", "--memory", "1Gi", f"--cores={cores}", "--", "true"],
        "resize": ["x", f"--cores={cores}"],
    }
    result = machine.partage(*(["resize"] if command == "resize" else []), *arguments[command])
    assert result.returncode == 2
    assert "accepted: 30, 30%, 30.5%, 305‰" in result.stderr


@pytest.mark.parametrize("weight", ["0", "10001", "heavy", "-1"])
def test_weights_that_are_none_name_the_accepted_ones(machine, weight):
    result = machine.partage("run", "--memory", "1Gi", f"--weight={weight}", "--", "true")
    assert (result.returncode, "from 1 to 10000" in result.stderr) == (2, True)


def test_a_weight_is_asked_for_at_the_start(machine):
    assert policy_of(machine.start("--memory", "1Gi", "--weight", "250")).devices[0].weight == 250
