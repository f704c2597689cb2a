#!/usr/bin/env python3
"""What a placed pod costs the scheduler: `bench/scheduler.py [--smoke] [--check] [--json]`.

A real etcd, kube-apiserver and kube-scheduler, `partage scheduler` as shipped beside it, nodes that are objects: 1,250
of 8 cards (`--smoke`: 300). Measured in one run:

- the time of `filter` and `prioritize` in the handler, and how many nodes a filter returned, for pods that
  are all alike and for pods of a hundred sizes;
- pods created -> bound per second, beside the same kube-scheduler with an extender that does nothing but bind, in turns
  on the same cluster (ABBA), as a ratio: other work on the machine meets both alike;
- processor time that a placed pod costs: ours, the other extender's, kube-scheduler's and the rest's;
- writes and reads of the API server a placed pod costs, counted by the API server's own audit;
- the first answer after a cold start; whether the last free card is found by the first attempt;
- ready again after a restart with 10,000 pods (500), and the memory then.

One line sums it up. `--check` fails where a bound of the design is missed; with `--smoke` times do not count, for they
are the machine's and of whatever else it does, which is why its load is printed beside them, and the ratio's bound is
wide.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "python"), str(TOP / "plugin")]

from partage.model import names  # noqa: E402
from tests.cluster.binaries import Binaries, UnavailableError, obtain  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.controlplane import Options, free_port  # noqa: E402
from tests.cluster.many import send_all  # noqa: E402
from tests.cluster.process import Process  # noqa: E402
from tests.cluster.scheduling import APISERVER, Replica, Site, share_pod  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

CARDS = 8
PATIENCE_S = 600.0
MIB = 1 << 20
TIMES = ("s", "ms")
SIZES = 100  # of memory, in the burst of many


@dataclass(frozen=True)
class Size:
    """How large: nodes, pods of one measurement of the rate, pods at the restart."""

    nodes: int
    burst: int
    standing: int
    rounds: int
    least_ratio: float


FULL = Size(1250, 1000, 10_000, 2, 0.8)
SMOKE = Size(300, 250, 500, 2, 0.5)  # some seconds each: other work does not meet both alike


@dataclass(frozen=True)
class Row:
    """A figure. `least` and `most`: what the design allows, in the same unit; None: shown, not bounded."""

    title: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the bounds are kept."""
        if self.least is None and self.most is None:
            return ""
        kept = (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)
        return "ok" if kept else "missed"


