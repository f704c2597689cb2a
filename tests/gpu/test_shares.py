"""Compute shares on a real card: runs bench/real.py and prints its table; skipped where there is no card.

    python -m pytest tests/gpu -s

One short run a system. The full one is `bench/real.py --system ...`, 60 seconds a cell. PARTAGE_FOREIGN names another
library to stand beside ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
FOREIGN = os.environ.get("PARTAGE_FOREIGN", "")


def why_not() -> str:
    """Return why nothing can be run here; empty where it can."""
    if not Path("/proc/driver/nvidia/version").exists():
        return "needs a real card: NVIDIA's driver is not loaded"
    if not (BUILD / "bench" / "loads").exists():
        return f"{BUILD / 'bench' / 'loads'} is missing: make build"
    done = subprocess.run([BUILD / "bench" / "loads", "calibrate"], capture_output=True, text=True, check=False)
    return f"the card cannot be used: {done.stderr.strip()}" if done.returncode else ""


REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(1800)]


def rows_of(system: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Run all cells under a system for a short time, pass the table on, and return its rows by cell."""
    file = tmp_path / "rows.json"
    command: list[str | Path] = [
        sys.executable,
        TOP / "bench" / "real.py",
        "--build",
        BUILD,
        "--system",
        system,
        "--json",
        file,
    ]
    done = subprocess.run([*command, "--seconds", "10", "--warmup", "2"], text=True, capture_output=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, done.stderr
    return {row["cell"]: row for row in json.loads(file.read_text())}


def test_ours_keeps_shares(tmp_path: Path) -> None:
    for name, row in rows_of("ours", tmp_path).items():
        assert not row["missed"], f"{name}: {row['missed']}"


def test_ours_keeps_limits_without_an_arbiter(tmp_path: Path) -> None:
    for name, row in rows_of("degraded", tmp_path).items():
        above = [got - asked for got, asked in zip(row["got"], row["asked"], strict=True)]
        assert max(above) <= 5.0, f"{name}: {max(above):.1f} points above its share"


def test_nothing_enforces_without_a_shim(tmp_path: Path) -> None:
    row = rows_of("none", tmp_path)["30-70/1ms"]
    assert abs(row["got"][0] - row["got"][1]) < 15.0, f"got {row['got']}: something else enforces"


@pytest.mark.skipif(not shutil.which("nvidia-cuda-mps-control"), reason="no nvidia-cuda-mps-control")
def test_mps_for_comparison(tmp_path: Path) -> None:
    assert rows_of("mps", tmp_path)


@pytest.mark.skipif(not FOREIGN, reason="PARTAGE_FOREIGN names no library")
def test_another_library_for_comparison(tmp_path: Path) -> None:
    assert rows_of(FOREIGN, tmp_path)
