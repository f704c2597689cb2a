"""Third-party programs, unmodified, on the simulated driver through the shim: how they are started.

Every program runs as a user would start it, by ``partage run``; nothing of ours is imported by it. A machine of its own
is made for each test, so that tests may run beside each other.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TOOLS = Path(sys.executable).parent  # programs that pip installed
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
#: NVIDIA's compiler libraries, for clients that load them by name only.
CUDA_LIBRARIES = ":".join(map(str, (TOOLS.parent / "lib").glob("python*/site-packages/nvidia/cu13/lib")))

RunProgram = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """The environment without anything that names a device, a limit or a preload; state lives under tmp_path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "NUMBA_", "LD_"))}
    for name in ("run", "sim"):
        (tmp_path / name).mkdir(mode=0o700)
    return {**kept, "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PARTAGE_SIM_DIR": str(tmp_path / "sim")}


def shared(*argv: str, memory: str, sim: str | None = "zero", devices: Iterable[int | str] = (0,)) -> list[str]:
    """Return the command that runs a program with a memory share of each of these devices."""
    chosen = [word for device in devices for word in ("--device", str(device))]
    machine = ["--sim", sim] if sim else []
    return [str(TOOLS / "partage"), "run", *machine, *chosen, "--memory", memory, "--", *argv]


@pytest.fixture
def run_shared(clean_environment: dict[str, str]) -> RunProgram:
    """Start a program under ``partage run`` with a memory share; fails the test where the program fails."""

    def run(
        *argv: str, memory: str = "4Gi", sim: str | None = "zero", devices: Iterable[int | str] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        command = shared(*argv, memory=memory, sim=sim, devices=devices)
        done = subprocess.run(command, env=clean_environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def need(module: str) -> None:
    """Skip with the reason where a client is not installed (``make test-clients`` installs all of them)."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{module} is not installed in this environment: run make test-clients")


def made(client: str) -> Path:
    """Return the directory of a client that tools/clients.py makes; skip where it could not be made."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    pins = dict(line.split("==") for line in project["dependency-groups"]["clients-built"])
    version = (pins | project["tool"]["partage"]["foreign"])[client]
    place = BUILD / "clients" / f"{client}-{version}"
    if not (place / "made").exists():
        pytest.skip(
            f"{client} was not built: run make test-clients (cudarc needs cargo, go-nvml go, PyCUDA a C++ compiler)"
        )
    return place
