"""Shares on a real kubelet, containerd and runc: every container is kept to its own, whatever happens around it."""

from __future__ import annotations

import re
import signal
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from partage.shm import read_ledger, read_policy
from tests.cluster.agent import GI, MI, limits, total_of
from tests.cluster.images import BOX, CLIENT
from tests.cluster.pods import container, pod
from tests.cluster.test_compute import work_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace


def greedy(name: str = "app", memory: int = 8 * GI, cores: int = 30, **more: object) -> Json:
    """A container that takes memory until it is refused."""
    return container(name, BOX, ["/greedy"], limits=limits(memory // MI, cores), **more)  # type: ignore[arg-type]


def held(namespace: Namespace, name: str, app: str = "app") -> tuple[int, int]:
    """Return how many MiB a greedy container got, and the code that refused it the next one."""
    namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
    lines = namespace.wait_log(name, "held ", app)
    found = re.search(r"held (\d+) MiB, then (\d+)", lines)
    assert found, lines
    return int(found[1]), int(found[2])


def enforced(pod: Json) -> tuple[str, str]:
    """Return status and reason of the condition that says what holds a pod's limits."""
    found = [c for c in pod["status"].get("conditions", []) if c["type"] == "partage.io/Enforced"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def test_two_pods_on_one_card(agent: NodeAgent, namespace: Namespace) -> None:
    """Pods of HAMi's form: each allocates to its own limit, and not a byte more."""
    sizes = {"a": 8 * GI, "b": 3 * GI}
    for name, memory in sizes.items():
        agent.bound(namespace, pod(name, greedy(memory=memory)), app=agent.part(agent.share(0, memory, 300)))
    for name, memory in sizes.items():
        got, code = held(namespace, name)
        assert code == 2, "refused by another error than out of memory"
        used = read_ledger(agent.handed_over(memory) / "ledger").used(agent.uuids[0])
        assert memory - 2 * MI < used <= memory, f"{used} bytes charged of {memory}"
        assert 0 < got * MI < memory
    namespace.wait("a", lambda p: enforced(p) == ("True", "shim"), what="Enforced by shim")


#: Takes memory by the MiB until it is refused; then it stays as it is.
NUMBA: Final = """
from numba import cuda
import numpy, time
held = []
try:
    while True:
        held.append(cuda.device_array(1 << 20, numpy.uint8))
except Exception as error:
    total = cuda.current_context().get_memory_info().total
    print(f"held {len(held)} MiB, total {total}, then {error}", flush=True)
time.sleep(100000)
"""


def test_two_pods_of_somebody_elses_program_on_one_card(agent: NodeAgent, namespace: Namespace) -> None:
    """A third-party CUDA program, unmodified: as far as its own limit, and told of that."""
    sizes = {"a": 900 * MI, "b": 700 * MI}
    for name, memory in sizes.items():
        made = container("app", CLIENT, args=["-c", NUMBA], limits=limits(memory // MI, 30))
        agent.bound(namespace, pod(name, made), app=agent.part(agent.share(0, memory, 300)))
    for name, memory in sizes.items():
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
        said = namespace.wait_log(name, "held ")
        found = re.search(r"held (\d+) MiB, total (\d+), then .*OUT_OF_MEMORY", said)
        assert found, said
        assert int(found[2]) == memory
        used = read_ledger(agent.handed_over(memory) / "ledger").used(agent.uuids[0])
        assert int(found[1]) * MI < used <= memory, f"{used} bytes charged of {memory}"
        assert used > memory - 4 * MI, "refused before its limit"


# ---- whose container is it? ----------------------------------------------------------------------------------------

#: A greedy container that ends: says what it saw, once it has its piece.
ENDS = ["/greedy", "1", "once"]


def total(namespace: Namespace, name: str, app: str) -> int:
    """Return how much memory the driver tells a container that its card has: its limit, in bytes."""
    return total_of(namespace.wait_log(name, "held ", app))[0]


def three(name: str, first: int) -> Json:
    """A pod of init, sidecar and app containers, each with a limit of its own: `first` and the next two, in MiB."""

    def one(kind: str, number: int, command: list[str], **more: object) -> Json:
        return container(kind, BOX, command, limits=limits(first + number, 1), **more)  # type: ignore[arg-type]

    init = [one("first", 0, ENDS), one("beside", 1, ["/greedy", "1"], sidecar=True)]
    return pod(name, one("app", 2, ["/greedy", "1"]), init=init)


def test_each_container_has_its_own_grant(agent: NodeAgent, namespace: Namespace) -> None:
    """K11: init, sidecar and app containers of several pods at once, every limit unique, ids used again."""
    pods = [(f"p{number}", 1000 + 10 * number) for number in range(4)]
    for number, (name, first) in enumerate(pods):
        parts = {
            kind: agent.part(agent.share(number % 2, (first + at) * MI))
            for at, kind in enumerate(("first", "beside", "app"))
        }
        agent.bound(namespace, three(name, first), **parts)
    for name, first in pods:
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
        for at, kind in enumerate(("first", "beside", "app")):
            assert total(namespace, name, kind) == (first + at) * MI, f"{name}/{kind} has another container's limit"


def test_a_pod_under_the_same_name(agent: NodeAgent, namespace: Namespace) -> None:
    """A StatefulSet's pod is created again under its name with another share: never the old limit."""
    for memory in (700 * MI, 900 * MI, 800 * MI):
        agent.bound(namespace, pod("web-0", greedy(memory=memory)), app=agent.part(agent.share(0, memory)))
        namespace.wait("web-0", lambda p: p["status"]["phase"] == "Running", what="Running")
        assert total(namespace, "web-0", "app") == memory
        namespace.delete("web-0")


def test_a_pod_without_a_grant_is_refused(agent: NodeAgent, namespace: Namespace) -> None:
    """C074: it says on the pod what is missing and what to do; nothing of it runs."""
    namespace.create(pod("bare", greedy(), scheduler="nobody"))
    namespace.bind("bare")
    event = namespace.wait_event("bare", "GrantMissing")
    assert "partage-scheduler" in event["message"]
    assert "deleted" not in event["message"]
    said = ("False", "GrantMissing")
    seen = namespace.wait("bare", lambda p: enforced(p) == said, what=f"Enforced {said}")
    assert seen["status"]["phase"] == "Pending"


def test_what_a_pod_leaves(agent: NodeAgent, namespace: Namespace) -> None:
    agent.bound(namespace, pod("a", greedy(memory=GI)), app=agent.part(agent.share(0, GI)))
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    mine = agent.handed_over(GI).name
    spec = agent.cluster.node.cdi / f"partage.io-share-{mine}.json"
    assert spec.exists()
    namespace.delete("a")
    agent.until(lambda: mine not in agent.hand_overs() and not spec.exists(), "the hand-over is removed")


# ---- resize ----------------------------------------------------------------------------------------------------------


def is_resized(found: Json, generation: int) -> bool:
    said = {one["type"]: one.get("message", "") for one in found["status"]["conditions"]}
    return said.get("partage.io/Resized") == f"generation {generation}"


def test_a_resize_holds_in_the_running_pod(agent: NodeAgent, namespace: Namespace) -> None:
    """8 -> 4 -> 12 GiB and 30 -> 60 %: in force at once, the same container goes on."""
    created = agent.bound(
        namespace, pod("a", container("app", BOX, limits=limits(8192, 30))), app=agent.part(agent.share(1, 8 * GI, 300))
    )
    running = namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    before = running["status"]["containerStatuses"][0]["containerID"]

    def says() -> int:
        return total_of(namespace.exec("a", *ENDS).stdout)[0]

    assert says() == 8 * GI
    for gen, memory, cores in ((2, 4 * GI, 300), (3, 12 * GI, 600)):
        text = agent.grant(created, gen=gen, app=agent.part(agent.share(1, memory, cores)))
        namespace.api.patch("pods", "a", {"metadata": {"annotations": {"partage.io/grant": text}}}, namespace.name)
        namespace.wait(
            "a",
            partial(is_resized, generation=gen),
            what=f"resized to generation {gen}",
        )
        assert says() == memory
        policy = read_policy(agent.handed_over(memory) / "policy")
        assert (policy.generation, policy.devices[0].cores) == (gen, cores)
    after = namespace.get("a")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before, 0)


# ---- faults ----------------------------------------------------------------------------------------------------------


TRIES: Final = 5
ADMITTED_S: Final = 5.0  # by then kubelet has admitted pods, or waits for containerd


def are_allocated(agent: NodeAgent, before: set[str], count: int) -> bool:
    """Return whether kubelet has our answers for so many containers more than those `before`."""
    return len((set(agent.hand_overs()) - before) & agent.allocated()) == count


@contextmanager
def stopped_after_allocate(
    agent: NodeAgent, namespace: Namespace, card: int, sizes: Mapping[str, int]
) -> Iterator[None]:
    """Have containerd stopped while kubelet has our answers for greedy pods, and nothing of theirs is created.

    Kubelet asks containerd now and then what runs, in the loop in which it admits pods, and admits none until it is
    answered. Where it came to ask first, all is done over: nobody can tell when it will.
    """
    containerd = agent.cluster.node.containerd.process
    for number in range(TRIES):
        for name in sizes if number else ():
            namespace.delete(name)
        namespace.run(pod(f"settled-{number}", container("app", BOX)))  # it starts containers: not so for a while after
        there = set(agent.hand_overs())
        containerd.pause()
        try:
            for name, memory in sizes.items():
                agent.bound(namespace, pod(name, greedy(memory=memory)), app=agent.part(agent.share(card, memory)))
            try:
                agent.until(
                    partial(are_allocated, agent, there, len(sizes)),
                    "all are minted, and kubelet knows them",
                    ADMITTED_S,
                )
            except AssertionError:
                if number == TRIES - 1:
                    raise
                continue
            yield
            return
        finally:
            containerd.resume()


def test_killed_between_allocate_and_pre_start(agent: NodeAgent, namespace: Namespace) -> None:
    """kill -9: the container does not start; it does, with its own limit, after the agent's return."""
    with stopped_after_allocate(agent, namespace, 2, {"a": GI}):
        agent.process.kill(signal.SIGKILL)
    said = namespace.wait_event("a", "Failed")["message"]
    assert "PreStartContainer" in said or "connection" in said.lower(), said
    assert namespace.get("a")["status"]["phase"] == "Pending"
    agent.start()
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    assert total(namespace, "a", "app") == GI


def test_containerd_stopped_between_allocate_and_create(agent: NodeAgent, namespace: Namespace) -> None:
    sizes = {"a": 600 * MI, "b": 500 * MI, "c": 400 * MI}
    with stopped_after_allocate(agent, namespace, 3, sizes):
        pass
    for name, memory in sizes.items():
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
        assert total(namespace, name, "app") == memory


def test_kubelet_restarts_and_programs_go_on(agent: NodeAgent, namespace: Namespace) -> None:
    """What runs works on all the while and keeps its limit; a pod that comes after gets its own. Kubelet fails pods
    whose init containers have ended where it admits them anew before we have registered: how many is printed."""
    agent.bound(namespace, pod("a", greedy(memory=GI)), app=agent.part(agent.share(4, GI)))
    works = container("app", BOX, ["/busy", "64", "2000000"], limits=limits(1500, 30))
    agent.bound(namespace, pod("works", works), app=agent.part(agent.share(4, 1500 * MI, 300)))
    with_init = {f"init-{number}": 1000 + 10 * number for number in range(3)}
    for name, first in with_init.items():
        parts = {k: agent.part(agent.share(5, (first + at) * MI)) for at, k in enumerate(("first", "beside", "app"))}
        agent.bound(namespace, three(name, first), **parts)
    for name in ("works", *with_init):
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
    before = [was_started(namespace, name) for name in ("a", "works")]
    assert held(namespace, "a")[1] == 2
    namespace.wait_log("works", "busy ")

    begin = time.monotonic_ns()
    agent.cluster.node.restart_kubelet()
    agent.wait_listed()
    agent.bound(namespace, pod("b", greedy(memory=2 * GI)), app=agent.part(agent.share(4, 2 * GI)))
    namespace.wait("b", lambda p: p["status"]["phase"] == "Running", what="Running")
    end = time.monotonic_ns()

    assert total(namespace, "b", "app") == 2 * GI
    assert [was_started(namespace, name) for name in ("a", "works")] == before
    told = work_until(namespace, "works", end)
    meanwhile = [line for line in told if begin <= line.at_ns <= end]
    assert meanwhile[-1].done_ns > meanwhile[0].done_ns, "it did nothing meanwhile"
    assert all(later.done_ns >= line.done_ns for line, later in pairwise(told)), "it began anew"
    pause = max(later.at_ns - line.at_ns for line, later in pairwise(meanwhile))
    refused = 0
    for name, first in with_init.items():
        status = namespace.get(name)["status"]
        if status["phase"] == "Failed":
            assert status["reason"] == "UnexpectedAdmissionError", status
            refused += 1
        else:
            assert total(namespace, name, "app") == (first + 2) * MI
    print(f"longest silence of {len(meanwhile)} words: {pause / 1e6:.0f} ms of {(end - begin) / 1e6:.0f} ms")
    print(f"kubelet refused {refused} of {len(with_init)} pods whose init containers had ended")


def was_started(namespace: Namespace, name: str) -> tuple[str, str, int]:
    """Return a pod's phase, which container it has, and how often that began anew."""
    status = namespace.get(name)["status"]
    app = status["containerStatuses"][0]
    return status["phase"], app["containerID"], app["restartCount"]


def test_two_agents_at_once(agent: NodeAgent, namespace: Namespace) -> None:
    """A rolling update: the new one waits, takes over when the old one ends, and what runs is not disturbed."""
    agent.bound(namespace, pod("a", greedy(memory=GI)), app=agent.part(agent.share(5, GI)))
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    old, known = agent.process, agent.listings()
    agent.start(wait=False)
    agent.until(lambda: "another agent serves" in agent.process.said(), "the new one waits")
    assert old.alive()
    old.kill(signal.SIGTERM)
    agent.wait_listed(known)
    agent.bound(namespace, pod("b", greedy(memory=2 * GI)), app=agent.part(agent.share(5, 2 * GI)))
    namespace.wait("b", lambda p: p["status"]["phase"] == "Running", what="Running")
    assert total(namespace, "b", "app") == 2 * GI
    assert namespace.get("a")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_reboot(agent: NodeAgent, namespace: Namespace) -> None:
    """Processes gone, /run wiped, the disk kept: what kubelet keeps has its share, what it refuses is cleaned up."""
    names = {"a": GI, "b": 2 * GI}
    for name, memory in names.items():
        agent.bound(namespace, pod(name, greedy(memory=memory)), app=agent.part(agent.share(6, memory)))
        namespace.wait(name, lambda p: p["status"]["phase"] == "Running", what="Running")
    before = set(agent.hand_overs())
    node = agent.cluster.node
    node.power_off()
    agent.start(wait=False)
    node.power_on()
    agent.wait_listed()
    kept = 0
    for name, memory in names.items():

        def settled(p: Json) -> bool:
            states = p["status"].get("containerStatuses", [{}])
            again = states[0].get("restartCount", 0) > 0 and p["status"]["phase"] == "Running"
            return bool(p["status"]["phase"] == "Failed" or again)

        seen = namespace.wait(name, settled, what="running again, or refused")
        if seen["status"]["phase"] == "Failed":
            assert seen["status"]["reason"] == "UnexpectedAdmissionError", seen["status"]
            continue
        kept += 1
        assert total(namespace, name, "app") == memory
        assert read_policy(agent.handed_over(memory) / "policy").is_open
    print(f"after the reboot kubelet kept {kept} of {len(names)} pods")
    agent.until(lambda: len(before & set(agent.hand_overs())) == kept, "what was refused is cleaned up")
