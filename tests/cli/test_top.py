"""We test these aspects of `partage top`: it shows each share's use and limit with its processes; its JSON has stable
keys; it never fails because of what a tenant did to its ledger; it makes no machine of its own accord."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from partage.cli.top import look, render

WORKER = Path(__file__).with_name("worker.py")
GIB = 1 << 30


def test_shares_and_their_processes_are_shown(machine):
    program = machine.start("--memory", "24Gi", "--cores", "30%", "--priority", "P0")
    program.ask("alloc", 3 * GIB)
    program.ask("alloc", 30 * GIB)
    shown = json.loads(machine.partage("top", "--json").stdout)
    (share,) = shown["shares"]
    assert (share["used"], share["limit"], share["cores"]) == (3 * GIB, 24 * GIB, 300)
    assert (share["share_class"], share["priority"], share["enforcement"]) == ("fixed", 0, "shim")
    assert (share["compute_got"], share["got_by"], share["state"], share["note"]) == (0, "turns", "open", "")
    assert (share["ceiling"], share["degraded"], share["trend"]) == (300, False, [0])
    assert shown["interval_ns"] > 0
    (process,) = share["processes"]
    assert (process["pid"], process["used"], process["refused"]) == (program.pid, 3 * GIB, 1)
    (device,) = shown["devices"]
    assert device["uuid"] == share["uuid"]
    assert device["used"] == 3 * GIB


@pytest.mark.parametrize(("share", "by"), [((), "nvml"), (("--cores", "40%"), "turns")])
def test_what_a_program_gets_is_seen(machine, share, by):
    program = (sys.executable, str(WORKER), "plain", "1000000", "0")
    worker = machine.start("--memory", "1Gi", *share, program=program)
    worker.ask("launch", 1500)  # of 1 ms: NVML speaks of the last second
    worker.process.stdin.write('["go"]\n')
    worker.process.stdin.flush()
    for _ in range(20):  # a busy machine may let the program do nothing meanwhile
        share = look_for(machine)
        if share["compute_got"] > 50:
            break
    assert share["compute_got"] > 50
    assert share["got_by"] == by
    assert share["gated"] is (by == "turns")
    if by == "turns":
        assert share["charged_ns"] > 0
        assert share["processes"][0]["launches"] > 0


def look_for(machine):
    (share,) = json.loads(machine.partage("top", "--json").stdout)["shares"]
    return share


def test_the_table_is_plain_text_in_a_pipe(machine):
    program = machine.start("--memory", "24Gi", "--cores", "30%")
    name = Path(program.environment()["PARTAGE_DIR"]).name
    for arguments in (("top",), ("top", "--once")):
        result = machine.partage(*arguments)
        assert result.returncode == 0
        assert "\x1b" not in result.stdout
        row = next(line for line in result.stdout.splitlines() if line.startswith(name))
        assert "24 GiB" in row
        assert "30%" in row
        assert "fixed P1" in row


def test_a_truncated_ledger_is_a_note(machine):
    program = machine.start("--memory", "24Gi")
    os.truncate(Path(program.environment()["PARTAGE_DIR"], "ledger"), 100)
    result = machine.partage("top", "--json")
    assert result.returncode == 0
    (share,) = json.loads(result.stdout)["shares"]
    assert "100 bytes" in share["note"]


def test_looking_makes_no_machine(machine):
    result = machine.partage("top", "--json")
    shown = json.loads(result.stdout)
    assert (shown["devices"], shown["notes"], shown["shares"], shown["interval_ns"]) == ([], [], [], 0)
    assert not Path(machine.environment["PARTAGE_SIM_DIR"], "machine").exists()


def test_what_cannot_be_read_is_not_nought_and_is_said_once(make_machine):
    machine = make_machine("zero2")
    program = machine.start("--memory", "24Gi", "--device", "0,1")
    os.truncate(Path(program.environment()["PARTAGE_DIR"], "ledger"), 100)
    assert [share["used"] for share in json.loads(machine.partage("top", "--json").stdout)["shares"]] == [None, None]
    assert machine.partage("top").stdout.count("100 bytes") == 1


def test_output_that_goes_nowhere_is_no_defect(machine):
    for arguments in (("top",), ("top", "--json"), ("sim", "list"), ("doctor",)):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "partage", *arguments]
            result = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, env=machine.environment, check=False
            )
        assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run(
            command, stdout=write, stderr=subprocess.PIPE, text=True, env=machine.environment, check=False
        )
        os.close(write)
        assert (result.returncode, result.stderr) == (1, "")


def test_a_small_terminal_is_enough(machine):
    machine.start("--memory", "24Gi")
    view = look()
    for width in (1, 10, 40, 80):
        console = Console(width=width, file=io.StringIO())
        console.print(render(view, width))
        assert all(len(line) <= width for line in console.file.getvalue().splitlines())
