"""What a node can leave on a machine, as a set of lines to compare: before it and after it they must be the same.

Called by the tests of the clean-up, with the kubelet lock held, so that no other session's node is in the picture.
Nothing here is shared with the clean-up itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS: Final = ("kubelet", "containerd", "containerd-shim", "pause", "runc")
PLACES: Final = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/run/netns",
)
SETTINGS: Final = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
)
OTHERS: Final = "/pytest-of-"  # in paths of other tests' files, which may run beside: no node knows of them


def processes() -> Iterator[str]:
    """Yield the node's programs that run, by name and id; not those that ended and wait for init to take note."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                name = Path(entry.path, "comm").read_text().strip()
                state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
                if name.startswith(PROGRAMS) and state != "Z":
                    yield f"process {entry.name} {name}"


def cgroups() -> Iterator[str]:
    """Yield the cgroups at the top of every hierarchy and those of pods."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield from (f"cgroup {path}" for path in Path(point).iterdir() if path.is_dir())


def files() -> Iterator[str]:
    """Yield every file in the places that node programs keep outside what they are told."""
    for place in map(Path, PLACES):
        if place.exists():
            yield f"file {place}"
        yield from (f"file {path}" for path in place.rglob("*"))


def footprint() -> set[str]:
    """Return it all: processes, mounts, links, cgroups, files, settings, packet filter rules."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = (f"mount {line}" for line in lines if OTHERS not in line)
    links = (f"link {entry.name}" for entry in Path("/sys/class/net").iterdir())
    settings = (f"{key} = {Path('/proc/sys', key).read_text().strip()}" for key in SETTINGS)
    rules: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        told = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False).stdout
        rules = [f"rule {line}" for line in told.splitlines() if line.startswith("-A")]
    return {*processes(), *mounts, *links, *cgroups(), *files(), *settings, *rules}
