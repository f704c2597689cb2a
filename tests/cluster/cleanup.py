"""Undo everything that a test cluster did to this machine, whatever state it is in, from the records in its directory.

Called by the keeper (`keeper.py`) when its cluster ends or its owner was killed, and at the start of the next cluster
for directories whose keeper was killed too. Uses nothing but the standard library and kernel files, so it works after
containerd and kubelet are gone. What can go wrong: a process in uninterruptible sleep or a busy cgroup; what could not
be undone within the deadline is printed, and the directory stays for the next try.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

#: Environment variable that marks every process of a cluster with its directory; shims inherit it from containerd.
MARK: Final = "PARTAGE_TEST_CLUSTER"
#: Kubelet's directory for device plugins, which cannot be moved.
DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
#: Directories that kubelet, containerd and CNI make whatever they are told; removed where we found them missing.
FIXED: Final = tuple(
    map(
        Path,
        (
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/plugins_registry",
            "/var/lib/kubelet",
            "/var/log/containers",
            "/var/log/pods",
            "/var/lib/cni/results",
            "/var/lib/cni",
            "/run/containerd/s",
            "/run/containerd",
            "/opt/containerd",
            "/opt/cni",
        ),
    )
)
#: Kernel settings that kubelet and the bridge plugin change for their own purposes.
SYSCTLS: Final = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
PATIENCE: Final = 90.0  # seconds for the kernel to let go of killed processes, mounts and cgroups
AGAIN: Final = 0.05  # seconds: the kernel does not say when a cgroup of the first version can be removed
MNT_DETACH: Final = 2
RECORD: Final = "host.json"
LOCK: Final = "owner.lock"  # held by whoever lives in the directory, and by its keeper


@dataclass(frozen=True)
class HostRecord:
    """What a node changes outside its directory, written down before it does: host.json."""

    bridge: str
    cgroup: str
    network: str
    sysctls: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @staticmethod
    def take(directory: Path) -> HostRecord:
        """Note the machine's state before a node starts in `directory`."""
        name = directory.name
        sysctls = {
            key: Path("/proc/sys", key).read_text().strip() for key in SYSCTLS if Path("/proc/sys", key).exists()
        }
        missing = [str(path) for path in FIXED if not path.exists()]
        record = HostRecord(f"pt{name[-8:]}", f"partage-{name}", f"partage-{name}", sysctls, missing)
        (directory / RECORD).write_text(json.dumps(asdict(record)))
        return record

    @staticmethod
    def read(directory: Path) -> HostRecord | None:
        """Return what was noted, or None for a cluster without a node."""
        try:
            return HostRecord(**json.loads((directory / RECORD).read_text()))
        except FileNotFoundError:
            return None


def clean_up(directory: Path) -> list[str]:
    """Undo all of it and remove the directory; return what could not be undone (the directory then stays)."""
    if not directory.exists():
        return []
    left = []
    record = HostRecord.read(directory)
    if not settle(lambda: end_processes(directory, record)):  # waits itself, for each one's end
        left.append("processes that do not die")
    for mount in mounts_below(directory):
        unmount(mount)
    if record:
        if not settle(lambda: remove_cgroups(record.cgroup), AGAIN):
            left.append(f"cgroup {record.cgroup}")
        remove_links(record.bridge)
        remove_files(directory, record)
        restore(record)
    if mounts_below(directory):
        left.append(f"mounts below {directory}")
    if not left:
        remove_directory(directory)
    return left


def remove_directory(directory: Path) -> None:
    """Remove a cluster's directory, its lock last: as long as something is there, the next try finds whose it was."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def settle(step: Callable[[], bool], apart: float = 0) -> bool:
    """Repeat a step, `apart` seconds apart, until it answers that nothing is left, or the patience is over."""
    deadline = time.monotonic() + PATIENCE
    while not step():
        if time.monotonic() > deadline:
            return False
        time.sleep(apart)
    return True


# ---- processes and cgroups -----------------------------------------------------------------------------------------


def marked(directory: Path) -> Iterator[int]:
    """Yield the ids of live processes whose environment names this cluster, but not of the one that asks."""
    wanted = f"{MARK}={directory}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def cgroup_directories(name: str) -> list[Path]:
    """Return every directory of a node's cgroup in every hierarchy, deepest first."""
    found: list[Path] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        top = Path(point) / name
        if kind in ("cgroup", "cgroup2") and top.is_dir():
            found += [Path(where) for where, _, _ in os.walk(top, topdown=False)]
    return found


