"""NVML as published clients use it: nvidia-ml-py's own example, gpustat and nvitop, all unmodified."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RunNvml = Callable[..., str]


def run_client(environment: dict[str, str], module: str, *arguments: str, profile: str) -> str:
    """Run an installed client module as a program; skips where it is not installed."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed here")
    command = [sys.executable, "-m", module, *arguments]
    where = {**environment, "PARTAGE_SIM": profile, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120"}
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_of_nvidia_ml_py_runs_as_published(nvml_environment: dict[str, str]) -> None:
    found = importlib.util.find_spec("example")
    if found is None or "nvml" not in Path(str(found.origin)).read_text():
        pytest.skip("nvidia-ml-py's example.py is not installed here")
    out = run_client(nvml_environment, "example", profile="8xh100")
    assert out.count("<product_name>NVIDIA H100 80GB HBM3 SIMULATED</product_name>") == 8
    assert "<attached_gpus>8</attached_gpus>" in out
    assert "Uninitialized" not in out
    assert "N/A" not in out


def test_gpustat_reads_every_figure_it_shows(nvml_environment: dict[str, str]) -> None:
    gpus = json.loads(run_client(nvml_environment, "gpustat", "--json", profile="4xa100-pcie"))["gpus"]
    assert [gpu["index"] for gpu in gpus] == [0, 1, 2, 3]
    for gpu in gpus:
        assert gpu["memory.total"] == 81920
        assert gpu["utilization.gpu"] == 0
        assert gpu["power.draw"] == 45
        assert gpu["processes"] == []


def test_nvitop_shows_a_cut_card_with_its_instances(nvml_environment: dict[str, str]) -> None:
    out = run_client(nvml_environment, "nvitop", "-1", profile="a100-mig")
    for part in ("3g.40gb", "2g.20gb", "1g.10gb"):
        assert part in out
    assert "Enabled" in out


def test_pynvml_traps_of_structure_versions(run_nvml: RunNvml) -> None:
    out = run_nvml(
        """
        device = nvmlDeviceGetHandleByIndex(0)
        one, two = nvmlDeviceGetMemoryInfo(device), nvmlDeviceGetMemoryInfo(device, nvmlMemory_v2)
        print(one.total >> 20, two.reserved >> 20)
        print(nvmlDeviceGetPciInfo(device).busId, nvmlDeviceGetP2PStatus(device, nvmlDeviceGetHandleByIndex(1), 0))
        try:
            nvmlDeviceGetMemoryInfo(device, 1)
        except NVMLError as error:
            print(error)
        """,
        PARTAGE_SIM="8xh100",
    )
    lines = out.split("\n")
    assert lines[0] == "81559 551"
    assert lines[1] == "00000000:1A:00.0 0"
    assert "mismatch" in lines[2]


def test_the_device_plugins_sequence_of_calls(run_nvml: RunNvml) -> None:
    """The calls by which NVIDIA's device plugin discovers, scores and watches, in its order."""
    out = run_nvml(
        """
        events = nvmlEventSetCreate()
        wanted = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeSingleBitEccError
        links = 0
        for i in range(nvmlDeviceGetCount()):
            device = nvmlDeviceGetHandleByIndex(i)
            assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(device))) == i
            assert nvmlDeviceGetMinorNumber(device) == nvmlDeviceGetIndex(device) == i
            assert nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
            assert nvmlDeviceGetMigMode(device)[0] == NVML_DEVICE_MIG_DISABLE
            for other in range(i):
                path = nvmlDeviceGetTopologyCommonAncestor(device, nvmlDeviceGetHandleByIndex(other))
                assert path == (NVML_TOPOLOGY_NODE if other // 4 == i // 4 else NVML_TOPOLOGY_SYSTEM)
            for link in range(NVML_NVLINK_MAX_LINKS):
                links += nvmlDeviceGetNvLinkState(device, link)
            nvmlDeviceRegisterEvents(device, wanted & nvmlDeviceGetSupportedEventTypes(device), events)
        try:
            nvmlEventSetWait_v2(events, 1)
        except NVMLError_Timeout:
            print("quiet", links)
        nvmlEventSetFree(events)
        """,
        PARTAGE_SIM="8xh100",
    )
    assert out == f"quiet {8 * 18}"


def test_exporters_get_every_figure_of_a_data_centre_board(run_nvml: RunNvml) -> None:
    """What exporters and node labellers ask, each with its own call: none may be unsupported, and constants agree."""
    out = run_nvml(
        """
        device = nvmlDeviceGetHandleByIndex(3)
        once = dict(
            serial=nvmlDeviceGetSerial, board=nvmlDeviceGetBoardPartNumber, vbios=nvmlDeviceGetVbiosVersion,
            minor=nvmlDeviceGetMinorNumber, mig=nvmlDeviceGetMigMode, instances=nvmlDeviceGetMaxMigDeviceCount,
            persistence=nvmlDeviceGetPersistenceMode, compute=nvmlDeviceGetComputeMode, brand=nvmlDeviceGetBrand,
            limit=nvmlDeviceGetEnforcedPowerLimit, ecc=nvmlDeviceGetEccMode, width=nvmlDeviceGetMaxPcieLinkWidth,
            architecture=nvmlDeviceGetArchitecture, capability=nvmlDeviceGetCudaComputeCapability,
        )
        first = {name: ask(device) for name, ask in once.items()}
        assert first == {name: ask(device) for name, ask in once.items()}
        print(first["minor"], first["board"], first["vbios"], first["limit"], first["mig"], first["instances"])
        moving = (
            nvmlDeviceGetPowerUsage, nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetUtilizationRates,
            nvmlDeviceGetMemoryInfo, nvmlDeviceGetBAR1MemoryInfo, nvmlDeviceGetEncoderUtilization,
            nvmlDeviceGetDecoderUtilization, nvmlDeviceGetPcieReplayCounter, nvmlDeviceGetRemappedRows,
            nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetPerformanceState, nvmlDeviceGetIrqNum,
        )
        for ask in moving:
            ask(device)
        for clock in (NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_GRAPHICS, NVML_CLOCK_VIDEO):
            assert 0 < nvmlDeviceGetClockInfo(device, clock) <= nvmlDeviceGetMaxClockInfo(device, clock)
        assert nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU) < nvmlDeviceGetTemperatureThreshold(
            device, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        )
        for kind in (NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED):
            assert nvmlDeviceGetTotalEccErrors(device, kind, NVML_AGGREGATE_ECC) == 0
        print(nvmlSystemGetDriverVersion(), nvmlSystemGetCudaDriverVersion_v2())
        """,
        PARTAGE_SIM="8xh100",
    )
    assert out.split("\n") == ["3 692-2G520-0200-000 96.00.74.00.01 700000 [0, 0] 7", "615.71.05 13050"]
