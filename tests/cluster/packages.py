"""What the node needs from the distribution, and installing it where that is allowed.

Called by the set-up. Only Debian's and Ubuntu's packages are known here; elsewhere the missing programs are named. What
can go wrong: no root, no apt-get, no network; then `missing` still answers and the layer says why it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.process import SYSTEM_PATH

#: Program -> Debian package. runc is taken from there since one built without libseccomp cannot start a sandbox.
PROGRAMS: Final = {
    "runc": "runc",
    "ip": "iproute2",
    "busybox": "busybox-static",
    "mount": "mount",
    "cc": "gcc",
    "musl-gcc": "musl-tools",
}


def missing() -> dict[str, str]:
    """Return program -> package for everything that is not here."""
    lacking = {name: package for name, package in PROGRAMS.items() if shutil.which(name, path=SYSTEM_PATH) is None}
    busybox = shutil.which("busybox", path=SYSTEM_PATH)
    told = subprocess.run(["ldd", busybox or "/"], capture_output=True, text=True, check=False)
    if busybox and "not a dynamic" not in told.stderr:
        lacking["busybox"] = PROGRAMS["busybox"]
    if "cc" not in lacking:
        told = subprocess.run(["cc", "-print-file-name=libc.a"], capture_output=True, text=True, check=False)
        if not Path(told.stdout.strip()).is_absolute():
            lacking["libc.a"] = "libc6-dev"
    return lacking


def install() -> None:
    """Install what is missing, where this user may; says what it does."""
    packages = sorted(set(missing().values()))
    if not packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"cluster: installing {' '.join(packages)}", file=sys.stderr, flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)


def reason() -> str | None:
    """Return why this machine cannot run a node, with what to do about it, or None where it can."""
    if os.geteuid() != 0:
        return "a node needs root: containers, cgroups and mounts are made"
    lacking = missing()
    if lacking:
        return f"no {', '.join(lacking)} here: apt-get install {' '.join(sorted(set(lacking.values())))}"
    return None
