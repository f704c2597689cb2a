"""Where the native parts lie: libvgpu.so, the arbiter, the simulated driver, and whether a real driver is here.

A wheel carries them in `partage/_native/{lib,sim}`, a checkout builds them into `build/{lib,sim}`; the environment
(`PARTAGE_LIBRARY`, `PARTAGE_SIM_LIBRARIES`) overrides both. What can go wrong: nothing was built (the message says
what to run), or the file lies where the loader would ignore it. The loader ignores silently, so this room is loud.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from partage.model import DeviceError, LaunchError, names

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_CHECKOUT: Final = _PACKAGE.parents[1]
_REAL_DRIVER_NODE: Final = Path("/dev/nvidiactl")


def find_library() -> Path:
    """Return the path of libvgpu.so; raises LaunchError where there is none or ld.so could not preload it."""
    given = os.environ.get(names.ENV_LIBRARY)
    places = [_PACKAGE / "_native/lib" / names.LIBRARY, _CHECKOUT / "build/lib" / names.LIBRARY]
    if given:
        places = [Path(given).absolute()]
    for path in places:
        if path.is_file():
            _check_loadable(path)
            return path
    looked = ", ".join(map(str, places))
    raise LaunchError(names.LIBRARY, "not found", f"looked at {looked}", f"run `make build` or set {names.ENV_LIBRARY}")


def _check_loadable(path: Path) -> None:
    """Refuse a path that ld.so would ignore, since the program would then run without any limit."""
    if any(character in str(path) for character in " :"):
        raise LaunchError(str(path), "holds a blank or colon", "LD_PRELOAD is split at both", "move it to another path")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC):
            pass
    except (OSError, ValueError) as error:
        step = "put it on a file system that is not mounted noexec, readable for you"
        raise LaunchError(
            str(path), f"cannot be mapped as code ({error})", "the loader would ignore it", step
        ) from error


def find_arbiter() -> Path:
    """Return the path of the arbiter's program, which lies beside the library; raises LaunchError where it does not."""
    path = find_library().with_name(names.ARBITER)
    if not os.access(path, os.X_OK):
        value = "not executable" if path.exists() else "not found"
        raise LaunchError(str(path), value, "it gives turns to programs that share a device", "run `make build`")
    return path


def find_sim() -> Path | None:
    """Return the directory with the simulated libcuda.so.1 and libnvidia-ml.so.1, or None where none was built."""
    given = os.environ.get(names.ENV_SIM_LIBRARIES)
    places = [Path(given).absolute()] if given else [_PACKAGE / "_native/sim", _CHECKOUT / "build/sim"]
    for place in places:
        if (place / names.DRIVER_LIBRARY).is_file() and (place / names.NVML_LIBRARY).is_file():
            return place
    return None


def real_driver() -> bool:
    """Whether NVIDIA's own driver runs on this machine."""
    return Path(names.REAL_DRIVER_MARK).exists() or _REAL_DRIVER_NODE.is_char_device()  # a simulated one is a file


def driver_directory(*, simulate: bool) -> Path | None:
    """Return the directory of the driver libraries to use: None means the system's own.

    The simulated ones are used where there is no real driver, and beside one only under PARTAGE_SIM_FORCE. Raises
    DeviceError where neither is to be had, and where a simulated driver is asked for beside a real one without it.
    """
    if real_driver() and not os.environ.get(names.ENV_SIM_FORCE):
        if not simulate:
            return None
        limit, step = "a simulated one beside it would mislead", f"leave --sim out, or set {names.ENV_SIM_FORCE}=1"
        raise DeviceError("driver", "a real one is present", limit, step)
    directory = find_sim()
    if directory is None:
        raise DeviceError("driver", "none found", "a real or a simulated one is needed", "run `make build`")
    return directory
