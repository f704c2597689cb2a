"""What a node has to bear beside its containers' own faults: garbage in a ledger, a clock that jumps, a static pod."""

from __future__ import annotations

import json
import mmap
import struct
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from partage.model import names
from tests.cluster.agent import GI, MI, RESOURCE, NodeAgent, limits, total_of
from tests.cluster.image import compile_c
from tests.cluster.images import BOX, PROGRAMS
from tests.cluster.namespace import running
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster
    from tests.cluster.namespace import Namespace

ONCE: Final = ["/greedy", "1", "once"]
DAY: Final = timedelta(days=1)


def enforced(made: Json) -> Json:
    """Return the condition that says what holds a pod's limits."""
    found = [c for c in made["status"].get("conditions", []) if c["type"] == names.CONDITION_ENFORCED]
    return found[0] if found else {}


def started(agent: NodeAgent, namespace: Namespace, name: str, memory: int, command: list[str] | None = None) -> Json:
    made = container("app", BOX, command, limits=limits(memory // MI, 0))
    agent.bound(namespace, pod(name, made), app=agent.part(agent.share(0, memory)))
    return namespace.wait(name, held, what="Running, and held")


def held(made: Json) -> bool:
    return running(made) and enforced(made).get("status") == "True"


#: As the first process it would get no signal that it does not ask for: a shell that ends when its child does.
WAITS: Final = ["sh", "-c", "trap 'exit 1' TERM; sleep 100000 & wait"]


@pytest.mark.parametrize(
    "spoil", ["cat /bin/busybox > /run/partage/ledger", ": > /run/partage/ledger"], ids=["garbage", "cut"]
)
def test_a_spoilt_ledger_is_its_containers_own_loss(agent: NodeAgent, namespace: Namespace, spoil: str) -> None:
    """It is closed and says so on its pod; a neighbour goes on; started anew it has its own share again."""
    started(agent, namespace, "beside", 2 * GI)
    assert restarts(started(agent, namespace, "spoils", GI, WAITS)) == 0
    namespace.exec("spoils", "sh", "-c", spoil)
    said = namespace.wait_event("spoils", "LedgerSpoilt")["message"]
    assert "restart the container" in said
    namespace.wait("spoils", lambda p: enforced(p).get("reason") == "LedgerSpoilt", what="told on the pod")
    assert "held 1 MiB" not in namespace.exec("spoils", *ONCE).stdout, "it is closed"
    assert total_of(namespace.exec("beside", *ONCE).stdout)[0] == 2 * GI
    assert agent.process.alive()
    namespace.exec("spoils", "kill", "1")
    namespace.wait("spoils", lambda p: held(p) and restarts(p) == 1, what="started anew")
    done = namespace.exec("spoils", *ONCE).stdout
    assert total_of(done)[0] == GI
    assert "held 1 MiB, then 0" in done


def restarts(made: Json) -> int:
    return int(made["status"]["containerStatuses"][0]["restartCount"])


class Clock:
    """The wall clock of one program; `jump` sets it."""

    def __init__(self, place: Path) -> None:
        self.file = place / "jump"
        self.file.write_bytes(bytes(8))
        library = compile_c(PROGRAMS / "jump.c", place / "jump.so", "-shared", "-fPIC")
        self.environment = {"LD_PRELOAD": str(library), "JUMP_FILE": str(self.file)}

    def jump(self, by: timedelta) -> None:
        """Set it to so much from now, at once."""
        with self.file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
            mapped[:] = struct.pack("q", int(by.total_seconds()))


@contextmanager
def jumping(cluster: Cluster, place: Path) -> Iterator[tuple[NodeAgent, Clock]]:
    clock = Clock(place)
    agent = NodeAgent(cluster, environment=clock.environment).start()
    try:
        yield agent, clock
    finally:
        agent.end()


def is_gone(agent: NodeAgent, hand_over: str) -> bool:
    return hand_over not in agent.hand_overs()


def said_at(made: Json) -> datetime:
    return datetime.fromisoformat(enforced(made)["lastTransitionTime"])


def test_a_clock_jump(agent: NodeAgent, cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """A day forward, two days back: what runs goes on, new pods get their shares, what ends is cleaned up."""
    agent.end()
    with jumping(cluster, tmp_path) as (other, clock):
        started(other, namespace, "before", GI)
        for number, by in enumerate((DAY, -DAY)):
            clock.jump(by)
            memory = (600 + number) * MI
            made = started(other, namespace, f"after-{number}", memory)
            assert abs(said_at(made) - datetime.now(UTC) - by) < timedelta(hours=1), "its clock did jump"
            assert total_of(namespace.exec(f"after-{number}", *ONCE).stdout)[0] == memory
            assert total_of(namespace.exec("before", *ONCE).stdout)[0] == GI
            mine = other.handed_over(memory).name
            namespace.delete(f"after-{number}")
            other.until(partial(is_gone, other, mine), "what it leaves is cleaned up")
        assert other.process.alive()
        other.wait_seats(10 * len(other.uuids))
    agent.start()


def test_a_static_pod_gets_no_share(agent: NodeAgent, cluster: Cluster, namespace: Namespace) -> None:
    """Kubelet knows it by a UID that is not its mirror's; the mirror says why, and an ordinary pod beside it runs."""
    cluster.image(BOX)
    manifest = pod("static", container("app", BOX, limits={RESOURCE: "1"}))
    manifest |= {"apiVersion": "v1", "kind": "Pod"}
    manifest["metadata"]["namespace"] = namespace.name
    file, mirror = cluster.node.manifests / "static.json", f"static-{cluster.node.name}"
    file.write_text(json.dumps(manifest))
    try:
        made = namespace.wait(mirror, lambda p: enforced(p).get("reason") == "PodStatic", what="told on the mirror")
        assert "nobody binds a static pod" in enforced(made)["message"]
        assert made["metadata"]["uid"] != made["metadata"]["annotations"][names.MIRROR]
        namespace.wait_event(mirror, "PodStatic")
        assert not running(made)
        started(agent, namespace, "beside", GI)
    finally:
        file.unlink()
    namespace.api.wait_gone("pods", mirror, namespace.name)
