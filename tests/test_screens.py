"""We test this aspect of our own code: a function fits a screen and a file 800 lines, as CONTRIBUTING.md asks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).resolve().parents[1]
SCREEN = 60  # lines
FILE = 800
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def sources() -> Iterator[Path]:
    for room in ("python", "plugin", "tools"):
        for path in sorted((TOP / room).rglob("*.py")):
            if not path.name.endswith(GENERATED):
                yield path


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_each_function_fits_a_screen() -> None:
    lines = {
        f"{path.relative_to(TOP)}:{one.lineno} {one.name}": (one.end_lineno or one.lineno) - one.lineno + 1
        for path in sources()
        for one in functions(path)
    }
    assert len(lines) > 1000, "they are not found where they are"
    assert {name: long for name, long in lines.items() if long > SCREEN} == {}


def test_each_file_is_short() -> None:
    lines = {str(path.relative_to(TOP)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: long for name, long in lines.items() if long > FILE} == {}
