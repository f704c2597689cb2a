"""What an administrator can decide about the agent: every key of `/etc/partage/config.yaml`, with its default.

The structures below are the only list of keys: the file's layout, the flags, the variables and the reference page all
come from them (`configure.py`, `tools/reference_agent.py`). Amounts are written as people write them (`10%`, `1500Mi`)
and parsed here. What can go wrong: an amount that is none (UsageError names key, value and the accepted forms).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

from partage.configuration import Section, key
from partage.devices.nvidia.options import APPLICATION_XIDS, SEATS
from partage.model import UsageError, names, parse_memory
from partage.model.names import PORT_METRICS

API_VERSION: Final = "config.partage.io/v1alpha1"
KIND: Final = "AgentConfiguration"
SEATS_MAX: Final = 1000
SCALING_MAX: Final = 10
_BUFFER: Final = re.compile(r"(\d+(?:\.\d+)?) ?(%|‰)?", re.ASCII)
_BUFFER_FORMS: Final = "accepted: 10, 10%, 10.5%, 105‰ (0 to 90 % of the physical memory)"
_BUFFER_MAX: Final = 900  # permille


class PlaceSettings(Section, frozen=True, kw_only=True):
    """Where things lie on the host; absolute paths, mounted into the agent at the same place."""

    root: Annotated[str, key("Hand-overs: one directory for each container.")] = names.HOST_ROOT
    cdi: Annotated[str, key("Where the container runtime reads device specs that programs write.")] = (
        names.CDI_DIRECTORY
    )
    kubelet: Annotated[str, key("Kubelet's directory, in which its PodResources socket lies.")] = "/var/lib/kubelet"
    plugins: Annotated[str, key("Plugin sockets and kubelet's device checkpoint; kubelet has it there always.")] = (
        "/var/lib/kubelet/device-plugins"
    )
    library: Annotated[str, key("Where the library is installed, a directory for each version.")] = (
        names.HOST_LIBRARY_DIRECTORY
    )
    locks: Annotated[str, key("Locks that the machine's arbiters share, `partage run` included.")] = (
        names.LOCK_DIRECTORIES[0]
    )


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Figures, health and readiness over HTTP."""

    address: Annotated[str, key("Address to listen on; empty: all, of IPv4 and IPv6.")] = names.EVERY_ADDRESS
    port: Annotated[int, key("Port to listen on; 0: none.", ge=0, le=65535)] = PORT_METRICS
    hami_names: Annotated[bool, key("Show figures under HAMi's names too.")] = True


class WaterLineSettings(Section, frozen=True, kw_only=True):
    """How much of a card shares may add up to: `floor((1 - buffer) * physical) - overhead`."""

    buffer: Annotated[str | int | float, key("Part of the physical memory that is never promised.", live=True)] = "0%"
    overhead: Annotated[
        str | int, key("Memory that the driver keeps; empty: what each card reports with nobody on it.", live=True)
    ] = ""


class TypeWaterLineSettings(WaterLineSettings, frozen=True, kw_only=True):
    """The same for cards of a type."""

    type: Annotated[str, key("Part of the product's name, in any case; the first entry that fits counts.", live=True)]


class LeaveOutSettings(Section, frozen=True, kw_only=True):
    """Cards that are treated as if they were not there."""

    uuids: Annotated[tuple[str, ...], key("Cards to leave out, by UUID.", live=True)] = ()
    indexes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...], key("Cards to leave out, by NVML's index.", live=True)
    ] = ()


class HealthSettings(Section, frozen=True, kw_only=True):
    """When a card counts as failed, and when it is back."""

    watch_xids: Annotated[
        bool, key("Whether XIDs make a card unhealthy at all; one that does not answer always is.", live=True)
    ] = True
    ignored_xids: Annotated[tuple[int, ...], key("XIDs that are errors of programs, not of cards.", live=True)] = tuple(
        sorted(APPLICATION_XIDS)
    )
    probe_seconds: Annotated[float, key("How often every card is asked.", live=True, ge=1)] = 30.0
    quiet_seconds: Annotated[
        float,
        key("After an XID: how long until NVML's word that nothing is to be done is believed.", live=True, ge=0),
    ] = 10.0
    patience_seconds: Annotated[
        float, key("The same where the driver has no such word and the card answered all the time.", live=True, ge=0)
    ] = 300.0


