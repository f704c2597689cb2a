"""Which entry points have code: scans C sources for definitions of `sim_X` and `hook_X` at the start of a line.

A prototype does not count. Definitions made by macros are not seen, so each is written out.
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


def defined(directory: Path, prefix: str) -> dict[str, Path]:
    """Entry points X for which a `.c` file of a directory defines `prefix_X` (`sim` or `hook`), and that file."""
    found: dict[str, Path] = {}
    for path in sorted(directory.glob("*.c")):
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
        for match in _HEAD.finditer(text):
            if match[1] == prefix and _is_definition(text, match.end()):
                found.setdefault(match[2], path)
    return found
