"""CDI specs: one file per hand-over that tells the container runtime which device nodes, mounts and variables it gets.

Written beside and renamed *within* the directory: the runtime's cache does not see a file that arrives from elsewhere,
and nothing half-written is ever read. The name of a device was never used before, so no stale cache can answer for it.
No hooks: they run as root in the image's hands. The hand-over's directory is mounted by the spec, too: a volume at
/var/run, which images have as a link to /run, would hide what kubelet has mounted below, for volumes come after that;
what a spec mounts is put in place of the mount at the same path, behind all that are as deep. Groups are a field of
later specs, and a runtime that does not know it leaves out the whole file: they are named where it is known to
(`knows_groups`). What can go wrong: the directory of specs is full, read-only or missing (HandOverError; nothing is
left of the attempt, and the container does not start).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from partage.devices.backend import BindMount
from partage.model import names
from partage_plugin.handover.store import HandOverError
from partage_plugin.kubelet.checkpoint import is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partage.devices.backend import ContainerEdits

CDI_VERSION: Final = "0.5.0"  # the lowest that has all fields used here
_WITH_GROUPS: Final = "0.7.0"  # the lowest that has those
_RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 31)}  # since when each reads that
SIZE: Final = 4096  # bytes that a spec has about
_PREFIX: Final = names.CDI_KIND.replace("/", "-") + "-"
_SUFFIX: Final = ".json"


def device_name(name: str) -> str:
    """Return the qualified CDI device of a hand-over, as `Allocate` answers it."""
    return f"{names.CDI_KIND}={name}"


def knows_groups(runtime: str) -> bool | None:
    """Whether a runtime, as a node's status names it (`containerd://2.2.9`), reads specs with groups; None: unknown."""
    name, _, version = runtime.partition("://")
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})", version, re.ASCII)
    if found is None:
        return None
    return (int(found[1]), int(found[2])) >= _RUNTIMES.get(name, (1 << 30, 0))


def spec_of(name: str, edits: ContainerEdits, *, groups: bool = False) -> dict[str, Any]:
    """Return the spec of one hand-over; `groups`: those of the edits, too."""
    container: dict[str, Any] = {}
    if edits.env:
        container["env"] = [f"{key}={value}" for key, value in sorted(edits.env.items())]
    if edits.nodes:
        container["deviceNodes"] = [
            {"path": node.container, "hostPath": node.host, "permissions": node.permissions} for node in edits.nodes
        ]
    if edits.mounts:
        container["mounts"] = [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": ["rw" if mount.writable else "ro", "nosuid", "nodev", "rbind"],
            }
            for mount in edits.mounts
        ]
    version = CDI_VERSION
    if groups and edits.groups:
        container["additionalGids"], version = list(edits.groups), _WITH_GROUPS
    device = {"name": name, "containerEdits": container}
    return {"cdiVersion": version, "kind": names.CDI_KIND, "devices": [device]}


def _text(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()


class CdiDirectory:
    """Where the runtime looks for specs that programs write: /var/run/cdi.

    `runtime`: which one that is, as the node's status says it; empty while nobody knows.
    """

    def __init__(self, path: Path, runtime: Callable[[], str] = str) -> None:
        self._path = path
        self._runtime = runtime
        self._largest = SIZE  # of the specs so far, in bytes
        self._has_failed = True  # to write, the last time; nothing was written yet

    @property
    def is_doubted(self) -> bool:
        """Whether it has to be tried out if specs can be written: nobody knows, or some could not."""
        return self._has_failed or not os.access(self._path, os.W_OK)

    def try_out(self) -> None:
        """Write as much as a spec has and remove it; raises HandOverError, and leaves nothing."""
        beside = self._path / f".{_PREFIX}tried"
        with self._translated(self._path, beside, self._largest):
            self._write(beside, bytes(self._largest))
            beside.unlink()
        self._has_failed = False

    def file_of(self, name: str) -> Path:
        """Return where the spec of a hand-over lies."""
        return self._path / f"{_PREFIX}{name}{_SUFFIX}"

    def write(self, name: str, edits: ContainerEdits, directory: Path) -> None:
        """Write the spec of a hand-over, unless it says so already; raises HandOverError and leaves nothing then.

        `directory`: its own, on the host. While nobody knows the runtime, groups that an agent before has named stay.
        """
        whole = replace(edits, mounts=(*edits.mounts, BindMount(str(directory), names.HOST_ROOT)))
        knows = knows_groups(self._runtime())
        text = _text(spec_of(name, whole, groups=knows is True))
        target, beside = self.file_of(name), self._path / f".{_PREFIX}{name}"
        with contextlib.suppress(OSError):
            there = target.read_bytes()
            if there == text or (knows is None and there == _text(spec_of(name, whole, groups=True))):
                return
        self._largest = max(self._largest, len(text))
        with self._translated(target, beside, len(text)):
            self._write(beside, text)
            beside.rename(target)

    def _write(self, beside: Path, text: bytes) -> None:
        self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(fd, "wb") as file:  # noqa: PTH123 -- a descriptor
            file.write(text)

    @contextlib.contextmanager
    def _translated(self, target: Path, beside: Path, size: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._has_failed = True
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            value = f"{error.strerror or error} ({size} bytes)"
            limit = "the directory from which the container runtime reads device specs"
            step = "free space there or remount it writable; kubelet asks again"
            raise HandOverError(str(target), value, limit, step) from error

    def names(self) -> frozenset[str]:
        """Return the hand-overs that have a spec; none where the directory cannot be read."""
        with contextlib.suppress(OSError):
            return frozenset(
                name
                for file in os.listdir(self._path)  # noqa: PTH208 -- names are all we want
                if file.startswith(_PREFIX)
                and file.endswith(_SUFFIX)
                and is_name(name := file[len(_PREFIX) : -len(_SUFFIX)])
            )
        return frozenset()

    def remove(self, name: str) -> None:
        """Remove the spec of a hand-over, and what a killed writer left of it; what cannot be removed stays."""
        for path in (self.file_of(name), self._path / f".{_PREFIX}{name}"):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
