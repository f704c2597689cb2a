"""We test these aspects of the small commands: the exit codes are one table; help, version and completion work without
a driver; `doctor` names each fault's remedy and fails; `sim` shows, makes and disturbs machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partage._version import __version__
from partage.cli import exit_codes
from partage.cli.app import COMMANDS, main
from partage.model import PartageError


def subclasses(kind):
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_every_error_has_a_code_and_every_code_a_meaning():
    for kind in subclasses(PartageError):
        if not kind.__module__.startswith("partage."):
            continue  # the agent's, which the command line never meets
        assert exit_codes.of_error(kind.__new__(kind)) in exit_codes.MEANINGS
    assert set(exit_codes.MEANINGS) == set(exit_codes.ExitCode)


def test_errors_carry_object_value_limit_and_step():
    error = PartageError("share of GPU-a", "30 GiB asked", "7 GiB is free", "ask for less")
    assert str(error) == "share of GPU-a: 30 GiB asked; 7 GiB is free; ask for less"


def test_help_shows_every_command_and_the_exit_codes(machine):
    result = machine.partage("--help")
    assert result.returncode == 0
    assert all(f"  {name} " in result.stdout for name in COMMANDS)
    assert all(f"{code.value:>3}  {meaning}" in result.stdout for code, meaning in exit_codes.MEANINGS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(machine, name):
    assert machine.partage(name, "--help").returncode == 0


def test_version(machine):
    assert machine.partage("--version").stdout.split()[-1] == __version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_command(machine, shell):
    result = machine.partage("completion", shell)
    assert result.returncode == 0
    assert "_PARTAGE_COMPLETE" in result.stdout


def test_bash_can_source_its_completion(machine):
    script = machine.partage("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_starting_loads_no_command_that_is_not_used():
    heavy = ("pynvml", "msgspec", "partage.run", "partage.shm", "partage._abi")
    code = f"import sys, partage.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_doctor_is_content_with_a_simulated_machine(machine):
    result = machine.partage("doctor")
    assert result.returncode == 0, result.stdout
    assert "preload: active" in result.stdout
    assert "SIMULATED" in result.stdout
    assert "0 faults" in result.stdout


def test_doctor_finds_a_library_that_is_not_one(machine, tmp_path):
    broken = tmp_path / "libvgpu.so"
    broken.write_bytes(b"\x7fELF nonsense")
    result = machine.partage("doctor", PARTAGE_LIBRARY=str(broken))
    assert result.returncode == 1
    assert "FAULT preload: not active" in result.stdout
    assert "-> " in result.stdout


def test_doctor_names_what_is_missing(machine, tmp_path):
    result = machine.partage("doctor", PARTAGE_LIBRARY=str(tmp_path / "none"), PARTAGE_SIM_LIBRARIES=str(tmp_path))
    assert result.returncode == 1
    assert "2 faults" in result.stdout
    assert result.stdout.count("make build") >= 2


def test_sim_lists_profiles_and_makes_the_one_asked_for(machine):
    listed = machine.partage("sim", "list")
    assert listed.returncode == 0
    assert "h100-80g" in listed.stdout
    assert machine.partage("sim", "create", "8xH100").returncode == 0
    shown = json.loads(machine.partage("sim", "show", "--json").stdout)
    assert len(shown["devices"]) == 8
    assert all("SIMULATED" in device["name"] for device in shown["devices"])


def test_a_machine_keeps_its_profile(machine):
    assert machine.partage("sim", "create", "zero").returncode == 0
    assert machine.partage("run", "--sim", "8xh100", "--memory", "1Gi", "true").returncode == 2
    assert machine.partage("sim", "create", "8xh100").returncode == 2
    assert machine.partage("sim", "create", "8xh100", "--replace").returncode == 0
    assert machine.partage("run", "--sim", "8xH100", "--device", "7", "--memory", "1Gi", "true").returncode == 0


def test_sim_without_a_machine_says_how_to_make_one(machine):
    result = machine.partage("sim", "show")
    assert result.returncode == 5
    assert "partage sim create" in result.stderr


def test_a_fault_reaches_a_running_program_and_goes_when_cleared(machine):
    program = machine.start("--memory", "4Gi")
    armed = machine.partage("sim", "fault", "call", "cuMemAlloc_v2", "CUDA_ERROR_UNKNOWN", "--count", "0")
    assert armed.returncode == 0, armed.stderr
    assert program.ask("alloc", 4096) == 999
    assert "cuMemAlloc_v2" in machine.partage("sim", "fault", "list").stdout
    assert machine.partage("sim", "fault", "clear").returncode == 0
    assert program.ask("alloc", 4096) == 0


def test_a_machine_for_containers(machine, tmp_path):
    assert machine.partage("sim", "create", "8xh100", "--shared").returncode == 0
    made = Path(machine.environment["PARTAGE_SIM_DIR"])
    assert (made.stat().st_mode & 0o777, (made / "machine").stat().st_mode & 0o777) == (0o755, 0o666)
    uuid = json.loads(machine.partage("sim", "show", "--json").stdout)["devices"][4]["uuid"]
    without = machine.partage("sim", "edits", uuid)
    assert (without.returncode, "partage sim tree" in without.stderr) == (5, True)
    assert machine.partage("sim", "tree", str(tmp_path / "tree")).stdout.strip() == str(tmp_path / "tree")
    spec = json.loads(machine.partage("sim", "edits", uuid).stdout)
    edits = spec["devices"][0]["containerEdits"]
    assert f"{tmp_path}/tree/dev/nvidia4" in [mount["hostPath"] for mount in edits["mounts"]]
    assert "hooks" not in edits


def test_nvml_fails_for_one_device_until_cleared(machine):
    assert machine.partage("sim", "create", "zero2").returncode == 0
    assert machine.partage("sim", "fault", "nvml", "1", "TIMEOUT").stdout.endswith("answers 10 about device 1\n")
    assert "nvml code 10, device 1, for ever" in machine.partage("sim", "fault", "list").stdout
    assert machine.partage("sim", "fault", "nvml", "2").returncode == 2
    assert machine.partage("sim", "fault", "clear").returncode == 0


def test_doctor_changes_nothing(machine):
    assert machine.partage("doctor").returncode == 0
    assert not Path(machine.environment["PARTAGE_SIM_DIR"], "machine").exists()


def test_a_machine_of_another_version_is_named_with_its_remedy(machine):
    assert machine.partage("sim", "create", "zero").returncode == 0
    with Path(machine.environment["PARTAGE_SIM_DIR"], "machine").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")
    for arguments in (("run", "--memory", "1Gi", "true"), ("sim", "show")):
        result = machine.partage(*arguments)
        assert (result.returncode, "partage sim create" in result.stderr) == (4, True)
    assert "partage sim create" in machine.partage("top").stdout
    found = machine.partage("doctor")
    assert (found.returncode, "partage sim create" in found.stdout) == (1, True)
    assert machine.partage("sim", "create", "zero", "--replace").returncode == 0
    assert machine.partage("run", "--memory", "1Gi", "true").returncode == 0


def test_a_defect_is_one_line(monkeypatch, capsys):
    def broken():
        raise KeyError("x")

    monkeypatch.setattr("partage.cli.top.look", broken)
    monkeypatch.setattr("partage.cli.app.set_up_logging", lambda _: None)  # it would outlive the captured stderr
    assert main(["top", "--once"]) == exit_codes.ExitCode.DEFECT
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["nosuch"], ["sim", "nosuch"], ["top", "--interval", "0"], ["resize"]])
def test_a_wrong_use_is_one_line_that_names_the_help(machine, arguments):
    result = machine.partage(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "--help`" in result.stderr


def test_each_command_fits_its_line_of_help(machine):
    for arguments in ((), ("sim",), ("sim", "fault")):
        assert "..." not in machine.partage(*arguments, "--help", COLUMNS="80").stdout.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("partage res", ["resize"]),
        ("partage sim fault l", ["list", "lose"]),
        ("partage run --class b", ["burst", "best-effort"]),
        ("partage run --memory 4x --sim v1", ["v100"]),
        ("partage sim create rtx", ["rtx4090"]),
        ("partage resize p", []),
    ],
)
def test_bash_offers_what_fits(machine, tmp_path, words, offered):
    parts = words.split()
    script = machine.partage("completion", "bash").stdout
    call = f"COMP_WORDS=({words}); COMP_CWORD={len(parts) - 1}; _partage_completion partage; echo ${{COMPREPLY[@]}}"
    (tmp_path / "partage").write_text(f'#!/bin/sh\nexec {sys.executable} -m partage "$@"\n')
    (tmp_path / "partage").chmod(0o755)
    environment = machine.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", f"{script}\n{call}"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.stdout.split(), result.stderr) == (offered, "")


def test_bash_offers_the_shares_in_use(machine):
    machine.start("--memory", "1Gi")
    asked = {"_PARTAGE_COMPLETE": "bash_complete", "COMP_WORDS": "partage resize py", "COMP_CWORD": "2"}
    assert machine.partage(**asked).stdout == f"plain,{machine.hand_overs()[0]}\n"


def test_a_lost_device_is_named_and_the_others_go_on(make_machine):
    machine = make_machine("zero2")
    assert machine.partage("sim", "create", "zero2").returncode == 0
    assert machine.partage("sim", "fault", "lose", "0").returncode == 0
    assert machine.partage("run", "--memory", "1Gi", "--device", "1", "true").returncode == 0
    refused = machine.partage("run", "--memory", "1Gi", "true")
    assert (refused.returncode, "there are: 1 = GPU-" in refused.stderr) == (2, True)
    shown = json.loads(machine.partage("top", "--json").stdout)
    assert [device["index"] for device in shown["devices"]] == [1]
    assert "partage sim fault restore 0" in shown["notes"][0]
    found = machine.partage("doctor")
    assert (found.returncode, "FAULT device 0" in found.stdout) == (1, True)
    assert machine.partage("sim", "fault", "restore", "0").returncode == 0
    assert machine.partage("run", "--memory", "1Gi", "true").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "zero", "--replace", "--seed", "9" * 30),
        ("fault", "xid", "0", "9" * 30),
        ("fault", "slow-context", "0", "9" * 30),
        ("fault", "call", "cuInit", "9" * 30),
        ("fault", "call", "cuInit", "3", "--count", "9" * 30),
        ("fault", "call", "cuInit", "3", "--device", "9" * 30),
        ("fault", "lose", "9" * 30),
        ("fault", "clear", "9" * 30),
    ],
)
def test_absurd_numbers_are_refused(machine, arguments):
    assert machine.partage("sim", "create", "zero").returncode == 0
    result = machine.partage("sim", *arguments)
    assert result.returncode in {2, 5}
    assert len(result.stderr.splitlines()) == 1
