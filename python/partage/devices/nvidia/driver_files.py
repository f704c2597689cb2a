"""The driver's libraries and device nodes on this host, as a container needs them, where no CDI spec says it.

No hook runs in a container and no variable leads to the libraries, since one of ours would replace the image's own
value. So each library is mounted onto the name by which programs load it, in the directories where the loader looks
anyway (Debian's and Red Hat's) and where CUDA images point LD_LIBRARY_PATH to. The host's cache of libraries is not
asked: it says nothing of a driver that lies below a directory of its own. What can go wrong: no libcuda.so.1 there, one
of another driver than the kernel has loaded (an update that waits for a reboot; no program would start with it), or no
device node (DeviceError).
"""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.devices.backend import BindMount, DeviceNode
from partage.model import DeviceError, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partage.devices.nvidia.options import Extras, Roots

_MACHINE: Final = platform.machine()
PLACES: Final = (f"/usr/lib/{_MACHINE}-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_DIRECTORIES: Final = (
    f"usr/lib/{_MACHINE}-linux-gnu",
    f"usr/lib/{_MACHINE}-linux-gnu/nvidia/current",
    "usr/lib64",
    f"lib/{_MACHINE}-linux-gnu",
    "lib64",
    "usr/lib",
    "lib",
    "usr/local/nvidia/lib64",
)
#: By the name that programs load.
_SONAMES: Final = (
    names.DRIVER_LIBRARY,
    names.NVML_LIBRARY,
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libcudadebugger.so.1",
    "libnvidia-opencl.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
)
_BARE: Final = {names.DRIVER_LIBRARY: "libcuda.so"}  # for programs that load the bare name
#: Loaded by the driver, with its own version: what NVIDIA's forward compatibility packages hold beside libcuda ("CUDA
#: Compatibility"), and the same for OpenSSL before 3, where a host has that (confidential computing).
_BY_VERSION: Final = (
    "libnvidia-gpucomp.so",
    "libnvidia-tileiras.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
)
_PROGRAMS: Final = ("nvidia-smi",)
_PROGRAM_DIRECTORIES: Final = ("usr/bin", "bin")  # the second: a directory with nothing but the driver (GKE)
_NEEDED_NODES: Final = ("nvidiactl", "nvidia-uvm")
_MORE_NODES: Final = ("nvidia-uvm-tools", "nvidia-modeset")
_LINKS_MAX: Final = 16
_VERSIONED: Final = re.compile(r"(lib[\w+-]+\.so)\.[\d.]+")
_VERSION: Final = re.compile(r"libcuda\.so\.(\d{3,}(?:\.\d+)+)$", re.ASCII)


def library_mounts(roots: Roots, loaded: str = "") -> tuple[BindMount, ...]:
    """Return the mounts of the driver's libraries and programs; raises DeviceError where there are none.

    `loaded`: the version that the kernel has; empty: not known.
    """
    driver = _find(roots.driver_here, names.DRIVER_LIBRARY)
    if driver is None:
        raise _lacking(roots, names.DRIVER_LIBRARY)
    version = version_of(driver)
    if loaded and version not in {"", loaded}:
        step = "load the modules of that driver (reboot the node after an update), or install the libraries of this one"
        limit = "the kernel module takes programs with libraries of its own version alone"
        raise DeviceError(str(roots.driver / driver), f"of driver {version}, {loaded} is loaded", limit, step)
    try:
        stamp = (roots.driver_here / driver).parent.stat().st_mtime_ns
    except OSError as error:
        raise _lacking(roots, names.DRIVER_LIBRARY) from error
    return _library_mounts(roots, driver, stamp)  # another driver changes the directory: all is looked for again


@functools.lru_cache(maxsize=4)
def _library_mounts(roots: Roots, driver: Path, _stamp: int) -> tuple[BindMount, ...]:
    found = {soname: path for soname in _SONAMES if (path := _find(roots.driver_here, soname)) is not None}
    if names.NVML_LIBRARY not in found:
        raise _lacking(roots, names.NVML_LIBRARY)
    version = re.search(r"\.so\.([\d.]+)$", driver.name)
    for stem in _BY_VERSION if version else ():
        name = f"{stem}.{version[1]}" if version else ""
        path = _find(roots.driver_here, name)
        if path is not None:
            found[name] = path
    mounts = [mount for soname, path in found.items() for mount in named_mounts(str(roots.driver / path), soname)]
    for program in _PROGRAMS:
        path = _find(roots.driver_here, program, _PROGRAM_DIRECTORIES)
        if path is not None:
            mounts.append(BindMount(str(roots.driver / path), f"/usr/bin/{program}"))
    return tuple(mounts)


def version_of(driver: Path) -> str:
    """Return of which driver a libcuda is, by its file's name; empty where that says none (WSL's is 1.1)."""
    found = _VERSION.search(driver.name)
    return "" if found is None else found[1]


