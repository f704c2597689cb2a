"""What a container needs to reach its cards and no others: for its CDI spec, without hooks.

From the node's own `nvidia.com/gpu` spec where one has the card, else from the driver's files; in simulation from the
simulated machine's tree. An installed NVIDIA toolkit is told to keep out, since it would add cards of its own. Ordinals
in the container follow the grant: by the cards' bus addresses where that is the grant's order, else by a list of
numbers (some programs cannot read UUIDs in CUDA_VISIBLE_DEVICES). Called when a container is prepared. What can go
wrong: missing files or nodes of the driver, a simulated machine without a tree (DeviceError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.backend import BindMount, ContainerEdits, DeviceNode
from partage.devices.nvidia import cdi_specs, driver_files
from partage.model import DeviceError, NotFoundError, names
from partage.sim import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partage.devices.nvidia.cards import RawCard
    from partage.devices.nvidia.options import Options

TOOLKIT: Final = "NVIDIA_VISIBLE_DEVICES"
_KEEP_OUT: Final = "void"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_BY_BUS: Final = "PCI_BUS_ID"
_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def real_edits(cards: Sequence[RawCard], options: Options) -> ContainerEdits:
    """Return the edits for these cards, by ordinal; raises DeviceError."""
    roots, extras = options.roots, options.extras
    parts = _from_specs(cards, options)
    if parts is None:
        parts = [
            ContainerEdits(
                mounts=driver_files.library_mounts(roots),
                nodes=driver_files.device_nodes(roots, [card.minor for card in cards]),
            )
        ]
    more = ContainerEdits(
        mounts=driver_files.extra_mounts(roots, extras), nodes=driver_files.extra_nodes(roots, extras)
    )
    return _joined([*parts, more], ordinals(cards))


def simulated_edits(cards: Sequence[RawCard]) -> ContainerEdits:
    """Return the same on a simulated machine; raises DeviceError."""
    try:
        found = tree.container_edits(*(card.uuid for card in cards))
    except NotFoundError as error:
        raise DeviceError(error.subject, error.value, error.limit, error.step) from error
    mounts = tuple(
        BindMount(str(mount.source), mount.target, writable="rw" in mount.options)
        for mount in (*found.nodes, *found.mounts)
    )
    return _joined([ContainerEdits(found.env, mounts)], ordinals(cards))


def ordinals(cards: Sequence[RawCard]) -> dict[str, str]:
    """Return the variables that make a card's place in the grant its ordinal."""
    if len(cards) < 2:
        return {}
    by_bus = sorted(range(len(cards)), key=lambda at: cards[at].address)
    found = {_ORDER: _BY_BUS}
    if by_bus != list(range(len(cards))):
        found[names.ENV_VISIBLE_DEVICES] = ",".join(str(by_bus.index(at)) for at in range(len(cards)))
    return found


def _from_specs(cards: Sequence[RawCard], options: Options) -> list[ContainerEdits] | None:
    """Return what the node's specs say; None where they do not have all of the cards."""
    parts: list[ContainerEdits] = []
    for card in cards:
        wanted = [card.uuid, str(card.index)]
        found = cdi_specs.find(options.cdi_specs, wanted[::-1] if options.by_index else wanted)
        if found is None:
            return None
        parts += [found.common, found.card]
    mounts = [mount for part in parts for mount in part.mounts]
    there = {node.container for part in parts for node in part.nodes}
    if not there.issuperset(_CONTROL):  # a spec for a runtime that adds them itself
        parts.append(ContainerEdits(nodes=driver_files.device_nodes(options.roots, [])))
    return [*parts, ContainerEdits(mounts=tuple(driver_files.soname_mounts(mounts)))]


def _joined(parts: Iterable[ContainerEdits], env: dict[str, str]) -> ContainerEdits:
    """Return all parts as one: a place in the container is filled once, by the first that says so."""
    variables: dict[str, str] = {}
    mounts: dict[str, BindMount] = {}
    nodes: dict[str, DeviceNode] = {}
    for part in parts:
        variables |= part.env
        mounts = {**{mount.container: mount for mount in part.mounts}, **mounts}
        nodes = {**{node.container: node for node in part.nodes}, **nodes}
    ordered_mounts = tuple(mounts[key] for key in sorted(mounts))
    ordered_nodes = tuple(nodes[key] for key in sorted(nodes))
    return ContainerEdits({**variables, **env, TOOLKIT: _KEEP_OUT}, ordered_mounts, ordered_nodes)
