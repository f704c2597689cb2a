"""Runs published pytest files as their authors do and writes what became of each test.

    python run_pytest.py RESULT.json PLACE FILE...

PLACE is where the package lies that the files (paths below it) test. The result is as run_suite.py writes it; a test
that its authors give up at once (`pytest.xfail`) has the outcome ``given up``.
"""

import json
import sys
from pathlib import Path

import pytest


class Outcomes:
    """A plugin that remembers the outcome of each test."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        """Keep the call's outcome, or what kept the test from it."""
        name = report.nodeid.rpartition("/")[2]
        if report.skipped:
            outcome = "given up" if hasattr(report, "wasxfail") else "skipped"
        else:
            outcome = {"call": report.outcome}.get(report.when, "error" if report.failed else "")
        if outcome:
            self.outcomes.setdefault(name, {"outcome": outcome, "reason": report.longreprtext[-300:]})


target, place, *files = sys.argv[1:]
sys.path.insert(0, place)
kept = Outcomes()
options = ["-q", "-p", "no:cacheprovider", "--rootdir", place, "-c", "/dev/null"]
pytest.main([*options, *(str(Path(place, file)) for file in files)], plugins=[kept])
libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
Path(target).write_text(json.dumps({"libraries": sorted(libraries), "tests": kept.outcomes}))
