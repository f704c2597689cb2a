"""What protoc made is what is checked in."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    """A .proto was changed: run `python tools/proto.py`."""
    pinned = "1.85.1"
    if importlib.metadata.version("grpcio-tools") != pinned:
        pytest.skip(f"made by grpcio-tools {pinned}, another one is installed")
    program = "import pathlib, sys; import proto; sys.exit(proto.generate(pathlib.Path(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT / "tools")
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*_pb2*.py*")}
    there = ROOT / "plugin"
    assert made == {path: (there / path).read_bytes() for path in made}
    assert {path.relative_to(there) for path in there.rglob("*_pb2*.py*") if "__pycache__" not in path.parts} == set(
        made
    )
