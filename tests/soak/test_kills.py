"""We test this aspect: kill -9 before every instruction that the library executes in an allocation and its free leaves
the books exact and nobody waiting. The work is done by tests/c/kill, one kind of memory a run."""

from __future__ import annotations

import os
import subprocess

import pytest

from .conftest import BUILD, TOP, full

POINTS_IN_CI = 200


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["plain", "small", "managed", "pitched", "async", "vmm", "graph", "green", "refused"])
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
