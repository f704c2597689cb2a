"""A machine of its own for each test, and programs that ask NVML about it in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
RunNvml = Callable[..., str]


def sim_libraries() -> Path:
    """The directory with the simulated libnvidia-ml.so.1; skips the test where it is not built."""
    place = Path(os.environ.get("PARTAGE_SIM_LIBRARIES", TOP / "build" / "sim"))
    if not (place / "libnvidia-ml.so.1").exists():
        pytest.skip(f"no simulated NVML in {place}: run make build")
    return place


@pytest.fixture
def machine_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's machine is (not made yet)."""
    (tmp_path / "sim").mkdir(mode=0o700)
    monkeypatch.setenv("PARTAGE_SIM_DIR", str(tmp_path / "sim"))
    return tmp_path / "sim" / "machine"


@pytest.fixture
def nvml_environment(machine_file: Path) -> dict[str, str]:
    """The environment of a program that finds the simulated NVML and this test's machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    place = {"LD_LIBRARY_PATH": str(sim_libraries()), "PARTAGE_SIM_DIR": str(machine_file.parent)}
    return {**kept, **place, "PARTAGE_SIM_FORCE": "1"}


@pytest.fixture
def run_nvml(nvml_environment: dict[str, str]) -> RunNvml:
    """Run Python text with pynvml loaded and initialised; returns what it printed."""

    def run(body: str, **environment: str) -> str:
        pytest.importorskip("pynvml")
        text = "from pynvml import *\nnvmlInit()\n" + textwrap.dedent(body)
        command, where = [sys.executable, "-c", text], {**nvml_environment, **environment}
        done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
