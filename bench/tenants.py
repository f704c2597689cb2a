"""Containers of bench/shares.py on a simulated machine of their own: started, told what to do, and looked at.

A *system* is what holds the shares: nothing, ours (`partage run`, as a user starts it), or any other library that is
preloaded, with the limits in the environment that such libraries read. What a tenant got is the simulated engine's own
busy time of its processes, read from the machine file; no ledger and no NVML take part. What can go wrong: a program
that does not start or stops answering (BenchError with its own words), a library that is not in the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from partage._abi import ffi, lib
from partage.sim import profiles
from partage.sim.machine import Machine, create

if TYPE_CHECKING:
    from cells import Cell, Tenant

PROFILE: Final = "8xH100"  # contexts and their hand-over cost what they cost
ANSWER_S: Final = 60.0
MEMORY: Final = "8Gi"


class BenchError(Exception):
    """A cell that cannot be run; the text is for the user."""


@dataclass(frozen=True)
class System:
    """What holds the shares; `path` of a preloaded library, None for `none`."""

    name: str
    path: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Whether tenants are started by `partage run`."""
        return self.name == "ours"


@dataclass(frozen=True)
class Look:
    """Busy ns of each tenant so far, and when (CLOCK_MONOTONIC ns) that was read."""

    at: int
    busy: tuple[int, ...]


def shares_between(before: Look, after: Look) -> list[float]:
    """Return percent of the card's time that each tenant had between two looks."""
    wall = after.at - before.at
    return [100.0 * (b - a) / wall for a, b in zip(before.busy, after.busy, strict=True)]


class Container:
    """One started program and its pipe. `pids` are those of its workers."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pids: list[int] = []
        self._buffer = b""
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    @property
    def pid(self) -> int:
        """The process that was started: the program's own parent under `partage run`."""
        return self._process.pid

    def say(self, word: str) -> None:
        """Give an order; a program that has ended cannot hear it, which the next answer tells."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, begins: str) -> str:
        """Return the next line that begins so; raises BenchError with what was said instead."""
        assert self._process.stdout is not None
        fd, said, until = self._process.stdout.fileno(), [], time.monotonic() + ANSWER_S
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                if line.startswith(begins.encode()):
                    return line.decode()
                said.append(line.decode(errors="replace"))
                continue
            left = max(0.0, until - time.monotonic())
            chunk = os.read(fd, 65536) if select.select([fd], [], [], left)[0] else b""
            if not chunk:
                code = self._process.poll()
                state = f"ended with {code}" if code is not None else f"was silent for {ANSWER_S:.0f} s"
                raise BenchError(f"{self._process.args!r} {state}: {' | '.join(said[-8:]) or 'it said nothing'}")
            self._buffer += chunk

    def meet(self) -> None:
        """Wait until all its processes stand before their first launch."""
        self.pids = [int(pid) for pid in self.answer("ready").split()[1:]]

    def report(self) -> dict[str, int]:
        """Return the steps since the mark: counts, and ns of the percentiles."""
        self.say("report")
        found: dict[str, int] = json.loads(self.answer("{"))
        return found

    def hand_over(self) -> Path | None:
        """Return the hand-over directory that its processes were started under."""
        for pid in self.pids:
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"PARTAGE_DIR="):
                        return Path(os.fsdecode(entry.partition(b"=")[2]))
        return None

    def close(self) -> None:
        """End it and whatever it left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            for pid in self.pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()


