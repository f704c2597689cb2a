"""Findings about the driver: which libraries a program gets, whether they answer, what they say.

All of it is asked in a child process (`probe.py`) that gets a bounded time: a driver may hang for ever, in a call that
not even a kill ends. Called by `doctor`. `look` returns what was seen, which the checks of shares use too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from partage.cli.checks.finding import Finding, finding
from partage.model import Device, DeviceError, names
from partage.run import libraries
from partage.sim.machine import machine_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLDEST: Final = 12000  # as cuDriverGetVersion counts: CUDA 12.0
NEWEST: Final = 13050  # of the header from which the library's table is made
_LEAVE_S: Final = 1.0  # for a killed probe to end; one that hangs in the kernel is left behind
_CODES: Final = {
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    999: "CUDA_ERROR_UNKNOWN",
}
_MISMATCH: Final = 803


@dataclass(slots=True)
class Seen:
    """What a probe said: its facts merged, libraries by name, its last step, and how it ended."""

    facts: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    step: str = "start"
    hung: bool = False
    signal: int = 0
    directory: Path | None = None
    missing: DeviceError | None = None

    @property
    def devices(self) -> list[Device]:
        """The devices that answered."""
        keys = ("uuid", "index", "name", "physical", "allocatable", "used")
        return [Device(**{key: entry[key] for key in keys}) for entry in self.facts.get("devices", [])]

    @property
    def is_share(self) -> bool:
        """Whether the library answered for the driver: totals are then those of the share."""
        return bool(self.facts.get("preloaded"))


def run_probe(environment: dict[str, str], seconds: float, *arguments: str) -> Seen:
    """Run the probe for at most so many seconds and return what it said until then."""
    seen = Seen()
    command = [sys.executable, "-m", "partage.cli.checks.probe", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        probe = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL
        )
        try:
            seen.signal = max(-probe.wait(timeout=seconds), 0)
        except subprocess.TimeoutExpired:
            seen.hung = True
            probe.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                probe.wait(timeout=_LEAVE_S)
        said.seek(0)
        for line in said:
            with contextlib.suppress(json.JSONDecodeError):
                _merge(seen, json.loads(line))
    return seen


def _merge(seen: Seen, facts: dict[str, Any]) -> None:
    seen.step = facts.pop("step", seen.step)
    library = facts.pop("library", None)
    if library is not None:
        seen.paths[library], seen.errors[library] = facts.get("path", ""), facts.get("error", "")
        return
    seen.facts |= facts


def look(seconds: float) -> Seen:
    """Ask the driver as a program under `partage run` would; under a share already: as every program here does."""
    environment = dict(os.environ)
    directory: Path | None = None
    if not os.environ.get(names.ENV_DIR):
        environment.pop(names.ENV_VISIBLE_DEVICES, None)  # `partage run` sets it anew
        try:
            directory = libraries.driver_directory(simulate=False)
        except DeviceError as error:
            return Seen(missing=error)
    if directory is not None:
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(directory), environment.get("LD_LIBRARY_PATH")]))
    with contextlib.ExitStack() as stack:
        if directory is not None and not machine_path().exists():  # who only looks makes no machine
            place = tempfile.TemporaryDirectory(prefix="partage-doctor-", ignore_cleanup_errors=True)
            environment[names.ENV_SIM_DIR] = stack.enter_context(place)
        seen = run_probe(environment, seconds)
    seen.directory = directory
    return seen


def check_driver(seen: Seen, seconds: float) -> Iterator[Finding]:
    """Say how far the probe came, and what the driver said."""
    if seen.missing is not None:
        yield finding("driver-absent", seen.missing.subject, seen.missing.value, seen.missing.limit)
        return
    cuda, nvml = (seen.paths.get(name, "") for name in (names.DRIVER_LIBRARY, names.NVML_LIBRARY))
    for name, error in seen.errors.items():
        if error:
            yield finding("driver-libraries-absent", name, error, "found by the loader under this name")
    if seen.hung:
        yield finding("driver-hangs", cuda or "driver", f"no answer to {seen.step}", f"an answer within {seconds:g} s")
    elif seen.signal:
        value = f"signal {seen.signal} in {seen.step}"
        yield finding("driver-crashes", cuda or "driver", value, "a process that asks goes on")
    if "/stubs/" in cuda:
        yield finding("driver-stub", names.DRIVER_LIBRARY, cuda, "the driver's own library")
    yield from _check_answers(seen, cuda, nvml)


def _check_answers(seen: Seen, cuda: str, nvml: str) -> Iterator[Finding]:
    version, code = seen.facts.get("cuda_version", 0), seen.facts.get("init", 0)
    if code:
        kind = "driver-mismatch" if code == _MISMATCH else "driver-refuses"
        yield finding(kind, cuda, f"cuInit answers {code} ({_CODES.get(code, 'see cuda.h')})", "0 (CUDA_SUCCESS)")
    if (error := seen.facts.get("nvml_error")) is not None:
        kind = "driver-mismatch" if "version mismatch" in error.lower() else "driver-refuses"
        yield finding(kind, nvml or names.NVML_LIBRARY, error, "success")
    if version:
        said = f"CUDA {version // 1000}.{version % 1000 // 10}"
        bounds = f"CUDA {OLDEST // 1000}.0 to {NEWEST // 1000}.{NEWEST % 1000 // 10}"
        if version < OLDEST or version >= NEWEST // 10 * 10 + 10:
            yield finding("driver-old" if version < OLDEST else "driver-new", cuda, said, bounds)
        if not code:
            value = f"{said}, NVML {seen.facts.get('driver_version', 'silent')} from {nvml or 'nowhere'}"
            yield finding("driver", cuda, value, bounds)
    if any(device.simulated for device in seen.devices):
        yield finding("driver-simulated", "devices", f"simulated by {cuda}")


def check_devices(seen: Seen) -> Iterator[Finding]:
    """Name each device, and each that does not answer."""
    for entry, device in zip(seen.facts.get("devices", []), seen.devices, strict=True):
        whose = "share" if seen.is_share else "card"
        value = f"{device.name} {device.uuid}, {whose} of {device.physical >> 20} MiB"
        yield finding("device", f"device {device.index}", value)
        if entry["mig"]:
            yield finding("device-mig", f"device {device.index}", "in MIG mode", "a card that programs use as a whole")
    for subject, value, limit, step in seen.facts.get("faults", []):
        yield finding("device-fails", subject, value, limit, step)
    if seen.facts.get("devices") == [] and not seen.facts.get("faults"):
        yield finding("devices-none", "devices", "none", "at least one")


def check_loader(seconds: float) -> Iterator[Finding]:
    """Say which libcuda.so.1 a program gets that is started here as it is, without `partage run`."""
    if os.environ.get(names.ENV_DIR):
        return
    seen = run_probe(dict(os.environ), seconds, "load")
    path = seen.paths.get(names.DRIVER_LIBRARY, "")
    if "/stubs/" in path:
        yield finding("driver-stub", names.DRIVER_LIBRARY, path, "the driver's own library")
    elif path:
        yield finding("loader-finds", names.DRIVER_LIBRARY, path)
    elif seen.hung:
        value = f"no answer to {seen.step}"
        yield finding("driver-hangs", names.DRIVER_LIBRARY, value, f"an answer within {seconds:g} s")
    else:
        yield finding("loader-finds-none", names.DRIVER_LIBRARY, "not found")
