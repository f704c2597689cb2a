"""We test this aspect: kill -9 before every instruction that the library executes in an allocation and its free leaves
the books exact and nobody waiting. The work is done by tests/c/kill, one kind of memory a run."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from .conftest import BUILD, TOP, full

POINTS_IN_CI = 200


def kinds() -> list[str]:
    """Every kind of memory that the program knows."""
    text = (TOP / "tests/c/kill/work.h").read_text()
    names = re.findall(r'"(\w+)"', text[text.index("work_name[") : text.index("};", text.index("work_name["))])
    assert len(names) > 6
    return names


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [*kinds(), "refused"])
def test_kill_everywhere(kind: str) -> None:
    program = BUILD / "tests" / "bin" / "test_kill_everywhere_plain"
    points = [] if full() else [str(POINTS_IN_CI)]
    done = subprocess.run(
        [TOP / "tests/c/run", BUILD, f"kill-{kind}", "none", "", program, kind, *points],
        env=os.environ | {"PARTAGE_SIM": "zero"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.strip())
