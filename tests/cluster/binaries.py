"""Where the programs of a real Kubernetes come from: this machine, the cache, or a build from published Go modules.

Called by the set-up (`python -m tests.cluster prepare`) and by the fixtures. Each tool is a Go module of its own below
``go/``, whose go.mod pins the version. What is built lies in ``$XDG_CACHE_HOME/partage/cluster/TOOL-VERSION``; a lock
beside it lets one process build while others wait. ``KUBEBUILDER_ASSETS`` goes first, whatever version it holds; what
is on PATH is used where its version is the one wanted. What can go wrong: no Go, a Go too old, no network; each is an
`UnavailableError` that says what to do.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MODULES: Final = Path(__file__).parent / "go"
OLDEST_MINOR: Final = 34  # of Kubernetes 1: what helm renders for where nobody names a cluster
#: Programs that Debian's packages put where no PATH looks.
CNI_DIRECTORIES: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


class UnavailableError(Exception):
    """This machine cannot have a part of the cluster; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Tool:
    """One Go module whose programs are built together; `programs` maps a file name to its package."""

    name: str
    module: str
    programs: Mapping[str, str]
    tags: str = ""
    #: how a version on PATH must begin to be used; None: it must be the version wanted
    will_do: str | None = None

    def version(self) -> str:
        """Return the version without its `v`: PARTAGE_K8S for Kubernetes, else what go.mod pins."""
        wanted = os.environ.get("PARTAGE_K8S") if self.name == "kubernetes" else None
        return wanted.removeprefix("v") if wanted else self.pinned()

    def pinned(self) -> str:
        """Return the version that the checked-in go.mod asks for."""
        text = (MODULES / self.name / "go.mod").read_text()
        found = re.search(rf"{re.escape(self.module)} v(\S+)", text)
        assert found, f"go/{self.name}/go.mod does not require {self.module}"
        return found[1]


