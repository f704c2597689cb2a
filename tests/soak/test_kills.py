"""We test this aspect: kill -9 before every instruction that the library executes in an allocation and its free leaves
the books exact and nobody waiting. The work is done by tests/c/kill, one kind of memory a run.

The small count walks up to 500 points of some kinds, others with each commit: the same commit always has the same ones.
A few points of every kind are in ctest.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from .conftest import BUILD, TOP, full

POINTS_IN_CI = 500
KINDS_IN_CI = 6


def kinds() -> list[str]:
    """Every kind of memory that the program knows."""
    text = (TOP / "tests/c/kill/work.h").read_text()
    names = re.findall(r'"(\w+)"', text[text.index("work_name[") : text.index("};", text.index("work_name["))])
    assert len(names) > 6
    return names


def turn() -> int:
    """A number that each commit has its own of; 0 without a history."""
    command = ["git", "-C", str(TOP), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout.strip() or "0", 16)


def walked() -> list[str]:
    """The kinds of this run."""
    every = [*kinds(), "refused"]
    if full():
        return every
    first = turn() % len(every)
    return (every + every)[first : first + KINDS_IN_CI]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", walked())
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
