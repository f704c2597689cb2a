"""We test that the demo holds all its promises, and that it can fail: without the library it must not say they do."""

from __future__ import annotations

import pytest

pytest.importorskip("numba", reason="the demo's tenants are not installed: pip install 'partage[demo]'")


@pytest.mark.timeout(120)
def test_the_demo_holds_its_promises(machine):
    result = machine.partage("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all promises held" in result.stdout
    assert "MISS" not in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.rstrip().endswith("yes")]
    assert sum("refused at its limit" in row and "CUDA_ERROR_OUT_OF_MEMORY" in row for row in rows) == 4


def test_the_demo_without_its_library_fails(machine, tmp_path):
    result = machine.partage("demo", PARTAGE_LIBRARY=str(tmp_path / "none"))
    assert result.returncode == 125
    assert "not found" in result.stderr
