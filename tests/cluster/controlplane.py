"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager on free ports of the loopback interface.

Called by the fixtures; any number may run side by side. What can go wrong: a port is taken by somebody else between
choosing and binding it, then all is started once more on others; a component ends, then ComponentFailedError has its
log.
"""

from __future__ import annotations

import fcntl
import random
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.cluster.api import Api
from tests.cluster.pki import Authority
from tests.cluster.process import ComponentFailedError, Process
from tests.cluster.state import clusters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.cluster.binaries import Binaries

SERVICES = "10.96.0.0/16"  # service addresses; nothing routes them here
READY = 120.0  # seconds; 4 on an idle machine
PORTS = range(20000, 30000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses now, below those that the kernel gives to outgoing connections.

    Sessions count on from each other: whoever gets a port binds it later, and until then another must not get it too.
    """
    with (clusters() / ".port").open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        port = int(counter.read() or random.choice(PORTS))
        while True:
            port = PORTS.start + (port + 1 - PORTS.start) % len(PORTS)
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                counter.truncate(0)
                counter.write(str(port))
                return port


@dataclass(frozen=True)
class Options:
    """What a test may want otherwise; flags are appended to the component's own, where the last one wins."""

    scheduler: bool = True
    controller_manager: bool = True
    apiserver_flags: Sequence[str] = ()
    controller_manager_flags: Sequence[str] = ()
    scheduler_flags: Sequence[str] = ()


@dataclass
class ControlPlane:
    """One running control plane; `admin` may do everything."""

    directory: Path
    binaries: Binaries
    options: Options = field(default_factory=Options)
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authority = Authority(self.directory / "pki")
        self.server = ""

    def start(self) -> ControlPlane:
        """Start all of it and return when the API server is ready."""
        self._issue()
        for attempt in range(3):
            try:
                self._start_storage()
                break
            except ComponentFailedError as error:
                for process in self.processes.values():
                    process.kill()
                shutil.rmtree(self.directory / "etcd", ignore_errors=True)
                if attempt == 2 or "address already in use" not in str(error):
                    raise
        self.admin_kubeconfig = self.kubeconfig("admin")
        if self.options.controller_manager:
            self._start_controllers()
        if self.options.scheduler:
            kubeconfig = self.kubeconfig("scheduler")
            flags = ["--leader-elect=false", "--secure-port=0", *self.options.scheduler_flags]
            self.run("kube-scheduler", f"--kubeconfig={kubeconfig}", *flags)
        return self

    def close(self) -> None:
        """Close the connections of the administrator's client; the processes are the keeper's to end."""
        if self.server:
            self.admin.close()

    def run(self, program: str, *flags: str) -> Process:
        """Start one of Kubernetes' or etcd's programs under its own name."""
        log = self.directory / "logs" / f"{program}.log"
        process = Process(program, [self.binaries[program], *flags], log, self.directory)
        self.processes[program] = process
        return process.start()

    def kubeconfig(self, name: str) -> Path:
        """Write NAME.kubeconfig for a pair that the authority has issued, and return its path."""
        return self.authority.kubeconfig(name, self.server, self.directory / f"{name}.kubeconfig")

    def client(self, name: str) -> Api:
        """Return the API as the owner of a pair sees it."""
        pki = self.authority.directory
        return Api(self.server, self.authority.certificate, (pki / f"{name}.crt", pki / f"{name}.key"))

    def _issue(self) -> None:
        own = ("127.0.0.1", "10.96.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self.authority.establish()
        self.authority.key_pair("service-accounts")
        self.authority.issue("apiserver", "kube-apiserver", names=own)
        self.authority.issue("admin", "admin", "system:masters")
        self.authority.issue("scheduler", "system:kube-scheduler")
        self.authority.issue("controller-manager", "system:kube-controller-manager")

    def _start_storage(self) -> None:
        client, peer, api = free_port(), free_port(), free_port()
        peers = f"http://127.0.0.1:{peer}"
        etcd = self.run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.server = f"https://127.0.0.1:{api}"
        pki = self.authority.directory
        apiserver = self.run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--secure-port={api}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # 1.37 refuses to publish a loopback address
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-client-certificate={pki / 'admin.crt'}",
            f"--kubelet-client-key={pki / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",  # logs and exec without DNS
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            "--profiling=false",
            *self.options.apiserver_flags,
        )
        self.admin = self.client("admin")
        apiserver.until(lambda: self._ready(etcd), seconds=READY, what="ready")

    def _ready(self, etcd: Process) -> bool:
        if not etcd.alive():
            raise ComponentFailedError(f"etcd ended before it was ready:\n{etcd.tail()}")
        return self.admin.ready()

    def _start_controllers(self) -> None:
        kubeconfig = self.kubeconfig("controller-manager")
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.authority.directory / 'service-accounts.key'}",
            f"--root-ca-file={self.authority.certificate}",
            "--concurrent-namespace-syncs=20",
            *self.options.controller_manager_flags,
        )
