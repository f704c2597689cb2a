"""We test this aspect (K06, D11, D13, D15, D16): with libvgpu.so under a limit that leaves room for everything, the
driver answers as without it, call for call, in random sequences of right and wrong calls: NULL outputs, handles that
are stale or of another kind, sizes of 0, calls before initialisation, after a context is destroyed and in a capture.

The functions are all of cuda.h but those that are refused under a limit on purpose and those that cannot be called with
drawn arguments (they wait for others, or take structures by value). Seeds are fixed; a failure names the first call
that differs. `PARTAGE_SEQUENCES` and `PARTAGE_FIRST_SEED` choose others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import zip_longest
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
#: They wait for somebody, or write files.
LEFT_OUT = (
    "cuStreamWaitValue",
    "cuStreamBatchMemOp",
    "cuCheckpoint",
    "cuCoredump",
    "cuLogs",
    "cuProfiler",
    "cuGraphDebugDot",
)
BY_VALUE = ("float", "CUipcMemHandle", "CUipcEventHandle", "CUmemLocation", "CUmemLocation_v1")


OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED, NOT_SUPPORTED = 2, 201, 400, 709, 801
#: Refused where the driver may grant: a way of sharing that cannot be metered; stacks for all threads that can be
#: resident, which a card has room for only because most programs never fill it.
REFUSING = {"cuMemCreate": NOT_SUPPORTED, "cuMemPoolCreate": NOT_SUPPORTED, "cuCtxSetLimit": OUT_OF_MEMORY}
NO_CONTEXT = {INVALID_CONTEXT, CONTEXT_IS_DESTROYED}
CAPTURE_UNSUPPORTED = 900


def kind_of(parameter: generate.api.Parameter, handles: set[str]) -> str:
    """What `sequences.py` must know about a parameter."""
    text = parameter.type.strip()
    if "(" in text or text.endswith(("Fn", "Callback", "B2DSize")):
        return "function"
    if not text.endswith("*") and re.search(r"count|num|^n[A-Z]", parameter.name, re.IGNORECASE):
        return "count"
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
        name: [kind_of(parameter, handles) for parameter in function.parameters]
        for name, function in everything.items()
        if inputs.classes.get(name) != classes.REFUSED
        and not name.startswith(LEFT_OUT)
        and not any(parameter.type.strip() in BY_VALUE for parameter in function.parameters)
        and function.result.strip() == "CUresult"
    }
    hooked = sorted(name for name in chosen if inputs.classes.get(name) in (classes.METERED, classes.VIRTUALISED))
    return {"functions": chosen, "handles": sorted(handles), "hooked": hooked}


def answers(tmp_path: Path, asked: Path, **environment: str) -> list[list[object]]:
    """Every line that the sequences print in a machine of their own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    tmp_path.mkdir(mode=0o700)
    places = {"PARTAGE_SIM_DIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    machine = {"PARTAGE_SIM": "zero", "PARTAGE_SIM_FORCE": "1", "LD_LIBRARY_PATH": str(BUILD / "sim")}
    command = [sys.executable, Path(__file__).with_name("sequences.py"), asked]
    command += [str(FIRST_SEED), str(FIRST_SEED + SEQUENCES), str(CALLS)]
    done = subprocess.run(
        command,
        env=kept | places | machine | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=tmp_path,
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


def first_found(name: str) -> set[int]:
    """What we may find first where two things are wrong: a size over any limit; no context or stream to allocate in."""
    if name.startswith("cuMemAllocFromPoolAsync"):
        return NO_CONTEXT | {INVALID_HANDLE}
    if name.startswith(("cuMemAllocManaged", "cuMemAllocPitch")):
        return NO_CONTEXT | {OUT_OF_MEMORY}
    return NO_CONTEXT if name.startswith("cuMemAlloc") else set()


def difference(seed: int, without: list[list[object]], with_it: list[list[object]]) -> str | None:
    """Where the two first differ; after a call that is refused on purpose the rest is another story."""
    for plain, ours in zip_longest(without, with_it):
        if plain == ours:
            continue
        both = plain is not None and ours is not None and len(plain) == len(ours) == 4
        if both and plain[2] == CAPTURE_UNSUPPORTED and ours[2] == OUT_OF_MEMORY:
            return None  # more than the limit: the driver is not asked, so the capture is not invalidated
        if both and plain[2] and ours[2] in first_found(ours[0]):
            continue
        if both and ours[2] and REFUSING.get(ours[0]) == ours[2]:
            return None
        return f"seed {seed}: without {plain}, with {ours}"
    return None


@pytest.mark.timeout(1200)
def test_random_calls_are_answered_as_without_the_library(tmp_path: Path) -> None:
    asked = tmp_path / "functions.json"
    asked.write_text(json.dumps(functions()))
    without = by_seed(answers(tmp_path / "without", asked))
    limited = {"LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so"), "CUDA_DEVICE_MEMORY_LIMIT": "8t"}
    with_it = by_seed(answers(tmp_path / "with", asked, **limited))
    differences = [found for seed in without if (found := difference(seed, without[seed], with_it[seed]))]
    calls = [line for lines in without.values() for line in lines if len(line) == 4]
    right = sum(line[2] == 0 for line in calls)
    called = len({line[0] for line in calls})
    print(f"{len(calls)} calls of {called} functions, {right} of them right, {len(differences)} sequences differ")
    assert not differences, "\n".join(differences[:40])
    assert right > len(calls) / 10
    assert len(calls) > 20 * SEQUENCES
