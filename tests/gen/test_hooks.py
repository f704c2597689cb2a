"""Generated and hand-written hooks as a program meets them: what is refused never reaches the driver under a limit
(C004 among it)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import classes
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import generate

Run = Callable[..., Any]

PROGRAM = """
import ctypes, json, sys
with open("/proc/self/maps") as maps:
    assert "libvgpu" in maps.read(), "the shim is not loaded: this test would prove nothing"
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
for library in (cuda, nvml):
    library.partage_sim_calls.restype = ctypes.c_uint64
    library.partage_sim_calls.argtypes = [ctypes.c_char_p]
calls = lambda name: (nvml if name.startswith("nvml") else cuda).partage_sim_calls(name.encode())
asked = json.loads(sys.argv[1])
"""


@pytest.fixture
def run(build: Path, tmp_path: Path) -> Run:
    """Run Python lines under the shim with `cuda`, `nvml`, `calls` and `asked`; returns the JSON that they print."""

    def start(lines: str, asked: Any = None, **env: str) -> Any:
        shim = build / "lib" / "libvgpu.so"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
        environment |= {"PARTAGE_SIM": "zero", "PARTAGE_SIM_FORCE": "1", "PARTAGE_SIM_DIR": str(tmp_path)}
        environment |= {
            "XDG_RUNTIME_DIR": str(tmp_path),
            "LD_LIBRARY_PATH": str(build / "sim"),
            "LD_PRELOAD": str(shim),
        }
        command = [sys.executable, "-c", PROGRAM + lines, json.dumps(asked)]
        done = subprocess.run(command, env=environment | env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return start


CALL_ALL = """
zeros = [ctypes.c_void_p(0)] * 8
results = {}
for name in asked:
    library = nvml if name.startswith("nvml") else cuda
    results[name] = [getattr(library, name)(*zeros), calls(name)]
print(json.dumps(results))
"""


def test_refused_names_are_refused_under_a_limit_and_never_reach_the_driver(run: Run, inputs: generate.Inputs) -> None:
    refused = sorted(name for name, kind in inputs.classes.items() if kind == classes.REFUSED)
    assert refused
    results = run(CALL_ALL, refused, CUDA_DEVICE_MEMORY_LIMIT="1g")
    assert results == {name: [3 if name.startswith("nvml") else 801, 0] for name in refused}


def test_refused_names_go_to_the_driver_where_there_is_no_limit(run: Run, inputs: generate.Inputs) -> None:
    refused = sorted(name for name, kind in inputs.classes.items() if kind == classes.REFUSED)
    results = run(CALL_ALL, refused)
    assert {name for name, (_, calls) in results.items() if calls != 1} == set()


LIMITS = """
n, free, total, value, context = (ctypes.c_size_t() for _ in range(5))
ref = ctypes.byref
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ref(context), 0, 0) == 0
def left():
    assert cuda.cuMemGetInfo_v2(ref(free), ref(total)) == 0
    return free.value
def heap():
    assert cuda.cuCtxGetLimit(ref(value), 2) == 0
    return value.value
def set_heap(size):
    return cuda.cuCtxSetLimit(2, ctypes.c_size_t(size))
