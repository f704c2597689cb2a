"""Counts, a machine of its own for each test, and tenants that do what they are told (tests/soak/tenant.c).

`PARTAGE_SOAK` chooses the counts: `full` (the default of `make soak`) or `ci`. Random choices come from a seed that is
printed with a failure, so that each can be had again.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from pathlib import Path

import pytest

from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage.sim import profiles
from partage.sim.machine import Machine, create
from partage.sim.state import read_state

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
TENANT = BUILD / "tests" / "soak" / "tenant"
SHIM = BUILD / "lib" / "libvgpu.so"
WATCHDOG_S = 60  # stands for "hangs"


def full() -> bool:
    return os.environ.get("PARTAGE_SOAK", "full") != "ci"


class Tenant:
    """One process; `ask` returns the numbers that it answers, or None where it has died."""

    def __init__(self, environment: dict[str, str], *starter: str, stderr: int | None = None) -> None:
        command = [*starter, str(TENANT)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
        )

    def tell(self, command: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()

    def answer(self) -> list[int] | None:
        waiting = select.poll()  # select() takes no more than a thousand descriptors
        waiting.register(self.process.stdout, select.POLLIN)
        assert waiting.poll(WATCHDOG_S * 1000), f"process {self.process.pid} hangs"
        line = self.process.stdout.readline()
        return [int(word) for word in line.split()] if line else None

    def ask(self, command: str) -> list[int] | None:
        self.tell(command)
        return self.answer()

    def end(self) -> int:
        """Let it end by itself and return its exit code; negative: the signal that ended it."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(WATCHDOG_S)
        finally:
            self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.end()


class Stage:
    """A private simulated machine of one device and the hand-overs on it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment
        with Machine(create(profiles.find("zero"))) as machine:
            self.uuid = read_state(machine).devices[0].uuid
        self.tenants: list[Tenant] = []

    def share(self, name: str, memory: int) -> HandOver:
        """Make a hand-over as an agent does; nobody watches it."""
        entry = HandOver(self.directory / name)
        entry.path.mkdir(mode=0o700)
        device = PolicyDevice(uuid=self.uuid, memory=memory, physical=80 << 30, context=0)
        PolicyFile.create(entry.policy_path, Policy(devices=(device,))).close()
        create_turns(entry.path / "turns", 1)
        create_ledger(entry.ledger_path, [self.uuid])
        return entry

    def inside(self, entry: HandOver | None, **more: str) -> dict[str, str]:
        """The environment of a container's process."""
        found = self.environment | {"LD_PRELOAD": str(SHIM)} | more
        return found | {"PARTAGE_DIR": str(entry.path)} if entry else found

    def tenant(self, entry: HandOver) -> Tenant:
        return self.tenant_in(self.inside(entry))

    def tenant_in(self, environment: dict[str, str]) -> Tenant:
        made = Tenant(environment)
        self.tenants.append(made)
        return made

    def real_use(self, pid: int) -> int:
        """Bytes that the simulated card's driver counts for a process."""
        with Machine() as machine:
            return sum(sum(client.memory) for client in read_state(machine).clients if client.pid == pid)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A stage; whatever still runs at the end is killed."""
    assert TENANT.is_file(), f"no {TENANT}: run make build"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    settings = {
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "PARTAGE_SIM_DIR": str(tmp_path / "sim"),
        "PARTAGE_SIM": "zero",
        "PARTAGE_SIM_FORCE": "1",
    }
    for name in ("runtime", "sim", "shares"):
        (tmp_path / name).mkdir(mode=0o700)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    made = Stage(tmp_path / "shares", kept | settings | {"LD_LIBRARY_PATH": str(BUILD / "sim")})
    yield made
    for tenant in made.tenants:
        if tenant.process.poll() is None:
            tenant.kill()
