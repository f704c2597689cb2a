"""Fetch NVIDIA's public headers at build time, pinned by version and hash, and unpack only `*.h`.

The headers are proprietary and never stand in this repository: the build downloads NVIDIA's own wheels with pip, checks
them against the hashes below, and unpacks `DEST/{cuda12,cuda13,nvml12,nvml13}/`. The x86-64 wheels are used on every
machine, since the headers do not differ and the pins then hold everywhere. Called by CMake at configure time:

    python3 hook/gen/headers.py build/headers

What can go wrong: no network and an empty cache, or a file with another hash. Both end with what to do next.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

TAGS = "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64"


class HeadersError(Exception):
    """The headers cannot be had; the text names the file and the next step."""


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel: package, version, SHA-256 of the file, and the directory its headers are unpacked to."""

    package: str
    version: str
    sha256: str
    directory: str

    @property
    def filename(self) -> str:
        """The file as the package index names it."""
        return f"{self.package.replace('-', '_')}-{self.version}-{TAGS}.whl"


WHEELS = (
    Wheel(
        "nvidia-cuda-runtime-cu12",
        "12.8.90",
        "adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90",
        "cuda12",
    ),
    Wheel(
        "nvidia-nvml-dev-cu12",
        "12.8.90",
        "051ea91b21d08447d1c6bb0f6f7b3c50339e79d45ef60ae1f71ac800ca0b2f6e",
        "nvml12",
    ),
    Wheel(
        "nvidia-cuda-runtime",
        "13.5.37",
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        "cuda13",
    ),
    Wheel(
        "nvidia-nvml-dev",
        "13.5.37",
        "7394fcbefa9ba537e8238cbb1caa4cd2db6bbfbff208d217a8a884947113ae6d",
        "nvml13",
    ),
)


def cache_directory() -> Path:
    """Where downloaded wheels are kept between builds: `$XDG_CACHE_HOME/partage/headers`, else under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "partage" / "headers"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(wheel: Wheel, cache: Path) -> Path:
    """Return the wheel's path in the cache, downloading it if it is not there or is damaged.

    Raises HeadersError if pip cannot fetch it or the hash is not the pinned one.
    """
    target = cache / wheel.filename
    if target.is_file() and sha256_of(target) == wheel.sha256:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    # Downloaded beside the cache entry and renamed, so that two builds at once never see half a file.
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.11"]
        command += [f"--dest={scratch}", f"{wheel.package}=={wheel.version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        got = Path(scratch) / wheel.filename
        if done.returncode != 0 or not got.is_file():
            reason = (done.stderr.strip().splitlines() or ["pip wrote no such file"])[-1]
            raise HeadersError(
                f"cannot download {wheel.package}=={wheel.version} ({reason}); on a machine without network, put the "
                f"file {wheel.filename} into {cache} and build again"
            )
        found = sha256_of(got)
        if found != wheel.sha256:
            raise HeadersError(
                f"{wheel.filename} has SHA-256 {found}, expected {wheel.sha256}; do not use it: check the package "
                f"index that pip is configured for, then build again"
            )
        got.replace(target)
    return target


def unpack(archive: Path, directory: Path) -> None:
    """Write the headers of a wheel to a directory, dropping the path up to its `include/`; swaps the directory in."""
    fresh = directory.with_name(directory.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.namelist():
            path = PurePosixPath(entry)
            if path.suffix != ".h" or "include" not in path.parts or ".." in path.parts:
                continue
            inside = path.parts[path.parts.index("include") + 1 :]
            out = fresh.joinpath(*inside)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(wheel.read(entry))
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)


def fetch(destination: Path, cache: Path) -> None:
    """Make `destination` hold the headers of every pinned wheel. Does nothing where they already are."""
    destination.mkdir(parents=True, exist_ok=True)
    for wheel in WHEELS:
        directory = destination / wheel.directory
        stamp = destination / f"{wheel.directory}.sha256"
        if directory.is_dir() and stamp.is_file() and stamp.read_text() == wheel.sha256:
            continue
        unpack(download(wheel, cache), directory)
        stamp.write_text(wheel.sha256)


def main() -> int:
    """Command line; 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(description="Fetch the pinned CUDA and NVML headers.")
    parser.add_argument("destination", type=Path, help="directory for cuda12/, cuda13/, nvml12/, nvml13/")
    parser.add_argument("--cache", type=Path, default=cache_directory(), help="where downloaded wheels are kept")
    options = parser.parse_args()
    try:
        fetch(options.destination, options.cache)
    except (HeadersError, OSError, zipfile.BadZipFile) as error:
        print(f"headers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