class Tenancy(ABC):
    """The containers of a cell under a system, started together; Stage and Card say on which device."""

    def __init__(self, cell: Cell, system: System, build: Path, scratch: Path) -> None:
        self.cell, self.system, self.build, self.scratch = cell, system, build, scratch
        self.environment = clean_environment(build, scratch) | self.settings()
        self.containers: list[Container] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)
            for tenant in self.cell.tenants:
                self.containers.append(self._start(tenant, len(self.containers)))
            for container in self.containers:
                container.meet()
            self._check_library()
            self.met()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.containers:
            container.say("stop")
        for container in self.containers:
            container.close()

    def settings(self) -> dict[str, str]:
        """Return what every container's environment has beside the clean one."""
        return {}

    def outside(self, tenant: Tenant, number: int) -> dict[str, str]:
        """Return what the environment of a container has that is not started by `partage run`."""
        return foreign_limits(self.system, tenant, self.scratch, number)

    def loops(self, tenant: Tenant) -> int:
        """Return the loops of a kernel of the tenant; 0: the device is told the time."""
        del tenant
        return 0

    def met(self) -> None:  # noqa: B027 -- nothing, unless a machine has something to do
        """Do what is due once all containers stand before their first launch."""

    def handed_over_ns(self) -> int:
        """Return ns that the first device has spent on going from one context to another; 0 where nobody knows."""
        return 0

    @abstractmethod
    def look(self) -> Look:
        """Return what each tenant got so far."""

    def _start(self, tenant: Tenant, number: int) -> Container:
        arguments = tenant.load.arguments(tenant.processes, self.loops(tenant))
        program = [str(self.build / "bench" / "loads"), *arguments]
        if self.system.is_ours:
            return Container([*partage("run", *share_of(tenant)), "--", *program], self.environment)
        return Container(program, self.environment | self.outside(tenant, number))

    def _check_library(self) -> None:
        """See that a preloaded library is really in the processes: the loader leaves one out with a line on stderr."""
        path = Path(self.environment["PARTAGE_LIBRARY"]) if self.system.is_ours else self.system.path
        if path is None:
            return
        for container in self.containers:
            if path.name not in Path(f"/proc/{container.pids[0]}/maps").read_text():
                raise BenchError(f"{path} was not loaded into the program: it cannot be preloaded")

    # ---- orders and looks ----

    def say(self, word: str) -> None:
        """Give all containers the same order."""
        for container in self.containers:
            container.say(word)

    def pause(self) -> None:
        """Let all stop launching, and wait until the device has done what they had queued."""
        self.say("pause")
        for container in self.containers:
            container.answer("paused")

    def resize(self, number: int, cores: float) -> None:
        """Change the cores of a running tenant, as a user would."""
        entry = self.containers[number].hand_over()
        if entry is None:
            raise BenchError(f"tenant {number} has no hand-over: only shares of ours can be resized")
        command = partage("resize", entry.name, "--cores", f"{cores}%")
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")

    def arbiter(self) -> int | None:
        """Return the pid of the arbiter that serves the first tenant, None where there is none."""
        entry = self.containers[0].hand_over() if self.system.is_ours else None
        if entry is None:
            return None
        data = (entry / "turns").read_bytes()
        if len(data) < ffi.sizeof("struct ptg_turns"):
            return None
        pid = int(ffi.from_buffer("struct ptg_turns *", data[: ffi.sizeof("struct ptg_turns")]).arbiter)
        return pid if pid > 0 and Path(f"/proc/{pid}").exists() else None


