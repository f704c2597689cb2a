"""The product's own images, made as the Dockerfile says, without Docker: by the scripts that its stages call.

`tar(ROLE)` runs deploy/image/wheel.sh and tree.sh and packs the tree with what the Dockerfile's stage of that name says
of user, variables and entry point. Wheel and images lie in the build directory and are made anew where their sources
are newer. What can go wrong: a script fails (CalledProcessError, its words are on standard error).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage._version import __version__
from tests.cluster.image import Image, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP: Final = Path(__file__).resolve().parents[2]
BUILD: Final = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
SCRIPTS: Final = TOP / "deploy" / "image"
DOCKERFILE: Final = TOP / "Dockerfile"
_SOURCES: Final = ("CMakeLists.txt", "pyproject.toml", "hook", "proto", "python", "plugin")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return what each stage of the Dockerfile says, by its name: instruction and argument."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            found[rest.split(" AS ")[1]] = []
        elif word and word != "#" and found:
            found[list(found)[-1]].append((word, rest))
    return found


def roles() -> list[str]:
    """Return the stages that are images: those that start a program."""
    return [name for name, lines in stages().items() if any(word == "ENTRYPOINT" for word, _ in lines)]


def reference(role: str) -> str:
    """Return the name by which the chart's manifests ask for a role's image."""
    return f"docker.io/library/partage-{role}:{__version__}"


def image(role: str) -> Image:
    """Return how a role's image is run, as its stage says."""
    said = dict(stages()[role])
    environment = dict(pair.split("=", 1) for pair in said["ENV"].split())
    return Image(reference(role), json.loads(said["ENTRYPOINT"]), user=said["USER"], environment=environment)


def source(role: str) -> str:
    """Return which tree a role's image is: the argument of tree.sh in the stage that it is copied from."""
    (copied,) = (rest for word, rest in stages()[role] if word == "COPY")
    (made,) = (rest for word, rest in stages()[copied.split()[0].removeprefix("--from=")] if word == "RUN")
    return made.split()[1]


def newest(*names: str) -> float:
    """Return when the newest file below these was changed."""
    return max(path.stat().st_mtime for name in names for path in _files(TOP / name))


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for directory, below, files in os.walk(place):
        below[:] = [name for name in below if name != "__pycache__" and not name.endswith(".egg-info")]
        yield from (Path(directory, name) for name in files if not name.endswith((".pyc", ".so")))


def _run(script: str, *arguments: object) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "PARTAGE_ISOLATION": "no"}
    headers = BUILD / "headers"
    if headers.is_dir():
        environment.setdefault("PARTAGE_HEADERS", str(headers))
    subprocess.run([SCRIPTS / script, *map(str, arguments)], env=environment, check=True, stdout=sys.stderr)


def wheel() -> Path:
    """Return the directory with this checkout's wheel."""
    place = BUILD / "dist"
    made = list(place.glob("partage-*.whl"))
    if len(made) != 1 or made[0].stat().st_mtime < newest(*_SOURCES):
        _run("wheel.sh", place)
    return place


def tree(name: str) -> Path:
    """Return the tree that several roles may share, made anew where its wheel, scripts or pins are newer."""
    wheels = wheel()
    place, made = BUILD / "images" / f"{name}-tree", BUILD / "images" / f"{name}-tree.made"
    inputs = max(newest("deploy/image"), *(file.stat().st_mtime for file in wheels.iterdir()))
    if not made.exists() or made.stat().st_mtime < inputs:
        shutil.rmtree(place, ignore_errors=True)
        _run("tree.sh", name, wheels, place)
        made.touch()
    return place


def tar(role: str) -> Path:
    """Return a role's image as an OCI layout tar."""
    name, path = source(role), BUILD / "images" / f"{role}.tar"
    root = tree(name)
    inputs = max(newest("Dockerfile"), root.with_name(f"{name}-tree.made").stat().st_mtime)
    if not path.exists() or path.stat().st_mtime < inputs:
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            image(role).write(Tree(root), Path(work, "image.tar")).replace(path)
    return path
