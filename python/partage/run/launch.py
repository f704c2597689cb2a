"""Start a program so that the library is surely in it.

ld.so ignores a preload it cannot use and says so only on the program's stderr; the program then runs without a limit.
So the program is looked at before it starts (`check_program`: static, set-uid, other architecture) and its maps are
looked at while it starts (`Injection`): the loader maps preloads before libc, so libc without the library is proof
that it was left out.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import signal
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.model import LaunchError, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PT_INTERP: Final = 3
_SCRIPT_DEPTH: Final = 4  # the kernel's own bound on interpreters of interpreters


@dataclass(frozen=True, slots=True)
class _Elf:
    """What decides whether a preload works: word size and machine, and whether there is a loader at all."""

    machine: tuple[int, int]
    dynamic: bool


def _read_elf(path: Path) -> _Elf | None:
    """Return what the ELF header says, None where the file is no ELF file."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 52 or head[:4] != b"\x7fELF":
            return None
        wide = head[4] == 2
        order = "<" if head[5] == 1 else ">"
        (machine,) = struct.unpack_from(f"{order}H", head, 18)
        offset = struct.unpack_from(f"{order}Q", head, 32)[0] if wide else struct.unpack_from(f"{order}I", head, 28)[0]
        size, count = struct.unpack_from(f"{order}HH", head, 54 if wide else 42)
        file.seek(offset)
        table = file.read(size * count)
    kinds = [struct.unpack_from(f"{order}I", table, i * size)[0] for i in range(count) if (i + 1) * size <= len(table)]
    return _Elf((head[4], machine), _PT_INTERP in kinds)


def _interpreter(path: Path) -> Path | None:
    """Return the program that runs the script at `path`, None where it is no script."""
    with path.open("rb") as file:
        line = file.read(256).split(b"\n", 1)[0]
    words = line[2:].split(None, 1) if line.startswith(b"#!") else []
    return Path(os.fsdecode(words[0])) if words else None


def resolve(program: str, environment: Mapping[str, str]) -> Path:
    """Return the file that `program` names, by PATH as the shell would; raises LaunchError."""
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        there = Path(program).exists() and "/" in program
        value = "not executable" if there else "not found"
        raise LaunchError(f"program '{program}'", value, "an executable file, or a name on PATH", "correct the name")
    return Path(found)


def check_program(path: Path, library: Path) -> None:
    """Raise LaunchError where the loader would not preload `library` into the program at `path`."""
    target = path
    for _ in range(_SCRIPT_DEPTH):
        script = _interpreter(target)
        if script is None:
            break
        target = script
    try:
        elf, ours = _read_elf(target), _read_elf(library)
        mode = target.stat()
    except OSError as error:
        raise LaunchError(f"program '{path}'", error.strerror or error, "a readable program", "correct it") from error
    subject, step = f"program '{path}'", "run it without a share, or use a build that the library can be loaded into"
    if elf is None or ours is None:
        return  # the kernel decides what this is (binfmt_misc); the maps are checked when it runs
    if not elf.dynamic:
        raise LaunchError(subject, "statically linked", f"{library.name} is loaded by the dynamic loader", step)
    if elf.machine != ours.machine:
        raise LaunchError(subject, "built for another architecture", f"{library} is not", step)
    if _is_privileged(target, mode):
        raise LaunchError(subject, "set-uid, set-gid or with capabilities", "the loader then ignores LD_PRELOAD", step)


def _is_privileged(path: Path, found: os.stat_result) -> bool:
    uid = found.st_mode & stat.S_ISUID and found.st_uid != os.geteuid()
    gid = found.st_mode & stat.S_ISGID and found.st_gid != os.getegid()
    capable = False
    with contextlib.suppress(OSError):
        capable = os.geteuid() != 0 and bool(os.getxattr(path, "security.capability"))
    return bool(uid or gid or capable)


def environment_for(
    base: Mapping[str, str], *, library: Path, directory: Path, uuids: Sequence[str], driver: Path | None
) -> dict[str, str]:
    """Return the environment of a program with a share; the user's own preloads and search paths come after ours."""
    result = dict(base)
    result["LD_PRELOAD"] = ":".join([str(library), *filter(None, [base.get("LD_PRELOAD")])])
    if driver is not None:
        result["LD_LIBRARY_PATH"] = ":".join([str(driver), *filter(None, [base.get("LD_LIBRARY_PATH")])])
    result[names.ENV_DIR] = str(directory)
    result[names.ENV_VISIBLE_DEVICES] = ",".join(uuids)
    return result


def spawn(path: Path, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the program with clean signals and return its pid; raises LaunchError."""
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these, its children should not
    try:
        return os.posix_spawn(path, list(argv), dict(environment), setsigmask=[], setsigdef=defaults)
    except OSError as error:
        limit, step = "a program that this machine can run", "correct the name or its mode"
        raise LaunchError(f"program '{path}'", error.strerror or error, limit, step) from error


class Injection(enum.Enum):
    """Whether the library is in a process."""

    PENDING = "the loader is still at work"
    DONE = "mapped"
    MISSING = "left out"
    GONE = "the process has ended"


def injection(pid: int, library: Path) -> Injection:
    """Look at the maps of a process that was started with the library preloaded."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return Injection.GONE
    files = {line.split(None, 5)[5] for line in text.splitlines() if line.count(" /") and len(line.split(None, 5)) == 6}
    if str(library) in files or str(library.resolve()) in files:
        return Injection.DONE
    if any(Path(name).name.startswith(("libc.so", "libc-", "ld-musl")) for name in files):
        return Injection.MISSING
    return Injection.PENDING if text else Injection.GONE
