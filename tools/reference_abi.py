"""The page of the shared structures: offsets, sizes and types of policy, ledger and turns.

Called by reference.py. Types and names come from the headers of hook/include/partage through hook/gen/abi.py, the
same way as `partage._abi` does; so do offsets, which a static assertion compares with the compiler's at build time.
What each field means is the comment beside it in the header. What can go wrong: no C compiler to preprocess with.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cffi

TOP: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "hook" / "gen"))

import abi  # noqa: E402 -- the generator is no package

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES: Final = {"policy": "policy.h", "ledger": "ledger.h", "turns": "turns.h"}
INTRODUCTION: Final = """\
Three files per container, little-endian, mapped by every process in it. The headers in `hook/include/partage` are the
only definition; they also say how each file is written and read, and what keeps the counting right when a process is
killed. `partage._abi` is made from them, with static assertions on every offset below. A file of another `layout` is
refused by whoever reads it."""
FIELD: Final = re.compile(
    r"^\t(?:const )?(?P<type>struct \w+|\w+)\s+(?P<name>\w+)(?:\[[^;]*\])*;[ \t]*(?:/\*(?P<comment>.*?)\*/)?",
    re.MULTILINE | re.DOTALL,
)
DEFINE: Final = re.compile(r"#define (?P<name>PTG_\w+)[ \t]+(?P<value>.+?)[ \t]*(?:/\*(?P<comment>.*?)\*/)?$")


def comments(header: str) -> dict[str, dict[str, str]]:
    """Return for each structure of a header what the comment beside each field says."""
    found: dict[str, dict[str, str]] = {}
    for match in re.finditer(r"^struct (\w+) \{\n(.*?)^\};", header, re.MULTILINE | re.DOTALL):
        body = re.sub(r"int64_t\s*\n\s*", "int64_t ", match[2])
        found[match[1]] = {field["name"]: _words(field["comment"]) for field in FIELD.finditer(body)}
    return found


def _words(comment: str | None) -> str:
    """Return a comment as text for a table."""
    return re.sub(r"\s*\n\s*\*\s*", " ", comment or "").strip().replace("|", "\\|")


def constants(header: str) -> Iterator[str]:
    """Yield a row for each constant of a header; what stands above a group of them goes for those without a comment."""
    group = ""
    for line in header.splitlines():
        defined = DEFINE.match(line)
        if defined:
            yield f"| `{defined['name']}` | `{defined['value']}` | {_words(defined['comment']) or group} |"
        else:
            above = re.fullmatch(r"/\* (\S.*) \*/", line)
            group = _words(above[1]) if above else ""


def structure(ffi: cffi.FFI, name: str, notes: dict[str, str]) -> Iterator[str]:
    """Yield the lines of one structure's section."""
    kind = ffi.typeof(f"struct {name}")
    yield f"### struct {name}: {ffi.sizeof(kind):,} bytes"
    rows = ["| offset | bytes | type | field | meaning |", "|---|---|---|---|---|"]
    for field, described in kind.fields:
        size = ffi.sizeof(described.type)
        meaning = notes.get(field, "") or ("reserved, 0" if field.startswith("reserved") else "")
        rows.append(f"| {described.offset:,} | {size:,} | `{described.type.cname}` | `{field}` | {meaning} |")
    yield "\n".join(rows)


def page(note: str) -> str:
    """Return the whole page; CalledProcessError where the headers do not preprocess."""
    structures, _ = abi.declarations(shlex.split(os.environ.get("CC", "cc")))
    ffi = cffi.FFI()
    ffi.cdef(structures)
    parts = ["# ABI: the files of a hand-over", note, INTRODUCTION]
    for title, name in FILES.items():
        header = (TOP / "hook" / "include" / "partage" / name).read_text()
        parts.append(f"## {title} (`hook/include/partage/{name}`)")
        rows = list(constants(header))
        if rows:
            parts.append("\n".join(["| constant | value | meaning |", "|---|---|---|", *rows]))
        for struct_name, notes in comments(header).items():
            parts += structure(ffi, struct_name, notes)
    return "\n\n".join(parts) + "\n"