class NvidiaSettings(Section, frozen=True, kw_only=True):
    """NVIDIA cards."""

    seats: Annotated[int, key("Shares that one card can be handed out in at most.", live=True, ge=1, le=SEATS_MAX)] = (
        SEATS
    )
    fail_requests_greater_than_one: Annotated[
        bool, key("Refuse containers that ask for shares of more than one card.")
    ] = False
    device_id_strategy: Annotated[
        Literal["uuid", "index"], key("Under which name a card is looked for first in the node's own CDI specs.")
    ] = "uuid"
    water_line: WaterLineSettings = WaterLineSettings()
    water_line_by_type: Annotated[
        tuple[TypeWaterLineSettings, ...], key("Water lines of types of cards, before the node's.", live=True)
    ] = ()
    preconfigured_memory: Annotated[
        str | int, key("Memory of cards that do not say how much they have; empty: those are unhealthy.", live=True)
    ] = ""
    leave_out: LeaveOutSettings = LeaveOutSettings()
    health: HealthSettings = HealthSettings()
    numa_topology: Annotated[bool, key("Tell kubelet the cards' NUMA nodes where that is certain.")] = True
    driver_root: Annotated[str, key("Where the driver is installed on the host: `/`, or `/run/nvidia/driver`.")] = "/"
    driver_root_in_agent: Annotated[str, key("Where the agent sees that directory; empty: at the same place.")] = ""
    dev_root: Annotated[str, key("The directory above the host's `dev`; empty: `/`.")] = ""
    dev_root_in_agent: Annotated[str, key("Where the agent sees that directory; empty: at the same place.")] = ""
    cdi_specs: Annotated[
        tuple[str, ...], key("Where the node's own `nvidia.com/gpu` specs are looked for, the last that has one wins.")
    ] = ("/etc/cdi", names.CDI_DIRECTORY)
    gds: Annotated[bool, key("Give containers GPUDirect Storage where the host has it.")] = False
    mofed: Annotated[bool, key("Give containers the host's InfiniBand devices.")] = False
    gdrcopy: Annotated[bool, key("Give containers GDRCopy's device where the host has it.")] = False
    imex_channels: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...], key("IMEX channels that containers get.")
    ] = ()
    labels: Annotated[bool, key("Label the node as NVIDIA's feature discovery does.", live=True)] = True
    hami_annotations: Annotated[bool, key("Annotate the node as HAMi's plugin does.", live=True)] = True
    hami_node_config: Annotated[str, key("HAMi's node configuration file, read where it exists; empty: none.")] = ""


class Settings(Section, frozen=True, kw_only=True):
    """All of it."""

    api_version: Annotated[Literal["config.partage.io/v1alpha1"], key("Version of this document.")] = API_VERSION
    kind: Annotated[Literal["AgentConfiguration"], key("Kind of this document.")] = KIND
    node: Annotated[str, key("Name of this node; the variable `NODE_NAME` says it too.")] = ""
    kubeconfig: Annotated[str, key("File that says how the API server is reached; empty: as a pod does.")] = ""
    driver: Annotated[
        Literal["auto", "real", "simulated"],
        key("Which driver's cards; auto: the real one's, or simulated ones where a simulated machine was made."),
    ] = "auto"
    library: Annotated[str, key("libvgpu.so that containers get; empty: the one beside the agent.")] = ""
    delivery: Annotated[
        Literal["preload-file", "variable"],
        key("How it gets into programs: a read-only /etc/ld.so.preload, or the variable LD_PRELOAD."),
    ] = "preload-file"
    whole_card_safe_mode: Annotated[
        bool, key("Give free whole cards to pods without a grant that ask for plain cards (no scheduler).")
    ] = False
    oversubscription: Annotated[
        Literal["refused", "allowed"], key("Whether memory may be promised beyond what cards have.")
    ] = "refused"
    memory_scaling: Annotated[
        float, key("How many times a card's allocatable memory shares may add up to.", ge=1, le=SCALING_MAX)
    ] = 1.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], key("The least that is logged.", live=True)] = (
        "info"
    )
    places: PlaceSettings = PlaceSettings()
    metrics: MetricsSettings = MetricsSettings()
    nvidia: NvidiaSettings = NvidiaSettings()


def buffer_of(line: WaterLineSettings, name: str) -> int:
    """Return a water line's buffer in permille; raises UsageError."""
    match = _BUFFER.fullmatch(str(line.buffer))
    permille = Decimal(match[1]) * (1 if match[2] == "‰" else 10) if match else None
    if permille is None or permille != permille.to_integral_value() or permille > _BUFFER_MAX:
        raise UsageError(name, f"'{line.buffer}'", _BUFFER_FORMS, "write the buffer in one of these forms")
    return int(permille)


def memory_of(value: str | int, name: str) -> int | None:
    """Return an amount of memory in bytes, None where nothing is written, 0 where 0 is; raises UsageError."""
    if value == "":
        return None
    if str(value) == "0":
        return 0
    try:
        return parse_memory(str(value))
    except UsageError as error:
        raise UsageError(name, f"'{value}'", error.limit, error.step) from error
