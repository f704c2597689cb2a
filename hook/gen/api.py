"""What NVIDIA's headers declare: every public entry point, and which symbol cuGetProcAddress gives for which version.

Reads the preprocessed headers, so that macros, attributes and conditional parts are the compiler's business. cuda.h is
read with `__CUDA_API_VERSION_INTERNAL`, which shows the old signatures under their own names (`cuMemAlloc` is then the
32-bit one and `cuMemAlloc_v2` today's); nvml.h with `NVML_NO_UNVERSIONED_FUNC_DEFS`, for the same reason. Used by
every other module here. What can go wrong: no C compiler, or a header that this reader does not understand; both raise
ApiError naming the header.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CUDA_DEFINES = ("-D__CUDA_API_VERSION_INTERNAL",)
NVML_DEFINES = ("-DNVML_NO_UNVERSIONED_FUNC_DEFS",)

_DECLARATION = re.compile(r"(CUresult|nvmlReturn_t|const char ?\*)\s*\b((?:cu|nvml)[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_TYPEDEF = re.compile(
    r"typedef\s+CUresult\s*\(\s*\*\s*PFN_(cu[A-Z]\w*?)_v(\d{4,5})(_pts[zd]|_ptds)?\s*\)\s*\(([^;]*)\)\s*;"
)


class ApiError(Exception):
    """A header cannot be read; the text names it and the reason."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its declaration as C text (`void (*callback)(void *)`), its name, its type without the name."""

    declaration: str
    name: str
    type: str


@dataclass(frozen=True)
class Function:
    """One public entry point."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]

    @property
    def is_nvml(self) -> bool:
        """Whether it belongs to NVML, not to the driver."""
        return self.name.startswith("nvml")

    def parameter_list(self) -> str:
        """Return the parameters as they stand in a prototype."""
        return ", ".join(p.declaration for p in self.parameters) or "void"

    def type_list(self) -> str:
        """Return the parameter types only, comparable between headers and typedefs."""
        return ",".join(canonical_type(p.type) for p in self.parameters)

    def argument_list(self) -> str:
        """Return the parameter names, to pass the call on."""
        return ", ".join(p.name for p in self.parameters)

    def prototype(self, prefix: str = "", name: str | None = None) -> str:
        """C prototype without the semicolon; the name with `prefix`, or another name."""
        return f"{self.result.rstrip()} {prefix}{name or self.name}({self.parameter_list()})"


@dataclass(frozen=True)
class Typedef:
    """One `PFN_name_vVERSION[_ptsz]`: what cuGetProcAddress gives for a name from a version on."""

    base: str
    version: int
    per_thread: str
    types: str


@dataclass(frozen=True)
class Header:
    """The entry points of one library, by name; `undeclared` are those that its header does not declare itself."""

    path: Path
    functions: dict[str, Function]
    undeclared: frozenset[str] = frozenset()


def canonical_type(text: str) -> str:
    """Make a type comparable: spacing and versioned CUDA type names (`CUdevice_v1` is `CUdevice`)."""
    text = re.sub(r"\b(struct|enum|union)\s+", "", text)
    text = re.sub(r"\bCUdeviceptr_v2\b", "CUdeviceptr", text)
    text = re.sub(r"\bCUdevice_v1\b", "CUdevice", text)
    return re.sub(r"\s+", "", text)


def preprocess(header: Path, defines: tuple[str, ...], include: tuple[Path, ...] = (), macros: bool = False) -> str:
    """Run the C preprocessor (`$CC`, else `cc`) on a header and return its text, or its macros.

    Raises ApiError if the header is missing or the compiler fails.
    """
    if not header.is_file():
        raise ApiError(f"no such header {header}: fetch the headers first (hook/gen/headers.py)")
    command = [*os.environ.get("CC", "cc").split(), "-E", "-P", *(["-dM"] if macros else []), "-x", "c", *defines]
    command += [f"-I{header.parent}", *(f"-I{path}" for path in include), str(header)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ApiError(f"cannot run the C compiler ({error}); install one or set CC") from error
    if done.returncode != 0:
        raise ApiError(f"{header} cannot be preprocessed: {done.stderr.strip()}")
    return done.stdout


def target_machine() -> str:
    """Return the processor that the C compiler compiles for, e.g. `x86_64`. Raises ApiError without a compiler."""
    command = [*os.environ.get("CC", "cc").split(), "-dumpmachine"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ApiError(f"cannot run the C compiler ({error}); install one or set CC") from error
    return done.stdout.strip().partition("-")[0]


def split_parameters(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part and part != "void"]


_TYPE_WORDS = {"int", "char", "short", "long", "unsigned", "signed", "float", "double", "void", "size_t"}


def parse_parameter(text: str, index: int) -> Parameter:
    """Take one parameter declaration apart; an unnamed one is given the name `argN`."""
    pointer = re.search(r"\(\s*\*\s*(\w*)\s*\)", text)
    if pointer:
        name = pointer[1] or f"arg{index}"
        bare = text[: pointer.start()] + "(*)" + text[pointer.end() :]
        named = text[: pointer.start()] + f"(*{name})" + text[pointer.end() :]
        return Parameter(named, name, bare)
    array = re.search(r"\[[^\]]*\]\s*$", text)
    suffix = text[array.start() :] if array else ""
    core = text[: array.start()].strip() if array else text
    last = re.search(r"(\w+)$", core)
    words = re.findall(r"\w+", core)
    if last and len(words) > 1 and last[1] not in _TYPE_WORDS and words[-2] not in ("const", "struct", "enum"):
        kind = core[: last.start()].strip()
        return Parameter(text, last[1], kind + ("*" if array else ""))
    return Parameter(f"{core} arg{index}{suffix}", f"arg{index}", core + ("*" if array else ""))


def parse_functions(text: str, header: Path) -> dict[str, Function]:
    """All entry points that preprocessed text declares. Raises ApiError where one name has two signatures."""
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    text = re.sub(r"\s+", " ", text)
    found: dict[str, Function] = {}
    for match in _DECLARATION.finditer(text):
        result, name, rest = match.groups()
        parameters = tuple(parse_parameter(part, i) for i, part in enumerate(split_parameters(rest)))
        function = Function(name, "const char *" if "char" in result else result, parameters)
        if name in found and found[name].type_list() != function.type_list():
            raise ApiError(f"{header} declares {name} twice, with different parameters")
        found.setdefault(name, function)
    return found


def read_profiler(directory: Path) -> list[tuple[Typedef, Function]]:
    """Read the profiler's entry points from `directory`/cudaProfilerTypedefs.h.

    The driver exports them, but the wheels have only their typedefs and not cudaProfiler.h, so the text is read as it
    is; the one type that is missing with that header is an enumeration, passed as an int.
    """
    path = directory / "cudaProfilerTypedefs.h"
    text = path.read_text() if path.is_file() else ""
    text = text.replace("CUDAAPI ", "").replace("CUoutput_mode ", "int ")
    found = []
    for base, version, per_thread, rest in _TYPEDEF.findall(text):
        parameters = tuple(parse_parameter(part, i) for i, part in enumerate(split_parameters(rest)))
        function = Function(base, "CUresult", parameters)
        found.append((Typedef(base, int(version), per_thread, function.type_list()), function))
    return found


def read_cuda(directory: Path) -> Header:
    """Read the entry points of `directory`/cuda.h, and the profiler's. Raises ApiError if there are none."""
    path = directory / "cuda.h"
    functions = parse_functions(preprocess(path, CUDA_DEFINES), path)
    if not functions:
        raise ApiError(f"{path} declares no entry point that this reader understands")
    profiler = {function.name: function for _, function in read_profiler(directory)}
    return Header(path, functions | profiler, frozenset(profiler))


