"""Findings about the system: kernel, container, control groups, who we are, and the places where files lie.

Called by `doctor`. Kernel features are tried, not derived from a version: a container's system call filter may take
away what the kernel has.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage import locks
from partage._version import __version__
from partage.cli.checks.finding import Finding, finding, of_error
from partage.model import LaunchError, names
from partage.run import handover

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIB: Final = 1 << 20
_NCCL_NEEDS: Final = 256 * _MIB  # a few channels' buffers per process; docker's default is 64 MiB
_FUTEX_WAITV: Final = 449  # the same number on every architecture
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}
_CGROUP: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc/self")
_GIVEN: Final = frozenset({"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})  # that runtimes put into containers
_MARKS: Final = {"/run/.containerenv": "podman", "/.dockerenv": "docker"}
_FROM: Final = {
    "/kubelet/pods/": "Kubernetes",
    "/io.containerd.": "containerd",
    "/docker/containers/": "docker",
    "/overlay-containers/": "podman",
}


def text_of(path: Path) -> str:
    """Return what a file of the system says, empty where there is none, or none that we may read."""
    try:
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Mount:
    """What a path lies on: file system type, mount point, options."""

    kind: str
    point: str
    options: frozenset[str]


def mount_of(path: Path) -> Mount:
    """Return the mount that holds `path`, from this process's own table; the last one mounted there counts."""
    target = str(path.resolve())
    best = Mount("unknown", "", frozenset())
    for line in text_of(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        point, options = left.split()[4].encode().decode("unicode_escape"), left.split()[5]
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = Mount(right.split()[0], point, frozenset(options.split(",")))
    return best


# ---- kernel ----------------------------------------------------------------------------------------------------------


def check_system() -> Iterator[Finding]:
    """Name versions, try what is needed of the kernel, tell the container and its control groups."""
    value = f"{__version__}, Python {platform.python_version()}, {platform.machine()}"
    yield finding("partage", "partage", value)
    yield from _check_kernel()
    yield finding("container", "container", container_kind())
    version, has_dmem = control_groups()
    if has_dmem:
        yield finding("cgroup", "cgroup", f"{version}, dmem available")
    else:
        yield finding("cgroup", "cgroup", version)
        yield finding("cgroup-no-dmem", "cgroup", f"{version}, dmem not available", "v2 with the dmem controller")


def control_groups(top: Path = _CGROUP) -> tuple[str, bool]:
    """Return the version of the control groups, and whether dmem is there; `hybrid`: v2 is mounted beside v1.

    Nothing of ours lies in them: the agent knows a container's processes by what is mounted for them.
    """
    for version, second in (("v2", top), ("hybrid", top / "unified")):
        if (second / "cgroup.controllers").is_file():
            return version, "dmem" in text_of(second / "cgroup.controllers").split()
    return ("v1" if any((top / kind).exists() for kind in ("cpu", "memory", "pids")) else "none"), False


def _check_kernel() -> Iterator[Finding]:
    release = platform.release()
    needed = {"OFD locks": _has_ofd_locks(), "pidfds": _has_pidfds()}
    lacking = [name for name, there in needed.items() if not there]
    if lacking:
        yield finding("kernel-too-old", f"kernel {release}", f"no {', '.join(lacking)}", "Linux 5.4 and no filter")
    else:
        yield finding("kernel", f"kernel {release}", f"has {', '.join(needed)}")
    wished = {"futex_waitv": _has_call(_FUTEX_WAITV), "membarrier": _has_call(_MEMBARRIER.get(platform.machine(), -1))}
    lacking = [name for name, there in wished.items() if not there]
    if lacking:
        yield finding("kernel-lacks", f"kernel {release}", f"no {', '.join(lacking)}", "Linux 5.16 and no filter")


def _has_ofd_locks() -> bool:
    fd = os.memfd_create("partage-doctor")
    try:
        locks.is_locked(fd, 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _has_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _has_call(number: int) -> bool:
    """Whether the kernel knows a system call: all arguments 0 are an error or a query for each that we ask about."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM))


def container_kind(proc: Path = _PROC) -> str:
    """Return the container runtime by the marks that each leaves, `none` where there are none.

    With v2 a container sees `/` as its control group, whatever it is on the host; what is mounted for it still tells.
    """
    named = os.environ.get("container", "")  # noqa: SIM112 -- systemd and podman write it so
    found = [kind for mark, kind in _MARKS.items() if Path(mark).exists()]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        found.append("Kubernetes")
    groups = text_of(proc / "cgroup")
    found += [kind for kind in ("kubepods", "docker", "containerd", "lxc") if kind in groups]
    mounts = (line.split() for line in text_of(proc / "mountinfo").splitlines())
    sources = [words[3] for words in mounts if words[4] in _GIVEN]
    found += [kind for mark, kind in _FROM.items() if any(mark in source for source in sources)]
    return ", ".join(dict.fromkeys(filter(None, [named, *found]))) or "none"


# ---- permissions and places ------------------------------------------------------------------------------------------


def check_places() -> Iterator[Finding]:
    """Look at who we are, the runtime directory, shared memory, and the device nodes."""
    identity = text_of(Path("/proc/self/uid_map")).split()
    namespace = "" if identity in ([], ["0", "0", "4294967295"]) else ", in a user namespace"
    yield finding("user", "user", f"uid {os.geteuid()}{namespace}")
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and not (given.startswith("/") and Path(given).is_dir()):
        yield finding("runtime-directory-ignored", "XDG_RUNTIME_DIR", given, "an absolute path of a directory")
    yield from check_shared_memory(Path("/dev/shm"))  # noqa: S108 -- looked at, not used
    yield from check_nodes(Path("/dev"), Path(names.REAL_DRIVER_MARK))
    try:
        root = handover.user_root()
    except LaunchError as error:
        yield of_error("shared-directory-refused", error)
    except OSError as error:
        yield finding("shared-directory-refused", error.filename or "hand-overs", error.strerror or error)
    else:
        mount = mount_of(root)
        yield finding("shares", root, f"on {mount.kind} ({mount.point})")


def check_shared_memory(place: Path) -> Iterator[Finding]:
    """Look at the file system for shared memory."""
    needed = f"{_NCCL_NEEDS // _MIB} MiB"
    if not place.is_dir() or not os.access(place, os.W_OK):
        yield finding("shared-memory-small", place, "missing or not writable", needed)
        return
    state = os.statvfs(place)
    size = state.f_blocks * state.f_frsize
    if size < _NCCL_NEEDS:
        yield finding("shared-memory-small", place, f"{size // _MIB} MiB", needed)


def check_nodes(devices: Path, module: Path) -> Iterator[Finding]:
    """Look at the device nodes below `devices`; `module` is there while NVIDIA's kernel module is loaded."""
    nodes = sorted({*devices.glob("nvidia[0-9]*"), *devices.glob("nvidiactl"), *devices.glob("nvidia-uvm")})
    for node in nodes:
        found = node.stat()
        if os.access(node, os.R_OK | os.W_OK):
            yield finding("device-node", node, "may be opened")
        else:
            value = f"mode {stat.S_IMODE(found.st_mode):04o}, of uid {found.st_uid}, gid {found.st_gid}"
            yield finding("device-node-closed", node, value, f"reading and writing by uid {os.geteuid()}")
    if not nodes and module.exists():
        yield finding("device-nodes-absent", devices, "no nvidia* in it", f"{module} is there, so is the module")
