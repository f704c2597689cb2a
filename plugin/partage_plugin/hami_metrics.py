"""The same figures under HAMi's names, so that its dashboards and alerts go on: percent 0-100 where it says *ratio*.

Names and labels are those of HAMi's node monitor, of the generation before (`HostGPUMemoryUsage` …) too; `zone` is on
all of them. Called by `metrics.py`; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.text_format import Number, family, labels_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partage_plugin.figures import CardFigures, ContainerFigures
    from partage_plugin.metrics import Labelled

ZONE: Final = {"zone": "vGPU"}

_MIB: Final = 1 << 20

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
    ("hami_vmemory_allocated", "", "Device memory promised to the container, MiB.", lambda c: c.limit / _MIB),
)


def _percent(permille: int | None) -> float | None:
    return None if permille is None else permille / 10


def hami_families(cards: Sequence[CardFigures], containers: Sequence[Labelled], node: str) -> Iterator[str]:
    """Yield the families of HAMi's node monitor."""
    new_cards = [
        ZONE | {"node": node, "device_index": str(card.index), "device_uuid": card.uuid, "device_type": card.kind}
        for card in cards
    ]
    new = [labels_text(of) for of in new_cards]
    old = [labels_text(ZONE | {"deviceidx": str(card.index), "deviceuuid": card.uuid}) for card in cards]
    for name, before, text, of_card in _OF_CARD:
        values = [of_card(card) for card in cards]
        yield family(name, "gauge", text, zip(new, values, strict=True))
        yield family(before, "gauge", text, zip(old, values, strict=True))
    controllers = [labels_text({key: of[key] for key in of if key != "node"}) for of in new_cards]
    busy = zip(controllers, (_percent(card.memory_busy) for card in cards), strict=True)
    name = "hami_host_gpu_memory_controller_utilization_ratio"
    yield family(name, "gauge", "Utilization of the memory controller, percent.", busy)
    for name, before, text, of_container in _OF_CONTAINER:
        amounts = [of_container(one.figures) for one in containers]
        yield family(name, "gauge", text, [(one.hami, amount) for one, amount in zip(containers, amounts, strict=True)])
        if before:
            series = [(one.hami_before, amount) for one, amount in zip(containers, amounts, strict=True)]
            yield family(before, "gauge", text, series)


def container_labels(found: ContainerFigures) -> dict[str, str]:
    """Return HAMi's labels of a container on a card."""
    return ZONE | {
        "namespace": found.namespace,
        "pod": found.pod,
        "container": found.container,
        "vdevice_index": str(found.ordinal),
        "device_uuid": found.device_uuid,
    }


def container_labels_before(found: ContainerFigures) -> dict[str, str]:
    """Return those of the generation before."""
    return ZONE | {
        "podnamespace": found.namespace,
        "podname": found.pod,
        "ctrname": found.container,
        "vdeviceid": str(found.ordinal),
        "deviceuuid": found.device_uuid,
    }
