"""Findings about libvgpu.so: where it lies, what build it is, whether the loader puts it into programs.

Called by `doctor`. Whether the loader would take the library is not guessed from its bytes: a program is started
with it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.cli.checks.finding import Finding, finding, of_error
from partage.cli.checks.places import mount_of, text_of
from partage.model import LaunchError, names
from partage.run import launch, libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

PRELOAD_FILE: Final = Path("/etc/ld.so.preload")
_PROBE_S: Final = 60.0  # for a program that asks no driver: longer than a busy machine takes


def check_library() -> Iterator[Finding]:
    """Find the library, name its build, start a program with it."""
    try:
        library = libraries.find_library()
    except LaunchError as error:
        kind = "library-missing" if error.value == "not found" else "library-unusable"
        given = Path(error.subject)
        if kind == "library-unusable" and given.exists() and "noexec" in mount_of(given).options:
            kind = "library-noexec"
        yield of_error(kind, error)
        return
    digest = hashlib.sha256(library.read_bytes()).hexdigest()[:12]
    yield finding("library", library, f"sha256 {digest}..., {libc_version()}")
    said = _start_with(library)
    if said is None:
        yield finding("preload", names.LIBRARY, "preload: active in a program started with it")
    else:
        yield finding("preload-fails", "preload", f"not active: {said}", "mapped by a program that names it")


def libc_version() -> str:
    """Return this process's C library and its version, e.g. `glibc 2.36`."""
    try:
        return str(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return "a C library that is not glibc"


def _start_with(library: Path) -> str | None:
    """Start a program that prints its maps with the library; None where it is in it, else the first line of why not."""
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-I", "-S", "-c", "print(open('/proc/self/maps').read())"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if str(library.resolve()) in done.stdout or str(library) in done.stdout:
        return None
    return next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")


# ---- what is preloaded here ------------------------------------------------------------------------------------------


def preloads() -> list[str]:
    """Return the entries of LD_PRELOAD, in order; the loader splits at blanks and colons."""
    return os.environ.get("LD_PRELOAD", "").replace(":", " ").split()


def in_file() -> list[str]:
    """Return the entries of /etc/ld.so.preload, in order; empty where there is none to read."""
    lines = (line.partition("#")[0] for line in text_of(PRELOAD_FILE).splitlines())
    return " ".join(lines).replace(":", " ").split()


def is_ours(entry: str) -> bool:
    """Whether a preload entry names the library."""
    return Path(entry).name == names.LIBRARY


def is_here() -> bool:
    """Whether the library is in this very process."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return any(is_ours(line.split(None, 5)[5]) for line in lines if line.count(" /"))


def check_preloads() -> Iterator[Finding]:
    """Look at what preloads are set for this process and its children, and whether ours came first."""
    listed = in_file()
    if any(map(is_ours, listed)):
        yield finding("preload-file", PRELOAD_FILE, " ".join(listed))
    elif listed:
        yield finding("preload-file-others", PRELOAD_FILE, " ".join(listed))
    order = listed + preloads()
    for entry in order:
        if not _can_be_loaded(entry):
            where = PRELOAD_FILE if entry in listed else "LD_PRELOAD"
            yield finding("preload-dead-entry", where, f"{entry} cannot be loaded", "files that are there")
    ours = next((place for place, entry in enumerate(order) if is_ours(entry)), None)
    before = order if ours is None else order[:ours]
    if ours:
        yield finding("preload-not-first", names.LIBRARY, f"behind {' '.join(before)}", "the first of all preloads")
    elif ours is None and preloads():
        yield finding("preload-others", "LD_PRELOAD", " ".join(preloads()))
    if is_here():
        yield finding("preload-here", names.LIBRARY, f"mapped in this process (pid {os.getpid()})")
    elif os.environ.get(names.ENV_DIR) or _container_has_one():
        state = launch.injection(os.getpid(), Path(names.LIBRARY)).value
        yield finding("preload-missing-here", names.ENV_DIR, f"library {state}", "the library in every program")


def _can_be_loaded(entry: str) -> bool:
    """Whether the loader finds an entry: a path as a path, a name in its own directories."""
    if "/" in entry:
        return Path(entry.replace("$LIB", "lib").replace("$PLATFORM", "")).exists() or "$" in entry
    try:
        ctypes.CDLL(entry)
    except OSError:
        return False
    return True


def _container_has_one() -> bool:
    return Path(names.HOST_ROOT, names.POLICY_FILE).exists()
