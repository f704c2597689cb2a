"""Every public name of cuda.h and nvml.h has a class, and each class has what it promises: hooks, exports, checks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import api
import classes
import devices
import emit_shim
import generate
import pytest

from .conftest import TOP, exported

if TYPE_CHECKING:
    from pathlib import Path

GENERATE = [sys.executable, str(TOP / "hook" / "gen" / "generate.py")]


def test_every_public_name_has_a_class_and_every_class_a_name(inputs: generate.Inputs) -> None:
    assert len(inputs.cuda[12].functions) > 600
    assert len(inputs.cuda[13].functions) > 680
    assert len(inputs.nvml[12].functions) > 370
    assert len(inputs.nvml[13].functions) > 430
    assert generate.coverage_problems(inputs) == []


def test_every_metered_and_virtualised_name_has_its_hook_written(inputs: generate.Inputs) -> None:
    assert generate.hook_problems(inputs) == []


@pytest.fixture
def grown_headers(headers: Path, tmp_path: Path) -> Path:
    """A copy of the headers in which a later CUDA has brought two new entry points."""
    for name in ("cuda12", "cuda13", "nvml12", "nvml13"):
        (tmp_path / name).mkdir()
        for header in ("cuda.h", "cudaTypedefs.h", "cudaProfilerTypedefs.h", "nvml.h"):
            if (headers / name / header).is_file():
                shutil.copy(headers / name / header, tmp_path / name)
    with (tmp_path / "cuda13" / "cuda.h").open("a") as text:
        text.write(
            "CUresult CUDAAPI cuMemAllocFoo(CUdeviceptr *dptr, size_t bytesize);\nCUresult CUDAAPI cuFoo(void);\n"
        )
    return tmp_path


def test_a_new_entry_point_stops_generation_and_check_and_is_named(grown_headers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for extra in ([], ["--check"]):
        command = [*GENERATE, "--headers", str(grown_headers), "--out", str(out), *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "cuMemAllocFoo is public but has no class" in done.stderr
        assert "cuFoo is public but has no class" in done.stderr
    assert not out.exists()


def test_a_class_without_a_name_is_found(inputs: generate.Inputs) -> None:
    table = inputs.cuda_classes | {"cuGone": classes.HARMLESS}
    problems = classes.coverage_problems(table, inputs.cuda[12].functions, inputs.cuda[13].functions)
    assert problems == ["cuGone has a class but is in no header"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("API(cuInit, SAFE)\n", ":1: 'API(cuInit, SAFE)': expected API"),
        ("/* two\nlines */\ncuInit\n", ":3: 'cuInit': expected API"),
        ("API(cuInit, HARMLESS)\nAPI(cuInit, METERED)\n", ":2: cuInit has a class already, HARMLESS"),
    ],
)
def test_a_bad_class_table_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "cuda_api.def"
    table.write_text(text)
    with pytest.raises(classes.ClassError, match=re.escape(message)):
        classes.read_classes(table)


#: Parts of a name by which memory is taken or shared. A new class for one of these must be a considered one.
TAKES = re.compile(
    r"^cu(MemAlloc(?!Host)|MemCreate|Array(3D)?Create|MipmappedArrayCreate|CtxCreate|GreenCtxCreate|Ipc\w+Mem|Import\w+Mem)"
)


def test_no_name_that_takes_memory_is_passed_on(inputs: generate.Inputs) -> None:
    taken = {name: kind for name, kind in inputs.cuda_classes.items() if TAKES.match(name)}
    assert len(taken) >= 25
    closes = {"cuIpcCloseMemHandle"}
    loose = {n for n, kind in taken.items() if kind not in (classes.METERED, classes.REFUSED)} - closes
    assert loose == set()


def test_variants_of_a_name_have_the_class_of_the_name(inputs: generate.Inputs) -> None:
    by_base: dict[str, set[str]] = {}
    for name, kind in inputs.classes.items():
        by_base.setdefault(re.sub(r"(_v\d+)?(_pts[zd]|_ptds)?$", "", name), set()).add(kind)
    assert {base: kinds for base, kinds in by_base.items() if len(kinds) > 1} == {}


def test_every_name_that_names_a_device_is_hooked(inputs: generate.Inputs) -> None:
    plan = emit_shim.plan([inputs.cuda[13], inputs.nvml[13]], inputs.classes, set(inputs.hook_code))
    naming = {name for name, f in inputs.cuda[13].functions.items() if devices.hidden_conditions(f)}
    assert {"cuDeviceGetAttribute", "cuDeviceCanAccessPeer", "cuMemAdvise_v2", "cuMemSetAccess"} <= naming
    assert naming <= set(plan.hooked)
    locations = {n for n, f in inputs.cuda[13].functions.items() if "CUmemLocation" in f.type_list()}
    assert locations - naming == {"cuMemGetLocationInfo"}, "a location that is not an answer is not checked"


def test_shim_exports_hooked_names_and_dlsym_only(inputs: generate.Inputs, build: Path) -> None:
    plan = emit_shim.plan([inputs.cuda[13], inputs.nvml[13]], inputs.classes, set(inputs.hook_code))
    assert exported(build / "lib" / "libvgpu.so") - {"VGPU_1"} == set(plan.hooked) | {"dlsym", "dlvsym"}


@pytest.mark.parametrize(("library", "room"), [("libcuda.so.1", "cuda"), ("libnvidia-ml.so.1", "nvml")])
def test_simulated_libraries_export_every_public_name(
    inputs: generate.Inputs, build: Path, library: str, room: str
) -> None:
    header = inputs.cuda[13] if room == "cuda" else inputs.nvml[13]
    assert exported(build / "sim" / library) == set(header.functions) | {"partage_sim_calls"}


def test_hooks_have_the_headers_parameters(inputs: generate.Inputs, build: Path) -> None:
    text = (build / "generated" / "hooks.h").read_text()
    functions = inputs.cuda[13].functions | inputs.nvml[13].functions
    prototypes = re.findall(r"^\S[^\n=]*\bhook_(\w+)\((.*)\);$", text, re.MULTILINE)
    assert {name for name, _ in prototypes} >= {"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocAsync_ptsz"}
    for name, parameters in prototypes:
        assert len(api.split_parameters(parameters)) == len(functions[name].parameters), name


def test_written_hooks_have_the_headers_parameter_count(inputs: generate.Inputs) -> None:
    functions = inputs.cuda[13].functions | inputs.nvml[13].functions
    for name, path in inputs.hook_code.items():
        match = re.search(rf"\bhook_{name}\s*\(([^{{;]*)\)\s*\{{", path.read_text())
        if not match:
            continue  # made by a macro: the compiler compares it with the prototype
        assert len(api.split_parameters(match[1].replace("\n", " "))) == len(functions[name].parameters), name