MiB = 1 << 20
first, at_start = heap(), left()
out = [set_heap(first + 512 * MiB), (at_start - left()) // MiB]
before = calls("cuCtxSetLimit")
out += [set_heap(first + 4096 * MiB), calls("cuCtxSetLimit") - before]
out += [(heap() - first) // MiB, (at_start - left()) // MiB]
out += [set_heap(first + 256 * MiB), (at_start - left()) // MiB]
assert cuda.cuCtxDestroy_v2(context) == 0 and cuda.cuCtxCreate_v2(ref(context), 0, 0) == 0
print(json.dumps([*out, (at_start - left()) // MiB]))
"""


def test_a_larger_kernel_heap_is_an_allocation(run: Run) -> None:
    raised, refused, lowered, destroyed = [0, 512], [2, 0, 512, 512], [0, 256], [0]
    assert run(LIMITS, CUDA_DEVICE_MEMORY_LIMIT="1g") == [*raised, *refused, *lowered, *destroyed]


FEATURES = """
n = ctypes.c_int()
assert cuda.cuInit(0) == 0
out = []
for attribute in asked:
    assert cuda.cuDeviceGetAttribute(ctypes.byref(n), attribute, 0) == 0
    out.append(n.value)
print(json.dumps(out))
"""


def test_what_is_refused_is_not_said_to_be_there(run: Run) -> None:
    multicast, dma_buf, file_handles, pool_handles, pools, managed = 132, 124, 103, 119, 115, 83
    fabric_handles = 128
    ways = [multicast, dma_buf, fabric_handles]
    asked = [*ways, file_handles, pool_handles, pools, managed]
    limited = run(FEATURES, asked, CUDA_DEVICE_MEMORY_LIMIT="1g", PARTAGE_SIM="zero-nvswitch")
    assert limited == [0, 0, 0, 1, 1, 1, 1]
    assert run(FEATURES, [multicast], PARTAGE_SIM="zero-nvswitch") == [1], "there is something to hide"


UUIDS = """
out = []
assert cuda.cuInit(0) == 0
for device in range(2):
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    text = bytes(uuid).hex()
    out.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
print(json.dumps(out))
"""

NAMES_A_DEVICE = """
name, n = ctypes.create_string_buffer(64), ctypes.c_int()
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]
assert cuda.cuInit(0) == 0
p, size = ctypes.c_uint64(0x200000), ctypes.c_size_t(0x200000)
sizes, index = (ctypes.c_size_t * 1)(0x200000), (ctypes.c_size_t * 1)(0)
def ask(device):
    where = Location(1, device)
    yield "cuDeviceGetName", (name, 64, device)
    yield "cuDeviceGetAttribute", (ctypes.byref(n), 16, device)
    yield "cuDeviceCanAccessPeer", (ctypes.byref(n), device, device)
    yield "cuMemAdvise", (p, size, 3, device)
    yield "cuMemAdvise_v2", (p, size, 3, where)
    yield "cuMemPrefetchAsync", (p, size, device, None)
    yield "cuMemPrefetchAsync_v2_ptsz", (p, size, where, 0, None)
    yield "cuMemSetAccess", (p, size, (Access * 1)(Access(where, 3)), 1)
    one = ctypes.c_size_t(1)
    pointers, places = (ctypes.c_uint64 * 1)(p.value), (Location * 1)(where)
    yield "cuMemPrefetchBatchAsync", (pointers, sizes, one, places, index, one, 0, None)
out = {}
for device in (0, 1, -7):
    for call, arguments in ask(device):
        before = calls(call)
        result = getattr(cuda, call)(*arguments)
        out.setdefault(call, []).append([result == 101, calls(call) - before])
print(json.dumps(out))
"""


def test_a_device_that_was_not_granted_does_not_exist_for_any_call(run: Run, tmp_path: Path) -> None:
    policy = pytest.importorskip("partage.shm.policy", reason="the cffi module is not built: run make build")
    _, granted = run(UUIDS, PARTAGE_SIM="zero2")
    device = policy.PolicyDevice(uuid=granted, memory=1 << 30, physical=1 << 34)
    policy.PolicyFile.create(tmp_path / "policy", policy.Policy(devices=(device,))).close()
    found = run(NAMES_A_DEVICE, PARTAGE_SIM="zero2", PARTAGE_DIR=str(tmp_path))
    assert len(found) == 9
    for call, (hidden, visible, nonsense) in found.items():
        assert hidden == [True, 0], f"{call} reached the driver for a device that was not granted"
        assert visible[1] == 1, f"{call} did not reach the driver for a granted device"
        assert nonsense[1] == 1, f"{call}: what is no device at all is the driver's business"
