"""A node with one simulated card, its hand-overs as the agent lays them out, and containers that run under them.

The root of the hand-overs is root's; a hand-over's directory is mounted read-only at /run/partage in its container and
its ledger read-write over it. An arbiter serves the root from within this process, as the agent hosts it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from partage._abi import ffi, lib
from partage.run.handover import HandOver
from partage.run.watcher import Watcher
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns, read_turns, ring_turn_bell
from partage.sim import profiles
from partage.sim.machine import Machine, create
from partage.sim.state import read_state
from partage.sim.tree import Mount, container_edits, write_tree
from tests.sim.conftest import TOP, sim_libraries
from tests.sim.container import Container, build_image, may_make

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
MIB = 1 << 20
LIBRARY = "/run/libvgpu.so"  # in a container


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where no container can be made."""
    if os.geteuid() == 0 and shutil.which("cc") and may_make():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip("making a container needs root, namespaces and a C compiler"))


class Program(Container):
    """A container's program, and what it answers."""

    def order(self, *words: object) -> None:
        """Tell it what to do."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Return its next answer."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, *words: object) -> str:
        """Give an order and return the answer."""
        self.order(*words)
        return self.answer()

    def kill(self) -> None:
        """End the container at once by its first process; it is gone when this returns."""
        os.kill(self.host_pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Share:
    """One hand-over and how its container is made."""

    entry: HandOver
    policy: PolicyFile
    image: Path
    uuid: str
    library: Path

    def start(self, uid: int, *, user_ns: bool = False) -> Program:
        """Run the program in a container of its own; a second one on the same hand-over is a restart."""
        edits = container_edits(self.uuid)
        more = (
            Mount(self.library, LIBRARY, ("ro", "nosuid", "nodev")),
            Mount(self.entry.path, "/run/partage", ("ro", "nosuid", "nodev", "noexec")),
            Mount(self.entry.ledger_path, "/run/partage/ledger", ("rw", "nosuid", "nodev", "noexec")),
        )
        env = edits.env | {"LD_PRELOAD": LIBRARY}
        return Program(self.image, replace(edits, mounts=(*edits.mounts, *more), env=env), uid, user_ns=user_ns)

    def watch(self) -> Watcher:
        """Watch it as the agent does, without NVML."""
        return Watcher(self.entry, self.policy, None, sole=True)

    def serial(self) -> int:
        """Return the number of turns that it was given."""
        turns = read_turns(self.entry.path / "turns")
        assert turns
        return turns.turns[0].serial


class Node:
    """The card, the hand-overs and the arbiter."""

    def __init__(self, place: Path, image: Path, library: Path) -> None:
        self.root, self.image, self.library = place / "node", image, library
        self.root.mkdir(mode=0o755)
        self._locks = place / "locks"
        self._locks.mkdir(mode=0o755)
        self._open = contextlib.ExitStack()
        with Machine() as machine:
            self.uuid = read_state(machine).devices[0].uuid
        self._host: Any = ffi.NULL

    def serve(self) -> None:
        """Let the arbiter begin: what it finds is adopted when this returns."""
        keep = [ffi.new("char[]", os.fsencode(path)) for path in (self.root, self._locks)]
        options = ffi.new("struct ptg_host_options *", {"root": keep[0], "lock_dir": keep[1], "log_fd": -1})
        options.idle_ns = lib.PTG_HOST_FOREVER
        why = ffi.new("char[512]")
        self._host = lib.ptg_host_open(options, why, len(why))
        assert self._host != ffi.NULL, ffi.string(why)
        lib.ptg_host_adopt(self._host)
        assert lib.ptg_host_start(self._host) == 0

    def rest(self) -> None:
        """Let the arbiter end."""
        lib.ptg_host_close(self._host)

    def share(self, name: str, cores: int = 300, memory: int = 256 * MIB) -> Share:
        """Make a hand-over, its files for a container of any user, the policy last."""
        entry = HandOver(self.root / name)
        entry.path.mkdir(mode=0o755)
        create_turns(entry.path / "turns", 1)
        create_ledger(entry.ledger_path, [])
        entry.ledger_path.chmod(0o666)
        limits = {"memory": memory, "physical": 80 << 30, "cores": cores, "ceiling": cores}
        device = PolicyDevice(uuid=self.uuid, **limits, gated=True, context=0)
        policy = PolicyFile.create(entry.policy_path, Policy(devices=(device,), share_class="fixed"))
        self._open.callback(policy.close)
        ring_turn_bell(entry.ledger_path)
        return Share(entry, policy, self.image, self.uuid, self.library)

    def stats(self) -> Any:
        """Return what the arbiter counts."""
        stats = ffi.new("struct ptg_host_stats *")
        lib.ptg_host_stats(self._host, stats)
        return stats

    def __enter__(self) -> Self:
        self.serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._open.close()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose one card costs nothing to use."""
    library = TOP / "build" / "lib" / "libvgpu.so"
    if not library.exists():
        pytest.skip(f"no {library}: run make build")
    (tmp_path / "sim").mkdir(mode=0o700)
    monkeypatch.setenv("PARTAGE_SIM_DIR", str(tmp_path / "sim"))
    create(profiles.find("zero"), shared=True)
    write_tree(tmp_path / "tree", sim_libraries())
    image = build_image(tmp_path)
    source = str(HERE / "programs" / "sharer.c")
    subprocess.run(["cc", "-std=gnu11", "-O1", "-o", str(image / "tenant"), source, "-ldl"], check=True)
    with Node(tmp_path, image, library) as made:
        yield made