def read_nvml(directory: Path) -> Header:
    """Entry points of `directory`/nvml.h, with the names that exist only as macros for another entry point.

    NVIDIA's library exports those too (`nvmlGetBlacklistDeviceCount`), with the signature of what they stand for.
    """
    path = directory / "nvml.h"
    functions = parse_functions(preprocess(path, NVML_DEFINES), path)
    if not functions:
        raise ApiError(f"{path} declares no entry point that this reader understands")
    renames: dict[str, str] = {}
    for line in preprocess(path, (), macros=True).splitlines():
        match = re.match(r"#define (nvml[A-Z]\w*) (nvml[A-Z]\w*)$", line)
        if match and match[2] in functions and match[1] not in functions:
            renames[match[1]] = match[2]
    for alias, target in sorted(renames.items()):
        functions[alias] = Function(alias, functions[target].result, functions[target].parameters)
    return Header(path, functions, frozenset(renames))


def read_typedefs(directory: Path) -> list[Typedef]:
    """Read the `PFN_` typedefs of `directory`/cudaTypedefs.h, in the header's order without repeats."""
    path = directory / "cudaTypedefs.h"
    text = re.sub(r"\s+", " ", preprocess(path, CUDA_DEFINES))
    found: dict[tuple[str, int, str], Typedef] = {}
    for base, version, per_thread, parameters in _TYPEDEF.findall(text):
        types = ",".join(
            canonical_type(parse_parameter(part, i).type) for i, part in enumerate(split_parameters(parameters))
        )
        found.setdefault((base, int(version), per_thread), Typedef(base, int(version), per_thread, types))
    if not found:
        raise ApiError(f"{path} holds no PFN_ typedef that this reader understands")
    return [*found.values(), *(typedef for typedef, _ in read_profiler(directory))]
