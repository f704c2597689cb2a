#!/usr/bin/env python3
"""What the node agent costs: how soon it registers, how long a container waits for it, what it takes while idle.

The agent is the program as shipped, with eight simulated cards of a hundred seats each; a hundred containers are handed
over, then as many again one by one in the place of others. One row a figure: what was measured, the bound of the
design, the verdict. `--check` ends with 1 where a bound is missed; `--idle` is how many seconds are idled through,
twice: with containers alone, and with a program in each that holds memory and does nothing (API writes are counted
meanwhile, and told per ten minutes). Figures of a machine that does other work too are no worse than they look here.
What it does not show: a real kubelet's and a real driver's own time.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "python"), str(TOP / "plugin")]

from node_world import HOLDER, NODE, ApiServer, pod_object  # noqa: E402 -- found beside this file

from partage.model import ShareClass  # noqa: E402
from partage.model.grant import ContainerGrant, Grant, GrantShare, encode_grant  # noqa: E402
from partage.shm import read_ledger, read_policy  # noqa: E402
from partage.sim.machine import Machine  # noqa: E402
from partage.sim.state import read_state  # noqa: E402
from tests.plugin.kubelet import RESOURCE, Kubelet  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SEATS = 100
CONTAINERS = 100
GI = 1 << 30
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 60.0
QUIET_S = 3.0
SETTLED_S = 20.0  # after it the agent looks at a program that does nothing as seldom as it ever does


@dataclass(frozen=True)
class Row:
    """A figure. `bound`: the most that the design allows, in the same unit; None: shown, not bounded."""

    title: str
    value: float
    unit: str
    bound: float | None

    @property
    def verdict(self) -> str:
        """Whether the bound is kept."""
        return "" if self.bound is None else "ok" if self.value <= self.bound else "missed"


@dataclass(frozen=True)
class Waited:
    """What a container's start took: seconds that kubelet waited, and that the agent computed meanwhile."""

    seconds: float
    computed: float