KUBERNETES: Final = Tool(
    "kubernetes",
    "k8s.io/kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    },
)
ETCD: Final = Tool("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "."}, will_do="3.")
CONTAINERD: Final = Tool(
    "containerd",
    "github.com/containerd/containerd/v2",
    {
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    tags="no_btrfs no_devmapper no_zfs",
)
CNI: Final = Tool(
    "cni",
    "github.com/containernetworking/plugins",
    {
        "bridge": "github.com/containernetworking/plugins/plugins/main/bridge",
        "host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
    },
)
#: What a cluster runs.
TOOLS: Final = (KUBERNETES, ETCD, CONTAINERD, CNI)
HELM: Final = Tool("helm", "helm.sh/helm/v3", {"helm": "helm.sh/helm/v3/cmd/helm"}, will_do="3.")
#: The checker of alert rules; without these tags it compiles every cloud's client.
PROMTOOL: Final = Tool(
    "promtool",
    "github.com/prometheus/prometheus",
    {"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
    tags="remove_all_sd,enable_kubernetes_sd",
    will_do="3.",
)
#: What tests of the chart run.
CHART_TOOLS: Final = (HELM, PROMTOOL)


@dataclass(frozen=True)
class Binaries:
    """Program name -> its path, and the Kubernetes version they are."""

    paths: Mapping[str, Path]
    kubernetes: str = field(default_factory=KUBERNETES.version)

    def __getitem__(self, program: str) -> str:
        return str(self.paths[program])

    def directory(self, program: str) -> Path:
        """Return the directory of a program, for a PATH or a search list."""
        return self.paths[program].parent


def cache() -> Path:
    """Return the directory of what was built, made where it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "partage" / "cluster"
    place.mkdir(parents=True, exist_ok=True)
    return place


def obtain(tools: Iterable[Tool] = TOOLS) -> Binaries:
    """Find or build the programs of these tools, by default a cluster's; UnavailableError where one cannot be had."""
    paths: dict[str, Path] = {}
    for tool in tools:
        paths |= find(tool) or build(tool)
    return Binaries(paths)


def find(tool: Tool) -> dict[str, Path] | None:
    """Return the programs of a tool that are here already, all from one place, or None."""
    place = cache() / f"{tool.name}-{tool.version()}"
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for directory in ([Path(assets)] if assets else []) + [place] + (list(CNI_DIRECTORIES) if tool is CNI else []):
        here = {name: directory / name for name in tool.programs}
        if all(os.access(path, os.X_OK) for path in here.values()):
            return here
    located = {name: shutil.which(name) for name in tool.programs}
    on_path = {name: Path(path) for name, path in located.items() if path}
    if tool is not CNI and len(on_path) == len(tool.programs) and has_version(tool, on_path):
        return on_path
    return None


def has_version(tool: Tool, found: Mapping[str, Path]) -> bool:
    """Say whether the first program of a tool prints a version that will do."""
    first = next(iter(tool.programs))
    ask = "version" if tool is HELM else "--version"
    told = subprocess.run([found[first], ask], capture_output=True, text=True, check=False).stdout
    wanted = tool.will_do or tool.version()
    return re.search(rf"\bv?{re.escape(wanted)}", told) is not None


@contextmanager
def locked(path: Path, why: str) -> Iterator[None]:
    """Hold an exclusive lock on a file, and say so where somebody else has it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"cluster: {why}: another process is at it, waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(tool: Tool) -> dict[str, Path]:
    """Build a tool into the cache, or wait for who is building it; UnavailableError where that fails."""
    version = tool.version()
    place = cache() / f"{tool.name}-{version}"
    with locked(place.with_name(place.name + ".lock"), f"building {place.name}"):
        found = find(tool)  # whoever had the lock has built it
        if found:
            return found
        go = shutil.which("go") or next((p for p in ("/usr/local/go/bin/go",) if os.access(p, os.X_OK)), None)
        if go is None:
            message = (
                f"no {', '.join(tool.programs)} {version} on this machine and no Go to build it with: install Go 1.26 "
                f"or newer (https://go.dev/dl), or point KUBEBUILDER_ASSETS at a directory with these programs"
            )
            raise UnavailableError(message)
        for stale in place.parent.glob(f"{place.name}.*/"):  # a build that was killed; nobody else builds now
            shutil.rmtree(stale, ignore_errors=True)
        print(f"cluster: building {tool.name} {version}; once, then it lies in {place}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as work:
            compile_module(go, tool, version, Path(work))
            (Path(work) / "bin").rename(place)
    return {name: place / name for name in tool.programs}


def compile_module(go: str, tool: Tool, version: str, work: Path) -> None:
    """Copy a tool's module to `work` and compile its programs into `work/bin`."""
    source = work / "source"
    shutil.copytree(MODULES / tool.name, source)
    if version != tool.pinned():
        require(go, tool, version, source)
    flags = ["-trimpath", "-ldflags", link_flags(tool, version)]
    if tool.tags:
        flags += ["-tags", tool.tags]
    (work / "bin").mkdir()
    if "." in tool.programs.values():
        run(go, "build", *flags, "-o", str(work / "bin" / next(iter(tool.programs))), ".", cwd=source)
        return
    run(go, "build", *flags, "-o", f"{work / 'bin'}/", *tool.programs.values(), cwd=source)


def require(go: str, tool: Tool, version: str, source: Path) -> None:
    """Change the module in `source` to another version than go.mod pins, staging modules of Kubernetes with it."""
    (source / "go.sum").unlink(missing_ok=True)
    (source / "go.mod").write_text(
        f"module partage.test/{tool.name}\n\ngo 1.24.0\n\nrequire {tool.module} v{version}\n"
    )
    if tool is KUBERNETES:
        own = run(go, "list", "-m", "-f", "{{.GoMod}}", f"{tool.module}@v{version}", cwd=source).strip()
        staging = re.findall(r"(k8s\.io/[a-z-]+) => \./staging", Path(own).read_text())
        replaced = [f"-replace={name}={name}@v0.{version.partition('.')[2]}" for name in staging]
        run(go, "mod", "edit", *replaced, cwd=source)
    run(go, "mod", "tidy", cwd=source)


def link_flags(tool: Tool, version: str) -> str:
    """Return the linker's flags: no symbols, and the version that the program shall name as its own."""
    flags = ["-s", "-w"]
    if tool is KUBERNETES:
        at = "k8s.io/component-base/version"
        major, minor, *_ = version.split(".")
        flags += ["-X", f"{at}.gitVersion=v{version}", "-X", f"{at}.gitMajor={major}", "-X", f"{at}.gitMinor={minor}"]
    if tool is CONTAINERD:
        flags += ["-X", f"{tool.module}/version.Version={version}"]
    if tool is HELM:  # without these it takes itself for one of Kubernetes 1.20
        flags += ["-X", f"{tool.module}/internal/version.version=v{version}"]
        for part in ("chartutil", "lint/rules"):
            at = f"{tool.module}/pkg/{part}.k8sVersion"
            flags += ["-X", f"{at}Major=1", "-X", f"{at}Minor={OLDEST_MINOR}"]
    return " ".join(flags)


def run(go: str, *arguments: str, cwd: Path) -> str:
    """Run go and return what it prints; UnavailableError with its last words where it fails."""
    environment = os.environ | {"GOFLAGS": "-buildvcs=false -mod=mod", "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run([go, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip()[-1500:]
        raise UnavailableError(f"go {arguments[0]} of {cwd.name} failed (it needs Go 1.26 and a module proxy):\n{said}")
    return done.stdout
