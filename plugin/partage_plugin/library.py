"""libvgpu.so on the host: installed once per version, so that an upgrade never touches a container that runs.

`/usr/local/lib/partage/<version>/libvgpu.so` with the `ld.so.preload` that names it beside it. Nothing executable lies
below /run, which is often mounted noexec: ld.so would then ignore the library and the container run without any limit.
So the file is mapped as code from where containers will get it, and where that fails the agent does not register.

Who removes the files later takes the limits from what starts after that: the container runtime makes an empty directory
of a mount's source that is missing, and ld.so goes on without it. So they are looked at before every start: this
version's are put back (`Library.ensure`), and a container whose answer names others that are gone does not start
(`absent`).

All containers have the same files mounted, and who owns a file, as root in a container does, may take a lease on it for
as long as nobody else has it open: every program that starts in another container would then wait for 45 s. So they are
held open here, those of versions before too (`Library.keep`). What can go wrong: no right or room there (LaunchError).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage import __version__
from partage.model import LaunchError, names
from partage.shm import OPEN_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PRELOAD_NAME: Final = "ld.so.preload"
KEPT_MAX: Final = 256  # files: two a version, and those that were removed under running containers
_STEP: Final = "let the directory be writable for the agent and not mounted noexec"

log = structlog.get_logger("partage.library")


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """Where the installed files lie."""

    path: Path
    preload: Path


class Library:
    """The library of this version, installed when it is made; raises LaunchError. `let_go` ends its hold."""

    def __init__(self, source: Path, directory: Path) -> None:
        self._source = source
        self._directory = directory
        self._kept: dict[tuple[int, int], int] = {}  # device and inode -> descriptor
        self._files = install(source, directory)
        self.keep()

    @property
    def is_lost(self) -> bool:
        """Whether somebody removed a file of it."""
        return absent((str(self._files.path), str(self._files.preload))) is not None

    def ensure(self) -> HostLibrary:
        """Return where its files lie, put back where somebody removed them; raises LaunchError."""
        if self.is_lost:
            log.warning("the library was removed; it is installed again", file=str(self._files.path))
            install(self._source, self._directory)
            self.keep()
        return self._files

    def keep(self) -> None:
        """Hold all that containers may have mounted open; what is under a lease by now is asked back, and next time."""
        for file in (*self._directory.glob(f"*/{names.LIBRARY}"), *self._directory.glob(f"*/{PRELOAD_NAME}")):
            with contextlib.suppress(OSError):
                found = file.lstat()
                which = (found.st_dev, found.st_ino)
                if which not in self._kept and stat.S_ISREG(found.st_mode):
                    self._kept[which] = os.open(file, os.O_RDONLY | OPEN_FLAGS)
        while len(self._kept) > KEPT_MAX:
            os.close(self._kept.pop(next(iter(self._kept))))

    def let_go(self) -> None:
        """Close what is held open: the agent ends."""
        while self._kept:
            os.close(self._kept.popitem()[1])


def absent(files: Iterable[str]) -> str | None:
    """Return one of these that is no plain file with something in it; None where all are."""
    for file in files:
        try:
            found = os.lstat(file)
        except OSError:
            return file
        if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            return file
    return None


def install(source: Path, directory: Path, version: str = __version__) -> HostLibrary:
    """Put the library of this version below `directory`, unless it is there; raises LaunchError."""
    home = directory / version
    library = HostLibrary(home / names.LIBRARY, home / PRELOAD_NAME)
    try:
        content = source.read_bytes()
    except OSError as error:
        value, step = f"cannot be read ({error.strerror or error})", "correct `library`, or leave it empty"
        raise LaunchError(str(source), value, "containers get a copy of it", step) from error
    try:
        home.mkdir(mode=0o755, parents=True, exist_ok=True)
        _put(library.path, content, 0o755)
        _put(library.preload, f"{names.CONTAINER_LIBRARY}\n".encode(), 0o644)
    except OSError as error:
        value = f"cannot be written ({error.strerror or error})"
        raise LaunchError(str(library.path), value, "containers get the library from there", _STEP) from error
    check_loadable(library.path)
    return library


def _put(path: Path, content: bytes, mode: int) -> None:
    """Write a file beside and rename it, unless it has this content: who has the old one mounted keeps it."""
    with contextlib.suppress(OSError):
        if _content(path) == content:
            path.chmod(mode)
            return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(content)
        beside.chmod(mode)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.rmdir()  # an empty one, which a container runtime has made where the file was missing
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)
    log.info("installed", file=str(path), size=len(content))


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | OPEN_FLAGS)


def _content(path: Path) -> bytes:
    """Return what is in a file; one under a lease is not waited for (BlockingIOError)."""
    with open(path, "rb", opener=_opener) as file:
        return file.read()


def check_loadable(path: Path) -> None:
    """Raise LaunchError where ld.so could not map the library as code: it would go on without, and without a limit."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
        try:
            mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        value = f"cannot be mapped as code ({error})"
        raise LaunchError(str(path), value, "the loader would ignore it: no limit at all", _STEP) from error
