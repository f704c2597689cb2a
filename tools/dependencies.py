#!/usr/bin/env python3
"""Print what pip must install for a development checkout, one requirement a line.

Called by the Makefile: the requirements of the distribution itself, of the named extras and of the named dependency
groups. One list (pyproject.toml) serves wheels and checkouts; pip's own ``--group`` needs a newer pip than Debian has.
"""

import sys
import tomllib
from pathlib import Path


def main(names: list[str]) -> int:
    """Print the requirements of the project and of each extra or group in names; 2 where a name is unknown."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    known = {**project["project"]["optional-dependencies"], **project["dependency-groups"]}
    wanted = list(project["project"]["dependencies"])
    for name in names:
        if name not in known:
            print(f"dependencies: no extra or group named {name!r}; known: {', '.join(sorted(known))}", file=sys.stderr)
            return 2
        wanted += known[name]
    print("\n".join(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
