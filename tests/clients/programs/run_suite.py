"""Runs a published unittest suite as its authors do and writes what became of each test.

    python run_suite.py RESULT.json PACKAGE

The file holds the path of every library that was mapped, and for each test (by its id within the package) its
outcome: ``passed``, ``skipped``, ``failed`` or ``error``, with the reason. A test counts once: where a subtest fails,
the test failed.
"""
# ruff: noqa: N802 (the names are unittest's)

import importlib
import json
import pkgutil
import sys
import unittest
from pathlib import Path


class Outcomes(unittest.TextTestResult):
    """A result that also remembers every test, also those that passed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.outcomes = {}

    def keep(self, test, outcome, reason=""):
        """Remember the first bad end of a test; ``passed`` never hides one."""
        self.outcomes.setdefault(test.id().removeprefix(f"{package}."), {"outcome": outcome, "reason": reason})

    def addSuccess(self, test):
        super().addSuccess(test)
        self.keep(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.keep(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.keep(test, "passed", "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.keep(test, "failed", "unexpected success")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.keep(test, "failed", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.keep(test, "error", repr(err[1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.keep(test, "failed", f"{subtest}: {err[1]}")


if __name__ == "__main__":  # some tests start Python processes that import this file again
    target, package = sys.argv[1:]
    found = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    suite = unittest.defaultTestLoader.loadTestsFromNames(sorted(m.name for m in found if ".test_" in m.name))
    result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    Path(target).write_text(json.dumps({"libraries": sorted(libraries), "tests": result.outcomes}))
