"""We test this aspect (K06, D11, D13, D15, D16): with libvgpu.so under a limit that leaves room for everything, the driver
answers as without it, call for call, in random sequences of right and wrong calls: NULL outputs, handles that are stale
or of another kind, sizes of 0, calls before initialisation, after a context is destroyed and in a capture.

The functions are all of cuda.h but those that are refused under a limit on purpose and those that cannot be called with
drawn arguments (they wait for others, or take structures by value). Seeds are fixed; a failure names the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
sys.path.insert(0, str(TOP / "hook" / "gen"))  # the generator is a set of scripts, not a package

import classes  # noqa: E402
import generate  # noqa: E402

SEQUENCES = int(os.environ.get("PARTAGE_SEQUENCES", "300"))
FIRST_SEED = int(os.environ.get("PARTAGE_FIRST_SEED", "0"))
CALLS = 60
#: They wait for somebody, read a path, or call back.
LEFT_OUT = ("cuStreamWaitValue", "cuStreamBatchMemOp", "cuCheckpoint", "cuCoredump", "cuLogs", "cuProfiler")
BY_VALUE = ("float", "CUipcMemHandle", "CUipcEventHandle", "CUmemLocation", "CUmemLocation_v1")


def kind_of(text: str, handles: set[str]) -> str:
    """What `sequences.py` must know about a parameter's type."""
    text = text.strip()
    if "(" in text:
        return "function"
    if "[" in text:
        return text[: text.index("[")].strip() + " *"
    if text in handles:
        return f"handle {text}"
    return text


def functions() -> dict[str, object]:
    """Name -> kinds of its parameters, and the types that are handles."""
    headers = Path(os.environ.get("PARTAGE_HEADERS", BUILD / "headers"))
    inputs = generate.read_inputs(headers, TOP)
    everything = inputs.cuda[13].functions
    handles = {
        parameter.type.strip()[:-1].strip()
        for function in everything.values()
        for parameter in function.parameters
        if parameter.type.strip().startswith("CU") and parameter.type.strip().endswith("*")
    }
    by_value = {p.type.strip() for function in everything.values() for p in function.parameters}
    handles = {kind for kind in handles & by_value if kind not in ("CUdeviceptr", "CUdevice")}
    chosen = {
        name: [kind_of(parameter.type, handles) for parameter in function.parameters]
        for name, function in everything.items()
        if inputs.classes.get(name) != classes.REFUSED
        and not name.startswith(LEFT_OUT)
        and not any(parameter.type.strip() in BY_VALUE for parameter in function.parameters)
        and function.result.strip() == "CUresult"
    }
    return {"functions": chosen, "handles": sorted(handles)}


def answers(tmp_path: Path, asked: Path, **environment: str) -> list[list[object]]:
    """Every line that the sequences print in a machine of their own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    tmp_path.mkdir(mode=0o700)
    places = {"PARTAGE_SIM_DIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    machine = {"PARTAGE_SIM": "zero", "PARTAGE_SIM_FORCE": "1", "LD_LIBRARY_PATH": str(BUILD / "sim")}
    command = [sys.executable, Path(__file__).with_name("sequences.py"), asked]
    command += [str(FIRST_SEED), str(FIRST_SEED + SEQUENCES), str(CALLS)]
    done = subprocess.run(
        command, env=kept | places | machine | environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def by_seed(lines: list[list[object]]) -> dict[int, list[list[object]]]:
    """Lines of each sequence."""
    found: dict[int, list[list[object]]] = {}
    for line in lines:
        if line[0] == "seed":
            current = found[line[1]] = []
        else:
            current.append(line)
    return found


@pytest.mark.timeout(1200)
def test_random_calls_are_answered_as_without_the_library(tmp_path: Path) -> None:
    asked = tmp_path / "functions.json"
    asked.write_text(json.dumps(functions()))
    without = by_seed(answers(tmp_path / "without", asked))
    limited = {"LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so"), "CUDA_DEVICE_MEMORY_LIMIT": "8t"}
    with_it = by_seed(answers(tmp_path / "with", asked, **limited))
    differences = []
    for seed, lines in without.items():
        pairs = zip(lines, with_it[seed], strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if first or len(lines) != len(with_it[seed]):
            differences.append(f"seed {seed}: without {first and first[0]}, with {first and first[1]}")
    calls = [line for lines in without.values() for line in lines if len(line) == 4]
    right = sum(line[2] == 0 for line in calls)
    called = len({line[0] for line in calls})
    print(f"{len(calls)} calls of {called} functions, {right} of them right, {len(differences)} sequences differ")
    assert not differences, "\n".join(differences[:40])
    assert right > len(calls) / 10
    assert len(calls) > 20 * SEQUENCES
