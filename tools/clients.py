#!/usr/bin/env python3
"""Fetch and build those client programs of tests/clients that one `pip install` does not bring: clients.py BUILD.

Each lands in BUILD/clients/NAME-VERSION, made once per version (pins: group `clients-built` of pyproject.toml and
`[tool.partage.foreign]` there). Called by the Makefile once everything else is built. What was made is kept in
${XDG_CACHE_HOME:-~/.cache}/partage/clients for other checkouts, under a name that tells from what; whoever removes that
folder, or cannot write it, only waits longer. What can go wrong: no network, no C++ compiler, no cargo, no go. Then it
says so, leaves that client out, and its tests say why they skip; the exit code is 0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TOP: Final = Path(__file__).resolve().parent.parent
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
PACKAGES: Final = Path(sys.executable).parents[1] / "lib"
GO_PROGRAM: Final = TOP / "tests" / "clients" / "programs" / "nvml_work.go"
CUDA: Final = TOP / "build" / "headers" / "cuda13"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partage" / "clients"


def pins() -> dict[str, str]:
    """Return name -> version of every client that is built here."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    listed = dict(line.split("==") for line in project["dependency-groups"]["clients-built"])
    return listed | project["tool"]["partage"]["foreign"]


def call(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command to its end and return what it prints; CalledProcessError where it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def unpack_source(name: str, version: str, place: Path) -> Path:
    """Download a source distribution, unpack it below place and return its directory."""
    call(
        *PIP,
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        name,
        f"{name}=={version}",
        "--dest",
        place,
    )
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def make_pynvml(version: str, place: Path, build: Path) -> None:
    """Unpack NVIDIA's utilities over nvidia-ml-py, with the tests that stand beside them."""
    del build
    source = unpack_source("pynvml", version, place)
    shutil.copytree(source / "pynvml_utils", place / "pynvml_utils")


def make_pycuda(version: str, place: Path, build: Path) -> None:
    """Compile PyCUDA against cuda.h and libcuda.so, here the simulated one; without its optional cuRAND and GL."""
    source = unpack_source("pycuda", version, place)
    (place / "lib").mkdir()
    (place / "lib" / "libcuda.so").symlink_to(build.absolute() / "sim" / "libcuda.so.1")
    profiler = [str(found.parent) for found in PACKAGES.glob("python*/site-packages/nvidia/*/include/cudaProfiler.h")]
    settings = {
        "CUDA_ENABLE_CURAND": False,
        "CUDA_INC_DIR": [str(CUDA), *profiler],
        "CUDADRV_LIB_DIR": [str(place / "lib")],
        "CXXFLAGS": ["-O0", "-g0", "-w"],
    }
    (source / "siteconf.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    call(*PIP, "install", "--no-deps", "--no-build-isolation", "--target", place / "site", source)


def make_cudarc(version: str, place: Path, build: Path) -> None:
    """Compile the crate's own unit tests into one program, `place/tests`."""
    del build
    manifest = place / "fetch" / "Cargo.toml"
    (place / "fetch" / "src").mkdir(parents=True)
    (place / "fetch" / "src" / "lib.rs").touch()
    manifest.write_text(
        '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies.cudarc]\nversion = "={version}"\n'
        'default-features = false\nfeatures = ["driver", "nvrtc", "cuda-13000", "dynamic-loading", "std"]\n'
    )
    listed = json.loads(call("cargo", "metadata", "--format-version=1", "--manifest-path", manifest))
    crate = next(package for package in listed["packages"] if package["name"] == "cudarc")
    shutil.copytree(Path(crate["manifest_path"]).parent, place / "source")
    built = call(
        *("cargo", "test", "--lib", "--no-run", "--no-default-features", "--message-format=json", "--features"),
        "driver,nvrtc,cuda-13000,dynamic-loading,std",
        cwd=place / "source",
        CARGO_TARGET_DIR=str(place / "target"),
    )
    programs = [json.loads(line).get("executable") for line in built.splitlines() if line.startswith("{")]
    shutil.copy2(next(program for program in programs if program), place / "tests")
    shutil.rmtree(place / "target")


def make_go_nvml(version: str, place: Path, build: Path) -> None:
    """Compile a program of ours over NVIDIA's Go module into `place/program`."""
    del build
    source = place / "source"
    source.mkdir()
    shutil.copy2(GO_PROGRAM, source / "main.go")
    module = "github.com/NVIDIA/go-nvml"
    (source / "go.mod").write_text(f"module client\n\ngo 1.21\n\nrequire {module} v{version}\n")
    call("go", "build", "-mod=mod", "-o", place / "program", ".", cwd=source)


MAKERS: Final[dict[str, Callable[[str, Path, Path], None]]] = {
    "cudarc": make_cudarc,
    "go-nvml": make_go_nvml,
    "pycuda": make_pycuda,
    "pynvml": make_pynvml,
}


def kept(name: str, version: str) -> Path:
    """Return where a client that was made of the same is kept, or would be."""
    digest = hashlib.sha256(f"{sys.version} {platform.platform()}".encode())
    for file in (Path(__file__), GO_PROGRAM, CUDA / "cuda.h"):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return CACHE / f"{name}-{version}-{digest.hexdigest()[:16]}"


def keep(place: Path, there: Path) -> None:
    """Keep what was made, whole or not at all; where it cannot be, the next checkout makes it again."""
    with contextlib.suppress(OSError, shutil.Error):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as making:
            copy = shutil.copytree(place, Path(making) / "client", symlinks=True)
            copy.rename(there)  # fails where another session was first


def make(name: str, version: str, place: Path, build: Path) -> None:
    """Take a client from where it is kept, or make it and keep it."""
    there = kept(name, version)
    if there.is_dir():
        shutil.copytree(there, place, symlinks=True)
        return
    place.mkdir(parents=True)
    print(f"building client {name} {version}", flush=True)
    MAKERS[name](version, place.absolute(), build)
    keep(place, there)


def main(build: Path) -> int:
    """Make whatever is not there yet; 0 also where a client had to be left out."""
    for name, version in pins().items():
        place = build / "clients" / f"{name}-{version}"
        if (place / "made").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        try:
            make(name, version, place, build)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            print(f"clients: {name} is left out: {said.strip()[-500:]}", file=sys.stderr)
            continue
        (place / "made").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
