"""The machine's one node: containerd and kubelet, their restart, their pause, and a reboot of the node.

Called by the fixtures with the kubelet lock held. Everything lies below the cluster's directory but kubelet's
device-plugin directory, which is fixed. What can go wrong: the node does not get Ready; ComponentFailedError then has
the end of the log of the program at fault.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster import images, network
from tests.cluster.api import Json, NotReachedError
from tests.cluster.cleanup import (
    AGAIN,
    DEVICE_PLUGINS,
    HostRecord,
    end_processes,
    members,
    mounts_below,
    remove_cgroups,
    remove_links,
    settle,
    unmount,
)
from tests.cluster.containerd import Containerd
from tests.cluster.controlplane import ControlPlane, free_port
from tests.cluster.process import ComponentFailedError, Process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.cluster.binaries import Binaries

READY = 120.0  # seconds; 5 on an idle machine


def make_cgroup(name: str) -> None:
    """Make the node's cgroup in every hierarchy; kubelet wants to find it, with processors where they are counted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        top = Path(point)
        if kind not in ("cgroup", "cgroup2"):
            continue
        if kind == "cgroup2":
            for controller in (top / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (top / "cgroup.subtree_control").write_text(f"+{controller}")
        (top / name).mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            if kind == "cgroup" and (top / key).exists():
                (top / name / key).write_text((top / key).read_text())


def condition(item: Json, kind: str) -> str:
    """Return the status of a condition of an object: True, False, Unknown, or empty where it has none."""
    found = [c["status"] for c in item.get("status", {}).get("conditions", []) if c["type"] == kind]
    return str(found[0]) if found else ""


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another of the same name, or None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


@dataclass
class Node:
    """A node of one control plane on this machine."""

    directory: Path
    control: ControlPlane
    binaries: Binaries
    name: str = "node-1"
    kubelet_settings: Mapping[str, Any] = field(default_factory=dict)
    #: programs of tests that belong on the node, such as an agent; see `run`
    others: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = HostRecord.take(self.directory)
        network.write(
            self.directory / "network",
            name=self.record.network,
            bridge=self.record.bridge,
            leases=self.volatile / "leases",
        )
        self.containerd = Containerd(self.directory, self.binaries)
        self.kubelet = self._kubelet()

    @property
    def volatile(self) -> Path:
        """What /run is to a machine: the place for an agent's files, which a reboot wipes."""
        return self.directory / "run"

    @property
    def root(self) -> Path:
        """Kubelet's root directory; its pod-resources socket lies in it."""
        return self.directory / "kubelet"

    @property
    def cdi(self) -> Path:
        """The directory whose CDI specs containerd reads."""
        return self.containerd.cdi

    @property
    def manifests(self) -> Path:
        """The directory from which kubelet has static pods."""
        return self.directory / "manifests"

    @property
    def pod_resources(self) -> Path:
        """Kubelet's PodResources socket."""
        return self.root / "pod-resources" / "kubelet.sock"

    def start(self) -> Node:
        """Start containerd and kubelet and return when the node is Ready."""
        make_cgroup(self.record.cgroup)
        self.root.mkdir(exist_ok=True)
        self.manifests.mkdir(exist_ok=True)
        self.containerd.start()
        self.containerd.image(images.PAUSE)
        self.kubelet.start()
        self.ready()
        return self

    def ready(self) -> Json:
        """Return the Node once it is Ready."""
        try:
            return self.control.admin.wait(
                "nodes", self.name, lambda node: condition(node, "Ready") == "True", what="Ready", seconds=READY
            )
        except NotReachedError as error:
            raise ComponentFailedError(
                f"{error}\n--- kubelet:\n{self.kubelet.tail()}\n--- containerd:\n{self.containerd.process.tail()}"
            ) from error

    def _kubelet(self) -> Process:
        control, pki = self.control, self.control.authority.directory
        control.authority.issue("kubelet", f"system:node:{self.name}", "system:nodes", ("127.0.0.1", self.name))
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(control.authority.certificate)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
            "port": free_port(),
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.record.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "staticPodPath": str(self.manifests),
            "podLogsDir": str(self.directory / "pod-logs"),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "maxPods": 240,
            "nodeStatusUpdateFrequency": "1s",  # a device that fails is seen by tests that soon
            "eventRecordQPS": 0,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            **self.kubelet_settings,
        }
        configuration = self.directory / "kubelet.json"
        configuration.write_text(json.dumps(settings, indent=1))
        flags = [
            f"--config={configuration}",
            f"--kubeconfig={control.kubeconfig('kubelet')}",
            f"--hostname-override={self.name}",
            f"--root-dir={self.root}",
            "--v=2",
        ]
        return Process(
            "kubelet", [self.binaries["kubelet"], *flags], self.directory / "logs" / "kubelet.log", self.directory
        )

    # ---- programs of tests -----------------------------------------------------------------------------------------

    def run(self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start a host program on the node; a failing test shows its log, it ends with the node and at a reboot."""
        process = Process(name, argv, self.directory / "logs" / f"{name}.log", self.directory, environment or {})
        self.others[name] = process
        return process.start()

    # ---- faults ----------------------------------------------------------------------------------------------------

    def restart_kubelet(self, number: int = signal.SIGTERM) -> None:
        """End kubelet by a signal, start it anew, return once its plugin socket is there again; containers go on."""
        self.kubelet.kill(number)
        self._start_kubelet()

    def _start_kubelet(self) -> None:
        """Start kubelet; it removes whatever socket is left there before it makes its own."""
        before = identity(DEVICE_PLUGINS / "kubelet.sock")
        self.kubelet.start()
        self.kubelet.until(
            lambda: identity(DEVICE_PLUGINS / "kubelet.sock") not in (before, None),
            seconds=READY,
            what="serving its plugin socket",
            watch=[DEVICE_PLUGINS],
        )

    def restart_containerd(self, number: int = signal.SIGTERM) -> None:
        """End containerd by a signal and start it anew; containers go on under their shims."""
        self.containerd.process.kill(number)
        self.containerd.start()

    def power_off(self) -> None:
        """End every process of the node and its containers at once and lose what lies under /run, but not the disk."""
        for process in (self.kubelet, self.containerd.process, *self.others.values()):
            process.kill(signal.SIGKILL)
        settle(self._end_shims_and_containers)
        for mount in mounts_below(self.directory):
            unmount(mount)
        settle(lambda: remove_cgroups(self.record.cgroup), AGAIN)
        remove_links(self.record.bridge)
        shutil.rmtree(self.volatile, ignore_errors=True)
        for entry in DEVICE_PLUGINS.glob("*"):
            if entry.is_socket():
                entry.unlink()
        self.volatile.mkdir()

    def _end_shims_and_containers(self) -> bool:
        """Kill shims and containers, and leave the control plane alone; true once none is there."""
        return end_processes(self.directory, self.record, spare=self._control_ids())

    def _control_ids(self) -> set[int]:
        return {process.pid for process in self.control.processes.values() if process.running}

    def power_on(self) -> None:
        """Start containerd and kubelet on what a power-off left on the disk. Programs of tests are theirs to start."""
        make_cgroup(self.record.cgroup)
        self.containerd.start()
        self._start_kubelet()

    def processes(self) -> list[Process]:
        """Return every process of the node, for whoever shows their logs."""
        return [self.kubelet, self.containerd.process, *self.others.values()]

    def container_pids(self) -> set[int]:
        """Return the host's process ids of everything that runs in this node's containers."""
        return members(self.record.cgroup)
