"""The same figures under HAMi's names, so that its dashboards and alerts go on: percent 0-100 where it says *ratio*.

Names and labels are those of HAMi's node monitor, of the generation before (`HostGPUMemoryUsage` …) too; `zone` is on
all of them. Called by `metrics.py`; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partage_plugin.figures import CardFigures, ContainerFigures

ZONE: Final = {"zone": "vGPU"}
Number = float | int | None

# name, name in the generation before, help, value
_OF_CARD: Final[tuple[tuple[str, str, str, Callable[[CardFigures], Number]], ...]] = (
    ("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage", "Device memory in use on the host.", lambda c: c.used),
    (
        "hami_host_gpu_utilization_ratio",
        "HostCoreUtilization",
        "Device utilization, percent.",
        lambda c: _percent(c.busy),
    ),
)
_OF_CONTAINER: Final[tuple[tuple[str, str, str, Callable[[ContainerFigures], Number]], ...]] = (
    (
        "hami_vgpu_memory_used_bytes",
        "vGPU_device_memory_usage_in_bytes",
        "Device memory in use by the container.",
        lambda c: c.used,
    ),
    (
        "hami_vgpu_memory_limit_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "Device memory limit of the container.",
        lambda c: c.limit,
    ),
    (
        "hami_container_device_memory_bytes",
        "Device_memory_desc_of_container",
        "Device memory in use by the container.",
        lambda c: c.used,
    ),
    (
        "hami_container_device_utilization_ratio",
        "Device_utilization_desc_of_container",
        "Device utilization by the container, percent.",
        lambda c: _percent(c.got),
    ),
    (
        "hami_container_last_kernel_elapsed_seconds",
        "Device_last_kernel_of_container",
        "Seconds since the container's last kernel.",
        lambda c: c.idle_s,
    ),
    ("hami_vgpu_memory_context_bytes", "", "Device memory of contexts.", lambda c: c.kinds.get("context")),
    ("hami_vgpu_memory_module_bytes", "", "Device memory of modules.", lambda c: c.overhead),
    ("hami_vgpu_memory_buffer_bytes", "", "Device memory of allocations.", lambda c: c.kinds.get("allocated")),
)


def _percent(permille: int | None) -> float | None:
    return None if permille is None else permille / 10


def hami_families(cards: Sequence[CardFigures], containers: Sequence[ContainerFigures], node: str) -> Iterator[Metric]:
    """Yield the families of HAMi's node monitor."""
    new_cards = [
        ZONE | {"node": node, "device_index": str(card.index), "device_uuid": card.uuid, "device_type": card.kind}
        for card in cards
    ]
    old_cards = [ZONE | {"deviceidx": str(card.index), "deviceuuid": card.uuid} for card in cards]
    for name, old, text, of_card in _OF_CARD:
        values = [of_card(card) for card in cards]
        yield _gauge(name, text, new_cards, values)
        yield _gauge(old, text, old_cards, values)
    controllers = [{key: of[key] for key in of if key != "node"} for of in new_cards]
    busy = [_percent(card.memory_busy) for card in cards]
    name = "hami_host_gpu_memory_controller_utilization_ratio"
    yield _gauge(name, "Utilization of the memory controller, percent.", controllers, busy)
    new, before = [_labels_of(found) for found in containers], [_old_labels_of(found) for found in containers]
    for name, old, text, of_container in _OF_CONTAINER:
        amounts = [of_container(found) for found in containers]
        yield _gauge(name, text, new, amounts)
        if old:
            yield _gauge(old, text, before, amounts)


def _labels_of(found: ContainerFigures) -> dict[str, str]:
    return ZONE | {
        "namespace": found.namespace,
        "pod": found.pod,
        "container": found.container,
        "vdevice_index": str(found.ordinal),
        "device_uuid": found.device_uuid,
    }


def _old_labels_of(found: ContainerFigures) -> dict[str, str]:
    return ZONE | {
        "podnamespace": found.namespace,
        "podname": found.pod,
        "ctrname": found.container,
        "vdeviceid": str(found.ordinal),
        "deviceuuid": found.device_uuid,
    }


def _gauge(name: str, text: str, labels: Sequence[dict[str, str]], values: Sequence[Number]) -> Metric:
    family = Metric(name, text, "gauge")
    pairs = zip(labels, values, strict=True)
    family.samples = [Sample(name, of, float(value)) for of, value in pairs if value is not None]
    return family
