"""Nothing of a cluster is left on the machine, whatever way its session ends.

A session of its own runs a cluster with pods, and ends by itself, is killed, or is killed with its keeper; then mounts,
links, processes, cgroups, files and kernel settings are what they were.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from tests.cluster import packages
from tests.cluster.cleanup import clean_up
from tests.cluster.conftest import give_up, spoken
from tests.cluster.footprint import footprint
from tests.cluster.state import TOP, State, clusters, sweep, take_kubelet_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.binaries import Binaries

SESSION = """
import os, signal, sys
from tests.cluster.binaries import obtain
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import container, pod

cluster = Cluster.open(obtain(), node=True)
space = Namespace(cluster, "left").open()
memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
mount = {"name": "memory", "mountPath": "/memory"}
space.run(pod("one", container("app", mounts=[mount]), init=[container("side", sidecar=True)], volumes=[memory]))
space.run(pod("two", grace=600))
if "paused" in sys.argv:
    cluster.node.kubelet.pause()
    cluster.node.containerd.process.pause()
print(cluster.state.keeper.pid, cluster.state.directory, flush=True)
sys.stdin.read()
cluster.close()
"""


@pytest.fixture
def machine(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[IO[str]]:
    """The machine without any node, before; compared with what it is after the test. The kubelet lock is held."""
    reason = packages.reason()
    if reason:
        give_up(reason)
    with spoken(pytestconfig):
        lock = take_kubelet_lock()
    with lock:
        sweep(nodes=True)
        before = footprint()
        yield lock
        after = footprint()
    assert after == before


def start(lock: IO[str], *arguments: str) -> tuple[subprocess.Popen[str], int, Path]:
    """Start a session; return it, its keeper's process id and its directory once its pods run."""
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION, *arguments],
        cwd=TOP,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PARTAGE_KUBELET_LOCK": str(lock.fileno())},
        pass_fds=[lock.fileno()],
        text=True,
    )
    assert session.stdout is not None
    words = session.stdout.readline().split()
    assert len(words) == 2, f"the session ended with {session.wait()} before its pods ran"
    return session, int(words[0]), Path(words[1])


def wait_end(keeper: int) -> None:
    """Wait for the end of a process that is nobody's child here any more."""
    try:
        descriptor = os.pidfd_open(keeper)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


def test_session_ends_by_itself(machine: IO[str]) -> None:
    session, _, directory = start(machine)
    assert directory.exists()
    session.communicate("")
    assert session.returncode == 0
    assert not directory.exists()


def test_session_is_killed_while_its_node_stands_still(machine: IO[str]) -> None:
    session, keeper, directory = start(machine, "paused")
    session.kill()
    session.communicate()
    wait_end(keeper)
    assert not directory.exists()


def test_session_and_keeper_are_killed(machine: IO[str]) -> None:
    """Then the next session undoes it before it starts a node of its own."""
    session, keeper, directory = start(machine)
    os.kill(keeper, signal.SIGKILL)
    session.kill()
    session.communicate()
    wait_end(keeper)
    assert directory.exists()
    assert sweep(nodes=True) == []
    assert not directory.exists()


def test_control_plane_alone_is_undone_too(binaries: Binaries) -> None:
    state = State.make(node=False)
    sleeper = subprocess.Popen(["sleep", "1000"], env={"PARTAGE_TEST_CLUSTER": str(state.directory)})
    state.close()
    assert sleeper.wait() == -signal.SIGKILL
    assert not state.directory.exists()
    assert clean_up(state.directory) == []


def test_a_directory_that_another_session_removes_just_now_is_left_to_it() -> None:
    """Its lock went a moment ago: made again, it would keep the directory there for ever."""
    going = clusters() / "going"
    going.mkdir()
    try:
        assert sweep(nodes=False) == []
        assert list(going.iterdir()) == []
    finally:
        going.rmdir()
