#!/usr/bin/env python3
"""clang-tidy over C sources, once per source however many targets compile it: tidy CLANG_TIDY BUILD SOURCE...

Called by tools/lint. A source that was clean is not looked at again until something that clang-tidy reads has changed:
the source, any header (system headers too), the compiler's arguments, .clang-tidy, or clang-tidy's version. Only that a
source was clean is remembered, as an empty file in ${XDG_CACHE_HOME:-~/.cache}/partage/tidy; whoever removes that
folder, or cannot write it, only waits longer. Exit code: 0 all clean, 1 something was reported, which is then printed.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


def commands(build: Path) -> dict[Path, dict[str, str]]:
    """Find the first compile command of each source; libraries come before tests that compile a source again."""
    first: dict[Path, dict[str, str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        first.setdefault(Path(entry["directory"], entry["file"]).resolve(), entry)
    return first


def inputs(entry: dict[str, str]) -> list[Path]:
    """List every file that compiling the source reads, in the order of the compiler's make rule."""
    command = shlex.split(entry["command"])
    for option in ("-o", "-MF", "-MT", "-MQ"):
        if option in command:
            at = command.index(option)
            del command[at : at + 2]
    command = [word for word in command if word not in {"-c", "-MD", "-MMD"}]
    rule = subprocess.run([*command, "-M"], cwd=entry["directory"], capture_output=True, text=True, check=True).stdout
    paths = shlex.split(rule.replace("\\\n", " ").split(": ", 1)[1])
    return [Path(entry["directory"], path) for path in paths]


@dataclass(frozen=True)
class Checker:
    """clang-tidy with one configuration, and what it found clean before."""

    tidy: str
    database: str  # folder of a compile_commands.json that has each source once
    settings: bytes  # configuration and version
    cache: Path

    def key(self, entry: dict[str, str]) -> str:
        """Name what the answer for one source depends on; empty where the source does not even preprocess."""
        command = entry["command"].replace(f"{Path.cwd()}/", "")  # the same in every checkout
        digest = hashlib.sha256(self.settings + command.encode())
        try:
            for path in inputs(entry):
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        except (subprocess.CalledProcessError, OSError):
            return ""
        return digest.hexdigest()

    def look(self, source: Path, entry: dict[str, str]) -> str:
        """Say what clang-tidy says of one source: nothing if it is clean."""
        name = self.key(entry)
        if name and (self.cache / name).exists():
            return ""
        done = subprocess.run(
            [self.tidy, "-p", self.database, "--quiet", "--warnings-as-errors=*", str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            # What it says about itself (warnings counted, headers suppressed) drowns what was found.
            said = re.sub(r"(?m)^(\d+ warnings?.*generated\.|Suppressed .*|Use -header-filter.*)\n", "", done.stderr)
            return done.stdout + said
        if name and self.key(entry) == name:  # not so where something was edited meanwhile
            with contextlib.suppress(OSError):  # a home that cannot be written: the next run looks again
                self.cache.mkdir(parents=True, exist_ok=True)
                (self.cache / name).touch()
        return ""


def main(tidy: str, build: Path, sources: list[Path]) -> int:
    """Check each source; 1 where one has a finding or is not compiled at all."""
    known = commands(build)
    unknown = [source for source in sources if source.resolve() not in known]
    if unknown:
        print(f"not compiled in {build}: {', '.join(map(str, unknown))}: build first, or add them to a target")
        return 1
    version = subprocess.run([tidy, "--version"], capture_output=True, check=True).stdout
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partage" / "tidy"
    failed = False
    with tempfile.TemporaryDirectory() as database:
        checker = Checker(tidy, database, version + Path(".clang-tidy").read_bytes(), cache)
        entries = [known[source.resolve()] for source in sources]
        Path(database, "compile_commands.json").write_text(json.dumps(entries))
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for text in pool.map(checker.look, sources, entries):
                print(text, end="", flush=True)
                failed = failed or bool(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), [Path(argument) for argument in sys.argv[3:]]))
