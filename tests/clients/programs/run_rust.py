"""Runs the test program of a Rust crate and writes what became of each test.

    python run_rust.py RESULT.json PROGRAM FILTER

One test after another, those included that their authors run only where there are several devices. The result is as
run_suite.py writes it; the libraries are those that the program had mapped when it reported its last test.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

target, program, part = sys.argv[1:]
outcomes = {}
libraries = set()
command = [program, part, "--include-ignored", "--test-threads=1"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tests:
    said = ""
    for line in tests.stdout:
        print(line, end="")
        said += line
        if found := re.match(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line):
            outcome = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}[found[2]]
            outcomes[found[1]] = {"outcome": outcome, "reason": ""}
            if Path(f"/proc/{tests.pid}/maps").exists():
                mapped = Path(f"/proc/{tests.pid}/maps").read_text()
                libraries |= {entry.split()[-1] for entry in mapped.splitlines() if ".so" in entry}
for name, text in re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:)", said, re.MULTILINE | re.DOTALL):
    outcomes[name]["reason"] = text[:400]
Path(target).write_text(json.dumps({"libraries": sorted(libraries), "tests": outcomes}))
