"""What tests of `partage doctor` call it with, and what they read of its answer; `examine` of the conftest runs it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from partage.cli.checks.finding import KINDS

if TYPE_CHECKING:
    import subprocess

# A driver that answers does so in the end, however busy the machine.
DOCTOR = (sys.executable, "-m", "partage", "doctor", "--timeout", "200", "--json")


class Report:
    """What one run of the doctor said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        self.code = done.returncode
        self.findings = json.loads(done.stdout)["findings"]
        self.worst = json.loads(done.stdout)["worst"]

    def __contains__(self, kind: str) -> bool:
        assert kind in KINDS
        return any(found["id"] == kind for found in self.findings)

    def __getitem__(self, kind: str) -> dict[str, str]:
        found: dict[str, str]
        (found,) = [found for found in self.findings if found["id"] == kind]
        return found

    def of_severity(self, severity: str) -> set[str]:
        return {found["id"] for found in self.findings if found["severity"] == severity}

    @property
    def troubles(self) -> set[str]:
        return self.of_severity("fault") | self.of_severity("warning")


def inside(before: str = "") -> tuple[str, ...]:
    """Return the command that runs the doctor under a share of 1 GiB, after some shell commands."""
    run = (sys.executable, "-m", "partage", "run", "--memory", "1Gi", "--")
    return (*run, "bash", "-ec", f'{before}\nexec "$@"', "bash", *DOCTOR)
