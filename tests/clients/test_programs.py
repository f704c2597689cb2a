"""We test these aspects: each client works on the simulator under a share; each is refused exactly at its own limit
with CUDA_ERROR_OUT_OF_MEMORY; the numbers it is shown agree on every surface; bytes come back as they were sent."""

from __future__ import annotations

import json
import sys

import pytest

from .conftest import PROGRAMS, RunProgram, need

GIB = 1 << 30
MIB = 1 << 20


def test_numba_compiles_launches_copies_and_is_held_to_its_share(run_shared: RunProgram) -> None:
    need("numba")
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "numba_work.py"), memory="4Gi").stdout)
    assert done["same_bytes"]
    assert done["compiled"]
    assert "SIMULATED" in done["name"]
    assert done["total"] == 4 * GIB
    assert done["code"] == 2, "the refusal must be CUDA_ERROR_OUT_OF_MEMORY"
    assert done["free_full"] < 64 * MIB, "refused although a chunk still fitted"
    assert done["free_before"] - done["free_full"] == done["chunks"] * 64 * MIB
    assert done["free_after"] == done["free_before"]


def test_every_kind_is_refused_at_the_limit_through_cuda_bindings(run_shared: RunProgram) -> None:
    need("cuda.bindings")
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "bindings_work.py"), memory="2Gi").stdout)
    assert done["same_bytes"]
    assert done["given"] == {
        kind: [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"] for kind in ("plain", "managed", "pitched", "async", "vmm")
    }
    assert (done["free"], done["total"]) == (2 * GIB, 2 * GIB)


@pytest.mark.parametrize("sim", ["zero", "1xh100"])
def test_nvml_and_the_driver_tell_the_same_numbers(run_shared: RunProgram, sim: str) -> None:
    need("pynvml")
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "nvml_work.py"), memory="4Gi", sim=sim).stdout)
    assert done["error"] == "CUDA_SUCCESS"
    assert done["count"] == 1
    assert (
        done["cuda"]["total"] == done["cuda"]["device_total"] == done["v1"]["total"] == done["v2"]["total"] == 4 * GIB
    )
    assert done["v1"]["used"] == done["v2"]["used"] == 4 * GIB - done["cuda"]["free"]
    assert done["v1"]["free"] == done["v2"]["free"] == done["cuda"]["free"]
    assert [pid for pid, _ in done["processes"]] == [done["pid"]]
    assert sum(used for _, used in done["processes"]) == done["v1"]["used"] >= 512 * MIB
