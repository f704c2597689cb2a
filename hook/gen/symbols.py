"""Which exported symbol belongs to which `PFN_name_vVERSION` typedef.

cuGetProcAddress is asked for a base name, a CUDA version and a stream flag. The typedefs tell from which version on an
ABI exists but not under which symbol it is exported; the exported symbols are `name`, `name_v2`, `name_v3` ... in the
order in which the ABIs were introduced. So: sort a name's typedefs by version, its symbols by suffix, and pair them. A
test compares the parameter types of each pair, for CUDA 12 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api import Function, Typedef


class SymbolError(Exception):
    """Typedefs and symbols of a name do not pair up; the text names both."""


@dataclass(frozen=True)
class Procedure:
    """One answer of cuGetProcAddress: base name, introducing version, whether the per-thread variant, the symbol."""

    base: str
    version: int
    per_thread: bool
    symbol: str
    types: str


def split_name(name: str) -> tuple[str, int, str]:
    """`cuMemcpyHtoD_v2_ptds` -> (`cuMemcpyHtoD`, 2, `_ptds`)."""
    plain, per_thread = name, ""
    for suffix in ("_ptsz", "_ptds"):
        if name.endswith(suffix):
            plain, per_thread = name.removesuffix(suffix), suffix
    base, mark, number = plain.rpartition("_v")
    if mark and number.isdecimal():
        return base, int(number), per_thread
    return plain, 1, per_thread


def pair(functions: dict[str, Function], typedefs: list[Typedef]) -> list[Procedure]:
    """All answers of cuGetProcAddress, sorted by name, then per-thread, then version.

    Raises SymbolError where a name has not as many symbols as typedefs.
    """
    symbols: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in functions:
        base, version, per_thread = split_name(name)
        symbols.setdefault((base, per_thread), []).append((version, name))
    wanted: dict[tuple[str, str], list[Typedef]] = {}
    for typedef in typedefs:
        wanted.setdefault((typedef.base, typedef.per_thread), []).append(typedef)
    found: list[Procedure] = []
    for key in sorted(symbols.keys() | wanted.keys()):
        names = [name for _, name in sorted(symbols.get(key, []))]
        versions = sorted(wanted.get(key, []), key=lambda typedef: typedef.version)
        if len(names) != len(versions):
            known = [f"PFN_{t.base}_v{t.version}{t.per_thread}" for t in versions]
            raise SymbolError(f"{key[0]}{key[1]}: symbols {names} and typedefs {known} do not pair up one to one")
        for name, typedef in zip(names, versions, strict=True):
            found.append(Procedure(key[0], typedef.version, bool(key[1]), name, typedef.types))
    return found
