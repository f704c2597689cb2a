"""Asks the driver in a process of its own, since a dead driver may hang or end whoever calls it.

    python -m partage.cli.checks.probe [load]

Called by `checks.driver` alone. Prints one JSON object a line: `{"step": what comes next}` before each call that may
not return, and the answers as they come; `load` stops before the first call into the driver. Whoever reads it knows
from the last line how far it came.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from partage.model import DeviceError, names


def say(**facts: Any) -> None:
    """Print one line at once: the next step may be the last."""
    print(json.dumps(facts), flush=True)


def mapped(library: str) -> str:
    """Return the path under which a library of this name is mapped; empty where none is."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = {line.split(None, 5)[5] for line in lines if line.count(" /")}
    stem = library.partition(".so")[0]
    return next((path for path in sorted(paths) if Path(path).name.startswith(f"{stem}.so")), "")


def load(library: str) -> ctypes.CDLL | None:
    """Load a library by its name, as a program would; say where it was found, or the loader's words."""
    say(step=f"load {library}")
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        say(library=library, path="", error=str(error))
        return None
    say(library=library, path=mapped(library))
    return loaded


def ask_cuda(driver: ctypes.CDLL) -> None:
    """Ask libcuda.so.1 for its version, initialise it, count devices."""
    version, count = ctypes.c_int(), ctypes.c_int()
    say(step="cuDriverGetVersion")
    if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
        say(cuda_version=version.value)
    say(step="cuInit")
    code = driver.cuInit(0)
    say(init=code)
    if code == 0:
        say(step="cuDeviceGetCount")
        driver.cuDeviceGetCount(ctypes.byref(count))
        say(count=count.value)


def ask_nvml() -> None:
    """Ask NVML for its version and the devices, through nvidia-ml-py like the rest of partage."""
    from partage.devices.nvidia.nvml import Nvml  # noqa: PLC0415 -- it loads the library by its name, which may be what hangs

    say(step="NVML")
    try:
        with Nvml(None) as nvml:
            say(driver_version=nvml.driver_version())
            devices = nvml.devices()
            say(
                devices=[asdict(device) | {"mig": nvml.in_mig_mode(device.uuid)} for device in devices],
                faults=[[fault.subject, str(fault.value), fault.limit, fault.step] for fault in nvml.faults],
            )
    except DeviceError as error:
        say(nvml_error=str(error.value))


def main(*, only_load: bool) -> None:
    """Load, and unless told otherwise ask."""
    say(preloaded=mapped(names.LIBRARY))
    driver = load(names.DRIVER_LIBRARY)
    load(names.NVML_LIBRARY)
    if not only_load:
        if driver is not None:
            ask_cuda(driver)
        ask_nvml()
    say(step="end")


if __name__ == "__main__":
    main(only_load="load" in sys.argv[1:])
