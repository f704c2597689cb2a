"""We test that the demo holds all its promises, and that it can fail: without the library it must not say they do."""

from __future__ import annotations

import pytest

from partage.cli import demo_compute
from partage.cli.demo import Stage
from partage.cli.demo_compute import Part

pytest.importorskip("numba", reason="the demo's tenants are not installed: pip install 'partage[demo]'")


@pytest.mark.timeout(600)
def test_the_demo_holds_its_promises(machine):
    result = machine.partage("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all promises held" in result.stdout
    assert "MISS" not in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.rstrip().endswith("yes")]
    assert sum("refused at its limit" in row and "CUDA_ERROR_OUT_OF_MEMORY" in row for row in rows) == 4
    assert sum("computes" in row and "% of the time" in row for row in rows) == 5


def test_the_demo_without_its_library_fails(machine, tmp_path):
    result = machine.partage("demo", PARTAGE_LIBRARY=str(tmp_path / "none"))
    assert result.returncode == 125
    assert "not found" in result.stderr


def test_a_part_of_the_time_that_is_missed_is_no_promise_held(monkeypatch):
    """The engine's count decides: what is ten points off is not what was asked for."""
    counted = iter([(0, 0), (48 * 10**7, 70 * 10**7)])
    clock = iter([0, 10**9])
    monkeypatch.setattr(demo_compute, "busy_ns", lambda *_: next(counted))
    monkeypatch.setattr(demo_compute.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(demo_compute.time, "sleep", lambda *_: None)
    stage = Stage(None, "", lambda *_: None)
    demo_compute.check(stage, None, (Part(None, "first", 30), Part(None, "second", 70)), "computes")
    assert [(row.what, row.got, row.held) for row in stage.rows] == [
        ("first computes", "48.0 %", False),
        ("second computes", "70.0 %", True),
    ]
