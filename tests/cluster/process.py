"""The processes of a cluster: started with a log file each, marked as this cluster's, stopped and paused by their id.

Used for every component and by tests for programs that belong on the node (an agent). A process is found again by the
mark in its environment (`cleanup.py`), also after whoever started it was killed. What can go wrong: it ends at once;
`Process.require` then raises with the end of its log.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.changes import Changes, deadline, left
from tests.cluster.cleanup import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Directories where Debian keeps runc, ip and mount, whatever the caller's PATH.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STARTED = b"--- start: "  # before what a run writes into the log
END_S = 120.0  # ends a hang: that long no process takes to end
POLL = 0.05  # seconds between two looks at something that nobody announces


class ComponentFailedError(Exception):
    """A component ended or did not become ready; the message holds the end of its log."""


@dataclass
class Process:
    """A program that can be started again and again under one name; its output goes to `log`."""

    name: str
    argv: Sequence[str]
    log: Path
    mark: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        """Start it in a session of its own; its environment is PATH, HOME, the mark and what was given."""
        base = {"PATH": SYSTEM_PATH, "HOME": str(Path.home()), "LANG": "C.UTF-8", MARK: str(self.mark)}
        with self.log.open("ab") as log:
            log.write(STARTED + f"{' '.join(self.argv)}\n".encode())
            log.flush()
            self.running = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=base | dict(self.environment),
                cwd=self.mark,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """Process id; ComponentFailedError where it was never started."""
        if self.running is None:
            raise ComponentFailedError(f"{self.name} was not started")
        return self.running.pid

    def alive(self) -> bool:
        """Say whether it runs (a paused process counts)."""
        return self.running is not None and self.running.poll() is None

    def tail(self, lines: int = 25) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 400 * lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def said(self) -> str:
        """Return what it has written since its last start."""
        return self.log.read_bytes().rpartition(STARTED)[2].decode(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait until it is gone; nothing where it is not running."""
        if self.running is None:
            return
        if self.alive():
            self.running.send_signal(number)
            if number != signal.SIGKILL:
                self.running.send_signal(signal.SIGCONT)  # a paused one could not obey
        self.running.wait(timeout=END_S)

    def reap(self) -> None:
        """Take note of its end, which somebody else brought about."""
        if self.running is not None:
            self.running.wait(timeout=END_S)

    def pause(self) -> None:
        """Stop it (SIGSTOP) and return once the kernel says that every thread of it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, number: int = signal.SIGTERM) -> None:
        """End it and start it anew."""
        self.kill(number)
        self.start()

    def until(self, done: Callable[[], bool], *, seconds: float, what: str, watch: Sequence[Path] = ()) -> None:
        """Look whenever something happens to the files `watch` until `done` answers yes.

        ComponentFailedError where the process ends first or the time is over. Without files it looks every POLL
        seconds: for what nobody announces, such as a server's readiness.
        """
        end = deadline(seconds)
        with Changes(watch, self.pid) as changes:
            while not done():
                if not self.alive():
                    code = self.running.returncode if self.running else None
                    raise ComponentFailedError(f"{self.name} ended with {code} before it was {what}:\n{self.tail()}")
                if left(end) <= 0:
                    raise ComponentFailedError(f"{self.name} was not {what} within {seconds:g} s:\n{self.tail()}")
                changes.wait(left(end) if watch else POLL)
