"""We test these aspects: the monitoring tools of the ecosystem, as installed, run in a container and show its own share
and its own processes; what a neighbour on the same card holds does not appear."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import PROGRAMS, TOOLS, RunProgram, made, need, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIM = "8xh100"
HOLD = (sys.executable, str(PROGRAMS / "hold.py"))
BUS = ("4A", "4B")  # of devices 2 and 3


@pytest.fixture
def neighbour(clean_environment: dict[str, str]) -> Iterator[None]:
    """Another container on device 2, which holds 3 GiB for as long as the test runs."""
    need("cuda.bindings")
    command = shared(*HOLD, str(3072 * MIB), memory="8Gi", sim=SIM, devices=(2,))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=clean_environment, stdin=pipe, stdout=pipe, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline().strip().isdigit(), "the neighbour did not get its memory"
        yield
        held.communicate()
    assert held.returncode == 0


def beside_own_memory(*tool: str) -> tuple[str, ...]:
    """Return the command that runs the tool while a program of the same container holds 512 MiB on its first device."""
    return (*HOLD, str(512 * MIB), "--", *tool)


@pytest.mark.usefixtures("neighbour")
def test_the_sample_of_nvidia_ml_py_lists_the_devices_that_were_granted(run_shared: RunProgram) -> None:
    need("pynvml")
    spec = importlib.util.find_spec("pynvml")
    assert spec
    assert spec.origin
    sample = Path(spec.origin).with_name("example.py")
    shown = run_shared(sys.executable, str(sample), sim=SIM, devices=(2, 3)).stdout
    assert "<attached_gpus>2</attached_gpus>" in shown
    assert [line.split('"')[1][9:11] for line in shown.splitlines() if "<gpu id=" in line] == list(BUS)
    assert shown.count("<product_name>NVIDIA H100 80GB HBM3 SIMULATED</product_name>") == 2
    assert shown.count("<serial>") == shown.count("<uuid>GPU-") == 2
    assert "example.py:" not in shown, "the sample met an error"


@pytest.mark.usefixtures("neighbour")
def test_a_go_program_over_go_nvml_sees_the_share_and_the_own_process(run_shared: RunProgram) -> None:
    program = made("go-nvml") / "program"
    first, second = json.loads(run_shared(*beside_own_memory(str(program)), sim=SIM, devices=(2, 3)).stdout)
    assert "SIMULATED" in first["Name"]
    assert first["Total"] == second["Total"] == 4096 * MIB
    assert 512 * MIB <= first["Used"] < 2048 * MIB, "the neighbour's 3 GiB are visible"
    assert (len(first["Processes"]), second["Used"], second["Processes"]) == (1, 0, None)


@pytest.mark.usefixtures("neighbour")
def test_gpustat_shows_the_share_and_the_own_process(run_shared: RunProgram) -> None:
    need("gpustat")
    tool = beside_own_memory(str(TOOLS / "gpustat"), "--json")
    first, second = json.loads(run_shared(*tool, sim=SIM, devices=(2, 3)).stdout)["gpus"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["memory.total"] == second["memory.total"] == 4096
    (process,) = first["processes"]
    assert "hold.py" in " ".join(process["full_command"])
    assert process["gpu_memory_usage"] == first["memory.used"] >= 512
    assert first["memory.used"] < 2048, "the neighbour's 3 GiB are visible"
    assert (second["memory.used"], second["processes"]) == (0, [])


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("terminal", [False, True])
def test_nvitop_shows_the_share_and_the_own_process(clean_environment: dict[str, str], terminal: bool) -> None:
    need("nvitop")
    command = shared(*beside_own_memory(str(TOOLS / "nvitop"), "-1", "--ascii"), memory="4Gi", sim=SIM, devices=(2, 3))
    environment = {**clean_environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "60"}
    shown = in_terminal(command, environment) if terminal else piped(command, environment)
    assert [f"00000000:{bus}:00.0" in shown for bus in BUS] == [True, True]
    assert shown.count("00000000:") == 2, "a device that was not granted is shown"
    assert shown.count("/ 4096MiB") == 2
    assert "0B / 4096MiB" in shown, "the second device is unused"
    processes = [line for line in shown.splitlines() if " C " in line and "MiB" in line]
    assert len(processes) == 1, shown


def piped(command: list[str], environment: dict[str, str]) -> str:
    """Run with the output in a pipe and return it."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_terminal(command: list[str], environment: dict[str, str]) -> str:
    """Run with the output on a terminal of its own and return what it was sent."""
    master, slave = pty.openpty()
    with subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave) as tool:
        os.close(slave)
        sent = bytearray()
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the terminal's last user has gone
                break
            if not part:
                break
            sent += part
    os.close(master)
    assert tool.returncode == 0, sent.decode(errors="replace")
    return sent.decode(errors="replace")
