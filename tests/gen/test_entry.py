"""The simulated driver's entry layer: counting, tracing, faults, order of initialisation, variants without code."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import api
import emit_sim
import pytest
import sources

Run = Callable[..., Any]

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
cuda.partage_sim_calls.restype = ctypes.c_uint64
n = ctypes.c_int()
"""


@pytest.fixture
def run(build: Path, tmp_path: Path) -> Run:
    """Run Python lines with `cuda` the simulated driver and `n` an int; returns what they print, split."""

    def start(lines: str, **env: str) -> list[str]:
        environment = {**os.environ, "PARTAGE_SIM_DIR": str(tmp_path), **env}
        command = [sys.executable, "-c", PROGRAM + lines, str(build / "sim" / "libcuda.so.1")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return start


def test_nothing_but_start_up_is_answered_before_initialisation(run: Run) -> None:
    assert run("print(cuda.cuDeviceGetCount(ctypes.byref(n)), cuda.cuDriverGetVersion(ctypes.byref(n)))") == ["3", "0"]


def test_what_is_not_simulated_says_so(run: Run) -> None:
    assert run("print(cuda.cuInit(0), cuda.cuCheckpointProcessUnlock(1, None))") == ["0", "801"]


def test_calls_are_counted_and_traced_with_their_results(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    count = "cuda.cuDeviceGetCount(ctypes.byref(n))"
    lines = f"{count}; cuda.cuInit(0); cuda.cuInit(0); {count}\n"
    counts = "print(*(cuda.partage_sim_calls(x) for x in (b'cuInit', b'cuDeviceGetCount', b'cuMemAlloc_v2', b'no')))"
    assert run(lines + counts, PARTAGE_SIM_TRACE=str(trace)) == ["2", "2", "0", "0"]
    traced = [line.split()[:2] for line in trace.read_text().splitlines()]
    assert traced == [["cuDeviceGetCount", "3"], ["cuInit", "0"], ["cuInit", "0"], ["cuDeviceGetCount", "0"]]


def test_a_fault_strikes_after_as_many_calls_and_as_often_as_asked(run: Run) -> None:
    lines = "cuda.cuInit(0); print(*(cuda.cuDeviceGetCount(ctypes.byref(n)) for _ in range(6)))"
    assert run(lines, PARTAGE_SIM_FAULT="cuDeviceGetCount:46:after=2:count=3") == ["0", "0", "46", "46", "46", "0"]
    assert run(lines, PARTAGE_SIM_FAULT="cuDeviceGetCount:2") == ["2"] * 6
    assert run(lines, PARTAGE_SIM_FAULT="cuDeviceGetCount:2:often=3;cuDeviceGetCount") == ["0"] * 6


def test_a_fault_can_fail_initialisation_itself(run: Run) -> None:
    assert run("print(cuda.cuInit(0), cuda.cuInit(0))", PARTAGE_SIM_FAULT="cuInit:100:count=1") == ["100", "0"]


def test_a_fault_can_be_armed_in_the_machine_for_every_process(run: Run, tmp_path: Path) -> None:
    abi = pytest.importorskip("partage._abi", reason="the cffi module is not built: run make build")
    lines = "print(cuda.cuInit(0), *(cuda.cuDeviceGetCount(ctypes.byref(n)) for _ in range(2)))"
    assert run(lines) == ["0", "0", "0"]
    with (tmp_path / "machine").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        memory = abi.ffi.from_buffer("struct sim_machine *", mapping)
        fault = memory.fault[0]
        fault.call, fault.device, fault.code, fault.count = b"cuDeviceGetCount", -1, 46, 3
        fault.active, memory.faults = 1, 1
        abi.ffi.release(memory)
    assert run(lines) == ["0", "46", "46"]
    assert run(lines) == ["0", "46", "0"]


def function(name: str, *types: str) -> api.Function:
    return api.Function(name, "CUresult", tuple(api.parse_parameter(f"{kind} p{i}", i) for i, kind in enumerate(types)))


def test_variants_run_the_base_code_only_where_the_parameters_are_the_same() -> None:
    functions = {
        f.name: f
        for f in (
            function("cuCopy", "CUstream"),
            function("cuCopy_ptsz", "CUstream"),
            function("cuCopy_v2", "CUstream", "int"),
            function("cuCopy_v2_ptsz", "CUstream", "int"),
            function("cuDrop", "int"),
            function("cuDrop_v2", "int"),
        )
    }
    found = emit_sim.implementations(functions, {"cuCopy", "cuDrop_v2"})
    assert found["cuCopy"] == emit_sim.Implementation("cuCopy", own=True)
    assert found["cuCopy_ptsz"] == emit_sim.Implementation("cuCopy", per_thread=True)
    assert found["cuCopy_v2"].function is None
    assert found["cuCopy_v2_ptsz"].function is None
    assert found["cuDrop"] == emit_sim.Implementation("cuDrop_v2")


def test_only_definitions_count_as_code(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        "CUresult sim_cuPrototype(int a);\n"
        "CUresult sim_cuInit(unsigned int flags)\n{\n\treturn sim_cuCalled(flags);\n}\n"
        "CUresult\nsim_cuFoo(void (*callback)(int, void *),\n\t\tvoid *data)\n{\n}\n"
        "/*\nCUresult sim_cuComment(void)\n{\n*/\n"
        "const char *sim_nvmlErrorString(nvmlReturn_t r) {\n}\n"
        "#define TWO(base, type) \\\n\tCUresult sim_##base ## _v2(type t) \\\n\t{ \\\n\t\treturn 0; \\\n\t}\n"
        "#define CALL(name) \\\n\tsim_##name(0)\n"
        "TWO(cuCopy, int)\nTWO(cuFill,\n    long)\nCALL(cuUsed)\nSHARED(nvmlGet, a(1))\n"
    )
    (tmp_path / "a.h").write_text("#define SHARED(name, value) nvmlReturn_t sim_##name(int *out) { return value; }\n")
    by_macro = {"cuCopy_v2", "cuFill_v2", "nvmlGet"}
    assert set(sources.defined(tmp_path, "sim")) == {"cuInit", "cuFoo", "nvmlErrorString"} | by_macro
    assert sources.defined(tmp_path, "hook") == {}


def test_parameters_are_taken_apart() -> None:
    text = "CUresult cuX(void (*callback)(int, void *), const char *name, CUuuid uuid[2], unsigned int, size_t *n);"
    parsed = api.parse_functions(text, Path("x.h"))["cuX"]
    assert [p.name for p in parsed.parameters] == ["callback", "name", "uuid", "arg3", "n"]
    assert parsed.type_list() == "void(*)(int,void*),constchar*,CUuuid*,unsignedint,size_t*"
    assert parsed.prototype("sim_").startswith("CUresult sim_cuX(void (*callback)(int, void *), const char *name, ")
