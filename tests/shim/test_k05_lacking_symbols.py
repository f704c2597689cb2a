"""A driver that lacks one of the functions the library itself calls, for each of them.

We test these aspects: the program goes on and ends well; what it is given never exceeds its limit, by the simulator's
own count, whichever function is missing; and where none is, every kind of memory can be had up to the limit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
GIB = 1 << 30
CHUNK = 64 << 20

PROGRAM = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
ref, size_t = ctypes.byref, ctypes.c_size_t
def call(name, *arguments):
    try:
        function = getattr(cuda, name)
    except AttributeError:
        return -1  # what the driver lacks is not handed out
    return function(*arguments)
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("id", ctypes.c_int),
                ("rest", ctypes.c_uint64 * 2)]
context, device = ctypes.c_void_p(), ctypes.c_int()
started = [call("cuInit", 0), call("cuDeviceGet", ref(device), 0),
           call("cuDevicePrimaryCtxRetain", ref(context), device), call("cuCtxSetCurrent", context)]
if started[2] == -1:
    call("cuCtxCreate_v2", ref(context), 0, device)
CHUNK = 64 << 20
pool = ctypes.c_void_p()
call("cuDeviceGetDefaultMemPool", ref(pool), device)
def plain(out): return call("cuMemAlloc_v2", out, size_t(CHUNK))
def managed(out): return call("cuMemAllocManaged", out, size_t(CHUNK), 1)
def pitched(out): return call("cuMemAllocPitch_v2", out, ref(size_t()), size_t(1 << 16), size_t(CHUNK >> 16), 4)
def asynchronous(out): return call("cuMemAllocAsync", out, size_t(CHUNK), None)
def pooled(out): return call("cuMemAllocFromPoolAsync", out, size_t(CHUNK), pool, None)
def physical(out): return call("cuMemCreate", out, size_t(CHUNK), ref(Properties(1, 0, 1, 0)), ctypes.c_uint64(0))
given = {}
for kind in (plain, managed, pitched, asynchronous, pooled, physical):
    held = []
    while len(held) < 40:
        pointer = ctypes.c_uint64()
        if kind(ref(pointer)) != 0:
            break
        held.append(pointer)
    given[kind.__name__] = len(held)
    for pointer in held:
        if kind is physical:
            call("cuMemRelease", pointer)
        elif kind in (asynchronous, pooled):
            call("cuMemFreeAsync", pointer, None)
        else:
            call("cuMemFree_v2", pointer)
    call("cuCtxSynchronize")
    call("cuMemGetInfo_v2", ref(size_t()), ref(size_t()))
print(json.dumps(given))
"""

#: The driver's functions that hook/shim calls on its own account.
CALLED = sorted(
    {
        name
        for path in (TOP / "hook" / "shim").glob("*.c")
        for name in re.findall(r'\breal_(cu[A-Z]\w*)|vgpu_real_cuda\("(\w+)"\)', path.read_text())
        for name in name
        if name and name != "cuX"
    }
)


def driver_without(names: list[str], place: Path) -> Path:
    """Write a driver into `place` whose symbol table has other names in the place of these."""
    data = (BUILD / "sim" / "libcuda.so.1").read_bytes()
    for name in names:
        symbol = b"\0" + name.encode() + b"\0"
        assert symbol in data, f"the simulated driver never had {name}"
        data = data.replace(symbol, b"\0x" + symbol[2:])
    place.mkdir(exist_ok=True)
    (place / "libcuda.so.1").write_bytes(data)
    return place


def run(directory: Path, lacking: list[str]) -> tuple[dict[str, int], int]:
    """(chunks given by kind, most bytes ever held) of the program under a limit of 1 GiB."""
    machine = pytest.importorskip("partage.sim.machine", reason="the cffi module is not built: run make build")
    libraries = driver_without(lacking, directory / "lib")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    environment |= {
        "PARTAGE_SIM": "zero",
        "PARTAGE_SIM_FORCE": "1",
        "PARTAGE_SIM_DIR": str(directory),
        "XDG_RUNTIME_DIR": str(directory),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "PARTAGE_CONTEXT_MEMORY": "0",
        "LD_LIBRARY_PATH": f"{libraries}:{BUILD / 'sim'}",
        "LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so"),
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, ""), f"without {lacking}: {done.returncode} {done.stderr}"
    if not (directory / "machine").exists():  # the driver was never entered
        return json.loads(done.stdout), 0
    with machine.Machine() as opened:
        return json.loads(done.stdout), opened.read("uint64_t", "device", 0, "peak")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PARTAGE_SIM_DIR", str(tmp_path))
    return tmp_path


def test_a_whole_driver_gives_all_of_the_share(place: Path) -> None:
    assert len(CALLED) > 50
    given, peak = run(place, [])
    assert set(given.values()) == {GIB // CHUNK}
    assert peak == GIB


@pytest.mark.parametrize("name", CALLED)
def test_without_a_function_of_the_driver_the_limit_holds(place: Path, name: str) -> None:
    given, peak = run(place, [name])
    assert peak <= GIB, f"without {name} the program held {peak} bytes: {given}"
