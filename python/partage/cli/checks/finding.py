"""What `partage doctor` says: findings, and the one list of all kinds of them.

A finding has a kind (its id), the object it is about, the value found, the limit it met and the next step. `KINDS`
holds for each id how bad it is, what it means and what to do; the error reference in docs is written from it, and a
check cannot report an id that is not in it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from partage.model import PartageError


class Severity(enum.IntEnum):
    """How bad a finding is, rising; the exit code follows the worst."""

    OK = 0
    NOTE = 1
    WARNING = 2
    FAULT = 3

    @property
    def mark(self) -> str:
        """What stands in the first column."""
        return ("ok", "note", "warn", "FAULT")[self]


@dataclass(frozen=True, slots=True)
class Kind:
    """One id: how bad it is, what it means, what to do about it (empty where there is nothing to do)."""

    severity: Severity
    meaning: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `object` is what was looked at, `value` what was found, `limit` what is expected, `step` what to do."""

    id: str
    severity: Severity
    object: str
    value: str
    limit: str = ""
    step: str = ""


def finding(kind: str, subject: object, value: object, limit: str = "", step: str = "") -> Finding:
    """Return a finding of a kind; its next step is the kind's remedy where none is given."""
    known = KINDS[kind]
    return Finding(kind, known.severity, str(subject), str(value), limit, step or known.remedy)


def of_error(kind: str, error: PartageError) -> Finding:
    """Return an error of ours as a finding of a kind, with the error's own next step."""
    return finding(kind, error.subject, error.value, error.limit, error.step)


_OK, _NOTE, _WARNING, _FAULT = Severity
_START: Final = "start the program through `partage run`"

