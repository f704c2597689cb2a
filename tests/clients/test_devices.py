"""We test these aspects (K04: C023, D4): on several devices a numba program is charged on the card that it uses,
whatever the order of its own CUDA_VISIBLE_DEVICES and whichever of CUDA and NVML it initialises first."""

from __future__ import annotations

import json
import sys

import pytest

from .conftest import PROGRAMS, RunProgram, need

GIB = 1 << 30
MIB = 1 << 20
DEVICES = (2, 3)
PROGRAM = str(PROGRAMS / "devices_work.py")


@pytest.fixture
def uuids(run_shared: RunProgram) -> list[str]:
    """The UUIDs of the granted devices, as NVML orders them."""
    need("pynvml")
    script = (
        "from pynvml import *; nvmlInit();"
        "print(*(nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(i)) for i in range(nvmlDeviceGetCount())))"
    )
    return run_shared(sys.executable, "-c", script, sim="8xh100", devices=DEVICES).stdout.split()


@pytest.mark.parametrize("first", ["nvml", "cuda"])
@pytest.mark.parametrize("visible", [None, [1], [1, 0]], ids=["all", "second", "reversed"])
def test_each_device_is_charged_for_itself(
    run_shared: RunProgram, uuids: list[str], visible: list[int] | None, first: str
) -> None:
    need("numba")
    # 9/10 of a single device, 7/10 of each of two: neither would fit if both were charged to one
    chosen = [uuids[i] for i in visible] if visible else uuids
    tenths = 9 if len(chosen) == 1 else 7
    setting = [f"CUDA_VISIBLE_DEVICES={','.join(chosen)}"] if visible else []
    command = ["env", *setting, sys.executable, PROGRAM, first, str(tenths)]
    done = json.loads(run_shared(*command, sim="8xh100", devices=DEVICES).stdout)
    assert [device["uuid"] for device in done["cuda"]] == chosen
    assert [device["uuid"] for device in done["nvml"]] == uuids, "NVML's order is the machine's, not the program's"
    for device in done["cuda"]:
        assert device["total"] == 4 * GIB
        taken = device["free"] - device["left"]
        assert 0 <= taken - device["free"] // 10 * tenths < 2 * MIB
    left = {device["uuid"]: device["left"] for device in done["cuda"]}
    before = {device["uuid"]: device["free"] for device in done["cuda"]}
    assert {device["uuid"]: device["total"] for device in done["nvml"]} == dict.fromkeys(uuids, 4 * GIB)
    assert {device["uuid"]: device["free"] for device in done["nvml"]} == {u: left.get(u, 4 * GIB) for u in uuids}
    assert {device["uuid"]: device["free"] for device in done["nvml_after"]} == {
        u: before.get(u, 4 * GIB) for u in uuids
    }


def test_processes_with_other_lists_share_one_account_per_device(run_shared: RunProgram, uuids: list[str]) -> None:
    need("numba")
    held = 2 * GIB
    hold = [sys.executable, str(PROGRAMS / "hold.py"), str(held), "--"]
    beside = ["env", f"CUDA_VISIBLE_DEVICES={uuids[1]},{uuids[0]}", sys.executable, PROGRAM, "nvml", "7"]
    command = ["env", f"CUDA_VISIBLE_DEVICES={uuids[1]}", *hold, *beside]
    done = json.loads(run_shared(*command, sim="8xh100", devices=DEVICES).stdout)
    second, first = done["cuda"]
    assert [second["uuid"], first["uuid"]] == [uuids[1], uuids[0]]
    context = 4 * GIB - first["free"]
    assert 0 < context < GIB
    assert second["free"] == 4 * GIB - held - 2 * context, "what the other process holds there is missing"
    assert [device["free"] for device in done["nvml"]] == [first["left"], second["left"]]
    assert [device["free"] for device in done["nvml_after"]] == [first["free"], second["free"]]
