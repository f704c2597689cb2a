"""The node agent as it runs in production, on the test cluster's node, with a simulated machine for its cards.

`NodeAgent(cluster)` makes the machine (once; it lies on the node's disk and outlives a reboot), the agent's account and
its kubeconfig; `start` runs it as a program of the node and returns once kubelet counts its seats. `grant` writes what
the scheduler would; `bound` creates a pod, binds it with a grant and gives it back. What its users see of it: `top`,
`metrics`. What can go wrong: it does not register; the test's report has the end of its log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from partage.shm import read_policy
from partage.sim import machine
from partage.sim.state import read_state
from partage_plugin.kubelet.checkpoint import CheckpointError, CheckpointFile
from tests.cluster.api import PATIENCE_S
from tests.cluster.changes import Changes, deadline, left
from tests.cluster.cleanup import DEVICE_PLUGINS
from tests.cluster.controlplane import free_port
from tests.cluster.images import BUILD, TOP
from tests.cluster.process import POLL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster
    from tests.cluster.namespace import Namespace

RESOURCE: Final = "nvidia.com/gpu"
MI: Final = 1 << 20
GI: Final = 1 << 30
PROFILE: Final = "8xH100"
LISTED: Final = '"Processed device updates for resource"'  # as kubelet logs it
RULES: Final = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
)


@dataclass
class NodeAgent:
    """The agent of a cluster's node."""

    cluster: Cluster
    profile: str = PROFILE
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pages: bool = False  # whether it answers on a port; two at once cannot have one
    uuids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        node = self.cluster.node
        self.disk = node.directory / f"agent-{self.profile}"  # what a reboot keeps
        self.root = node.volatile / "partage"
        self.sim = self.disk / "sim"
        self.disk.mkdir(exist_ok=True)
        self.port = free_port() if self.pages else 0
        self.environment = {
            **self.environment,
            "PYTHONPATH": f"{TOP}/python:{TOP}/plugin",
            "PARTAGE_SIM_DIR": str(self.sim),
            "PARTAGE_SIM_LIBRARIES": str(BUILD / "sim"),
            "PARTAGE_LIBRARY": str(BUILD / "lib/libvgpu.so"),
        }
        self.cluster.account("partage-agent", rules=RULES)
        config = node.directory / "agent.kubeconfig"
        self.kubeconfig = self.cluster.token_kubeconfig(config, self.cluster.token("partage-agent"))

    @property
    def machine(self) -> Path:
        """The simulated machine's file."""
        return self.sim / "machine"

    def make_machine(self) -> None:
        """Make the machine and what stands for its device nodes, unless they are there."""
        if not self.machine.exists():
            self.command("sim", "create", self.profile, "--shared")
        self.command("sim", "tree", str(self.disk / "tree"))
        with machine.Machine(self.machine) as there:
            self.uuids = [device.uuid for device in read_state(there).devices]

    def command(self, *arguments: str) -> str:
        """Run `partage` on the node's machine."""
        done = subprocess.run(
            [sys.executable, "-m", "partage", *arguments],
            env={**os.environ, **self.environment, "XDG_RUNTIME_DIR": str(self.root.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"partage {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def start(self, *, wait: bool = True) -> NodeAgent:
        """Run the agent; return once kubelet counts its seats."""
        if not self.uuids:
            self.make_machine()
        node = self.cluster.node
        places = {
            "root": self.root,
            "cdi": node.cdi,
            "kubelet": node.root,
            "library": self.disk / "lib",
            "locks": self.locks,
        }
        flags = [f"--places-{name}={path}" for name, path in places.items()]
        flags += [f"--node={node.name}", f"--kubeconfig={self.kubeconfig}", "--driver=simulated"]
        flags += [f"--metrics-port={self.port}", "--metrics-address=127.0.0.1"]
        argv = [sys.executable, "-m", "partage_plugin.main", *flags, *self.flags]
        known = self.listings()
        self.process = node.run("agent", argv, self.environment)
        if wait:
            self.wait_listed(known)
            self.wait_seats(10 * len(self.uuids))
        return self

    def listings(self) -> int:
        """Return how often kubelet took a list of seats, since it was started."""
        said = self.cluster.node.kubelet.said().splitlines()
        return sum(1 for line in said if LISTED in line and f'"{RESOURCE}"' in line)

    def wait_listed(self, known: int = 0) -> None:
        """Return once kubelet has taken a list more than those `known`: from then on it admits pods with shares.

        What the Node says of seats comes later, and stands for a while when kubelet or an agent has ended.
        """
        kubelet = self.cluster.node.kubelet
        kubelet.until(
            lambda: self.listings() > known, seconds=PATIENCE_S, what="told of the agent's seats", watch=[kubelet.log]
        )

    @property
    def locks(self) -> Path:
        path = self.disk / "locks"
        path.mkdir(exist_ok=True)
        return path

    def end(self) -> None:
        """End it; return once kubelet knows that, so that the next agent's seats are not taken for this one's."""

        def gone(node: Json) -> bool:
            return bool(node["status"].get("allocatable", {}).get(RESOURCE, "0") == "0")

        self.process.kill(signal.SIGTERM)
        self.cluster.api.wait("nodes", self.cluster.node.name, gone, what=f"no {RESOURCE}")

    def wait_seats(self, count: int, seconds: float = PATIENCE_S) -> None:
        """Return once the node's allocatable shares are so many."""

        def counted(node: Json) -> bool:
            return bool(node["status"].get("allocatable", {}).get(RESOURCE) == str(count))

        name = self.cluster.node.name
        self.cluster.api.wait("nodes", name, counted, what=f"{count} of {RESOURCE}", seconds=seconds)

    # ---- what its users see ------------------------------------------------------------------------------------------

    def top(self) -> Json:
        """Return what `partage top --node` shows, as JSON; takes two looks, half a second apart."""
        page = f"http://127.0.0.1:{self.port}"
        return dict(json.loads(self.command("top", "--json", "--node", "--agent", page)))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return its figures of containers: series -> `pod/container` -> value, for those that have a pod."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False, timeout=PATIENCE_S).text
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if "pod" in sample.labels:
                    whose = f"{sample.labels['pod']}/{sample.labels['container']}"
                    found.setdefault(sample.name, {})[whose] = sample.value
        return found

    def until_told(self, series: str, whose: str, value: float, seconds: float = PATIENCE_S) -> None:
        """Return once its figures say so: nobody announces them, they are read anew every few seconds."""
        end = deadline(seconds)
        while (told := self.metrics().get(series, {}).get(whose)) != value:
            assert left(end) > 0, f"{series} of {whose} is {told}, not {value}, after {seconds:g} s"
            time.sleep(POLL)

    def said(self, condition: Callable[[str], bool], what: str, seconds: float = PATIENCE_S) -> None:
        """Return once its log says so."""
        self.until(lambda: condition(self.process.tail(200)), what, seconds)

    # ---- what a scheduler does ---------------------------------------------------------------------------------------

    def grant(self, pod: Json, gen: int = 1, **containers: Any) -> str:
        """Return a grant for a pod that exists; containers as `part` makes them."""
        whole = {
            "v": 1,
            "uid": pod["metadata"]["uid"],
            "node": self.cluster.node.name,
            "term": 0,
            "boundAt": time.time_ns() // 1000,
            "gen": gen,
            "containers": containers,
        }
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    def part(self, *shares: Json, kind: str | None = None) -> Json:
        """Return a container's part of a grant."""
        chosen = kind or ("fixed" if shares[0]["cores"] else "burst")
        return {"class": chosen, "mode": "shim", "priority": 1, "shares": list(shares)}

    def share(self, card: int, memory: int, cores: int = 0) -> Json:
        """Return a share of a card, by index; memory in bytes, cores in permille (0: none asked)."""
        return {
            "backend": "nvidia",
            "uuid": self.uuids[card],
            "memory": memory,
            "cores": cores,
            "ceiling": cores or 1000,
            "weight": cores or 100,
        }

    def bound(self, namespace: Namespace, made: Json, **containers: Json) -> Json:
        """Create a pod and bind it with this grant; return it as created."""
        created = namespace.create(made)
        namespace.bind(created["metadata"]["name"], self.grant(created, 1, **containers))
        return created

    # ---- what stands on the node -------------------------------------------------------------------------------------

    def hand_overs(self) -> dict[str, Path]:
        """Return the hand-overs there are, by name."""
        return {path.name: path for path in self.root.glob("*") if path.is_dir() and len(path.name) == 32}

    def allocated(self) -> set[str]:
        """Return the hand-overs that kubelet has written down as its containers': it has got our answer for them."""
        try:
            entries = CheckpointFile(DEVICE_PLUGINS, RESOURCE).read().entries
        except CheckpointError:
            return set()
        return {entry.name for entry in entries if entry.name is not None}

    def handed_over(self, memory: int) -> Path:
        """Return the open hand-over with this limit, in bytes, once there is just one: those of before go meanwhile."""

        def found() -> list[Path]:
            return [path for path in self.hand_overs().values() if self.memory(path) == memory]

        self.until(lambda: len(found()) == 1, f"one hand-over of {memory} bytes")
        return found()[0]

    @staticmethod
    def memory(path: Path) -> int:
        """Return the limit in a hand-over, in bytes; 0 where it is closed."""
        policy = read_policy(path / "policy")
        return policy.devices[0].memory if policy.is_open else 0

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
        """Return once `condition()` holds of its hand-overs, CDI specs, log or kubelet's word: as those change."""
        end = deadline(seconds)
        with Changes((self.root, self.cluster.node.cdi, self.process.log, DEVICE_PLUGINS)) as changes:
            while not condition():
                assert left(end) > 0, f"not within {seconds:g} s: {what}\n{self.process.tail(60)}"
                changes.wait(left(end))


def limits(memory_mib: int, cores: int, count: int = 1) -> Mapping[str, str]:
    """Return a container's limits as HAMi's users write them."""
    return {RESOURCE: str(count), "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": str(cores)}


def total_of(lines: str) -> tuple[int, str]:
    """Return what the driver told a greedy program of its card: how much memory it has, and which one it is."""
    found = re.search(r"free \d+ total (\d+) of (GPU-\S+)", lines)
    assert found, lines
    return int(found[1]), found[2]
