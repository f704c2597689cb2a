"""A simulated machine as a container runtime sees hardware: device nodes, kernel files, driver libraries, mounts.

`write_tree` makes a directory that looks like the root of a driver installation (`dev`, `proc`, `sys`, `usr/lib64`) and
tells the machine about its device nodes; from then on a process sees the devices whose nodes it can open: all of them
on this host, and in a container those that `container_edits` had mounted. Called by `partage sim tree`, by the node
agent's NVIDIA backend and by tests.

A node is a plain file, mounted to its place in /dev: a device number of its own would need a kernel module, and a
borrowed one could be made by anybody with mknod. The driver knows it by inode, so nothing that a container makes itself
takes its place. The machine's state directory is mounted too, and its clients write it: programs that use the driver's
doors are kept to their devices, one that writes into the state directly is not. What can go wrong: no machine, no
libraries, a file system from which no code can be mapped, a path that is too long; each is a PartageError.
"""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partage._abi import ffi, lib
from partage.model import DeviceError, NotFoundError, UsageError, names
from partage.sim import procfs
from partage.sim.machine import Machine

CONTROL: Final = "nvidiactl"
MEMORY: Final = "nvidia-uvm"
_MORE_NODES: Final = ("nvidia-uvm-tools", "nvidia-modeset")
_CAPABILITIES: Final = "nvidia-caps"
_LIBRARIES: Final = "usr/lib64"
_LIBRARY_NAMES: Final = {  # in a container: in the tree
    names.DRIVER_LIBRARY: names.DRIVER_LIBRARY,
    "libcuda.so": names.DRIVER_LIBRARY,  # for programs that load the bare name
    names.NVML_LIBRARY: names.NVML_LIBRARY,
}
# No variable leads a program to the libraries, since one of ours would replace the image's own value: they lie where
# the loader looks anyway (Debian's and Red Hat's directories), and where CUDA images point LD_LIBRARY_PATH to.
LIBRARY_PLACES: Final = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_NO_TREE: Final = "run `partage sim tree DIRECTORY`"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a host file or directory. `options` as in an OCI spec, without `bind`."""

    source: Path
    target: str
    options: tuple[str, ...]

    def cdi(self) -> dict[str, Any]:
        """Return the mount as a CDI spec writes it."""
        return {"hostPath": str(self.source), "containerPath": self.target, "options": ["bind", *self.options]}


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What a container needs of the simulated machine. `nodes` stand for device nodes, but are mounts as well."""

    env: dict[str, str]
    mounts: tuple[Mount, ...]
    nodes: tuple[Mount, ...]

    def cdi(self) -> dict[str, Any]:
        """Return `containerEdits` of a CDI spec (0.5.0 and later): environment and mounts, no hooks."""
        env = [f"{name}={value}" for name, value in sorted(self.env.items())]
        return {"env": env, "mounts": [mount.cdi() for mount in (*self.nodes, *self.mounts)]}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One device of the machine: a card or a MIG instance. `nodes`: its own, by path below `dev`."""

    uuid: str
    card: procfs.Card
    instance: bool
    nodes: tuple[str, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """All nodes without which a program cannot use it."""
        return (f"nvidia{self.card.minor}", *(self.nodes if self.instance else ()))


def _text(field: Any) -> str:
    return str(ffi.string(field).decode("utf-8", "replace"))


def _entry(machine: Machine, index: int) -> _Entry:
    model = machine.read("struct sim_device_model", "model", index)
    card = procfs.Card(
        name=_text(model.name),
        uuid=_text(model.uuid),
        pci=_text(model.pci),
        minor=model.minor,
        vbios=_text(model.vbios),
        numa=model.numa,
        pci_device_id=model.pci_device_id,
        pci_subsystem_id=model.pci_subsystem_id,
    )
    instance = bool(model.mig == lib.SIM_MIG_INSTANCE)
    nodes: tuple[str, ...] = (f"nvidia{card.minor}",)
    if instance:
        gpu, compute = int(model.gpu_instance), int(model.compute_instance)
        minors = (
            procfs.gpu_instance_minor(card.minor, gpu),
            procfs.compute_instance_minor(card.minor, gpu, compute),
        )
        nodes = tuple(f"{_CAPABILITIES}/nvidia-cap{minor}" for minor in minors)
    return _Entry(card.uuid, card, instance, nodes)


def _entries(machine: Machine) -> tuple[_Entry, ...]:
    return tuple(_entry(machine, index) for index in range(machine.ndev))


# ---- writing it ------------------------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _make_node(path: Path) -> os.stat_result:
    """Make the file that stands for a node, or keep the one there is: containers may have it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        os.fchmod(fd, 0o666)  # whatever the umask: who may use a card is decided by who is given its node
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{path.name} of a SIMULATED machine\n".encode(), 0)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _copy_library(source: Path, place: Path) -> None:
    """Copy beside and rename: a program that runs keeps the file that it has mapped."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{place.name}-", dir=place.parent)
    os.close(fd)
    try:
        shutil.copyfile(source, name)
        Path(name).chmod(0o755)
        Path(name).replace(place)
    finally:
        Path(name).unlink(missing_ok=True)
    try:
        with place.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
            pass
    except (OSError, ValueError) as error:
        limit, step = "a container's loader must map it", "take a directory that is not mounted noexec"
        raise DeviceError(str(place), f"cannot be mapped as code ({error})", limit, step) from error


def _record(machine: Machine, directory: Path, found: dict[str, os.stat_result], entries: tuple[_Entry, ...]) -> None:
    """Tell the machine its nodes; those who start from now on go by them."""
    nodes: Any = ffi.new("struct sim_nodes *")
    nodes.directory = os.fsencode(directory)

    def set_node(node: Any, name: str) -> None:
        node.device, node.inode = found[name].st_dev, found[name].st_ino

    set_node(nodes.control, CONTROL)
    set_node(nodes.memory, MEMORY)
    for index, entry in enumerate(entries):
        for at, name in enumerate(entry.nodes):
            set_node(nodes.device[index][at], name)
    machine.write_bytes(bytes(ffi.buffer(nodes)), "nodes")
    machine.write("uint32_t", 1, "nodes", "used")


def write_tree(root: Path, libraries: Path, machine_file: Path | None = None) -> Path:
    """Make or renew the tree below `root` for the machine (default: where the driver looks); returns `root`, absolute.

    `libraries` is the directory with the simulated libcuda.so.1 and libnvidia-ml.so.1. Whatever is there already stays
    in use: nodes keep their inodes, libraries are replaced by renaming. Raises NotFoundError (no machine, no
    libraries), DeviceError (no code can be mapped from there), UsageError (a path that is too long).
    """
    root = root.absolute()
    directory = root / "dev"
    if len(os.fsencode(directory)) >= lib.SIM_NODES_PATH:
        limit = f"at most {lib.SIM_NODES_PATH - 1} bytes with /dev"
        raise UsageError(f"directory {root}", f"{len(os.fsencode(directory))} bytes", limit, "take a shorter path")
    for name in sorted(set(_LIBRARY_NAMES.values())):
        if not (libraries / name).is_file():
            step = "run `make build`, or name the directory with --libraries"
            raise NotFoundError(f"library {libraries / name}", "does not exist", "the simulated driver", step)
    with Machine(machine_file) as machine:
        entries = _entries(machine)
        cards = tuple(entry.card for entry in entries if not entry.instance)
        mig = any(machine.read("uint32_t", "model", index, "mig_capable") for index in range(len(entries)))
        for path, text in procfs.files(_text(machine.read("char[32]", "driver")[0]), cards, mig=mig).items():
            _write(root / path, text)
        for name in sorted(set(_LIBRARY_NAMES.values())):
            _copy_library(libraries / name, root / _LIBRARIES / name)
        wanted = [CONTROL, MEMORY, *_MORE_NODES, *(name for entry in entries for name in entry.nodes)]
        if mig:
            wanted += [f"{_CAPABILITIES}/nvidia-cap{n}" for n in (procfs.CONFIG_MINOR, procfs.MONITOR_MINOR)]
        found = {name: _make_node(directory / name) for name in wanted}
        _record(machine, directory, found, entries)
    return root


# ---- what a container gets -------------------------------------------------------------------------------------------


def _find(entries: tuple[_Entry, ...], uuid: str) -> _Entry:
    for entry in entries:
        if entry.uuid == uuid:
            return entry
    known = ", ".join(entry.uuid for entry in entries)
    raise NotFoundError(f"device {uuid}", "not in this machine", f"one of {known}", "see `partage sim show`")


def _root(machine: Machine) -> Path:
    nodes = machine.read("struct sim_nodes", "nodes")
    if not nodes.used:
        limit = "device nodes are needed to give a container some devices and not others"
        raise NotFoundError(f"simulated machine {machine.path}", "has no device nodes", limit, _NO_TREE)
    return Path(os.fsdecode(ffi.string(nodes.directory))).parent


def _library_mounts(root: Path) -> tuple[Mount, ...]:
    options = ("ro", "nosuid", "nodev")
    return tuple(
        Mount(root / _LIBRARIES / source, f"{place}/{name}", options)
        for place in LIBRARY_PLACES
        for name, source in _LIBRARY_NAMES.items()
    )


def container_edits(*uuids: str, machine_file: Path | None = None) -> ContainerEdits:
    """Return what a container needs to use these devices (cards or MIG instances) and no others.

    Raises NotFoundError: no machine, no such device, or a machine without device nodes (see `write_tree`).
    """
    with Machine(machine_file) as machine:
        root, entries = _root(machine), _entries(machine)
        state = machine.path.absolute().parent
    chosen = [_find(entries, uuid) for uuid in uuids]
    wanted = dict.fromkeys((CONTROL, MEMORY, *_MORE_NODES, *(name for entry in chosen for name in entry.needed)))
    nodes = tuple(Mount(root / "dev" / name, f"/dev/{name}", ("rw", "nosuid", "noexec")) for name in wanted)
    shared = Mount(state, names.SIM_SYSTEM_DIRECTORY, ("rw", "nosuid", "nodev", "noexec"))
    # `void`: an installed container toolkit adds no cards of its own.
    env = {names.ENV_SIM_DIR: names.SIM_SYSTEM_DIRECTORY, "NVIDIA_VISIBLE_DEVICES": "void"}
    if Path(names.REAL_DRIVER_MARK).exists():
        env[names.ENV_SIM_FORCE] = "1"  # whoever made this tree wants the simulated cards on a machine with real ones
    return ContainerEdits(env, (shared, *_library_mounts(root)), nodes)