class Stage(Tenancy):
    """A simulated machine of a cell's own, its containers, and looks at what its engine did for whom."""

    def __init__(self, cell: Cell, system: System, build: Path, scratch: Path) -> None:
        super().__init__(cell, system, build, scratch)
        # UUIDs of its own: no other machine's arbiter feels meant
        self.machine = Machine(create(profiles.find(PROFILE), scratch / "sim" / "machine", seed=secrets.randbits(32)))
        self.slots: list[list[int]] = []
        self._devices = [[int(device) for device in tenant.devices.split(",")] for tenant in cell.tenants]

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.machine.close()

    def settings(self) -> dict[str, str]:
        """Return where the machine is."""
        return {
            "PARTAGE_SIM_DIR": str(self.scratch / "sim"),
            "PARTAGE_SIM_FORCE": "1",
            "PARTAGE_SIM_LIBRARIES": str(self.build / "sim"),
        }

    def outside(self, tenant: Tenant, number: int) -> dict[str, str]:
        """Return the limits of a foreign library, and the simulated driver."""
        return super().outside(tenant, number) | {"LD_LIBRARY_PATH": str(self.build / "sim")}

    def met(self) -> None:
        """Find the processes on the simulated machine."""
        self.slots = [self._slots_of(container) for container in self.containers]

    def look(self) -> Look:
        """Read what each tenant got so far."""
        at = time.monotonic_ns()
        busy = [
            sum(self.busy_of(slot, device) for slot in slots for device in devices) // len(devices)
            for slots, devices in zip(self.slots, self._devices, strict=True)
        ]
        return Look(at, tuple(busy))

    def handed_over_ns(self) -> int:
        """Return the first device's hand-overs between contexts, which are nobody's time, in ns."""
        switches = int(self.machine.read("uint64_t", "device", 0, "switches"))
        return 1000 * switches * int(self.machine.read("uint32_t", "model", 0, "switch_us"))

    def busy_of(self, slot: int, device: int) -> int:
        """Return the busy ns of one process so far."""
        return int(self.machine.read("uint64_t", "client", slot, "device", device, "busy_ns"))

    def _slots_of(self, container: Container) -> list[int]:
        """Return the client slots of a container's processes, in the order of its pids."""
        found: dict[int, int] = {}
        for slot in range(lib.SIM_CLIENTS):
            pid = self.machine.read("int32_t", "client", slot, "pid")
            if pid in container.pids and self.machine.alive(slot):
                found[pid] = slot
            if len(found) == len(container.pids):
                return [found[pid] for pid in container.pids]
        raise BenchError(f"{len(container.pids)} processes started, {len(found)} of them use the simulated device")


def clean_environment(build: Path, scratch: Path) -> dict[str, str]:
    """Return this process's environment without what concerns devices, with a runtime directory and our build."""
    unwanted = ("PARTAGE_", "CUDA_", "LD_", "NULL_DRIVER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {
        "XDG_RUNTIME_DIR": str(scratch),
        "PARTAGE_LIBRARY": str(build / "lib" / "libvgpu.so"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(package_root()), os.environ.get("PYTHONPATH")])),
    }


def foreign_limits(system: System, tenant: Tenant, scratch: Path, number: int) -> dict[str, str]:
    """Return the settings of a tenant without `partage run`: its devices, and what a foreign library reads."""
    settings = {"CUDA_VISIBLE_DEVICES": tenant.devices}
    if system.path:
        settings["LD_PRELOAD"] = str(system.path)
        settings["CUDA_DEVICE_MEMORY_LIMIT"] = "8g"
        settings["CUDA_DEVICE_SM_LIMIT"] = f"{tenant.cores or 100:.0f}"
        settings["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(scratch / f"cache-{number}")
        settings["GPU_CORE_UTILIZATION_POLICY"] = "force"
    return settings


def share_of(tenant: Tenant) -> list[str]:
    """Return a tenant's share as options of `partage run`."""
    options = ["--device", tenant.devices, "--memory", MEMORY, "--priority", tenant.priority]
    if tenant.cores is not None:
        options += ["--cores", f"{tenant.cores}%"]
    if tenant.share_class is not None:
        options += ["--class", tenant.share_class]
    return options


def package_root() -> Path:
    """Return the directory that holds the package which this bench itself uses."""
    import partage  # noqa: PLC0415 -- only its place is wanted

    return Path(partage.__path__[0]).parent


def partage(*arguments: str) -> list[str]:
    """Return the command line of `partage` with this interpreter."""
    return [sys.executable, "-m", "partage", *arguments]


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process so far; 0 where it is gone."""
    total = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


def as_json(row: Any) -> str:
    """Return a row as one line."""
    return json.dumps(row, separators=(",", ":"))
