"""Which entry points have code: scans C sources for definitions of `sim_X` and `hook_X` at the start of a line.

A prototype does not count. A macro that makes definitions (`... sim_##name(...) { ... }`) counts where it is used at
the start of a line; it stands in the same file or in a header of the directory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = re.compile(
    r"^(?:__attribute__\(\([^\n]*\)\)\s*)?"
    r"(?:CUresult|nvmlReturn_t|(?:const )?char \*)\s*(sim|hook)_((?:cu|nvml)[A-Z]\w*)\s*\(",
    re.MULTILINE,
)


def _is_definition(text: str, at: int) -> bool:
    """Whether the parameter list that begins before `at` is followed by a body."""
    depth = 1
    while at < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[at:].lstrip().startswith("{")


def _by_macros(text: str, macros: str, prefix: str) -> set[str]:
    """Names that macros define, where a file uses them."""
    found: set[str] = set()
    for macro in re.finditer(r"^#define (\w+)\(([^)]*)\)((?:.*\\\n)*.*)$", macros, re.MULTILINE):
        body = re.sub(r"\s*##\s*", "##", macro[3])
        patterns = re.findall(rf"(?:CUresult|nvmlReturn_t|char \*)\s*({prefix}_[\w#]*##[\w#]+)\s*\(", body)
        if not patterns or "{" not in body:
            continue
        names = [name.strip() for name in macro[2].split(",")]
        for use in re.finditer(rf"^{macro[1]}\(([^)]*)\)", text, re.MULTILINE):
            values = dict(zip(names, (value.strip() for value in use[1].split(",")), strict=False))
            for pattern in patterns:
                name = "".join(values.get(part, part) for part in pattern.split("##"))
                found.add(name.removeprefix(f"{prefix}_"))
    return found


def defined(directory: Path, prefix: str) -> dict[str, Path]:
    """Entry points X for which a `.c` file of a directory defines `prefix_X` (`sim` or `hook`), and that file."""
    found: dict[str, Path] = {}
    shared = "".join(path.read_text() for path in sorted(directory.glob("*.h")))
    for path in sorted(directory.glob("*.c")):
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
        for match in _HEAD.finditer(text):
            if match[1] == prefix and _is_definition(text, match.end()):
                found.setdefault(match[2], path)
        for name in sorted(_by_macros(text, shared + text, prefix)):
            found.setdefault(name, path)
    return found
