"""What the tests of the generators share: the generator's modules, the build's headers and products, its inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "hook" / "gen"))  # the generator is a set of scripts, not a package

import generate  # noqa: E402


@pytest.fixture(scope="session")
def build() -> Path:
    """The build directory: `$PARTAGE_BUILD`, else `build`."""
    return Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))


@pytest.fixture(scope="session")
def headers(build: Path) -> Path:
    """Headers of CUDA 12 and 13: those that the build was configured with, else where it would fetch them."""
    path = Path(os.environ.get("PARTAGE_HEADERS") or configured(build, "PARTAGE_HEADERS") or build / "headers")
    assert (path / "cuda13" / "cuda.h").is_file(), f"no headers in {path}: run make build"
    return path


def configured(build: Path, name: str) -> str | None:
    """What CMake's cache of a build says of a variable; None where it says nothing."""
    cache = build / "CMakeCache.txt"
    lines = cache.read_text().splitlines() if cache.is_file() else []
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}:")), None)


@pytest.fixture(scope="session")
def inputs(headers: Path) -> generate.Inputs:
    """Everything that the generator reads."""
    return generate.read_inputs(headers, TOP)


def exported(library: Path) -> set[str]:
    """Names that a shared library defines for others, without symbol versions."""
    assert library.is_file(), f"no {library}: run make build"
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines() if line.split()[-2] in "TWVi"}
