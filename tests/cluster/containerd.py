"""containerd with everything that it keeps or makes below the cluster's directory: configuration, start, images.

Called by the node. What can go wrong: no overlay mounts on this file system (a container in a container): then files
are copied instead; runc or the shim is missing: pods say so in their events.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster import images
from tests.cluster.process import SYSTEM_PATH, Process

if TYPE_CHECKING:
    from tests.cluster.binaries import Binaries

CONFIGURATION = """version = 3
root = "{root}"
state = "{state}"
temp = "{state}/tmp"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["{cdi}"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
use_internal_loopback = true
bin_dirs = ["{cni}"]
conf_dir = "{directory}/network"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
Root = "{directory}/run/runc"
"""


def overlay_works(directory: Path) -> bool:
    """Try an overlay mount below a directory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        for name in ("lower", "upper", "work", "merged"):
            Path(place, name).mkdir()
        options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work".encode()
        merged = os.fsencode(Path(place, "merged"))
        if libc.mount(b"overlay", merged, b"overlay", 0, options):
            return False
        libc.umount2(merged, 0)
        return True


@dataclass
class Containerd:
    """containerd of one node; its images are made and imported when first asked for."""

    directory: Path
    binaries: Binaries

    def __post_init__(self) -> None:
        self.socket = self.directory / "run" / "containerd.sock"
        self.cdi = self.directory / "run" / "cdi"
        self.imported: set[str] = set()
        self.snapshotter = "overlayfs" if overlay_works(self.directory) else "native"
        shim = self.binaries.directory("containerd-shim-runc-v2")
        configuration = self.directory / "containerd.toml"
        configuration.write_text(
            CONFIGURATION.format(
                root=self.directory / "containerd",
                state=self.directory / "run" / "containerd",
                socket=self.socket,
                directory=self.directory,
                snapshotter=self.snapshotter,
                pause=images.PAUSE,
                cdi=self.cdi,
                cni=self.binaries.directory("bridge"),
            )
        )
        self.process = Process(
            "containerd",
            [self.binaries["containerd"], "--config", str(configuration)],
            self.directory / "logs" / "containerd.log",
            self.directory,
            {"PATH": f"{shim}:{SYSTEM_PATH}"},
        )

    def start(self) -> None:
        """Start it and return when it answers; ComponentFailedError where it does not in time."""
        self.cdi.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)  # one that was killed leaves it
        self.process.start()
        self.process.until(self.answers, seconds=120, what="answering", watch=[self.socket])

    def answers(self) -> bool:
        """Say whether it serves; where its socket is there, that is waited for."""
        return self.socket.exists() and self.ctr("--connect-timeout=30s", "version").returncode == 0

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ctr in Kubernetes' namespace."""
        command = [self.binaries["ctr"], "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def image(self, reference: str) -> str:
        """Make and import one of the images of `images.py` where it is not here yet; return its reference."""
        if reference not in self.imported:
            with tempfile.TemporaryDirectory(dir=self.directory) as work:
                self.load(images.make(reference, Path(work)))
            self.imported.add(reference)
        return reference

    def load(self, tar: Path) -> None:
        """Import an OCI layout tar; OSError with ctr's words where that fails."""
        done = self.ctr("images", "import", "--local", "--snapshotter", self.snapshotter, str(tar))
        if done.returncode:
            raise OSError(f"{tar}: containerd does not take this image: {done.stderr.strip()}")
