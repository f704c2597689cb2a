#!/usr/bin/env python3
"""Write what is made from the chart, or say what is not current: chart.py [--check].

The chart is the one place where manifests are written. From it come the plain ones in deploy/agent, deploy/policies and
so on, for `kubectl apply --server-side` without helm, one file for each template; and beside it values.schema.json.
Called by `make manifests`; a test calls it with `--check`. What can go wrong: no helm and no Go to build it with
(UnavailableError), a template that does not render (CalledProcessError, its words are on standard error).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chart_schema import schema_text

from tests.cluster.binaries import HELM, obtain

TOP: Final = Path(__file__).resolve().parent.parent
CHART: Final = TOP / "deploy" / "chart" / "partage"
NAMESPACE: Final = "partage-system"
#: What plain manifests have that an installation by helm has not, or finds out.
PLAIN: Final = ("namespace.create=true", "agent.runtimeClassName=nvidia")
_HEAD: Final = re.compile(r"^kind: .+\nmetadata:\n  name: .+\n", re.MULTILINE)
_SOURCE: Final = re.compile(r"^---\n# Source: partage/templates/(.+)\n", re.MULTILINE)


def render(helm: str, *values: str) -> dict[str, str]:
    """Return what the chart renders to with these values, by the template's path."""
    command = [helm, "template", "partage", str(CHART), "--namespace", NAMESPACE]
    command += [argument for value in values for argument in ("--set", value)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, list[str]] = {}
    pieces = _SOURCE.split(told)[1:]
    for path, text in zip(pieces[::2], pieces[1::2], strict=True):
        found.setdefault(path, []).append(text.strip("\n") + "\n")
    return {path: "---\n".join(_as_written(path, texts)) for path, texts in found.items()}


def _as_written(path: str, texts: list[str]) -> list[str]:
    """Put objects into the order of their template: helm sorts them by kind, and the file's head would be inside."""
    template = (CHART / "templates" / path).read_text()

    def place(text: str) -> int:
        head = _HEAD.search(text)
        return template.find(head[0]) if head else -1

    return sorted(texts, key=place)


def _noted(path: str, text: str) -> str:
    """Say in a file's head where it comes from."""
    lines = text.splitlines(keepends=True)
    head = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    note = f"#\n# Rendered from deploy/chart/partage/templates/{path} by `make manifests`: change it there.\n"
    return "".join([*lines[:head], note, *lines[head:]])


def made(helm: str) -> dict[Path, str]:
    """Return every file that is made, with its text."""
    files = {TOP / "deploy" / path: _noted(path, text) for path, text in render(helm, *PLAIN).items()}
    files[CHART / "values.schema.json"] = schema_text()
    return files


def main(arguments: list[str]) -> int:
    """Write the files; with `--check` name those that are not current and return 1."""
    # The schema first: helm reads it before it renders.
    files = {CHART / "values.schema.json": schema_text()}
    check = "--check" in arguments
    if not check:
        _write(files)
    files |= made(obtain((HELM,))["helm"])
    rooms = {path.parent for path in files if path.suffix == ".yaml"}
    extra = {path for room in rooms for path in room.glob("*.yaml")} - files.keys()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in sorted({*stale, *extra}):
        print(f"{'not current' if check else 'written'}: {path.relative_to(TOP)}")
    if check:
        return 1 if stale or extra else 0
    _write({path: files[path] for path in stale})
    for path in extra:
        path.unlink()
    return 0


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
