"""The machine file: where it is, making one, and what stands in it now.

The file is a sparse `struct sim_machine` (hook/sim/machine.h) that every simulated driver maps. Python never maps what
others may truncate: it reads with pread into memory of its own and writes single fields with pwrite, which the page
cache shows to everybody at once, so a foreign or cut file is an error and never a SIGBUS. Used by `partage sim`,
`partage run --sim` and tests. What can go wrong: no machine, a file that is none, one of another layout
(NotFoundError, DeviceError), and replacing one that programs use (UsageError).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from partage._abi import ffi, lib
from partage.locks import is_locked, locked, owner
from partage.model import DeviceError, NotFoundError, UsageError, names
from partage.sim.fields import MODEL_FIELDS, PLACE_FIELDS
from partage.sim.identity import serial_of, uuid_of

if TYPE_CHECKING:
    from partage.sim.profiles import Profile

SIZE: Final[int] = ffi.sizeof("struct sim_machine")
_HEAD: Final = struct.Struct("<QII")  # magic, layout, size
_THIS: Final = (lib.SIM_MACHINE_MAGIC, lib.SIM_MACHINE_LAYOUT, SIZE)
_MADE_FIRST: Final = "a machine is made before it is used"
_MAKE: Final = "run `partage sim create PROFILE`, or any program on the simulated driver"


def _is_system_machine(place: Path) -> bool:
    """Whether root made a machine for all users there; nobody else could have put it there."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and not mode & 0o022 and (place / names.MACHINE_FILE).exists()


def machine_path() -> Path:
    """Return where the machine's file is or would be; the same rule as the simulated driver's own."""
    given, runtime = os.environ.get(names.ENV_SIM_DIR), os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        return Path(given, names.MACHINE_FILE)
    if _is_system_machine(Path(names.SIM_SYSTEM_DIRECTORY)):
        return Path(names.SIM_SYSTEM_DIRECTORY, names.MACHINE_FILE)
    if runtime.startswith("/"):
        return Path(runtime, names.SIM_DIRECTORY, names.MACHINE_FILE)
    return Path(f"/tmp/{names.SIM_DIRECTORY}-{os.geteuid()}", names.MACHINE_FILE)  # noqa: S108 -- the driver checks it


# ---- making one ------------------------------------------------------------------------------------------------------


def _set(target: Any, name: str, value: int | str) -> None:
    setattr(target, name, value.encode() if isinstance(value, str) else value)


def _fill_device(machine: Any, index: int, profile: Profile, seed: int) -> None:
    model, members = machine.model[index], profile.devices[index].members
    for name in (*(field.name for field in MODEL_FIELDS), *PLACE_FIELDS):
        _set(model, name, members[name])
    instance = members["mig"] == lib.SIM_MIG_INSTANCE
    _set(model, "uuid", uuid_of(seed, index, "MIG" if instance else "GPU"))
    _set(model, "serial", serial_of(seed, int(members["parent"]) if instance else index))
    model.ncosts = len(profile.costs)
    for at, cost in enumerate(profile.costs):
        for name in ("pattern", "fixed_ns", "wave_ns", "duration_arg", "collective"):
            _set(model.cost[at], name, getattr(cost, name))
    for other, link in enumerate(profile.links[index]):
        machine.link[index][other].kind, machine.link[index][other].lanes = link.kind, link.lanes


def render(profile: Profile, seed: int | None = None) -> Any:
    """Return a `struct sim_machine` described by a profile, without its magic; `seed` decides UUIDs and serials."""
    machine = ffi.new("struct sim_machine *")
    machine.layout, machine.size = lib.SIM_MACHINE_LAYOUT, SIZE
    machine.ndev, machine.cuda_version = len(profile.devices), profile.cuda_version
    machine.seed = profile.seed if seed is None else seed
    for name, text in (("profile", profile.name), ("driver", profile.driver)):
        _set(machine, name, text)
    for index in range(machine.ndev):
        _fill_device(machine, index, profile, machine.seed)
    machine.nmig_profiles, machine.nswitches = len(profile.mig_profiles), len(profile.switches)
    for at, mig in enumerate(profile.mig_profiles):
        entry = machine.mig_profile[at]
        for name in ("name", "memory", "id", "kind", "slices", "memory_slices", "sms", "copy_engines"):
            _set(entry, name, getattr(mig, name))
        entry.nstarts = len(mig.starts)
        entry.start[0 : len(mig.starts)] = list(mig.starts)
    for at, address in enumerate(profile.switches):
        machine.switch_pci[at] = address.encode()
    return machine


