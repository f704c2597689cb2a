"""A program that the demo starts and talks to by pipe: one JSON object a line each way, every wait bounded."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from partage.model import LaunchError, names

ANSWER_S: Final = 30.0


def partage(*arguments: str) -> list[str]:
    """Return the command line of this very `partage`."""
    return [sys.executable, "-m", "partage", *arguments]


def _environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    return dict(os.fsdecode(entry).split("=", 1) for entry in raw.split(b"\0") if b"=" in entry)


class Player:
    """A started program. `pid` and `library` are its own words, known after `greet`."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.pid = 0
        self.library = ""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        self._buffer = b""
        self._noise: list[str] = []

    def greet(self) -> None:
        """Wait for the tenant's first line; raises LaunchError with its words where it ends instead."""
        hello = self._line(ANSWER_S)
        self.pid, self.library = hello["pid"], hello["library"]

    def ask(self, what: str, *, timeout_s: float = ANSWER_S, **values: Any) -> dict[str, Any]:
        """Let the tenant do something and return its answer; raises LaunchError where none comes."""
        self.tell(what, **values)
        return self.hear(timeout_s)

    def tell(self, what: str, **values: Any) -> None:
        """Let the tenant do something; its answer comes later."""
        assert self._process.stdin is not None  # noqa: S101 -- it was asked for above
        try:
            self._process.stdin.write(json.dumps({"do": what, **values}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the next line says what it said

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the tenant's next answer; raises LaunchError where none comes."""
        return self._line(timeout_s)

    def _line(self, timeout_s: float) -> dict[str, Any]:
        """Return the next JSON line; other lines are noise that is kept for the error message."""
        assert self._process.stdout is not None  # noqa: S101 -- it was asked for above
        fd = self._process.stdout.fileno()
        while True:
            line, found, self._buffer = self._buffer.partition(b"\n")
            if not found:
                self._buffer = line
                chunk = os.read(fd, 65536) if select.select([fd], [], [], timeout_s)[0] else b""
                if not chunk:
                    raise self._silent()
                self._buffer += chunk
            elif line.startswith(b"{"):
                answer = json.loads(line)
                assert isinstance(answer, dict)  # noqa: S101 -- our own tenants speak so
                return answer
            else:
                self._noise.append(line.decode(errors="replace"))

    def _silent(self) -> LaunchError:
        code = self._process.poll()
        words = " ".join([*self._noise, self._buffer.decode(errors="replace")][-12:]).strip()
        value = "no answer" if code is None else f"ended with exit code {code}"
        return LaunchError(f"tenant {self._process.args!r}", value, words or "it said nothing", "run it by hand")

    def hand_over(self) -> str:
        """Return the name of the hand-over that the tenant runs under."""
        return Path(_environment_of(self.pid)[names.ENV_DIR]).name

    def join(self, *command: str) -> Player:
        """Start another program in the same container: same environment, so the same share."""
        return Player(list(command), _environment_of(self.pid))

    def kill(self) -> None:
        """Kill -9 the process itself and collect it."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(ANSWER_S)

    def finish(self) -> tuple[int, str]:
        """Let the program end by itself; return its exit code and what it said besides answers."""
        rest, _ = self._process.communicate(timeout=ANSWER_S)
        words = [*self._noise, self._buffer.decode(errors="replace"), rest.decode(errors="replace")]
        return self._process.returncode, "\n".join(filter(None, words))

    def stop(self) -> None:
        """End whatever still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
