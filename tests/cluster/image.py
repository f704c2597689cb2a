"""Container images without a registry: a directory tree, written as the OCI layout tar that containerd imports.

Called by the fixtures. A `Tree` is filled with files, links and programs (with the shared libraries that they load)
and packed by `write`. What can go wrong: a program that is not there, or a library that the machine's loader cannot
find; both raise FileNotFoundError with the name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def compile_c(source: Path, program: Path, *flags: str, compiler: str | None = None) -> Path:
    """Compile one C file, with the machine's compiler unless named; CalledProcessError where it does not compile."""
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = compiler or os.environ.get("CC", "cc")
    subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-o", program, source, *flags], check=True)
    return program


def libraries(*programs: Path) -> set[Path]:
    """Return the shared libraries, loader included, that programs or libraries load; none for a static one."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    missing = re.findall(r"(\S+) => not found", told.stdout)
    if missing:
        names = ", ".join(program.name for program in programs)
        raise FileNotFoundError(f"{', '.join(missing)} not on this machine, needed by one of {names}")
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", told.stdout)}


@dataclass(frozen=True)
class Tree:
    """A root file system in the making, below `root`."""

    root: Path

    def directory(self, *names: str, mode: int = 0o755) -> Tree:
        """Make directories."""
        for name in names:
            place = self.root / name.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(mode)
        return self

    def file(self, name: str, content: str | Path, mode: int = 0o644) -> Tree:
        """Write a file from text, or copy one with what it points to."""
        place = self.root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, place)
        else:
            place.write_text(content)
        place.chmod(mode)
        return self

    def link(self, name: str, target: str) -> Tree:
        """Make a symbolic link, also one that leads nowhere yet."""
        place = self.root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(target)
        return self

    def program(self, name: str, source: Path) -> Tree:
        """Copy a program, and each shared library that it loads to the path where it is here."""
        self.file(name, source, mode=0o755)
        return self.libraries_of(source)

    def libraries_of(self, *sources: Path) -> Tree:
        """Copy the shared libraries that these programs and libraries load, to the paths where they are here."""
        for path in libraries(*sources):
            if not (self.root / str(path).lstrip("/")).exists():
                self.file(str(path), path, mode=0o755)
        return self


@dataclass(frozen=True)
class Image:
    """What an image is run as; `user` as in a Dockerfile: a name, an id, or both as 1000:1000."""

    reference: str
    entrypoint: Sequence[str]
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def write(self, tree: Tree, path: Path) -> Path:
        """Pack a tree and this configuration as an OCI layout tar; every file in it belongs to root."""
        layer = pack(tree.root)
        config = to_json(
            {
                "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
                "os": "linux",
                "config": {
                    "Entrypoint": list(self.entrypoint),
                    "User": self.user,
                    "Env": [f"{key}={value}" for key, value in {"PATH": "/bin:/usr/bin", **self.environment}.items()],
                    "Labels": dict(self.labels),
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            }
        )
        manifest = to_json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": blob("application/vnd.oci.image.config.v1+json", config),
                "layers": [blob("application/vnd.oci.image.layer.v1.tar", layer)],
            }
        )
        named = {"annotations": {"io.containerd.image.name": self.reference}}
        index = {
            "schemaVersion": 2,
            "manifests": [blob("application/vnd.oci.image.manifest.v1+json", manifest) | named],
        }
        files = [("oci-layout", to_json({"imageLayoutVersion": "1.0.0"})), ("index.json", to_json(index))]
        files += [(f"blobs/sha256/{digest(data)[7:]}", data) for data in (layer, config, manifest)]
        write_tar(path, files)
        return path


def digest(data: bytes) -> str:
    """Return a blob's name."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(kind: str, data: bytes) -> dict[str, Any]:
    """Return a descriptor of a blob."""
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def to_json(value: object) -> bytes:
    """Return JSON as bytes."""
    return json.dumps(value).encode()


def pack(root: Path) -> bytes:
    """Return a directory as a tar; owner root and date zero, so that the same tree has the same digest."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root, arcname=".", filter=plain)
    return buffer.getvalue()


def write_tar(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write named contents as a tar."""
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
