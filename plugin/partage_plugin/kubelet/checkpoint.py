"""Kubelet's device checkpoint: which pod and container an answer of ours to `Allocate` went to.

Kubelet writes it (beside, then renamed: never torn) before it calls `PreStartContainer`, and answers from it after its
own restart. Read at each `PreStartContainer`, at the rebuild before a registration and at clean-ups. What can go wrong:
the file is missing (no device was ever handed out, or somebody removed it), is no plain file or too large to be
kubelet's, or its layout is none that this release knows: CheckpointError, and then nothing in it is believed.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from google.protobuf.message import DecodeError

from partage.model import PartageError, names
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CHECKPOINT_FILE: Final = "kubelet_internal_checkpoint"
SIZE_MAX: Final = 16 << 20  # bytes; a full node's is some hundred thousand
_NAME: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class CheckpointError(PartageError):
    """The checkpoint cannot be read; whose container it is cannot be told from it."""


class _Entry(msgspec.Struct, frozen=True):
    """As kubelet writes it: ids by NUMA node, the answer as base64."""

    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, tuple[str, ...] | None]
    AllocResp: str


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: tuple[_Entry, ...] | None
    RegisteredDevices: dict[str, tuple[str, ...] | None] | None


class _File(msgspec.Struct, frozen=True):
    Data: _Data
    Checksum: int


_DECODER: Final = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class Entry:
    """One container's devices of our resource; `name`: the hand-over that our answer named, None where none.

    `files`: what the answer mounts from the host beside the hand-over.
    """

    pod_uid: str
    container: str
    ids: frozenset[str]
    name: str | None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All of our resource; `registered`: the ids that kubelet knew when it wrote the file."""

    entries: tuple[Entry, ...]
    registered: frozenset[str]

    def holding(self, ids: Iterable[str]) -> tuple[Entry, ...]:
        """Return every entry with one of these ids: a finished init container's are given to another one again."""
        wanted = frozenset(ids)
        return tuple(entry for entry in self.entries if entry.ids & wanted)


def is_name(text: str) -> bool:
    """Whether this may be a hand-over name of ours."""
    return _NAME.fullmatch(text) is not None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO in its place is not waited for


class CheckpointFile:
    """The file in kubelet's device plugin directory; parsed again only where it is another one than before."""

    def __init__(self, directory: Path, resource: str) -> None:
        self.path = directory / CHECKPOINT_FILE
        self._resource = resource
        self._known: tuple[tuple[int, int, int], Checkpoint] | None = None
        self._entries: dict[tuple[str, str], tuple[_Entry, Entry]] = {}  # most stay from one write to the next

    def read(self) -> Checkpoint:
        """Return what it says now; raises CheckpointError."""
        try:
            # An opener and no descriptor: of a directory in its place `open` closes what it has opened itself.
            with open(self.path, "rb", opener=_opener) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > SIZE_MAX:
                    value = f"{found.st_size} bytes, mode {found.st_mode:o}"
                    raise self._defect(value, f"a plain file of at most {SIZE_MAX} bytes", "see kubelet's log")
                stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
                if self._known is not None and self._known[0] == stamp:
                    return self._known[1]
                text = file.read()
        except OSError as error:
            raise self._defect(error.strerror or error, "kubelet's checkpoint", "see kubelet's log") from error
        checkpoint = self._parse(text)
        self._known = (stamp, checkpoint)
        return checkpoint

    def _parse(self, text: bytes) -> Checkpoint:
        try:
            data = _DECODER.decode(text).Data
            mine = [entry for entry in data.PodDeviceEntries or () if entry.ResourceName == self._resource]
            known = {(e.PodUID, e.ContainerName): (e, self._entries.get((e.PodUID, e.ContainerName))) for e in mine}
            self._entries = {
                key: before if before is not None and before[0] == entry else (entry, _entry_of(entry))
                for key, (entry, before) in known.items()
            }
            entries = tuple(entry for _, entry in self._entries.values())
        except (msgspec.DecodeError, UnicodeError, binascii.Error, DecodeError, ValueError, RecursionError) as error:
            limit = "the layout that Kubernetes 1.28 to 1.37 writes"
            step = "containers are identified by PodResources alone meanwhile; update Partage"
            raise self._defect(f"cannot be read ({error})", limit, step) from error
        return Checkpoint(entries, frozenset((data.RegisteredDevices or {}).get(self._resource) or ()))

    def _defect(self, value: object, limit: str, step: str) -> CheckpointError:
        return CheckpointError(str(self.path), value, limit, step)


def _entry_of(entry: _Entry) -> Entry:
    ids = frozenset(device for ids in entry.DeviceIDs.values() for device in ids or ())
    answer = api_pb2.ContainerAllocateResponse.FromString(base64.b64decode(entry.AllocResp, validate=True))
    files = tuple(mount.host_path for mount in answer.mounts if not mount.container_path.startswith(names.HOST_ROOT))
    return Entry(entry.PodUID, entry.ContainerName, ids, _name_in(answer), files)


def _name_in(answer: api_pb2.ContainerAllocateResponse) -> str | None:
    """Return the hand-over that an answer to `Allocate` names; None where it is not one of ours."""
    for device in answer.cdi_devices:
        kind, _, name = device.name.partition("=")
        if kind == names.CDI_KIND and is_name(name):
            return name
    return None
