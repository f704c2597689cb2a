"""`partage doctor`: what of this machine works, and for each fault its remedy.

Each check is a function that returns findings; a fault makes the exit code 1, a remark does not. Nothing is changed.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage._version import __version__
from partage.cli.exit_codes import ExitCode
from partage.model import PartageError, names
from partage.run import handover, launch, libraries
from partage.run.nvml import Nvml
from partage.sim.machine import machine_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Verdict(enum.Enum):
    """How a finding ends; the value is its mark in the first column."""

    GOOD = "ok"
    REMARK = "note"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and the remedy where something is wrong."""

    verdict: Verdict
    subject: str
    found: str
    remedy: str = ""


def fault_of(error: PartageError) -> Finding:
    """Return an error of ours as a finding: its next step is the remedy."""
    return Finding(Verdict.FAULT, error.subject, f"{error.value}; {error.limit}", error.step)


def check_versions() -> Iterator[Finding]:
    """Name the versions of what takes part."""
    yield Finding(Verdict.GOOD, "partage", f"{__version__}, Python {platform.python_version()}, {platform.machine()}")
    release = platform.release()
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in (*release.split("."), "0")[:2])
    good = (major, minor) >= (5, 4)
    remedy = "" if good else "pidfds and OFD locks need Linux 5.4 or later"
    yield Finding(Verdict.GOOD if good else Verdict.FAULT, "kernel", release, remedy)
    for package in ("click", "cffi", "nvidia-ml-py"):
        yield Finding(Verdict.GOOD, package, importlib.metadata.version(package))


def check_library() -> Iterator[Finding]:
    """Look for the library, map it as code, and see that the loader really puts it into a program."""
    try:
        library = libraries.find_library()
    except PartageError as error:
        yield fault_of(error)
        return
    yield Finding(Verdict.GOOD, names.LIBRARY, str(library))
    probe = [sys.executable, "-c", "print(open('/proc/self/maps').read())"]
    environment = dict(os.environ) | {"LD_PRELOAD": str(library)}
    result = subprocess.run(probe, env=environment, capture_output=True, text=True, check=False)
    active = str(library.resolve()) in result.stdout or str(library) in result.stdout
    if active:
        yield Finding(Verdict.GOOD, "preload", "active in a program started with it")
    else:
        reason = result.stderr.strip().splitlines()[:1] or [f"exit code {result.returncode}"]
        remedy = "check that the library was built for this machine's libc: run `make build`"
        yield Finding(Verdict.FAULT, "preload", f"not active: {reason[0]}", remedy)


@contextlib.contextmanager
def _machine_to_look_at(*, simulated: bool) -> Iterator[None]:
    """Give the simulated driver a place to itself where there is no machine yet: who only looks makes none."""
    if not simulated or machine_path().exists():
        yield
        return
    before = os.environ.get(names.ENV_SIM_DIR)
    with tempfile.TemporaryDirectory(prefix="partage-doctor-") as place:
        os.environ[names.ENV_SIM_DIR] = place
        try:
            yield
        finally:
            del os.environ[names.ENV_SIM_DIR]
            if before is not None:
                os.environ[names.ENV_SIM_DIR] = before


def check_driver() -> Iterator[Finding]:
    """Ask the driver: the real one, else the simulated one."""
    real = libraries.real_driver()
    if real:
        yield Finding(Verdict.GOOD, "NVIDIA driver", "present")
    else:
        remedy = "devices are simulated; install NVIDIA's driver for real ones"
        yield Finding(Verdict.REMARK, "NVIDIA driver", "none on this machine", remedy)
    try:
        directory = libraries.driver_directory(simulate=False)
        with _machine_to_look_at(simulated=directory is not None), Nvml(directory) as nvml:
            version, devices = nvml.driver_version(), nvml.devices()
    except PartageError as error:
        yield fault_of(error)
        return
    where = "the system's libraries" if directory is None else str(directory)
    yield Finding(Verdict.GOOD, "driver libraries", f"{version} from {where}")
    for device in devices:
        yield Finding(Verdict.GOOD, f"device {device.index}", f"{device.name} {device.uuid}")
    yield from map(fault_of, nvml.faults)
    if not devices and not nvml.faults:
        yield Finding(Verdict.FAULT, "devices", "none", "check the card and its driver with `nvidia-smi -L`")


def check_permissions() -> Iterator[Finding]:
    """See that hand-overs can be made, and device nodes opened where there are some."""
    try:
        root = handover.user_root()
    except PartageError as error:
        yield fault_of(error)
    except OSError as error:
        yield Finding(Verdict.FAULT, "hand-overs", str(error), "set XDG_RUNTIME_DIR to a directory of your own")
    else:
        yield Finding(Verdict.GOOD, "hand-overs", f"{root}, {len(handover.living())} in use")
    for node in sorted(Path("/dev").glob("nvidia[0-9]*")):
        may = os.access(node, os.R_OK | os.W_OK)
        remedy = "" if may else "join the group that owns it, or correct its mode"
        yield Finding(
            Verdict.GOOD if may else Verdict.FAULT, str(node), "may be opened" if may else "no access", remedy
        )


def check_surroundings() -> Iterator[Finding]:
    """Look at this process's own environment and at the kernel's own limit on device memory."""
    mine = os.environ.get(names.ENV_DIR)
    if mine:
        inside = launch.injection(os.getpid(), Path(os.environ.get("LD_PRELOAD", "").split(":")[0] or "/none"))
        active = inside is launch.Injection.DONE
        remedy = "" if active else "start the program through `partage run`"
        verdict = Verdict.GOOD if active else Verdict.FAULT
        yield Finding(verdict, names.ENV_DIR, f"{mine}, library {inside.value}", remedy)
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    version = "v2" if controllers.exists() else "v1 or none"
    dmem = controllers.exists() and "dmem" in controllers.read_text().split()
    if dmem:
        yield Finding(Verdict.GOOD, "cgroup", f"{version}, dmem available")
    else:
        remedy = "the library alone holds the memory limit; Linux 6.14 with cgroup v2 can hold it too"
        yield Finding(Verdict.REMARK, "cgroup", f"{version}, dmem not available", remedy)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_versions,
    check_library,
    check_driver,
    check_permissions,
    check_surroundings,
)


@click.command(short_help="Check this machine; name each fault's remedy.")
def doctor() -> int:
    """Check this machine; print each finding with its remedy. Exit code 1 where there is a fault."""
    faults = 0
    for check in CHECKS:
        for finding in check():
            click.echo(f"{finding.verdict.value:<6}{finding.subject}: {finding.found}")
            if finding.remedy:
                click.echo(f"      -> {finding.remedy}")
            faults += finding.verdict is Verdict.FAULT
    click.echo(f"{faults} fault{'' if faults == 1 else 's'} found")
    return ExitCode.FAILED if faults else ExitCode.OK