class Bench:
    """The cluster and both schedulers."""

    def __init__(self, site: Site, size: Size, audit: Path) -> None:
        self.site = site
        self.size = size
        self.audit = audit
        self.rows: list[Row] = []
        self._number = 0
        self._begin = time.monotonic()

    def run(self) -> list[Row]:
        """Measure everything."""
        self._note(f"{self.size.nodes} nodes are made")
        self.site.nodes(self.size.nodes, cards=CARDS)
        ours = self.site.replica("ours", settings=["--books-audit-seconds=0"], election=False)
        self._cold_start(ours)
        idle = Idle(self.site)
        rates: dict[str, list[float]] = {"ours": [], "idle": []}
        used: dict[str, dict[str, float]] = {"ours": {}, "idle": {}}
        before = ours.figures()
        for turn in range(self.size.rounds):
            for name in ("ours", "idle") if turn % 2 == 0 else ("idle", "ours"):
                with self._only(ours, idle, name):
                    self._burst(self.size.burst // 5)  # what a scheduler learns once is learned
                    with self._using(used[name], ours if name == "ours" else idle):
                        rates[name].append(self._rate(name))
                self._note(f"{rates[name][-1]:.0f} pods/s with {name}")
        self._rates(rates)
        self._used(used)
        idle.stop()
        ours.kube.restart()
        self._handlers(ours, before, "")
        before = ours.figures()
        self._note("pods of many sizes")
        self._burst(self.size.burst, sizes=SIZES)
        self._handlers(ours, before, " of many sizes")
        self._last_card(ours)
        self._restart(ours)
        return self.rows

    def _note(self, what: str) -> None:
        """Say how far it is."""
        print(f"[{time.monotonic() - self._begin:4.0f} s] {what}", file=sys.stderr, flush=True)

    @contextmanager
    def _only(self, ours: Replica, idle: Idle, name: str) -> Iterator[None]:
        """Let one kube-scheduler run: both have the same name, and pods would go to whichever takes them first."""
        (ours.kube if name == "idle" else idle.kube).kill()
        chosen = ours.kube if name == "ours" else idle.kube
        if not chosen.alive():
            chosen.start()
        yield

    def _cold_start(self, ours: Replica) -> None:
        """From the start of both programs to the first pod that is bound, and to the first that we are ready."""
        begin = time.monotonic()
        ours.start()
        ours.ours.until(ours.ready, seconds=PATIENCE_S, what="ready")
        self.rows.append(Row("ready after a cold start", time.monotonic() - begin, "s", most=5.0))
        self._burst(1)
        self.rows.append(Row("first pod bound after a cold start", time.monotonic() - begin, "s"))

    def _burst(self, count: int, sizes: int = 1) -> float:
        """Create pods, wait until they are bound, delete them; return the seconds between the first two."""
        self._number += 1
        prefix = f"b{self._number}"
        memory = [8000 + 500 * (number * 37 % sizes) for number in range(count)]
        made = [share_pod(f"{prefix}-{number:05}", memory=each) for number, each in enumerate(memory)]
        begin = time.monotonic()
        self.site.many("POST", ["/api/v1/namespaces/default/pods"] * count, made)
        self._wait(prefix, count)
        took = time.monotonic() - begin
        self.site.delete([pod["metadata"]["name"] for pod in made])
        return took

    @contextmanager
    def _using(self, used: dict[str, float], who: Replica | Idle) -> Iterator[None]:
        """Add up the processor time that each part needs meanwhile."""
        extender = who.ours if isinstance(who, Replica) else who.extender
        parts = {"the extender": extender, "kube-scheduler": who.kube}
        parts |= {part: self.site.cluster.control.processes[part] for part in ("kube-apiserver", "etcd")}
        before = {part: processor_s(process.pid) for part, process in parts.items()}
        yield
        for part, process in parts.items():
            used[part] = used.get(part, 0.0) + processor_s(process.pid) - before[part]

    def _used(self, used: dict[str, dict[str, float]]) -> None:
        pods = self.size.burst * self.size.rounds
        titles = {"ours": "with ours", "idle": "with one that only binds"}
        for name, title in titles.items():
            for part, seconds in used[name].items():
                self.rows.append(Row(f"processor time a pod {title}: {part}", seconds / pods * 1000, "ms"))

    def _wait(self, prefix: str, count: int) -> None:
        """Wait by watch until so many pods of a prefix are bound."""
        bound: set[str] = set()
        for event in self.site.cluster.api.watch("pods", "default", seconds=PATIENCE_S):
            pod = event["object"]
            if pod["metadata"]["name"].startswith(f"{prefix}-") and pod["spec"].get("nodeName"):
                bound.add(pod["metadata"]["name"])
            if len(bound) >= count:
                return
        raise SystemExit(f"scheduler: {len(bound)} of {count} pods bound in time\n{self.site.cluster.logs()}")

    def _rate(self, name: str) -> float:
        """Return pods a second from the first created to the last bound; count what ours asks of the API server."""
        at = self.audit.stat().st_size
        rate = self.size.burst / self._burst(self.size.burst)
        if name == "ours":
            self._requests(at)
        return rate

    def _requests(self, offset: int) -> None:
        """Count the requests that our process made since then, a pod."""
        found: Counter[str] = Counter()
        with self.audit.open() as file:
            file.seek(offset)
            for line in file:
                event = json.loads(line)
                if event["userAgent"].startswith(("Python", "python", "aiohttp", "lightkube")):
                    what = event.get("objectRef", {})
                    kind = "events" if what.get("resource") == "events" else event["verb"]
                    found[kind] += 1
        pods = self.size.burst
        reads = found["get"] + found["list"]
        writes = sum(found[verb] for verb in ("create", "update", "patch", "delete"))
        self.rows.append(Row("API writes a pod, without events", writes / pods, "", most=2.0))
        self.rows.append(Row("API reads a pod", reads / pods, "", most=0.01))
        self.rows.append(Row("events a pod", found["events"] / pods, ""))

    def _rates(self, rates: dict[str, list[float]]) -> None:
        means = {name: sum(found) / len(found) for name, found in rates.items()}
        self.rows.append(Row("pods bound with ours", means["ours"], "1/s"))
        self.rows.append(Row("pods bound with an extender that only binds", means["idle"], "1/s"))
        self.rows.append(Row("ratio of the two", means["ours"] / means["idle"], "", least=self.size.least_ratio))

    def _handlers(self, ours: Replica, before: dict[str, float], which: str) -> None:
        """Read the handlers' times off our own page: the bound of the bucket in which the quantile lies."""
        after = ours.figures()
        for verb in ("filter", "prioritize"):
            form = re.compile(rf'partage_scheduler_request_seconds_bucket{{verb="{verb}",le="([^"]+)"}}')
            matches = ((form.fullmatch(name), value) for name, value in after.items())
            buckets = sorted(
                (float(match[1]), value - before.get(match[0], 0.0)) for match, value in matches if match is not None
            )
            total = buckets[-1][1]
            for part, most in ((0.5, 1.0), (0.99, 5.0)):
                bound = next(le for le, value in buckets if value >= part * total)
                title = f"{verb}{which}, P{part * 100:g}, at most"
                self.rows.append(Row(title, bound * 1000, "ms", most=most))
                within = next(value for le, value in buckets if le * 1000 >= most) / total
                self.rows.append(Row(f"{verb}{which}, within {most:g} ms", within * 100, "%"))
            spent = f'partage_scheduler_request_seconds_sum{{verb="{verb}"}}'
            mean = (after[spent] - before.get(spent, 0.0)) / total
            self.rows.append(Row(f"{verb}{which}, mean", mean * 1000, "ms"))
        keys = "partage_scheduler_filtered_nodes_total", 'partage_scheduler_request_seconds_count{verb="filter"}'
        returned, filters = (after[key] - before.get(key, 0.0) for key in keys)
        self.rows.append(Row(f"nodes that a filter{which} returned, on average", returned / filters, ""))

    def _last_card(self, ours: Replica) -> None:
        """Fill all cards but one, then ask for it: how many attempts it takes."""
        self._note("all cards but one are filled")
        self._fill("w", self.size.nodes - 1, cards=CARDS)
        self._fill("v", CARDS - 1, cards=1)
        key = 'partage_scheduler_request_seconds_count{verb="filter"}'
        before = ours.figures()[key]
        self.site.pods("last", 1, memory=80_000, cores=100)
        self._wait("last", 1)
        self.rows.append(Row("attempts for the last free card", ours.figures()[key] - before, "", most=1))
        self._clear()

    def _fill(self, prefix: str, count: int, cards: int) -> None:
        self.site.pods(prefix, count, memory=80_000, cores=100, cards=cards)
        self._wait(prefix, count)

    def _clear(self) -> None:
        self.site.delete([pod["metadata"]["name"] for pod in self.site.cluster.api.list("pods", "default")])

    def _restart(self, ours: Replica) -> None:
        """Restart beside many pods that are there already, written by the account that may write grants."""
        ours.kill()
        self._note(f"{self.size.standing} pods are made and bound")
        self._stand(self.size.standing)
        begin = time.monotonic()
        ours.ours.start()
        ours.ours.until(ours.ready, seconds=PATIENCE_S, what="ready")
        self.rows.append(Row(f"ready again with {self.size.standing:,} pods", time.monotonic() - begin, "s", most=5.0))
        memory = resident(ours.ours.pid)
        self.rows.append(Row("resident memory then", memory, "MiB", most=300.0))
        promised = sum(
            value
            for name, value in ours.figures().items()
            if name.startswith("partage_scheduler_device_memory_promised_bytes")
        )
        expected = self.size.standing * 8000 * MIB
        self.rows.append(Row("books that differ from the pods", abs(promised - expected) / MIB, "MiB", most=0))

    def _stand(self, count: int) -> None:
        """Bind pods by hand, ten to a card at most, as an earlier leader would have."""
        api = self.site.cluster.as_account(names.ACCOUNT_SCHEDULER)
        made = [share_pod(f"s-{number:05}") for number in range(count)]
        self.site.many("POST", ["/api/v1/namespaces/default/pods"] * count, made)
        uids = {
            pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.site.cluster.api.list("pods", "default")
        }
        paths, bodies = [], []
        for number in range(count):
            name, node = f"s-{number:05}", f"n{number // CARDS % self.size.nodes:04}"
            card = f"GPU-{node}-{number % CARDS}"
            share = {
                "backend": "nvidia",
                "uuid": card,
                "memory": 8000 * MIB,
                "cores": 100,
                "ceiling": 100,
                "weight": 100,
            }
            part = {"class": "fixed", "priority": 1, "mode": "shim", "shares": [share]}
            grant = {"v": 1, "uid": uids[name], "node": node, "term": 0, "boundAt": number + 1, "gen": 1}
            text = json.dumps(grant | {"containers": {"app": part}})
            paths.append(f"/api/v1/namespaces/default/pods/{name}/binding")
            metadata = {"name": name, "annotations": {names.GRANT: text}}
            bodies.append({"metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
        send_all(api, [("POST", path, body) for path, body in zip(paths, bodies, strict=True)])


class Idle:
    """A kube-scheduler beside an extender that fits everything and only binds."""

    def __init__(self, site: Site) -> None:
        port, secure = free_port(), free_port()
        self.kube: Process = site.kube_scheduler("idle", port, secure, election=False)
        argv = [sys.executable, str(TOP / "bench/idle_extender.py"), str(site.kubeconfig), str(port)]
        log = site.directory / "logs" / "idle-extender.log"
        self.extender = Process("idle-extender", argv, log, site.directory, {"PYTHONPATH": str(TOP / "python")}).start()
        site.cluster.control.processes |= {"kube-scheduler-idle": self.kube, "idle-extender": self.extender}

    def stop(self) -> None:
        """End both."""
        self.kube.kill()
        self.extender.kill()


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "users": [f"system:serviceaccount:{names.NAMESPACE}:{names.ACCOUNT_SCHEDULER}"]},
        {"level": "None"},
    ],
}