class Scene:
    """The agent and what is around it."""

    def __init__(self, top: Path, memory: Path, build: Path, port: int) -> None:
        self.top = top
        self.memory = memory
        self.build = build
        self.port = port
        self.api = ApiServer()
        self.kubelet = Kubelet(top / "plugins", top / "kubelet/pod-resources/kubelet.sock")
        self.sim = top / "sim"
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{TOP / 'python'}:{TOP / 'plugin'}",
            "PARTAGE_SIM_DIR": str(self.sim),
            "PARTAGE_SIM_LIBRARIES": str(build / "sim"),
            "PARTAGE_LIBRARY": str(build / "lib/libvgpu.so"),
        }
        self.uuids: list[str] = []
        self.agent: asyncio.subprocess.Process | None = None
        self.holders: list[asyncio.subprocess.Process] = []

    async def prepare(self) -> None:
        """Make the machine, start kubelet and the API server."""
        self.sim.mkdir()
        (self.top / "locks").mkdir()
        for room in ("python/partage", "plugin/partage_plugin"):
            compileall.compile_dir(TOP / room, quiet=1)  # as what is installed is; our environment may not do it
        for arguments in (("create", "8xH100"), ("tree", str(self.top / "tree"))):
            command = [sys.executable, "-m", "partage", "sim", *arguments]
            made = await asyncio.create_subprocess_exec(*command, env=self.environment, stdout=subprocess.DEVNULL)
            if await made.wait():
                raise SystemExit(f"node: {' '.join(command)} failed")
        with Machine(self.sim / "machine") as machine:
            self.uuids = [device.uuid for device in read_state(machine).devices]
        self.kubeconfig = await self.api.start(self.top)
        await self.kubelet.start()

    async def start(self) -> float:
        """Start the agent; return the seconds until it has asked to be registered."""
        places = {"kubelet": "kubelet", "plugins": "plugins", "library": "lib", "locks": "locks"}
        flags = [f"--places-{name}={self.top / path}" for name, path in places.items()]
        flags += [f"--places-root={self.memory / 'run'}", f"--places-cdi={self.memory / 'cdi'}"]
        flags += [f"--node={NODE}", f"--kubeconfig={self.kubeconfig}", "--driver=simulated", f"--nvidia-seats={SEATS}"]
        flags += [f"--metrics-port={self.port}", "--metrics-address=127.0.0.1", "--log-level=warning"]
        begin = time.monotonic()
        log = (self.top / "agent.log").open("ab")
        self.agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "partage_plugin.main", *flags, env=self.environment, stderr=log
        )
        await until(lambda: bool(self.kubelet.requests), "registered", self.log)
        took = time.monotonic() - begin
        await self.kubelet.registered()
        return took

    def log(self) -> str:
        """Return the end of the agent's log."""
        path = self.top / "agent.log"
        return path.read_text()[-2000:] if path.exists() else ""

    async def stop(self) -> None:
        """End everything."""
        for holder in self.holders:
            if holder.returncode is None:
                holder.kill()
            await holder.wait()
        if self.agent is not None and self.agent.returncode is None:
            self.agent.send_signal(signal.SIGTERM)
            await self.agent.wait()
        await self.kubelet.stop()
        await self.api.stop()

    # ---- containers ------------------------------------------------------------------------------------------------

    def pod(self, uid: str, number: int) -> None:
        """Let a granted pod appear."""
        share = GrantShare(
            backend="nvidia",
            uuid=self.uuids[number % len(self.uuids)],
            memory=GI,
            cores=30,
            ceiling=30,
            weight=30,
        )
        part = ContainerGrant(share_class=ShareClass.FIXED, priority=1, mode="shim", shares=(share,))
        grant = Grant(v=1, uid=uid, node=NODE, term=0, bound_at=number + 1, gen=1, containers={"app": part})
        self.api.put(pod_object(uid, encode_grant(grant), RESOURCE))

    async def container(self, uid: str, number: int) -> Waited:
        """Hand a share to a new pod's container as kubelet does; return how it waited for the agent."""
        self.pod(uid, number)
        free = sorted(self.kubelet.healthy() - {seat for entry in self.kubelet.entries for seat in entry.ids})
        computed, begin = self.computed(), time.monotonic()
        entry = await self.kubelet.ask(uid, f"default/{uid}", "app", free[:1])
        allocated = time.monotonic()
        self.kubelet.write_checkpoint()
        written = time.monotonic()
        await self.kubelet.pre_start(entry)
        took = time.monotonic() - written + allocated - begin
        computed = self.computed() - computed
        policy = read_policy(self.memory / "run" / entry.name / "policy")
        if not policy.is_open or policy.devices[0].uuid != self.uuids[number % len(self.uuids)]:
            raise SystemExit(f"node: {uid} did not get its grant")
        return Waited(took, computed)

    def end(self, uid: str) -> None:
        """Let a pod end."""
        self.kubelet.entries = [entry for entry in self.kubelet.entries if entry.uid != uid]
        self.kubelet.write_checkpoint()
        self.api.delete(uid)

    async def dead_process(self) -> float:
        """Kill a program that holds memory; return the seconds until its ledger has it no more."""
        name = next(entry.name for entry in self.kubelet.entries if entry.uid == "c0")
        directory, holder = self.memory / "run" / name, await self.holder(name)
        await asyncio.sleep(1)  # until it is known and all is quiet
        begin = time.monotonic()
        holder.kill()
        await until(lambda: not read_ledger(directory / "ledger").slots, "the dead process is freed", self.log, 0.001)
        took = time.monotonic() - begin
        await holder.wait()
        return took

    async def holder(self, name: str) -> asyncio.subprocess.Process:
        """Start a program that holds memory in the container of this hand-over."""
        directory = self.memory / "run" / name
        environment = {
            **self.environment,
            "LD_PRELOAD": str(self.build / "lib/libvgpu.so"),
            "LD_LIBRARY_PATH": str(self.build / "sim"),
            "PARTAGE_DIR": str(directory),
            "CUDA_VISIBLE_DEVICES": read_policy(directory / "policy").devices[0].uuid,
        }
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.holders.append(holder)
        assert holder.stdout is not None
        if await holder.stdout.readline() != b"held\n":
            raise SystemExit("node: the program that holds memory did not start")
        return holder

    async def told(self) -> None:
        """Return once nothing is written any more of the containers that came: it comes at so much a second."""
        known = -1
        while known != len(self.api.writes):
            known = len(self.api.writes)
            await asyncio.sleep(QUIET_S)

    def computed(self) -> float:
        """Return the seconds for which the agent's threads have run, to the nanosecond."""
        assert self.agent is not None
        total = 0
        for task in Path(f"/proc/{self.agent.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def usage(self) -> tuple[float, float]:
        """Return the agent's processor seconds and its resident MiB."""
        assert self.agent is not None
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def scrape(self) -> float:
        """Return the seconds that a scrape takes."""
        begin = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as answer:
            answer.read()
        return time.monotonic() - begin


async def until(holds: Callable[[], bool], what: str, log: Callable[[], str], every: float = 0.002) -> None:
    """Return once `holds()` does; SystemExit with the agent's log where it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"node: not within {PATIENCE_S:g} s: {what}\n{log()}")
        await asyncio.sleep(every)


def percentile(values: list[float], part: float) -> float:
    """Return the value that `part` of all are at most."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


async def idle_through(scene: Scene, seconds: float, what: str) -> list[Row]:
    """Return what the agent takes while nothing happens."""
    writes, (before, _) = len(scene.api.writes), scene.usage()
    await asyncio.sleep(seconds)
    after, _ = scene.usage()
    return [
        Row(f"idle, {what}", (after - before) / seconds * 100, "% of a core", 1),
        Row("API writes in ten idle minutes", (len(scene.api.writes) - writes) * 600 / seconds, "", 2),
    ]


async def measure(scene: Scene, idle: float, churn: int, crowd: int) -> list[Row]:
    """Return all rows."""
    await scene.prepare()
    rows = [Row("registered after start", await scene.start() * 1e3, "ms", 1000)]
    rows.append(Row("processor time until registered", scene.usage()[0] * 1e3, "ms", None))
    for number in range(CONTAINERS):
        await scene.container(f"c{number}", number)
    times, (before, _) = [], scene.usage()
    for number in range(churn):
        scene.end(f"c{number + 1}" if number < CONTAINERS - 1 else f"d{number - CONTAINERS + 1}")
        times.append(await scene.container(f"d{number}", number + 1))
    for title, values, bound in (
        ("Allocate + PreStartContainer", [waited.seconds for waited in times], 20),
        ("processor time meanwhile", [waited.computed for waited in times], None),
    ):
        rows.append(Row(f"{title}, P99", percentile(values, 0.99) * 1e3, "ms", bound))
        rows.append(Row(f"{title}, median", statistics.median(values) * 1e3, "ms", None))
    rows.append(Row("processor time of one such, all told", (scene.usage()[0] - before) / churn * 1e3, "ms", None))
    rows.append(Row("dead process freed", await scene.dead_process() * 1e3, "ms", 100))
    registered = len(scene.kubelet.requests)
    await scene.kubelet.stop()
    begin = time.monotonic()
    await scene.kubelet.start()
    await until(lambda: len(scene.kubelet.requests) > registered, "registered again", scene.log)
    rows.append(Row("registered again after kubelet.sock is new", (time.monotonic() - begin) * 1e3, "ms", 200))
    await scene.kubelet.registered()
    await scene.told()
    rows += await idle_through(scene, idle, "100 containers")
    with_process = [await scene.holder(entry.name) for entry in scene.kubelet.entries[:crowd]]
    await asyncio.sleep(SETTLED_S)
    rows += await idle_through(scene, idle, f"{len(with_process)} of them with a process")
    scrapes = [await asyncio.to_thread(scene.scrape) for _ in range(12)][2:]
    rows.append(Row("scrape of 100 containers, P90", percentile(scrapes, 0.9) * 1e3, "ms", 50))
    rows.append(Row("resident after all this", scene.usage()[1], "MiB", 80))
    return rows


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(arguments: argparse.Namespace, top: Path, memory: Path) -> list[Row]:
    """Measure, and end everything whatever happens."""
    scene = Scene(top, memory, arguments.build.resolve(), free_port())
    try:
        return await measure(scene, arguments.idle, *((20, 10) if arguments.smoke else (200, CONTAINERS)))
    finally:
        await scene.stop()


def main() -> int:
    """Print the table; 1 where --check finds a bound missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=TOP / "build")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--smoke", action="store_true", help="few rounds, 10 s of idling; nothing is judged by them")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound is missed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.idle = 10.0
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 -- as /run is on a node
    with (
        tempfile.TemporaryDirectory(prefix="partage-node.") as top,
        tempfile.TemporaryDirectory(prefix="partage-node.", dir=in_memory) as memory,
    ):
        rows = asyncio.run(run(arguments, Path(top), Path(memory)))
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:g}"
        print(f"{row.title:45} {row.value:10.2f} {row.unit:12} {bound:>6}  {row.verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    judged = [row for row in rows if row.verdict]
    missed = [row for row in judged if row.verdict == "missed"]
    print(f"node: {len(rows)} rows, {len(judged) - len(missed)} within their bounds, {len(missed)} missed")
    return 1 if missed and arguments.check and not arguments.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
