"""cuGetProcAddress's table is what the headers' typedefs say, for CUDA 12 and 13, and the simulator answers by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import api
import pytest
import symbols

if TYPE_CHECKING:
    from pathlib import Path

    import generate

VERSIONS = (12, 13)


def aliases(headers: Path, version: int) -> dict[str, str]:
    """Type name -> the type it is a typedef of, so that `CUipcMemHandle` and `CUipcMemHandle_v1` compare equal."""
    text = api.preprocess(headers / f"cuda{version}" / "cuda.h", api.CUDA_DEFINES)
    return {new: old for old, new in re.findall(r"typedef\s+(?:struct\s+|union\s+|enum\s+)?(\w+)\s+(\w+)\s*;", text)}


def resolve(types: str, known: dict[str, str]) -> str:
    """A list of types with every typedef followed to its end; `const` is set apart from what it stands before."""

    def follow(match: re.Match[str]) -> str:
        name = match[0]
        while name in known:
            name = known[name]
        return name

    return re.sub(r"\w+", follow, re.sub(r"\bconst(?=\w)", "const ", types)).replace(" ", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_typedef_belongs_to_one_symbol_with_the_same_parameters(
    inputs: generate.Inputs, headers: Path, version: int
) -> None:
    known = aliases(headers, version)
    pairs = inputs.procedures(version)
    assert len(pairs) == len(inputs.typedefs[version]) == len(inputs.cuda[version].functions)
    # A const that stands before a value says nothing to a caller; one typedef has it where the function has not.
    same_but_const = {"cuLogicalEndpointExport"}
    for p in pairs:
        symbol = resolve(inputs.cuda[version].functions[p.symbol].type_list(), known)
        typedef = resolve(p.types, known)
        if p.symbol in same_but_const:
            symbol, typedef = symbol.replace("const", ""), typedef.replace("const", "")
        assert symbol == typedef, f"PFN_{p.base}_v{p.version} was paired with {p.symbol}"


def test_both_headers_agree_about_what_both_know(inputs: generate.Inputs) -> None:
    old, new = ({(p.base, p.version, p.per_thread): p.symbol for p in inputs.procedures(v)} for v in VERSIONS)
    assert {key: new.get(key) for key in old} == old


def test_known_pairs(inputs: generate.Inputs) -> None:
    found = {(p.base, p.version, p.per_thread): p.symbol for p in inputs.procedures(13)}
    assert found["cuMemAlloc", 2000, False] == "cuMemAlloc"
    assert found["cuMemAlloc", 3020, False] == "cuMemAlloc_v2"
    assert found["cuMemcpyHtoD", 7000, True] == "cuMemcpyHtoD_v2_ptds"
    assert found["cuProfilerStart", 4000, False] == "cuProfilerStart"  # not in cuda.h, but programs link to it
    assert found["cuCtxCreate", 11040, False] == "cuCtxCreate_v3"
    assert found["cuGetProcAddress", 11030, False] == "cuGetProcAddress"
    assert found["cuGetProcAddress", 12000, False] == "cuGetProcAddress_v2"


def test_unequal_numbers_are_refused(inputs: generate.Inputs) -> None:
    typedefs = [t for t in inputs.typedefs[13] if (t.base, t.version) != ("cuMemAlloc", 2000)]
    with pytest.raises(symbols.SymbolError, match="cuMemAlloc: symbols"):
        symbols.pair(inputs.cuda[13].functions, typedefs)


ASK = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
ask = library.cuGetProcAddress_v2
pfn, status_t = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
ask.argtypes = [ctypes.c_char_p, pfn, ctypes.c_int, ctypes.c_uint64, status_t]
out = []
for name, version, flags, symbol in json.load(sys.stdin):
    pointer, status = ctypes.c_void_p(1), ctypes.c_int(-77)
    result = ask(name.encode(), pointer, version, flags, status)
    wanted = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value if symbol else None
    out.append([result, status.value, pointer.value == wanted])
print(json.dumps(out))
"""

Question = tuple[str, int, int, str | None]


def ask(build: Path, tmp_path: Path, questions: list[Question], **env: str) -> list[list[Any]]:
    """(result, symbolStatus, whether the pointer is the named symbol's or NULL as expected) of each question."""
    environment = {**os.environ, "PARTAGE_SIM_DIR": str(tmp_path), **env}
    command = [sys.executable, "-c", ASK, str(build / "sim" / "libcuda.so.1")]
    done = subprocess.run(
        command, input=json.dumps(questions), env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[Any]] = json.loads(done.stdout)
    return answers


def test_simulator_answers_every_typedef_with_its_symbol(inputs: generate.Inputs, build: Path, tmp_path: Path) -> None:
    for version in VERSIONS:
        rows = inputs.procedures(version)
        questions: list[Question] = [(p.base, p.version, 2 if p.per_thread else 0, p.symbol) for p in rows]
        answers = ask(build, tmp_path, questions)
        wrong = [q for q, a in zip(questions, answers, strict=True) if a != [0, 0, True]]
        assert wrong == []


def test_simulator_answers_by_version_flags_and_name(build: Path, tmp_path: Path) -> None:
    table: list[tuple[Question, list[Any]]] = [
        (("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"), [0, 0, True]),
        (("cuMemAlloc", 3010, 0, "cuMemAlloc"), [0, 0, True]),
        (("cuMemAllocAsync", 11010, 0, None), [0, 2, True]),  # the name is known, the version is not enough
        (("cuMemAllocAsync", 11020, 1, "cuMemAllocAsync"), [0, 0, True]),
        (("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"), [0, 0, True]),
        (("cuMemAlloc", 11020, 2, "cuMemAlloc_v2"), [0, 0, True]),  # no per-thread variant: the plain one
        (("cuMemAlloc_v2", 12000, 0, None), [0, 1, True]),  # base names only
        (("cuNoSuchThing", 12000, 0, None), [0, 1, True]),
        (("", 12000, 0, None), [0, 1, True]),
    ]
    assert ask(build, tmp_path, [q for q, _ in table]) == [a for _, a in table]
    invalid: list[Question] = [("cuInit", 99000, 0, None), ("cuInit", 12000, 4, None), ("cuInit", 12000, 3, None)]
    assert [answer[0] for answer in ask(build, tmp_path, invalid)] == [1, 1, 1]


def test_a_dropped_symbol_is_not_found(build: Path, tmp_path: Path) -> None:
    questions: list[Question] = [
        ("cuMemAllocAsync", 12000, 2, "cuMemAllocAsync"),
        ("cuMemAllocManaged", 12000, 0, None),
    ]
    env = {"PARTAGE_SIM_FAULT": "drop:cuMemAllocAsync_ptsz;drop:cuMemAllocManaged"}
    assert ask(build, tmp_path, questions, **env) == [[0, 0, True], [0, 1, True]]
