"""We test these aspects of `partage top`: it shows each share's use and limit with its processes; its JSON has stable
keys; it never fails because of what a tenant did to its ledger; it makes no machine of its own accord."""

from __future__ import annotations

import json
import os
from pathlib import Path

GIB = 1 << 30


def test_shares_and_their_processes_are_shown(machine):
    program = machine.start("--memory", "24Gi", "--cores", "30%", "--priority", "P0")
    program.ask("alloc", 3 * GIB)
    program.ask("alloc", 30 * GIB)
    shown = json.loads(machine.partage("top", "--json").stdout)
    (share,) = shown["shares"]
    assert (share["used"], share["limit"], share["cores"]) == (3 * GIB, 24 * GIB, 300)
    assert (share["share_class"], share["priority"], share["enforcement"]) == ("fixed", 0, "shim")
    assert (share["compute_got"], share["state"], share["note"]) == (None, "open", "")
    (process,) = share["processes"]
    assert (process["pid"], process["used"], process["refused"]) == (program.pid, 3 * GIB, 1)
    (device,) = shown["devices"]
    assert device["uuid"] == share["uuid"]
    assert device["used"] == 3 * GIB


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
    assert json.loads(result.stdout) == {"devices": [], "notes": [], "shares": []}
    assert not Path(machine.environment["PARTAGE_SIM_DIR"], "machine").exists()
