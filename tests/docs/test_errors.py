"""We test these aspects of the pages of errors and of the ABI: every message of the library is explained and none that
is gone; every class of errors has its section; each offset and size is the one that the C compiler made."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from partage import model
from partage._abi import ffi

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools"))

import reference_errors  # noqa: E402

REFERENCE = TOP / "docs" / "reference"


def test_every_message_of_the_library_is_explained() -> None:
    messages = reference_errors.library_messages()
    assert len(messages) > 30
    assert messages.keys() - reference_errors.LOG.keys() == set(), "explain them in tools/reference_errors.py"
    assert reference_errors.LOG.keys() - messages.keys() == set(), "not said any more"


def test_every_class_of_errors_has_a_section() -> None:
    page = (REFERENCE / "errors.md").read_text()
    kinds = [kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, model.PartageError)]
    raised = {found.kind for found in reference_errors.raised()}
    assert {kind.__name__ for kind in kinds} - {"PartageError"} == raised
    assert all(f"### {name}: exit code" in page for name in raised)
    assert len(reference_errors.raised()) > 60


def test_offsets_are_those_of_the_compiler() -> None:
    name, checked = "", 0
    for line in (REFERENCE / "abi.md").read_text().splitlines():
        if line.startswith("### "):
            found = re.fullmatch(r"### (struct \w+): ([\d,]+) bytes", line)
            assert found, line
            name = found[1]
            assert ffi.sizeof(name) == int(found[2].replace(",", ""))
        elif name and re.match(r"\| [\d,]+ \|", line):
            offset, size, _, field, meaning = (cell.strip() for cell in line.split("|")[1:6])
            described = dict(ffi.typeof(name).fields)[field.strip("`")]
            assert (described.offset, ffi.sizeof(described.type)) == tuple(
                int(number.replace(",", "")) for number in (offset, size)
            )
            assert meaning, f"{name}: no comment beside {field} in the header"
            checked += 1
        elif line.startswith("## "):
            name = ""
    assert checked > 60
