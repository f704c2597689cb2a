"""A machine of its own for each test, and `partage` on it as a user would call it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partage._abi import ffi, lib
from tests.cli.examined import DOCTOR, Report
from tests.narration import Narration

if TYPE_CHECKING:
    from collections.abc import Callable

HOLDER = Path(__file__).with_name("holder.py")
PYTHON_ROOT = str(Path(__file__).parents[2] / "python")
WAIT_S = 200  # ends what hangs


class FolderNews:
    """Waits until something holds that comes with a change in a folder: what an arbiter writes there, lock and log."""

    _KINDS = 0x2 | 0x80 | 0x100 | 0x200  # inotify.h: IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_CLOEXEC)
        assert self._fd >= 0
        assert libc.inotify_add_watch(self._fd, os.fsencode(folder), self._KINDS) >= 0, os.strerror(ctypes.get_errno())

    def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert select.select([self._fd], [], [], WAIT_S)[0], "did not happen"
            os.read(self._fd, 1 << 16)

    def close(self) -> None:
        os.close(self._fd)


class TurnWord:
    """Sleeps on the word by which an arbiter opens and closes a turn."""

    def __init__(self, path: Path, index: int = 0) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._view = ffi.from_buffer("struct ptg_turns *", self._map)
        self._word = ffi.addressof(self._view.turn[index], "word")

    def until(self, holds: Callable[[], bool]) -> None:
        """Ask at each change of the turn until it holds."""
        while True:
            seen = self._word[0]
            if holds():
                return
            assert lib.ptg_futex_wait(self._word, seen, WAIT_S * 1_000_000_000) != -errno.ETIMEDOUT, "did not happen"


def until_ended(pid: int) -> None:
    """Wait for the end of any process."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        assert select.select([pidfd], [], [], WAIT_S)[0], "it goes on"
        os.close(pidfd)


class Program:
    """A program started by `partage run` (or beside one) that answers one JSON line per command.

    What a `narrated` one or its parent says is followed, and `until` waits for what it tells of.
    """

    def __init__(self, command: list[str], environment: dict[str, str], *, narrated: bool = False) -> None:
        self.narration = Narration() if narrated else None
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.narration.write_end if self.narration else subprocess.PIPE,
            text=True,
            env=environment,
        )
        if self.narration:
            self.narration.begin()
        self.pid = 0

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the watcher tells of when it has done it."""
        self.narration.until(holds)

    def greet(self) -> Program:
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=WAIT_S)[1]
        self.pid = json.loads(line)["pid"]
        return self

    def ask(self, *command: object) -> Any:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask_nothing(self) -> None:
        """Send an empty line, for which there is no answer."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def environment(self) -> dict[str, str]:
        raw = Path(f"/proc/{self.pid}/environ").read_bytes()
        return dict(os.fsdecode(entry).split("=", 1) for entry in raw.split(b"\0") if b"=" in entry)

    def finish(self) -> tuple[int, str]:
        _, words = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, self.narration.words() if self.narration else words

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=WAIT_S)


class Machine:
    """One private simulated machine (`zero`: contexts, modules and copies cost nothing, unless said otherwise)."""

    def __init__(self, directory: Path, profile: str = "zero") -> None:
        for name in ("runtime", "sim"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        self.root = directory / "runtime" / "partage"
        self.environment = os.environ | {
            "XDG_RUNTIME_DIR": str(directory / "runtime"),
            "PARTAGE_SIM_DIR": str(directory / "sim"),
            "PARTAGE_SIM": profile,
            "PARTAGE_SIM_FORCE": "1",
            "PYTHONPATH": PYTHON_ROOT,
            "COLUMNS": "200",
        }
        self.environment.pop("PARTAGE_DIR", None)
        self.programs: list[Program] = []
        self._news: FolderNews | None = None

    def partage(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        patience = ("--timeout", str(WAIT_S)) if arguments == ("doctor",) else ()  # no driver here hangs
        command = [sys.executable, "-m", "partage", *arguments, *patience]
        environment = self.environment | changes
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=False)

    def start(self, *share: str, program: tuple[str, ...] = (), narrated: bool = False, **changes: str) -> Program:
        """Start a program with a share, by default the holder, and wait for its greeting."""
        partage = [sys.executable, "-m", "partage", *(["-vv"] if narrated else [])]
        command = [*partage, "run", *share, "--", *(program or (sys.executable, str(HOLDER)))]
        started = Program(command, self.environment | changes, narrated=narrated)
        self.programs.append(started)
        return started.greet()

    def join(self, other: Program, command: list[str] | None = None) -> Program:
        """Start another program, by default a holder, in the container of `other`."""
        started = Program(command or [sys.executable, str(HOLDER)], other.environment())
        self.programs.append(started)
        return started.greet()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of which the arbiter of this machine writes; programs must have been started."""
        self._news = self._news or FolderNews(self.root)
        self._news.until(holds)

    def close(self) -> None:
        if self._news:
            self._news.close()
        for program in self.programs:
            if program.pid and program.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program.pid, signal.SIGKILL)
            program.stop()

    def hand_overs(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path.is_dir()) if self.root.exists() else []


@pytest.fixture
def make_machine(tmp_path):
    """Make the machine of a profile for this test; its programs end with the test, whatever becomes of it."""
    made: list[Machine] = []

    def make(profile: str) -> Machine:
        made.append(Machine(tmp_path, profile))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


@pytest.fixture
def machine(make_machine, monkeypatch):
    """A machine whose devices cost nothing but what is allocated."""
    made = make_machine("zero")
    for name in ("XDG_RUNTIME_DIR", "PARTAGE_SIM_DIR", "PARTAGE_SIM", "PARTAGE_SIM_FORCE"):
        monkeypatch.setenv(name, made.environment[name])
    return made


@pytest.fixture
def examine(machine):
    """Run the doctor on the machine, as it is or with other variables; a None takes a variable away."""

    def run(*arguments: str, command=DOCTOR, before=(), **changes: str | None) -> Report:
        environment = {k: v for k, v in (machine.environment | changes).items() if v is not None}
        whole = [*before, *command, *arguments]
        done = subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=250, check=False)
        return Report(done)

    return run