def _write_sparse(fd: int, machine: Any) -> None:
    """Write all but the empty pages, and the magic last, as the driver itself does."""
    data = ffi.buffer(machine)
    os.ftruncate(fd, 0)
    os.ftruncate(fd, SIZE)
    for at in range(0, SIZE, mmap.PAGESIZE):
        page = data[at : at + mmap.PAGESIZE]
        if page.strip(b"\0"):
            os.pwrite(fd, page, at)
    os.pwrite(fd, struct.pack("<Q", lib.SIM_MACHINE_MAGIC), 0)


def _refuse_if_used(fd: int, path: Path, *, replace: bool) -> bool:
    """Say whether the file holds a machine; raises UsageError if it must not be replaced. Under SIM_LOCK_SETUP."""
    if os.fstat(fd).st_size == 0:
        return False
    if is_locked(fd, lib.SIM_LOCK_CLIENT, lib.SIM_CLIENTS):
        step = "end its programs, or set PARTAGE_SIM_DIR to another directory"
        raise UsageError(f"simulated machine {path}", "programs use it", "only an unused machine can be replaced", step)
    if not replace:
        raise UsageError(f"simulated machine {path}", "exists", "a machine keeps its profile", "replace it (--replace)")
    return True


def _make_directory(place: Path, *, shared: bool) -> None:
    """Make the machine's directory and the file beside the machine that clients only read."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(place / names.PIDS_FILE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if shared:
                os.fchmod(fd, 0o644)
                place.chmod(0o755)
        finally:
            os.close(fd)
    except OSError as error:
        step = f"set {names.ENV_SIM_DIR} to a directory of your own"
        raise UsageError(f"directory {place}", error.strerror, "a machine is made in it", step) from error


def _own_path(*, shared: bool) -> Path:
    if shared and not os.environ.get(names.ENV_SIM_DIR):
        return Path(names.SIM_SYSTEM_DIRECTORY, names.MACHINE_FILE)
    return machine_path()


def existing(*, shared: bool = False) -> Path | None:
    """Return the machine that `create` would find in its way; None where there is none, or one was left half made."""
    path = _own_path(shared=shared)
    try:
        with path.open("rb") as file:
            return path if file.read(_HEAD.size) == _HEAD.pack(*_THIS) else None
    except FileNotFoundError:
        return None


def create(
    profile: Profile,
    path: Path | None = None,
    *,
    seed: int | None = None,
    replace: bool = False,
    shared: bool = False,
) -> Path:
    """Make the machine file (default: where the driver looks) from a profile; returns its path.

    `seed` gives the devices UUIDs of their own (two nodes of one profile). `shared`: a machine for all users, as a real
    card is, also from containers into which its directory is mounted; by default in `names.SIM_SYSTEM_DIRECTORY`. Its
    clients write its state, so whoever can open it can also break it: for tests. Raises UsageError where a machine
    exists and `replace` is not set, or where programs use it.
    """
    path = path or _own_path(shared=shared)
    machine = render(profile, seed)
    _make_directory(path.parent, shared=shared)
    mode = 0o666 if shared else 0o600
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with locked(fd, lib.SIM_LOCK_SETUP):
            if not _refuse_if_used(fd, path, replace=replace):
                _write_sparse(fd, machine)
                os.fchmod(fd, mode)
                return path
            # A new file under the old name: whoever still maps the old one keeps it whole.
            new, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            try:
                _write_sparse(new, machine)
                os.fchmod(new, mode)
                Path(name).replace(path)
            finally:
                os.close(new)
                Path(name).unlink(missing_ok=True)
    finally:
        os.close(fd)
    return path


# ---- an existing one -------------------------------------------------------------------------------------------------


class Machine:
    """An open machine file: reads of whole structures, writes of single fields, the futex of events."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the machine at `path` (default: where the driver looks). Raises NotFoundError or DeviceError."""
        self.path = path or machine_path()
        subject = f"simulated machine {self.path}"
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise NotFoundError(subject, "does not exist", _MADE_FIRST, _MAKE) from error
        except OSError as error:
            raise DeviceError(subject, error.strerror, "a file of your own", "set PARTAGE_SIM_DIR") from error
        with contextlib.ExitStack() as half_made:
            half_made.callback(os.close, self.fd)
            self._check(subject)
            self.pids = self._open_pids()
            half_made.pop_all()

    def _open_pids(self) -> int:
        """Return the descriptor of the file that tells pids across namespaces; -1 where there is none.

        Closing it would drop the locks that this very process has there, if it is a client too: it is then known in its
        own pid namespace only.
        """
        try:
            return os.open(self.path.with_name(names.PIDS_FILE), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return -1

    def _check(self, subject: str) -> None:
        found = self._head()
        if not found[0]:
            with locked(self.fd, lib.SIM_LOCK_SETUP):  # whoever makes it writes the magic last, or died before
                found = self._head()
        if not found[0]:
            raise NotFoundError(subject, "was never finished", _MADE_FIRST, _MAKE)
        wanted = (lib.SIM_MACHINE_MAGIC, lib.SIM_MACHINE_LAYOUT, SIZE)
        if found != wanted or os.fstat(self.fd).st_size != SIZE:
            value = f"magic {found[0]:#x}, layout {found[1]}, {found[2]} bytes"
            limit = f"magic {wanted[0]:#x}, layout {wanted[1]}, {SIZE} bytes"
            step = "make it anew: `partage sim create PROFILE --replace`, when no program uses it"
            raise DeviceError(subject, value, f"this version's is {limit}", step)
        if self.read("uint32_t", "ndev") > lib.SIM_DEVICES:
            raise DeviceError(subject, "impossible number of devices", f"at most {lib.SIM_DEVICES}", "remove it")

    def _head(self) -> tuple[int, int, int]:
        """Return magic, layout and size as they stand in the file; zeros where it is too short."""
        head = os.pread(self.fd, _HEAD.size, 0)
        magic, layout, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
        return magic, layout, size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the files go."""
        os.close(self.fd)
        if self.pids >= 0:
            os.close(self.pids)

    def offset(self, *path: str | int) -> int:
        """Return the byte offset of a field: `offset("device", 3, "lost")`."""
        return int(ffi.offsetof("struct sim_machine", *path))

    def read(self, ctype: str, *path: str | int) -> Any:
        """Copy one field: a number for integer types, else a structure that owns its memory."""
        size = ffi.sizeof(ctype)
        data = os.pread(self.fd, size, self.offset(*path))
        if len(data) != size:
            raise DeviceError(f"simulated machine {self.path}", "was cut while open", f"{SIZE} bytes", "remove it")
        copy = ffi.new(ffi.getctype(ctype, "*"))
        ffi.buffer(copy)[:] = data
        return copy[0] if ffi.typeof(ctype).kind == "primitive" else copy

    def write_bytes(self, data: bytes, *path: str | int) -> None:
        """Store a whole structure; not at once for others, so its guard word goes last."""
        os.pwrite(self.fd, data, self.offset(*path))

    def write(self, ctype: str, value: int, *path: str | int) -> None:
        """Store one integer field; whoever maps the file sees it at once."""
        cell = ffi.new(f"{ctype} *", value)
        os.pwrite(self.fd, bytes(ffi.buffer(cell)), self.offset(*path))

    @property
    def ndev(self) -> int:
        """How many devices the machine has, MIG instances included."""
        return int(self.read("uint32_t", "ndev"))

    def check_device(self, device: int) -> int:
        """Return the index itself, if it is one. Raises UsageError."""
        if not 0 <= device < self.ndev:
            limit = f"0 to {self.ndev - 1}"
            raise UsageError(f"device {device}", "not in this machine", limit, "see `partage sim show`")
        return device

    def alive(self, slot: int) -> bool:
        """Say whether a process holds this client slot."""
        return is_locked(self.fd, lib.SIM_LOCK_CLIENT + slot)

    def pid_of(self, slot: int) -> int:
        """Return the pid of a client as this pid namespace counts it; 0 where that contains no such process."""
        client = self.read("struct sim_client", "client", slot)
        if self.pids >= 0:
            found = owner(self.pids, client.generation * lib.SIM_CLIENTS + slot)
            if found is not None:
                return found
        return int(client.pid) if client.pid_ns == Path("/proc/self/ns/pid").stat().st_ino else 0

    def wake(self, *path: str | int) -> None:
        """Wake all sleepers on a futex word. The kernel looks at the page, so a cut file is an error, not a signal."""
        at = self.offset(*path)
        page = at - at % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(self.fd, min(mmap.PAGESIZE, SIZE - page), offset=page) as window:
            word = ffi.from_buffer(window)
            lib.ptg_futex_wake(word + (at - page))
            ffi.release(word)