def _lacking(roots: Roots, soname: str) -> DeviceError:
    step = (
        "make the node's CDI spec (nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml), "
        "or set nvidia.driverRoot and driverRootInAgent to where the driver is installed"
    )
    return DeviceError(f"{soname} below {roots.driver_here}", "not found", f"looked at {', '.join(_DIRECTORIES)}", step)


def named_mounts(host: str, soname: str) -> Iterator[BindMount]:
    """Yield the mounts of a library onto the names by which programs load it."""
    for place in PLACES:
        for name in filter(None, (soname, _BARE.get(soname))):
            yield BindMount(host, f"{place}/{name}")


def soname_mounts(mounts: Iterable[BindMount]) -> Iterator[BindMount]:
    """Yield what makes libraries that were copied from a spec known by the names that are loaded, wherever that looks.

    A spec has each at its place on the host, which is none where the loader of another distribution's image looks.
    """
    sonames = {soname.rpartition(".")[0]: soname for soname in _SONAMES}
    for mount in mounts:
        match = _VERSIONED.fullmatch(Path(mount.container).name)
        if match is not None and match[1] in sonames:
            yield from named_mounts(mount.host, sonames[match[1]])
        elif match is not None and match[1] in _BY_VERSION:
            yield from named_mounts(mount.host, match[0])


def device_nodes(roots: Roots, minors: Iterable[int]) -> tuple[DeviceNode, ...]:
    """Return the nodes of the cards with these minor numbers; raises DeviceError where one is missing."""
    needed = (*(f"nvidia{minor}" for minor in minors), *_NEEDED_NODES)
    for name in needed:
        if not (roots.dev_here / "dev" / name).exists():
            limit = "a container needs it, and the agent looks for it where nvidia.devRootInAgent says"
            step = "load the driver's modules (nvidia-modprobe -u -c 0 makes the nodes)"
            raise DeviceError(str(roots.dev / "dev" / name), "not there", limit, step)
    return tuple(_nodes(roots, (*needed, *_MORE_NODES)))


def extra_nodes(roots: Roots, extras: Extras) -> tuple[DeviceNode, ...]:
    """Return the nodes of what containers get beside cards, as far as the host has them."""
    return tuple(_nodes(roots, (name for names in _extras(roots, extras).values() for name in names)))


def absent_extras(roots: Roots, extras: Extras) -> tuple[str, ...]:
    """Return the settings of which the host has no device, as far as the agent sees it."""
    return tuple(key for key, names in _extras(roots, extras).items() if not tuple(_nodes(roots, names)))


def _extras(roots: Roots, extras: Extras) -> dict[str, list[str]]:
    """Return the names of devices below `dev`, by the setting that wants them."""
    dev = roots.dev_here / "dev"
    wanted: dict[str, list[str]] = {}
    if extras.gds:
        wanted["gds"] = sorted(path.name for path in dev.glob("nvidia-fs*"))
    if extras.mofed:
        uverbs = sorted(f"infiniband/{path.name}" for path in dev.glob("infiniband/uverbs*"))
        wanted["mofed"] = [*uverbs, "infiniband/rdma_cm"]
    if extras.gdrcopy:
        wanted["gdrcopy"] = ["gdrdrv"]
    for number in extras.imex_channels:
        wanted[f"imexChannels {number}"] = [f"nvidia-caps-imex-channels/channel{number}"]
    return wanted


def extra_mounts(roots: Roots, extras: Extras) -> tuple[BindMount, ...]:
    """Return the files that GPUDirect Storage reads, as far as the host has them."""
    wanted = ("etc/cufile.json", "run/udev") if extras.gds else ()
    return tuple(BindMount(str(roots.dev / path), f"/{path}") for path in wanted if (roots.dev_here / path).exists())


def _nodes(roots: Roots, wanted: Iterable[str]) -> Iterator[DeviceNode]:
    for name in wanted:
        if (roots.dev_here / "dev" / name).exists():
            yield DeviceNode(str(roots.dev / "dev" / name), f"/dev/{name}")


def nvml_library(roots: Roots) -> Path | None:
    """Return NVML's library as this process sees it below the driver's root, None where it is not there."""
    path = _find(roots.driver_here, names.NVML_LIBRARY)
    return None if path is None else roots.driver_here / path


def _find(root: Path, name: str, directories: tuple[str, ...] = _DIRECTORIES) -> Path | None:
    """Return the file below `root` that a library's name leads to, as a path below `root`."""
    for directory in directories:
        path = _resolved(root, Path(directory, name))
        if path is not None:
            return path
    return None


def _resolved(root: Path, path: Path) -> Path | None:
    """Follow links as they are meant below `root`, where `/` is `root`; return the file, below `root`, or None."""
    parts, done = list(path.parts), Path()
    for _ in range(_LINKS_MAX):
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = done.parent
                continue
            here = root / done / part
            if here.is_symlink():
                target = here.readlink()
                if target.is_absolute():
                    done = Path()
                parts = [*(piece for piece in target.parts if piece != "/"), *parts]
                break
            done /= part
        else:
            return done if (root / done).is_file() else None
    return None
