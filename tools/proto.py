"""Make the Python of the .proto files below `proto/` again: `python tools/proto.py` writes it into the tree.

The result is part of the repository, so that a build needs no protoc; tests/plugin/test_proto.py says when it is stale.
What can go wrong: no grpcio-tools, or a .proto that protoc refuses (its message is shown, exit code 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "partage_plugin/proto"


def generate(out: Path) -> int:
    """Write the modules of every .proto below `out`/partage_plugin/proto; return protoc's exit code."""
    sources = sorted(path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto").rglob("*.proto"))
    common = Path(grpc_tools.__file__).with_name("_proto")
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{PACKAGE}={ROOT / 'proto'}",
                f"-I{common}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                *(f"{PACKAGE}/{source}" for source in sources),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(generate(ROOT / "plugin"))
