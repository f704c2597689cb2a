"""Faults armed from outside reach a program that runs already, and leave no trace when cleared."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from partage._abi import lib
from partage.model import NotFoundError, UsageError
from partage.sim import faults, profiles
from partage.sim.codes import parse_code
from partage.sim.machine import Machine, create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def machine(machine_file: Path) -> Iterator[Machine]:
    """A machine of two bare devices."""
    create(profiles.find("zero2"))
    with Machine() as opened:
        yield opened


def test_a_call_fails_as_often_as_asked(machine: Machine, run_nvml: Callable[..., str]) -> None:
    faults.arm(machine, "nvmlDeviceGetCount_v2", "NO_PERMISSION", after=1, count=2)
    answers = run_nvml(
        """
        for _ in range(5):
            try:
                print(nvmlDeviceGetCount())
            except NVMLError as error:
                print(error.value)
        """
    )
    assert answers.split() == ["2", "4", "4", "2", "2"]
    assert faults.list_faults(machine)[0].seen == 5


def test_a_running_program_meets_a_fault_and_its_end(machine: Machine, nvml_environment: dict[str, str]) -> None:
    pytest.importorskip("pynvml")
    body = """
import sys
from pynvml import *
nvmlInit()
for _ in sys.stdin:
    try:
        print(nvmlSystemGetDriverVersion(), flush=True)
    except NVMLError as error:
        print(error.value, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", body], env=nvml_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin
        assert program.stdout

        def ask() -> str:
            assert program.stdin
            assert program.stdout
            print("go", file=program.stdin, flush=True)
            return program.stdout.readline().strip()

        assert ask() == "615.71.05"
        fault = faults.arm(machine, "nvmlSystemGetDriverVersion", 999, count=0)
        assert [ask(), ask()] == ["999", "999"]
        faults.clear(machine, fault.place)
        assert ask() == "615.71.05"
        program.stdin.close()
    assert program.returncode == 0


def test_list_and_clear(machine: Machine) -> None:
    first = faults.arm(machine, "cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY", after=3, count=0, device=1)
    second = faults.drop_symbol(machine, "cuMemCreate")
    assert faults.list_faults(machine) == (first, second)
    assert (first.code, first.device, first.after, first.count) == (2, 1, 3, 0)
    assert second.call == "drop:cuMemCreate"
    assert faults.clear(machine, first.place) == 1
    with pytest.raises(NotFoundError, match="not armed"):
        faults.clear(machine, first.place)
    assert faults.clear(machine) == 1
    assert faults.list_faults(machine) == ()


def test_all_places_taken(machine: Machine) -> None:
    for _ in range(lib.SIM_FAULTS):
        faults.arm(machine, "cuInit", 100)
    with pytest.raises(UsageError, match="32 are armed"):
        faults.arm(machine, "cuInit", 100)


@pytest.mark.parametrize(
    ("call", "code", "options", "message"),
    [
        ("malloc", 2, {}, "no entry point"),
        ("cuMemAlloc_v2", "NO_SUCH", {}, "CUDA_ERROR_UNKNOWN"),
        ("cuMemAlloc_v2", 2, {"device": 2}, "0 to 1"),
        ("cuMemAlloc_v2", 2, {"after": -1}, "0 or more"),
        ("nvmlInit_v2", 2, {"device": 2}, "0 to 1"),
    ],
)
def test_what_has_no_meaning_is_refused(
    machine: Machine, call: str, code: int | str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        faults.arm(machine, call, code, **options)
    assert faults.list_faults(machine) == ()


def test_codes_by_name_agree_with_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    for word in ("GPU_IS_LOST", "NOT_SUPPORTED", "INVALID_STATE", "UNKNOWN"):
        assert parse_code("nvmlInit_v2", word) == getattr(pynvml, f"NVML_ERROR_{word}")
    assert parse_code("cuInit", "out_of_memory") == parse_code("cuInit", "CUDA_ERROR_OUT_OF_MEMORY") == 2
    assert parse_code("cuInit", "719") == 719


def test_slow_context_brings_the_profiles_time_back(machine_file: Path) -> None:
    create(profiles.find("h100-80g"))
    with Machine() as opened:
        usual = opened.read("uint32_t", "model", 0, "context_ms")
        assert usual > 0
        faults.slow_context(opened, 0, 500)
        faults.slow_context(opened, 0, 900)
        assert opened.read("uint32_t", "model", 0, "context_ms") == 900
        assert len(faults.list_faults(opened)) == 1
        faults.clear(opened)
        assert opened.read("uint32_t", "model", 0, "context_ms") == usual


WATCH = """
from pynvml import *
nvmlInit()
events = nvmlEventSetCreate()
for i in range(nvmlDeviceGetCount()):
    nvmlDeviceRegisterEvents(nvmlDeviceGetHandleByIndex(i), nvmlEventTypeXidCriticalError, events)
print("watching", flush=True)
try:
    while True:
        data = nvmlEventSetWait_v2(events, 30000)
        print(nvmlDeviceGetIndex(data.device) if data.eventData != 79 else "-", data.eventData, flush=True)
except NVMLError as error:
    print("end", error.value, flush=True)
"""


def test_a_watcher_is_woken_by_an_xid_and_a_lost_device(machine: Machine, nvml_environment: dict[str, str]) -> None:
    pytest.importorskip("pynvml")
    command = [sys.executable, "-c", WATCH]
    with subprocess.Popen(command, env=nvml_environment, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout
        assert watcher.stdout.readline() == "watching\n"
        faults.raise_xid(machine, 1, 31)
        assert watcher.stdout.readline() == "1 31\n"
        faults.lose_device(machine, 0)
        assert watcher.stdout.readline() == "- 79\n"
        assert watcher.stdout.readline() == "end 15\n"
    assert machine.read("uint32_t", "device", 1, "xid") == 31


def test_lost_device_and_its_return(machine: Machine, run_nvml: Callable[..., str]) -> None:
    body = """
        for i in range(nvmlDeviceGetCount()):
            try:
                print(nvmlDeviceGetMinorNumber(nvmlDeviceGetHandleByIndex(i)))
            except NVMLError as error:
                print(error)
        """
    faults.lose_device(machine, 1)
    assert run_nvml(body).split("\n") == ["0", "GPU is lost"]
    faults.restore_device(machine, 1)
    assert run_nvml(body).split("\n") == ["0", "1"]


def test_a_card_advises_a_reset_after_what_needs_one(machine: Machine, run_nvml: Callable[..., str]) -> None:
    body = """
        for i in range(nvmlDeviceGetCount()):
            (value,) = nvmlDeviceGetFieldValues(nvmlDeviceGetHandleByIndex(i), [NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
            print(value.nvmlReturn, value.value.uiVal)
        """
    faults.raise_xid(machine, 0, 31)
    faults.raise_xid(machine, 1, 79)
    assert run_nvml(body).split("\n") == ["0 0", "0 1"], "a reset, after XID 79 only"
    faults.restore_device(machine, 1)
    assert run_nvml(body).split("\n") == ["0 0", "0 0"]


ASK_ALL = """
    for i in range(nvmlDeviceGetCount()):
        for question in (nvmlDeviceGetName, nvmlDeviceGetMinorNumber):
            try:
                question(nvmlDeviceGetHandleByIndex(i))
                print(0, end=" ")
            except NVMLError as error:
                print(error.value, end=" ")
    """


def test_nvml_fails_for_one_card_and_recovers(machine: Machine, run_nvml: Callable[..., str]) -> None:
    fault = faults.break_nvml(machine, 1, "UNKNOWN")
    assert run_nvml(ASK_ALL).split() == ["0", "0", "999", "999"]
    faults.clear(machine, fault.place)
    assert run_nvml(ASK_ALL).split() == ["0", "0", "0", "0"]


def test_nvml_recovers_by_itself_after_some_questions(machine: Machine, run_nvml: Callable[..., str]) -> None:
    faults.break_nvml(machine, 0, "TIMEOUT", count=3)
    body = """
        device = nvmlDeviceGetHandleByIndex(1)
        for _ in range(5):
            try:
                print(nvmlDeviceGetHandleByIndex(0) is None)
            except NVMLError as error:
                print(error.value)
        """
    assert run_nvml(body).split() == ["10", "10", "10", "False", "False"]


def test_one_question_fails_for_one_card(machine: Machine, run_nvml: Callable[..., str]) -> None:
    faults.arm(machine, "nvmlDeviceGetName", "NO_PERMISSION", device=1, count=0)
    assert run_nvml(ASK_ALL).split() == ["0", "0", "4", "0"]


def test_bad_xids(machine: Machine) -> None:
    for device, xid in ((2, 31), (-1, 31), (0, 0)):
        with pytest.raises(UsageError):
            faults.raise_xid(machine, device, xid)
