"""We test these aspects: the page of what is counted names every metered entry point and none that is refused; the page
of programs names the versions that are tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
VARIANT = re.compile(r"(_v\d+)?(_ptds|_ptsz)?$")


def test_the_page_names_exactly_the_metered_entry_points() -> None:
    table = (TOP / "hook/include/partage/cuda_api.def").read_text()
    classes = {VARIANT.sub("", name): kind for name, kind in re.findall(r"^API\((\w+), (\w+)\)", table, re.MULTILINE)}
    rows = [line for line in (TOP / "docs/reference/counted.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(cu[A-Z]\w+)`", row.split("|")[2])}
    metered = {name for name, kind in classes.items() if kind == "METERED"}
    assert metered - named == set(), "add them to docs/reference/counted.md"
    assert {name for name in named if classes.get(name) not in ("METERED", "GATED", "FORWARDED")} == set()


def test_the_page_of_programs_names_the_versions_that_are_tested() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    pins = dict(re.split(r"(?:\[\w+\])?==", line) for line in [*groups["clients"], *groups["clients-built"]])
    pins |= project["tool"]["partage"]["foreign"]
    rows = re.findall(
        r"^\| ([\w-]+)(?: \(\w+\))? \| ([\d.-]+) \|", (TOP / "docs/reference/clients.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 8
    assert {name: pins.get(name) for name, _ in rows} == dict(rows)