def members(name: str) -> set[int]:
    """Return the ids of the processes in a node's cgroups: the containers' and what they started."""
    ids: set[int] = set()
    for directory in cgroup_directories(name):
        with contextlib.suppress(OSError):
            ids |= {int(word) for word in (directory / "cgroup.procs").read_text().split()}
    return ids - {0, os.getpid()}


def end_processes(directory: Path, record: HostRecord | None, spare: AbstractSet[int] = frozenset()) -> bool:
    """Kill what is left but `spare`, thaw what is frozen; true once nothing was there."""
    ids = (set(marked(directory)) | (members(record.cgroup) if record else set())) - spare
    if record:
        for place in cgroup_directories(record.cgroup):
            with contextlib.suppress(OSError):
                (place / "freezer.state").write_text("THAWED")
    waiting = []
    for pid in ids:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            waiting.append(descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    for descriptor in waiting:
        select.select([descriptor], [], [], 2)
        os.close(descriptor)
    return not ids


def remove_cgroups(name: str) -> bool:
    """Remove a node's cgroups; true once none is there."""
    for directory in cgroup_directories(name):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not cgroup_directories(name)


# ---- mounts, links, files, settings --------------------------------------------------------------------------------


def mounts_below(directory: Path) -> list[str]:
    """Return the mount points below a directory, the last mounted first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    plain = [point.replace("\\040", " ") for point in points]
    return [point for point in reversed(plain) if point.startswith(f"{directory}/")]


def unmount(point: str) -> None:
    """Detach a mount; one that is gone already is no error."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.umount2(point.encode(), MNT_DETACH)


def remove_links(bridge: str) -> None:
    """Delete the node's bridge and the host ends of what hangs on it."""
    top = Path("/sys/class/net", bridge)
    ends = [entry.name for entry in (top / "brif").iterdir()] if (top / "brif").is_dir() else []
    for name in [*ends, *([bridge] if top.exists() else [])]:
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def remove_files(directory: Path, record: HostRecord) -> None:
    """Remove what lies outside the directory: shim sockets, CNI results, log links, kubelet's device-plugin state."""
    for bundle in directory.glob("run/containerd/io.containerd.runtime.v2.task/*/*"):
        for name in ("address", "bootstrap.json"):
            with contextlib.suppress(OSError, ValueError):
                text = (bundle / name).read_text()
                address = json.loads(text)["address"] if name.endswith("json") else text
                Path(address.strip().removeprefix("unix://")).unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob(f"{record.network}-*"):
        result.unlink(missing_ok=True)
    for link in Path("/var/log/containers").glob("*"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{directory}/"):
            link.unlink()
    if DEVICE_PLUGINS.is_dir():
        for entry in DEVICE_PLUGINS.iterdir():
            if entry.is_socket() or entry.name == "kubelet_internal_checkpoint":
                entry.unlink(missing_ok=True)
    for place in record.missing:  # made by the node's programs; only where nothing is left in it
        if place.startswith("/var/lib/kubelet/"):
            shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path(place).rmdir()


def restore(record: HostRecord) -> None:
    """Set the kernel's settings back to what they were."""
    for key, value in record.sysctls.items():
        path = Path("/proc/sys", key)
        with contextlib.suppress(OSError):
            if path.read_text().strip() != value:
                path.write_text(value)


if __name__ == "__main__":
    remaining = clean_up(Path(sys.argv[1]))
    print("\n".join(remaining))
    sys.exit(1 if remaining else 0)
