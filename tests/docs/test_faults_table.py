"""The table of faults names only tests that exist and run, and leaves no known case out.

We test these aspects of `docs/reference/faults.md`: every case and defect of the memory side has a row; every row names
a test or the capability it waits for; every named file is part of a test run, and every named function is in it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
TABLE = TOP / "docs" / "reference" / "faults.md"

#: What a row may wait for.
CAPABILITIES = {"explicit pools", "graphs", "external memory", "arrays", "compute shares", "node agent"}

#: Cases of other systems' trackers, and defects of existing interposers, that concern the library.
CASES = [
    *(1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 17, 18, 20, *range(22, 37), *range(38, 44), *range(45, 51)),
    *(52, 54, 55, 56, 58, 61, 66, 67, 68, 83, 105),
    *(62, 63, 100, 119, 125, 126, 128, 129, 130, 131),  # admission
    *(133, 134, 135, 142, 144),  # quota, preemption
    *(91, 94, 95, 96, 98, 99, 101, 102, 103, 104, 106, 107, 117, 118, 120, 121, 122, 124),  # the books
]
KNOWN = {f"C{case:03}" for case in CASES} | {f"D{defect}" for defect in range(1, 29)}

REFERENCE = re.compile(r"`(tests/[\w/]+\.(?:c|py))(?:::?(\w+))?`")


def rows() -> list[list[str]]:
    """Cells of each row that is no heading."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if not set(row[0]) <= {"-"} and row[0] not in ("case", "defect", "promise")]


def test_every_known_case_has_exactly_one_row() -> None:
    found = [name for row in rows() for name in re.findall(r"\b(?:C\d{3}|D\d+)\b", row[0])]
    assert sorted(found) == sorted(KNOWN)


def test_every_row_names_a_test_or_what_it_waits_for() -> None:
    assert len(rows()) > 70
    for row in rows():
        waits = re.findall(r"not yet: ([a-z ]+)", row[-1])
        assert set(waits) <= CAPABILITIES, row
        assert waits or REFERENCE.search(row[-1]), f"{row[0]} has neither a test nor a reason"


def test_a_row_s_tests_say_which_fault_they_keep_away() -> None:
    for row in rows():
        known = set(re.findall(r"\b(?:C\d{3}|D\d+)\b", row[0]))
        texts = [(TOP / path).read_text() for path, _ in REFERENCE.findall(row[-1])]
        named = set(re.findall(r"\b(?:C\d{3}|D\d+)\b", " ".join(texts)))
        assert not texts or known <= named, f"no test of this row names {known - named}"


def test_nothing_that_looks_like_a_test_is_misspelt() -> None:
    cells = " ".join(cell for row in rows() for cell in row)
    quoted = {word for word in re.findall(r"`([^`]*)`", cells) if word.startswith("tests/")}
    assert {word for word in quoted if not REFERENCE.fullmatch(f"`{word}`")} == set()


@pytest.mark.parametrize(
    "reference", sorted({name for row in rows() for name in REFERENCE.findall(row[-1])}), ids="::".join
)
def test_a_named_test_exists_and_is_run(reference: tuple[str, str]) -> None:
    path, function = TOP / reference[0], reference[1]
    text = path.read_text()
    if path.suffix == ".py":
        assert path.name.startswith("test_")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), f"{path} has no test {function}"
        return
    listed = (path.parent / "CMakeLists.txt").read_text()
    stem = path.stem.removeprefix("test_")
    assert re.search(rf"\b(test_)?{stem}\b", listed), f"{path} is not built as a test"
    assert not function or re.search(rf"^(static )?[\w ]+[ *]{function}\(", text, re.MULTILINE), (
        f"{path} has no function {function}"
    )