def measure(binaries: Binaries, size: Size) -> list[Row]:
    """Start the cluster, measure, end it."""
    scratch = Path(tempfile.mkdtemp(prefix="partage-bench-"))
    audit, policy = scratch / "audit.log", scratch / "policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    audit.touch()
    flags = [*APISERVER, f"--audit-policy-file={policy}", f"--audit-log-path={audit}"]
    flags += ["--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"]
    options = Options(scheduler=False, controller_manager=False, apiserver_flags=flags)
    cluster = Cluster.open(binaries, node=False, options=options)
    try:
        return Bench(Site(cluster).prepare(), size, audit).run()
    finally:
        cluster.close()
        shutil.rmtree(scratch)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))) / 1024


def summary(rows: list[Row]) -> str:
    """Return all that counts in one line."""
    found: dict[str, Any] = {row.title: row.value for row in rows}
    ours, idle = found["pods bound with ours"], found["pods bound with an extender that only binds"]
    missed = [row.title for row in rows if row.verdict == "missed"]
    parts = (
        f"{ours:.0f} pods/s beside {idle:.0f} (ratio {ours / idle:.2f})",
        f"filter P50 <= {found['filter, P50, at most']:g} ms, P99 <= {found['filter, P99, at most']:g} ms",
        f"{found['API writes a pod, without events']:.2f} writes a pod",
        f"missed: {', '.join(missed)}" if missed else "nothing missed",
    )
    return f"scheduler: {'; '.join(parts)}"


def main() -> int:
    """Measure and show."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true", help=f"{SMOKE.nodes} nodes, {SMOKE.standing} pods")
    arguments.add_argument("--check", action="store_true", help="exit 1 where a bound is missed")
    arguments.add_argument("--json", action="store_true", help="figures as JSON")
    given = arguments.parse_args()
    before = os.getloadavg()[0]
    try:
        binaries = obtain()
    except UnavailableError as error:
        print(f"scheduler: not measured: {error}", file=sys.stderr)
        return int(os.environ.get("PARTAGE_CLUSTER") == "required")
    rows = measure(binaries, SMOKE if given.smoke else FULL)
    if given.json:
        print(json.dumps({"load": before, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}))
    else:
        for row in rows:
            print(f"{row.title:64} {row.value:10.2f} {row.unit:4} {row.verdict}")
        print(f"load of the machine before: {before:.1f}")
    print(summary(rows), file=sys.stderr if given.json else sys.stdout)
    counted = [row for row in rows if not (given.smoke and row.unit in TIMES)]
    return int(given.check and any(row.verdict == "missed" for row in counted))


if __name__ == "__main__":
    sys.exit(main())