KINDS: Final[dict[str, Kind]] = {
    # ---- partage and the system under it
    "partage": Kind(_OK, "versions of partage, Python and the processor"),
    "kernel": Kind(_OK, "the kernel has what partage needs"),
    "kernel-too-old": Kind(
        _FAULT,
        "the kernel lacks OFD locks or pidfds, without which the dead cannot be told from the living",
        "use Linux 5.4 or later, and a container runtime whose system call filter lets them through",
    ),
    "kernel-lacks": Kind(
        _NOTE,
        "the kernel, or the container's system call filter, lacks a call that only compute shares use",
        "memory limits hold without it; Linux 5.16 has all of them",
    ),
    "container": Kind(_OK, "whether this is a container, and of which runtime"),
    "cgroup": Kind(_OK, "the version of the control groups"),
    "cgroup-no-dmem": Kind(
        _NOTE,
        "the kernel cannot hold a limit of device memory itself",
        "nothing to do: the library holds it; Linux 6.14 with cgroup v2 can hold it too",
    ),
    "check-failed": Kind(
        _WARNING,
        "the system refused something that a check asks for, so what it looks at is not known",
        "correct what the value says, and ask again",
    ),
    # ---- permissions and places
    "user": Kind(_OK, "who runs this"),
    "runtime-directory-ignored": Kind(
        _WARNING,
        "XDG_RUNTIME_DIR is set but is no directory, so hand-overs and simulated machines lie in /tmp",
        "set it to an existing directory of your own (an absolute path)",
    ),
    "shared-directory-refused": Kind(
        _FAULT,
        "the directory of hand-overs belongs to somebody else or others may write to it",
        "remove it or set XDG_RUNTIME_DIR",
    ),
    "shared-memory-small": Kind(
        _NOTE,
        "/dev/shm is missing or small; libraries that exchange data between processes (NCCL) need it",  # noqa: S108 -- words
        "give the container more: `--shm-size` with docker and podman, an emptyDir of medium Memory in Kubernetes",
    ),
    "device-node": Kind(_OK, "a device node that may be opened"),
    "device-node-closed": Kind(
        _FAULT, "a device node may not be opened by this user", "join the group that owns it, or correct its mode"
    ),
    "device-nodes-absent": Kind(
        _FAULT,
        "NVIDIA's kernel module is loaded, but there are no device nodes here",
        "start the container with the device (CDI or the NVIDIA runtime), or run `nvidia-modprobe -c0 -u` on the host",
    ),
    # ---- the library
    "library": Kind(_OK, "libvgpu.so was found, and what build it is"),
    "library-missing": Kind(_FAULT, "libvgpu.so was not found", "run `make build` or set PARTAGE_LIBRARY"),
    "library-unusable": Kind(
        _FAULT,
        "libvgpu.so lies where the loader would ignore it: no access, or a blank or colon in its path",
        "move it to a path without blanks and colons that you may read",
    ),
    "library-noexec": Kind(
        _FAULT,
        "libvgpu.so lies on a file system that is mounted noexec: the loader would ignore it",
        "put it on a file system that is not mounted noexec",
    ),
    "preload": Kind(_OK, "the loader puts the library into a program"),
    "preload-fails": Kind(
        _FAULT,
        "a program that is started with the library does not carry it: the loader's own words are the value",
        "check that the library was built for this machine's libc: run `make build`",
    ),
    "preload-here": Kind(_OK, "the library is in this very process"),
    "preload-missing-here": Kind(
        _FAULT,
        "a hand-over is named for this process, but the library is not in it: programs started here have no limit",
        _START,
    ),
    "preload-not-first": Kind(
        _WARNING,
        "other libraries are preloaded before libvgpu.so; what they answer themselves is not metered",
        "put libvgpu.so first in LD_PRELOAD",
    ),
    "preload-others": Kind(_NOTE, "other libraries are preloaded too; under `partage run` they come after libvgpu.so"),
    "preload-dead-entry": Kind(
        _WARNING,
        "a preload names a file that is not there: the loader says so on every program's stderr and goes on without",
        "remove the entry",
    ),
    "preload-file": Kind(_OK, "/etc/ld.so.preload names libvgpu.so"),
    "preload-file-others": Kind(_NOTE, "/etc/ld.so.preload names other libraries; they come before all of LD_PRELOAD"),
    # ---- the driver
    "driver": Kind(_OK, "the driver answers; its libraries and versions"),
    "driver-simulated": Kind(_NOTE, "devices are simulated", "nothing to do; install NVIDIA's driver for real ones"),
    "driver-absent": Kind(_FAULT, "neither a real nor a simulated driver is to be had", "run `make build`"),
    "driver-libraries-absent": Kind(
        _FAULT,
        "the libraries of the driver cannot be loaded",
        "install the driver's libraries, or start the container with them (CDI or the NVIDIA runtime)",
    ),
    "driver-hangs": Kind(
        _FAULT,
        "the driver did not answer in time; a program that calls it would hang as well",
        "look for XID messages in the kernel's log (`dmesg`); reset the card or restart the machine",
    ),
    "driver-crashes": Kind(
        _FAULT,
        "a process that only asked the driver was ended by a signal",
        "reinstall the driver; check that libcuda.so.1 and libnvidia-ml.so.1 are of one version",
    ),
    "driver-refuses": Kind(
        _FAULT,
        "cuInit or NVML answers with an error",
        "see what the error means in cuda.h or nvml.h; compare with `nvidia-smi` on the host",
    ),
    "driver-mismatch": Kind(
        _FAULT,
        "the driver's libraries and its kernel module are of different versions",
        "restart the machine after a driver update; in a container: start it again",
    ),
    "driver-old": Kind(
        _WARNING,
        "the driver is older than CUDA 12.0: what it lacks is not handed out, but nothing is tested with it",
        "update the driver",
    ),
    "driver-new": Kind(
        _WARNING,
        "the driver is newer than CUDA 13.5: entry points that came later are not metered",
        "use a version of partage that knows them",
    ),
    "driver-stub": Kind(
        _WARNING,
        "the loader finds the toolkit's stub of libcuda.so.1, which answers nothing",
        "remove the stubs directory from LD_LIBRARY_PATH",
    ),
    "loader-finds": Kind(_OK, "the libcuda.so.1 that a program started here without partage would load"),
    "loader-finds-none": Kind(
        _NOTE, "a program started here without partage finds no libcuda.so.1", "nothing to do: `partage run` names it"
    ),
    "device": Kind(_OK, "a device that answers"),
    "device-fails": Kind(
        _FAULT,
        "a device does not answer",
        "reset it (`nvidia-smi -r -i INDEX`); a simulated one: `partage sim fault restore INDEX`",
    ),
    "devices-none": Kind(
        _FAULT, "the driver answers, but there is no device", "check the card and its driver with `nvidia-smi -L`"
    ),
    "device-mig": Kind(
        _WARNING,
        "the card is in MIG mode: CUDA programs use its instances, of which this version promises no shares",
        "let MIG divide the card, or turn MIG off (`nvidia-smi -i INDEX -mig 0`) to share it with partage",
    ),
    # ---- the simulated machine
    "machine": Kind(_OK, "the simulated machine: profile, devices, programs that use it"),
    "machine-none": Kind(_NOTE, "there is no simulated machine yet", "nothing to do: the first program makes it"),
    "machine-damaged": Kind(
        _FAULT, "the simulated machine is of another version or damaged", "run `partage sim create PROFILE --replace`"
    ),
    "machine-faults": Kind(
        _WARNING,
        "faults are armed on the simulated machine: calls fail that would succeed",
        "see `partage sim fault list`; disarm them with `partage sim fault clear`",
    ),
    "machine-beside-real": Kind(
        _NOTE,
        "the simulated driver is used although a real one is there",
        "unset PARTAGE_SIM_FORCE to use the real one",
    ),
    # ---- shares
    "share": Kind(_OK, "the share of this process: what it is granted and by which policy"),
    "share-policy-broken": Kind(
        _FAULT,
        "the policy of this process cannot be used: it is closed, every allocation is refused",
        "start the program again; look at who writes to the hand-over",
    ),
    "share-closed": Kind(
        _FAULT, "the policy of this process says closed: every allocation is refused", "ask whoever wrote the policy"
    ),
    "share-ledger-broken": Kind(
        _FAULT,
        "the ledger of this process cannot be used: every allocation is refused",
        "start the program again; look at who writes to the hand-over",
    ),
    "share-ledger-read-only": Kind(
        _FAULT,
        "the ledger of this process may not be written: every allocation is refused",
        "mount the ledger read-write over the read-only directory; let this user write it",
    ),
    "share-turns-broken": Kind(
        _WARNING,
        "the turns file of this process cannot be used; memory limits hold without it",
        "start the program again; look at who writes to the hand-over",
    ),
    "share-policy-writable": Kind(
        _NOTE,
        "this user may write the policy of its own share: a limit among friends",
        "mount the hand-over read-only (a container) to hold programs that do not want to be held",
    ),
    "shares": Kind(_OK, "where shares are promised, and how many are in use"),
    "shares-left-over": Kind(
        _NOTE, "hand-overs that nobody uses any more", "nothing to do: the next `partage run` removes them"
    ),
    "running-policy-broken": Kind(
        _FAULT,
        "the policy of a running share cannot be used: its programs are closed, and nothing new can be promised",
        "end that program; `partage top` shows its processes",
    ),
    "running-ledger-broken": Kind(
        _FAULT,
        "the ledger of a running share cannot be used: its programs are refused",
        "end that program and start it again",
    ),
    "running-over-card": Kind(
        _FAULT,
        "running shares of a card add up to more than it has",
        "shrink one with `partage resize`, or end one",
    ),
    "running-over-limit": Kind(
        _WARNING,
        "a share uses more than its limit: it was shrunk, or contexts cost more than was estimated",
        "nothing is taken away; it is refused more until it has freed enough, or grow it with `partage resize`",
    ),
    "running-device-gone": Kind(
        _WARNING, "a running share is of a device that does not answer", "see the finding of that device"
    ),
    "running-unwatched": Kind(
        _NOTE,
        "nobody watches a running share: memory of the killed returns when another process would be refused",
        "nothing to do; it ends with its last process",
    ),
    # ---- turns
    "arbiter": Kind(_OK, "who gives turns to this user's programs, and how many shares have to ask"),
    "arbiter-absent": Kind(
        _WARNING,
        "running shares have to take turns, and nobody gives any: they go on by their private buckets",
        "start the program again through `partage run`, which starts one and starts it again where it ends",
    ),
    "arbiter-silent": Kind(
        _WARNING,
        "a process waits for its turn, and the arbiter gives no sign of life",
        "see whether it is stopped (`ps`), and end it: `partage run` starts another one",
    ),
    "arbiter-elsewhere": Kind(
        _WARNING,
        "a device is arbitrated for somebody else, so shares of it here go by their private buckets",
        "use a device that nobody else shares out, or wait until that arbiter ends",
    ),
    "running-degraded": Kind(
        _WARNING,
        "processes launch by their private bucket, because no arbiter answers: at their rate, beside their neighbours",
        "see the arbiter's finding; turns go on by themselves as soon as one answers",
    ),
    "share-degraded": Kind(
        _WARNING,
        "processes of this share launch by its private bucket, because no arbiter answers",
        "nothing to do in here: ask whoever runs the node; turns go on by themselves as soon as an arbiter answers",
    ),
    # ---- environment
    "variable-without-effect": Kind(
        _WARNING, "a variable is set that changes nothing here; the value says why", "unset it"
    ),
    "variable-idle": Kind(
        _NOTE, "a variable is set that matters only elsewhere", "nothing to do; unset it if in doubt"
    ),
    "variable-invalid": Kind(
        _FAULT,
        "a limit that does not parse: every allocation of a program under the library is refused",
        "write the amount in one of the accepted forms",
    ),
    "variable-names-no-device": Kind(
        _WARNING,
        "CUDA_VISIBLE_DEVICES names something that is not here; devices behind it are hidden from CUDA programs",
        "name devices by index or UUID, or unset it",
    ),
}
