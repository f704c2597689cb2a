"""K10, C068, D26: what programs say is theirs. Whatever logging level the environment names, a trivial program, one of
NVML, one that is refused and one whose share is closed write the same bytes to stdout as without the library, and
nothing to stderr; asked to log, the library writes to its own file only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))

MANAGEMENT = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, name, driver = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(80)
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetName(device, name, 96) == 0 and nvml.nvmlSystemGetDriverVersion(driver, 80) == 0
memory = (ctypes.c_ulonglong * 3)()
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(name.value.decode(), driver.value.decode())
"""

#: Fails with an error of the driver, with the library and without it: more than any card has.
REFUSED = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
started = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 45)), cuda.cuMemFree_v2(ctypes.c_uint64(77)) != 0)
sys.exit(3)
"""

PROGRAMS = {
    "trivial": ["sh", "-c", "echo said; exit 4"],
    "management": [sys.executable, "-c", MANAGEMENT],
    "refused": [sys.executable, "-c", REFUSED],
}

Output = tuple[int, bytes, bytes]


def run(program: str, directory: Path, **changes: str) -> Output:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_", "LIBCUDA_"))}
    place = {"PARTAGE_SIM": "zero", "PARTAGE_SIM_FORCE": "1", "PARTAGE_SIM_DIR": str(directory)}
    libraries = {"LD_LIBRARY_PATH": str(BUILD / "sim"), "XDG_RUNTIME_DIR": str(directory)}
    environment = kept | place | libraries | changes
    done = subprocess.run(PROGRAMS[program], env=environment, capture_output=True, check=False, timeout=200)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize("level", ["", "0", "1", "2", "3", "4"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_limited_program_says_what_it_says_without_the_library(place: Path, program: str, level: str) -> None:
    levels = {"LIBCUDA_LOG_LEVEL": level, "PARTAGE_LOG_LEVEL": level} if level else {}
    without = run(program, place)
    assert without[1:] == (without[1], b"")
    shared = {"LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so"), "CUDA_DEVICE_MEMORY_LIMIT": "1g"}
    assert run(program, place, **shared, **levels) == without


@pytest.mark.parametrize("program", ["trivial", "management"])
@pytest.mark.parametrize(
    "trouble",
    [{"CUDA_DEVICE_MEMORY_LIMIT": "4Gx"}, {"PARTAGE_DIR": "/nonexistent"}, {"PARTAGE_LOG": "/nonexistent/log"}],
)
def test_trouble_of_ours_is_not_told_on_the_programs_streams(
    place: Path, program: str, trouble: dict[str, str]
) -> None:
    limit = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so")}
    code, said, complained = run(program, place, **limit | trouble)
    assert complained == b""
    if "PARTAGE_DIR" not in trouble:  # a share that cannot be read has no devices to list
        assert (code, said) == run(program, place)[:2]


def test_a_log_that_was_asked_for_is_written_to_its_file_alone(place: Path) -> None:
    preload = str(BUILD / "lib" / "libvgpu.so")
    changes = {"LD_PRELOAD": preload, "CUDA_DEVICE_MEMORY_LIMIT": "1g", "PARTAGE_LOG": str(place / "log")}
    assert run("refused", place, **changes, PARTAGE_LOG_LEVEL="4") == run("refused", place)
    assert "refused" in (place / "log").read_text()
