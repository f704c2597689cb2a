"""A simulated machine for each test, asked in a process of its own: NVML belongs to a process for its life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partage.sim import machine, profiles

TOP = Path(__file__).resolve().parents[2]
OnMachine = Callable[..., Any]
_BEGIN = """
import asyncio, json, sys
from pathlib import Path
from partage.devices.nvidia.cards import ask, read_card
from partage.devices.nvidia.discover import Discovery
from partage.devices.nvidia.health import HealthBook, HealthWatch
from partage.devices.nvidia.nvml import Nvml
from partage.devices.nvidia.options import HealthOptions, Options
from partage.sim import faults
from partage.sim.machine import Machine
libraries = Path(sys.argv[1])
def shown(inventory):
    return {
        "cards": [
            [c.uuid, c.index, c.name, c.physical, c.allocatable, c.numa, c.healthy, c.reason, c.address]
            for c in inventory.cards
        ],
        "links": [[[l.kind or "", l.lanes] for l in row] for row in inventory.links],
        "facts": dict(inventory.facts),
    }
"""


@pytest.fixture
def sim_libraries() -> Path:
    """The directory with the simulated libraries; skips the test where they are not built."""
    place = Path(os.environ.get("PARTAGE_SIM_LIBRARIES", TOP / "build" / "sim"))
    if not (place / "libnvidia-ml.so.1").exists():
        pytest.skip(f"no simulated NVML in {place}: run make build")
    return place


@pytest.fixture
def on_machine(tmp_path: Path, sim_libraries: Path) -> OnMachine:
    """Run Python text on a machine of a profile; returns what it printed, as JSON."""

    def run(profile: str, body: str) -> Any:
        path = tmp_path / "sim" / "machine"
        if not path.exists():
            machine.create(profiles.find(profile), path)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
        where = {**kept, "PARTAGE_SIM_DIR": str(path.parent), "PARTAGE_SIM_FORCE": "1"}
        command = [sys.executable, "-c", _BEGIN + textwrap.dedent(body), str(sim_libraries)]
        done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
