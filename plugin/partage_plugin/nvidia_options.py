"""The settings of NVIDIA cards as the backend takes them, with HAMi's node configuration file put over them.

Called when settings are loaded or reloaded, which also checks every amount in them. What can go wrong: an amount that
is none, a HAMi file that cannot be used, memory promised twice without leave (UsageError).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.devices.nvidia.nodeconfig import NodeConfig, parse_node_config
from partage.devices.nvidia.options import Extras, HealthOptions, Options, Roots
from partage.devices.nvidia.waterline import WaterLine, WaterLines
from partage.model import UsageError
from partage_plugin.settings import buffer_of, memory_of

if TYPE_CHECKING:
    from partage_plugin.settings import HealthSettings, NvidiaSettings, Settings, WaterLineSettings

_WHOLE: Final = 1000  # permille


@dataclass(frozen=True, slots=True)
class NvidiaOptions:
    """`oversub`: permille of the allocatable memory that shares may add up to; `notes`: what has no effect.

    `tells_numa`: kubelet is told NUMA nodes.
    """

    options: Options
    oversub: int
    tells_numa: bool
    notes: tuple[str, ...]


def nvidia_options(settings: Settings) -> NvidiaOptions:
    """Return the backend's options; raises UsageError."""
    nvidia = settings.nvidia
    hami = _hami(settings)
    options = Options(
        seats=hami.seats or nvidia.seats,
        water=_water_lines(nvidia),
        memory=hami.memory or memory_of(nvidia.preconfigured_memory, "nvidia.preconfiguredMemory") or None,
        left_out_uuids=frozenset(nvidia.leave_out.uuids) | hami.left_out_uuids,
        left_out_indexes=frozenset(nvidia.leave_out.indexes) | hami.left_out_indexes,
        health=_health(nvidia.health),
        roots=_roots(nvidia),
        cdi_specs=tuple(map(Path, nvidia.cdi_specs)),
        by_index=nvidia.device_id_strategy == "index",
        one_card_only=nvidia.fail_requests_greater_than_one,
        extras=Extras(nvidia.gds, nvidia.mofed, nvidia.gdrcopy, nvidia.imex_channels),
    )
    tells_numa = nvidia.numa_topology if hami.numa is None else hami.numa
    return NvidiaOptions(options, _oversub(settings, hami), tells_numa, hami.notes)


def _hami(settings: Settings) -> NodeConfig:
    source = settings.nvidia.hami_node_config
    if not source:
        return NodeConfig()
    try:
        text = Path(source).read_bytes()
    except FileNotFoundError:
        return NodeConfig()
    except (OSError, ValueError) as error:  # the latter for what is no path
        step = "make it readable, or leave nvidia.hamiNodeConfig empty"
        value = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(source, value, "HAMi's node configuration file", step) from error
    allowed = settings.oversubscription == "allowed"
    return parse_node_config(text, node=settings.node, source=source, allow_oversub=allowed)


def _oversub(settings: Settings, hami: NodeConfig) -> int:
    if settings.memory_scaling > 1 and settings.oversubscription != "allowed":
        limit = "more than a card has is promised only where that is allowed by name"
        step = "set it to 1, or oversubscription: allowed"
        raise UsageError("memoryScaling", settings.memory_scaling, limit, step)
    return hami.oversub or int(settings.memory_scaling * _WHOLE)


def _water_lines(nvidia: NvidiaSettings) -> WaterLines:
    by_type = tuple(
        (entry.type, _water_line(entry, f"nvidia.waterLineByType[{number}]"))
        for number, entry in enumerate(nvidia.water_line_by_type)
    )
    return WaterLines(_water_line(nvidia.water_line, "nvidia.waterLine"), by_type)


def _water_line(line: WaterLineSettings, key: str) -> WaterLine:
    return WaterLine(buffer_of(line, f"{key}.buffer"), memory_of(line.overhead, f"{key}.overhead"))


def _health(health: HealthSettings) -> HealthOptions:
    return HealthOptions(
        ignored_xids=frozenset(health.ignored_xids),
        watch_xids=health.watch_xids,
        probe_s=health.probe_seconds,
        quiet_s=health.quiet_seconds,
        patience_s=health.patience_seconds,
    )


def _roots(nvidia: NvidiaSettings) -> Roots:
    driver, dev = Path(nvidia.driver_root), Path(nvidia.dev_root or "/")
    return Roots(
        driver=driver,
        driver_here=Path(nvidia.driver_root_in_agent) if nvidia.driver_root_in_agent else driver,
        dev=dev,
        dev_here=Path(nvidia.dev_root_in_agent) if nvidia.dev_root_in_agent else dev,
    )
