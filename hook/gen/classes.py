"""The class tables (`hook/include/partage/cuda_api.def`, `nvml_api.def`): what the shim does about each public name.

Read by the generator and by the coverage test. What can go wrong: a line that is not `API(name, CLASS)`, an unknown
class, a name given twice; each raises ClassError with file and line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

METERED = "METERED"
GATED = "GATED"
VIRTUALISED = "VIRTUALISED"
REFUSED = "REFUSED"
FORWARDED = "FORWARDED"
HARMLESS = "HARMLESS"
CLASSES = (METERED, GATED, VIRTUALISED, REFUSED, FORWARDED, HARMLESS)

#: Classes whose hook is written by hand in hook/shim.
WRITTEN = (METERED, VIRTUALISED)


class ClassError(Exception):
    """A class table cannot be used; the text names file, line and what is expected."""


def read_classes(path: Path) -> dict[str, str]:
    """Name -> class. Raises ClassError on anything but comments and `API(name, CLASS)` lines."""
    if not path.is_file():
        raise ClassError(f"no class table {path}")
    text = path.read_text()
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"API\((\w+), ([A-Z]+)\)", line.strip())
        if not match or match[2] not in CLASSES:
            raise ClassError(f"{path}:{number}: {line.strip()!r}: expected API(name, CLASS) with one of {CLASSES}")
        if match[1] in found:
            raise ClassError(f"{path}:{number}: {match[1]} has a class already, {found[match[1]]}")
        found[match[1]] = match[2]
    return found


def coverage_problems(classes: dict[str, str], *headers: Mapping[str, object]) -> list[str]:
    """List what does not fit between a class table and the headers: names without a class, classes without a name."""
    public = {name for header in headers for name in header}
    problems = [f"{name} is public but has no class: add API({name}, CLASS)" for name in sorted(public - set(classes))]
    problems += [f"{name} has a class but is in no header" for name in sorted(set(classes) - public)]
    return problems
