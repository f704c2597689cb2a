"""What a container needs to reach its cards and no others: for its CDI spec, without hooks.

From the node's own `nvidia.com/gpu` spec where one has the card as it is now, else from the driver's files; in
simulation from the simulated machine's tree. A spec is a file that somebody made once: a card's node may have another
number since, and another driver other files (NVIDIA asks for a new one after each change of devices or driver: "Support
for Container Device Interface" of its container toolkit), so it is compared with what NVML says. An installed NVIDIA
toolkit is told to keep out, since it would add cards of its own. Ordinals in the container follow the grant: by the
cards' bus addresses where that is the grant's order, else by a list of numbers (some programs cannot read UUIDs in
CUDA_VISIBLE_DEVICES). Called when a container is prepared, and at each look for cards. What can go wrong: missing files
or nodes of the driver, no spec but old ones, a simulated machine without a tree (DeviceError).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.devices.backend import BindMount, ContainerEdits, DeviceNode
from partage.devices.nvidia import cdi_specs, driver_files
from partage.model import DeviceError, NotFoundError, names
from partage.sim import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partage.devices.nvidia.cards import RawCard
    from partage.devices.nvidia.cdi_specs import CopiedEdits
    from partage.devices.nvidia.options import Options

TOOLKIT: Final = "NVIDIA_VISIBLE_DEVICES"
_KEEP_OUT: Final = "void"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_BY_BUS: Final = "PCI_BUS_ID"
_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_NODE: Final = re.compile(r".*/nvidia(\d+)", re.ASCII)


def real_edits(cards: Sequence[RawCard], options: Options, driver: str = "") -> ContainerEdits:
    """Return the edits for these cards, by ordinal; `driver`: the version that is loaded. Raises DeviceError."""
    roots, extras = options.roots, options.extras
    old: list[DeviceError] = []
    parts = _from_specs(cards, options, driver, old)
    if parts is None:
        try:
            parts = [
                ContainerEdits(
                    mounts=driver_files.library_mounts(roots, driver),
                    nodes=driver_files.device_nodes(roots, [card.minor for card in cards]),
                )
            ]
        except DeviceError as error:
            raise next(iter(old), error) from error
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


def _from_specs(
    cards: Sequence[RawCard], options: Options, driver: str, old: list[DeviceError]
) -> list[ContainerEdits] | None:
    """Return what the node's specs say; None where they do not have all cards. `old` gets those out of date."""
    parts: list[ContainerEdits] = []
    for card in cards:
        wanted = [card.uuid, str(card.index)]
        for found in cdi_specs.find(options.cdi_specs, wanted[::-1] if options.by_index else wanted):
            reason = _out_of_date(found, card, driver)
            if not reason:
                parts += [found.common, found.card]
                break
            limit, step = "what it says is mounted into containers", f"nvidia-ctk cdi generate --output={found.source}"
            old.append(DeviceError(f"CDI spec {found.source}", reason, limit, step))
        else:
            return None
    mounts = [mount for part in parts for mount in part.mounts]
    there = {node.container for part in parts for node in part.nodes}
    if not there.issuperset(_CONTROL):  # a spec for a runtime that adds them itself
        parts.append(ContainerEdits(nodes=driver_files.device_nodes(options.roots, [])))
    return [*parts, ContainerEdits(mounts=tuple(driver_files.soname_mounts(mounts)))]


def _out_of_date(found: CopiedEdits, card: RawCard, driver: str) -> str:
    """Return why a spec is not about this card and this driver as they are now; empty: for all one can tell, it is."""
    minors = {int(match[1]) for node in found.card.nodes if (match := _NODE.fullmatch(node.host))}
    if card.minor >= 0 and minors - {card.minor}:
        there = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors))
        return f"gives {there} for card {card.uuid}, which is /dev/nvidia{card.minor} now"
    versions = {driver_files.version_of(Path(mount.host)) for mount in found.common.mounts} - {""}
    if driver and versions and driver not in versions:
        return f"is of driver {', '.join(sorted(versions))}, {driver} is loaded"
    return ""


def _joined(parts: Iterable[ContainerEdits], env: dict[str, str]) -> ContainerEdits:
    """Return all parts as one: a place in the container is filled once, by the first that says so."""
    variables: dict[str, str] = {}
    mounts: dict[str, BindMount] = {}
    nodes: dict[str, DeviceNode] = {}
    groups: set[int] = set()
    for part in parts:
        groups |= set(part.groups)
        variables |= part.env
        mounts = {**{mount.container: mount for mount in part.mounts}, **mounts}
        nodes = {**{node.container: node for node in part.nodes}, **nodes}
    ordered_mounts = tuple(mounts[key] for key in sorted(mounts))
    ordered_nodes = tuple(nodes[key] for key in sorted(nodes))
    return ContainerEdits(
        {**variables, **env, TOOLKIT: _KEEP_OUT}, ordered_mounts, ordered_nodes, tuple(sorted(groups))
    )
