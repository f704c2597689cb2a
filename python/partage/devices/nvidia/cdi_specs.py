"""What the node's own CDI specs (`nvidia.com/gpu`, made by NVIDIA's toolkit) say of a card, without their hooks.

A hook is a program that the runtime starts as root; ours are none, so what the toolkit's hooks would do in a container
(names of libraries as programs load them) is done with mounts by the caller. Called when a container is prepared. What
can go wrong: a spec that cannot be read is as if it were not there, and the log says so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import structlog

from partage.devices.backend import BindMount, ContainerEdits, DeviceNode
from partage.model import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

KIND: Final = "nvidia.com/gpu"
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_OURS: Final = names.CDI_KIND.partition("/")[0]  # what the names of our own specs begin with: one a container
_SIZE_MAX: Final = 4 << 20  # bytes of a spec
_Gid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 2)]
_Gids = Annotated[tuple[_Gid, ...], msgspec.Meta(max_length=64)]

log = structlog.get_logger("partage.nvidia")


class _Node(msgspec.Struct, frozen=True):
    path: str
    host: str = msgspec.field(name="hostPath", default="")
    permissions: str = ""


class _Mount(msgspec.Struct, frozen=True):
    host: str = msgspec.field(name="hostPath")
    container: str = msgspec.field(name="containerPath")
    options: tuple[str, ...] | None = None


class _Edits(msgspec.Struct, frozen=True):
    env: tuple[str, ...] | None = None
    nodes: tuple[_Node, ...] | None = msgspec.field(name="deviceNodes", default=None)
    mounts: tuple[_Mount, ...] | None = None
    groups: _Gids | None = msgspec.field(name="additionalGids", default=None)


class _Device(msgspec.Struct, frozen=True):
    name: Annotated[str | int, msgspec.Meta(description="YAML writers leave the quotes of an index out")]
    edits: _Edits = msgspec.field(name="containerEdits", default=_Edits())


class _Spec(msgspec.Struct, frozen=True):
    kind: str
    devices: tuple[_Device, ...] = ()
    edits: _Edits = msgspec.field(name="containerEdits", default=_Edits())


@dataclass(frozen=True, slots=True)
class CopiedEdits:
    """What a spec says: of every container (`common`), and of the card."""

    source: Path
    common: ContainerEdits
    card: ContainerEdits


def find(directories: Sequence[Path], wanted: Sequence[str]) -> Iterator[CopiedEdits]:
    """Yield the edits of the card that has one of the `wanted` names, the first of them first, from each spec with it.

    Of several specs the one in the last directory comes first, as with container runtimes.
    """
    for directory in reversed(directories):
        for path, spec in _specs(directory):
            devices = {str(device.name): device.edits for device in spec.devices}
            found = next((devices[name] for name in wanted if name in devices), None)
            if found is not None:
                yield CopiedEdits(path, _copied(spec.edits), _copied(found))


def _specs(directory: Path) -> Iterable[tuple[Path, _Spec]]:
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    except OSError:
        return
    for path in paths:
        if path.name.startswith(_OURS):
            continue
        try:
            found = path.stat()
            spec = _read(path, (found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError as error:
            _say_left_out(path, str(error))
            continue
        if spec is not None:
            yield path, spec


@functools.lru_cache(maxsize=32)
def _read(path: Path, stamp: tuple[int, int, int]) -> _Spec | None:
    """Return the spec in a file; None where it is of another kind or none. `stamp`: the file has not changed since.

    Each card is looked for at each look for cards, so what is wrong with a file is found, and said, once.
    """
    if stamp[2] > _SIZE_MAX:
        _say_left_out(path, f"over {_SIZE_MAX} bytes")
        return None
    text = path.read_bytes()
    if KIND.encode() not in text:
        return None
    try:
        document = msgspec.json.decode(text) if path.suffix == ".json" else msgspec.yaml.decode(text)
        spec = msgspec.convert(document, _Spec)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        _say_left_out(path, str(error))
        return None
    return spec if spec.kind == KIND else None


@functools.lru_cache(maxsize=32)
def _say_left_out(path: Path, error: str) -> None:
    """Log it, once."""
    log.warning("a CDI spec is left out", spec=str(path), error=error)


def _copied(edits: _Edits) -> ContainerEdits:
    return ContainerEdits(
        env=dict(entry.split("=", 1) for entry in edits.env or () if "=" in entry),
        mounts=tuple(
            BindMount(mount.host, mount.container, writable="rw" in (mount.options or ()))
            for mount in edits.mounts or ()
        ),
        nodes=tuple(
            DeviceNode(node.host or node.path, node.path, node.permissions or "rw") for node in edits.nodes or ()
        ),
        groups=tuple(gid for gid in edits.groups or () if gid),  # 0 says nothing there
    )
