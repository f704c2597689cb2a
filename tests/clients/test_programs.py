"""We test these aspects: each client works on the simulator under a share; each is refused exactly at its own limit
with CUDA_ERROR_OUT_OF_MEMORY; the numbers it is shown agree on every surface; bytes come back as they were sent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from partage.run.libraries import find_sim

from .conftest import BUILD, PROGRAMS, TOP, RunProgram, made, need

if TYPE_CHECKING:
    from pathlib import Path

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


def test_cuda_core_fills_its_share_from_every_pool_and_by_mapping(run_shared: RunProgram) -> None:
    need("cuda.core")
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "core_work.py"), memory="2Gi").stdout)
    assert done["same_bytes"]
    assert done["registers"] > 0
    assert done["given"] == {
        "default pool": [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"],
        "own pool": [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"],  # what the default pool keeps unused gives way
        "managed pool": [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"],
        "virtual memory": [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"],
    }


def test_cuda_core_builds_graphs_of_every_kind_and_their_memory_is_held_to_the_share(run_shared: RunProgram) -> None:
    need("cuda.core")
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "graphs_work.py"), memory="2Gi").stdout)
    assert done["calls"] == 6, "three branches, launched twice"
    assert done["same_bytes"]
    assert done["reserved"] > done["trimmed"] == 0
    assert done["given"] == [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"]


def test_arrays_and_textures_give_the_same_bytes_with_and_without_the_share_and_are_held_to_it(
    run_shared: RunProgram, clean_environment: dict[str, str]
) -> None:
    need("cuda.bindings")
    program = [sys.executable, str(PROGRAMS / "arrays_work.py")]
    done = json.loads(run_shared(*program, memory="2Gi").stdout)
    assert {same for _, same in done["results"]["bytes"].values()} == {True}
    assert done["results"]["textures"] == [4, True, "CUDA_ERROR_INVALID_VALUE"]
    assert set(done["results"]["wrong"]) == {"CUDA_ERROR_INVALID_VALUE"}
    assert done["given"] == {kind: [2 * GIB, "CUDA_ERROR_OUT_OF_MEMORY"] for kind in ("array", "array 3d", "mip-map")}
    assert (done["free"], done["total"]) == (2 * GIB, 2 * GIB)
    alone = clean_environment | {"LD_LIBRARY_PATH": str(BUILD / "sim"), "PARTAGE_SIM": "zero"}
    whole = subprocess.run(program, env=alone, capture_output=True, text=True, timeout=280, check=True)
    without = json.loads(whole.stdout)
    assert without["results"] == done["results"]
    assert without["given"]["array"][0] > 70 * GIB


def test_triton_compiles_its_helper_and_a_kernel_loads_launches_and_is_held_to_its_share(
    run_shared: RunProgram, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    need("triton")
    clean_environment |= {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "triton_work.py"), memory="2Gi").stdout)
    assert done["target"] == ["cuda", 90, 32]
    assert done["sms"] == 132
    assert done["registers"] > 0
    assert done["cubin"]
    assert done["same_bytes"]
    assert not done["capturing"]
    assert (done["total"], done["free_before"]) == (2 * GIB, 2 * GIB)
    assert done["free"] == 2 * GIB - 2 * MIB, "two blocks of 1 MiB lie in one granule"
    assert done["given"] == [2 * GIB - 64 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"]


def test_pycuda_copies_launches_and_its_pool_is_held_to_the_share(
    run_shared: RunProgram, clean_environment: dict[str, str]
) -> None:
    clean_environment["PYTHONPATH"] = f"{clean_environment.get('PYTHONPATH', '')}:{made('pycuda') / 'site'}"
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "pycuda_work.py"), memory="2Gi").stdout)
    assert "SIMULATED" in done["name"]
    assert done["same_bytes"]
    assert done["pitch"] >= 1000
    assert done["device_total"] == done["total"] == 2 * GIB
    assert done["pool"][0] == 30 * 64 * MIB, "its pool asks for 68 MiB each; a copy and a pitched block are there"
    assert done["kept"] == 2 * GIB - 30 * 68 * MIB - 2 * MIB
    assert done["plain"][0] == 2 * GIB
    assert all("out of memory" in words for _, words in (done["pool"], done["plain"]))
    assert done["lost"] == 0


def test_a_program_that_uses_ctypes_has_one_limit_through_every_door(run_shared: RunProgram) -> None:
    done = json.loads(run_shared(sys.executable, str(PROGRAMS / "ctypes_work.py"), memory="1Gi").stdout)
    assert done == {"dlsym": [GIB, 2], "cuGetProcAddress": [GIB, 2], "both": [GIB, 2]}


@pytest.mark.parametrize("headers", ["cuda12", "cuda13"])
def test_a_c_program_that_is_linked_to_the_driver(run_shared: RunProgram, tmp_path: Path, headers: str) -> None:
    compiler, driver = shutil.which("cc"), find_sim()
    assert compiler, "building this project needs a C compiler too"
    assert driver
    program = tmp_path / "linked_work"
    source = PROGRAMS / "linked_work.c"
    build = [compiler, "-I", TOP / "build/headers" / headers, source, driver / "libcuda.so.1", "-o", program]
    subprocess.run(build, check=True, timeout=280)
    done = json.loads(run_shared(str(program), memory="1Gi").stdout)
    assert done.pop("same_bytes") is True
    assert done == {"total": GIB, "free_before": GIB, "free_after": GIB, "given": GIB, "error": 2}
