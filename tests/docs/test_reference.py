"""We test these aspects: the generated pages are those of this very tree; every variable that anything reads is
explained, and none that nothing reads; no page points at a file that is not there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from partage.model import names

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, TOP / "tools" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_by_code() -> set[str]:
    sources = [path.read_text() for path in (TOP / "hook").rglob("*.c")]
    found = {name for text in sources for name in re.findall(r'getenv\("(\w+)"\)', text)}
    found |= {name for text in sources for name in re.findall(r'read_size\("(\w+)"', text)}
    return found | {value for name, value in vars(names).items() if name.startswith("ENV_")}


def test_every_variable_is_explained() -> None:
    page = (TOP / "docs" / "reference" / "environment.md").read_text()
    explained = set(re.findall(r"`([A-Z][A-Z0-9_]+)(?:_<n>)?`", page))
    found = read_by_code()
    assert len(found) > 15
    assert found - explained == set()
    others = [*(TOP / "python").rglob("*.py"), *(TOP / "tests").rglob("*.py"), TOP / "Makefile"]
    text = "".join(path.read_text() for path in others)
    variables = {name for name in explained if "_" in name}
    assert {name for name in variables - found if name not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    broken = [t for t in targets if not t.startswith(("http://", "https://")) and not (page.parent / t).exists()]
    assert broken == []
