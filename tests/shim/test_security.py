"""SECURITY.md names a test for each promise and each bypass: each of them must exist, so that none can drift away."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _named() -> set[str]:
    return set(re.findall(r"`((?:test|entry)_\w+)`", (ROOT / "SECURITY.md").read_text()))


def _python_tests() -> set[str]:
    return {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def _words_of_c_tests() -> set[str]:
    """Names of C tests, also those that a `foreach` puts together from `test_` and a word."""
    words: set[str] = set()
    for path in ROOT.glob("tests/c/*/CMakeLists.txt"):
        words |= set(re.findall(r"\w+", re.sub(r"#.*", "", path.read_text())))
    prefixes = ("", "test_", "entry_", "test_race_", "test_kill_everywhere_")
    return {prefix + word for prefix in prefixes for word in words}


def test_every_test_that_security_names_exists() -> None:
    named = _named()
    assert len(named) > 40, "SECURITY.md names hardly any tests: this one would prove nothing"
    assert sorted(named - _python_tests() - _words_of_c_tests()) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    assert "test_of_a_promise_that_nobody_wrote" not in _python_tests() | _words_of_c_tests()
