"""We test these aspects of errors: a message is one line, whatever a parser or a server wrote into its part."""

from __future__ import annotations

from partage.model import AskError, UsageError
from partage.model.errors import Problem


def test_a_message_is_one_line() -> None:
    error = UsageError("f.yaml", "cannot be read (a\n  in line 1,\r\n\n column 2)", "a YAML mapping", "correct it")
    assert str(error) == "f.yaml: cannot be read (a in line 1, column 2); a YAML mapping; correct it"


def test_so_is_one_with_several_problems() -> None:
    problems = [Problem("container a", "'x\ny'", "a number", "write one"), Problem("container b", "z", "a", "b")]
    assert str(AskError("pod p", problems)) == "pod p: container a: 'x y'; a number; write one | container b: z; a; b"
