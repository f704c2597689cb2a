"""What libvgpu.so is as a file, and what it does to a process that has nothing to do with a GPU.

We test these aspects (C027; D25: without a driver everything still starts): what it needs and imports (it must load
into every libc since 2.17, with or without a driver),
what it exports (what it hooks, and nothing else), how it is linked, and that a program which never calls the driver
does no more than map it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
SHIM = BUILD / "lib" / "libvgpu.so"

#: The newest version of glibc whose symbols may be imported.
NEWEST = (2, 17)
#: Weak references of the compiler's start-up files; nobody needs to define them.
START_UP = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}


def tool(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.fixture(scope="module")
def dynamic() -> str:
    assert SHIM.is_file(), f"no {SHIM}: run make build"
    return tool("readelf", "-dW", SHIM)


@pytest.fixture(scope="module")
def imports() -> dict[str, str]:
    """Imported symbol -> its version, empty where it has none."""
    lines = tool("nm", "-D", "--undefined-only", SHIM).splitlines()
    names = [line.split()[-1] for line in lines]
    return {name.split("@")[0]: name.partition("@")[2].lstrip("@") for name in names}


def exports() -> set[str]:
    """Exported symbols with their versions, as `nm -D` prints them (`@@` marks the default one)."""
    return {
        line.split()[-1] for line in tool("nm", "-D", "--defined-only", SHIM).splitlines() if line.split()[1] != "A"
    }


def test_needs_only_libc_and_its_loader(dynamic: str) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert "libc.so.6" in needed
    others = [name for name in needed if name != "libc.so.6" and not name.startswith("ld-linux")]
    assert others == [], f"every process would need {others}"


def test_imports_nothing_newer_than_the_oldest_libc(imports: dict[str, str]) -> None:
    newer = {
        name: version
        for name, version in imports.items()
        if (found := re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)) and (int(found[1]), int(found[2])) > NEWEST
    }
    assert newer == {}
    needs = re.findall(r"Name: (GLIBC\w*)", tool("readelf", "-VW", SHIM))
    assert "GLIBC_PRIVATE" not in needs


def test_imports_no_private_or_unversioned_symbol(imports: dict[str, str]) -> None:
    assert imports, "nm shows no imports"
    assert {name for name, version in imports.items() if version == "GLIBC_PRIVATE"} == set()
    assert {name for name, version in imports.items() if not version} <= START_UP


def test_imports_no_look_up_function(imports: dict[str, str]) -> None:
    # An imported dlsym would be another interposer's, or our own.
    assert {name for name in imports if name.startswith("dl")} == set()


def test_exports_what_it_hooks_and_nothing_else() -> None:
    header = (BUILD / "generated" / "hooks.h").read_text()
    counted = re.search(r"#define VGPU_HOOKS (\d+)", header)
    assert counted
    names = re.findall(r"^\tVGPU_INDEX_(\w+),", header, re.MULTILINE)[: int(counted[1])]
    assert len(names) > 100
    found = exports()
    look_ups = {name for name in found if name.startswith("dl")}
    hooks = {name.split("@")[0] for name in found - look_ups}
    assert hooks == set(names)
    base = "GLIBC_2.2.5" if os.uname().machine == "x86_64" else "GLIBC_2.17"
    assert look_ups == {f"{name}{version}" for name in ("dlsym", "dlvsym") for version in (f"@{base}", "@@GLIBC_2.34")}


def test_is_linked_to_stay_and_to_resist(dynamic: str) -> None:
    assert re.search(r"FLAGS_1.*\bNOW\b.*\bNODELETE\b", dynamic)
    assert "TEXTREL" not in dynamic
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    segments = tool("readelf", "-lW", SHIM)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.*RW ", segments), "the stack would become executable"


def test_has_no_constructor_of_its_own(dynamic: str) -> None:
    # One entry is the compiler's own (frame_dummy); one more would be code that runs in every process.
    size = re.search(r"INIT_ARRAYSZ\)\s+(\d+)", dynamic)
    assert size is None or int(size[1]) <= 8


def bare_environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LD_PRELOAD": str(SHIM), **more}


def test_a_process_without_driver_ends_well_and_silently() -> None:
    done = subprocess.run(["true"], capture_output=True, env=bare_environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_broken_policy_does_not_disturb_a_process_that_never_calls_the_driver(tmp_path: Path) -> None:
    (tmp_path / "policy").write_bytes(b"scribble")
    more = {"PARTAGE_DIR": str(tmp_path), "CUDA_DEVICE_MEMORY_LIMIT": "nonsense", "LIBCUDA_LOG_LEVEL": "4"}
    done = subprocess.run(["true"], capture_output=True, env=bare_environment(**more), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy"]


def traced(environment: dict[str, str], log: Path) -> list[str]:
    subprocess.run(
        ["strace", "-f", "-o", log, "-E", f"LD_PRELOAD={environment.get('LD_PRELOAD', '')}", "true"],
        check=True,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
    )
    return [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]


def test_a_process_that_never_calls_the_driver_only_maps_the_library(tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("no strace")
    try:
        without = traced({}, tmp_path / "without")
        with_shim = traced(bare_environment(), tmp_path / "with")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"strace cannot trace here: {error.stderr.decode().strip()}")

    def opened(lines: list[str]) -> list[str]:
        return [
            found[1]
            for line in lines
            if (found := re.match(r'open(?:at)?\([^"]*"([^"]*)"', line)) and " = -1" not in line
        ]

    more = list(opened(with_shim))
    for path in opened(without):
        more.remove(path)
    assert more == [str(SHIM)]
    kinds = {line.split("(")[0] for line in with_shim} - {line.split("(")[0] for line in without}
    assert kinds <= {"fstat", "newfstatat", "mprotect", "mmap", "munmap", "read", "pread64", "close", "openat"}, kinds


def test_a_static_program_is_out_of_reach_and_unharmed(tmp_path: Path) -> None:
    """The expected outcome of this way round: it works, and only the host can see it."""
    (tmp_path / "p.c").write_text("int main(void) { return 7; }\n")
    compiler = os.environ.get("CC", "cc").split()
    built = subprocess.run(
        [*compiler, "-static", "-o", tmp_path / "p", tmp_path / "p.c"], capture_output=True, check=False
    )
    if built.returncode:
        pytest.skip("no static libc here")
    done = subprocess.run([tmp_path / "p"], capture_output=True, env=bare_environment(), check=False)
    assert (done.returncode, done.stderr) == (7, b"")
