"""A machine of its own for each test, and `partage` on it as a user would call it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.narration import Narration

if TYPE_CHECKING:
    from collections.abc import Callable

HOLDER = Path(__file__).with_name("holder.py")
PYTHON_ROOT = str(Path(__file__).parents[2] / "python")
WAIT_S = 60


def eventually(holds: Callable[[], bool]) -> None:
    """Ask until it holds: for what others write into memory that tells nobody. The bound stands for "never"."""
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, "did not happen"
        time.sleep(0.005)  # only how often it is asked


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

    def partage(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "partage", *arguments]
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

    def close(self) -> None:
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
