"""What a ResourceQuota can limit of ours: its keys, what each counts of a share, and in which unit.

A key is `limits.` and a resource's name: `limits.nvidia.com/gpumem: 30k` is 30,000 MiB over all cards of all pods. Used
by the quota book and its writer. A bare amount is in the unit in which pods write the resource; one with a binary
suffix (`40Gi`) is bytes, since the API server never makes such a suffix of a bare number. What can go wrong: an amount
that is none (UsageError), and a key that only looks like one of ours, which `misspelt` finds.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from partage.devices.quantity import Quantity, parse_quantity
from partage.devices.requests import INT32_MAX
from partage.model import UsageError
from partage.model.units import GI, MI

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["memory", "cores", "cards"]

PREFIX: Final = "limits."
_NATIVE: Final = "requests."
PERCENT: Final = 10  # permille
_FORMS: Final = "accepted: a whole amount in the resource's unit (30000, 30k), memory also in bytes (40Gi)"


@dataclass(frozen=True, slots=True)
class Meter:
    """One key: which resources' shares it counts, what of them, and how much (bytes, permille, cards) its unit is."""

    key: str
    backend: str
    resources: frozenset[str]  # that kubelet counts
    kind: Kind
    unit: int

    def counts(self, backend: str, resource: str) -> bool:
        """Whether a share counts here; of one without a resource's name (HAMi's twin) the backend is enough."""
        return backend == self.backend and (not resource or resource in self.resources)


def _meters(
    backend: str, cards: str, memory: tuple[str, int] | None = None, cores: str | None = None, *also: str
) -> Iterable[Meter]:
    """Yield the keys of one resource; `also`: other names for the same cards, whose shares count here too."""
    counted = frozenset({cards, *also})
    yield Meter(PREFIX + cards, backend, counted, "cards", 1)
    if memory is not None:
        yield Meter(PREFIX + memory[0], backend, counted, "memory", memory[1])
    if cores is not None:
        yield Meter(PREFIX + cores, backend, counted, "cores", PERCENT)


_NVIDIA: Final = "nvidia.com/gpu"
_SHORT: Final = "hami.io/gpu"
_VOLCANO: Final = "volcano.sh/vgpu-number"
METERS: Final[tuple[Meter, ...]] = (
    *_meters("nvidia", _NVIDIA, ("nvidia.com/gpumem", MI), "nvidia.com/gpucores", _VOLCANO, _SHORT),
    *_meters("nvidia", _SHORT, ("hami.io/gpumem", MI), "hami.io/gpucores", _NVIDIA, _VOLCANO),
    *_meters("nvidia", _VOLCANO, ("volcano.sh/vgpu-memory", MI), "volcano.sh/vgpu-cores", _NVIDIA, _SHORT),
    *_meters("metax", "metax-tech.com/gpu"),
    *_meters("metax", "metax-tech.com/sgpu", ("metax-tech.com/vmemory", GI), "metax-tech.com/vcore"),
    *_meters("kunlun", "kunlunxin.com/xpu"),
    *_meters("kunlun", "kunlunxin.com/vxpu", ("kunlunxin.com/vxpu-memory", MI)),
    *_meters("neuron", "aws.amazon.com/neuron"),
    *_meters("neuron", "aws.amazon.com/neuroncore"),
    *_meters("enflame", "enflame.com/gcu"),
    *_meters("enflame", "enflame.com/vgcu"),
    *_meters("enflame", "enflame.com/drs-gcu", ("enflame.com/gcu-memory", GI), "enflame.com/gcu-core"),
)
BY_KEY: Final = {meter.key: meter for meter in METERS}
_DOMAINS: Final = frozenset(key.removeprefix(PREFIX).split("/")[0] for key in BY_KEY)


def misspelt(key: str) -> str | None:
    """Return what is wrong with a key that has one of our domains and that nobody counts, or None.

    `requests.` keys are Kubernetes' own: it adds up what the pods' requests say.
    """
    before, _, name = key.partition("/")
    domain = next((one for one in _DOMAINS if before == one or before.endswith(f".{one}")), None)
    if key in BY_KEY or domain is None or not name or before == f"{_NATIVE}{domain}":
        return None
    near = difflib.get_close_matches(f"{PREFIX}{domain}/{name}", BY_KEY, n=1)
    there = [known for known in BY_KEY if known.startswith(f"{PREFIX}{domain}/")]
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"key {key}: nothing counts it; there are: {', '.join(sorted(there))}{meant}"


def parse_amount(meter: Meter, text: str) -> int:
    """Return the bytes, permille or cards that a quantity of a quota means; parts of a unit's part are cut off.

    Raises UsageError for what is no quantity, and for more memory than any pod may name: `100G` is 10^11 of the unit.
    """
    amount = parse_quantity(text)
    if amount is None or amount.value < 0:
        raise UsageError(f"{meter.key} {text!r}", "not an amount", _FORMS, "write one of these")
    if meter.kind == "memory" and not amount.is_binary and amount.value > INT32_MAX:
        found = f"{amount.value:f} {'MiB' if meter.unit == MI else 'GiB'}, or decimal bytes"
        raise UsageError(
            f"{meter.key} {text!r}", found, f"at most {INT32_MAX}; {_FORMS}", "write a binary unit (100Gi)"
        )
    return int(amount.value * (1 if _is_bytes(meter, amount) else meter.unit))


def _is_bytes(meter: Meter, amount: Quantity) -> bool:
    """Whether a quantity is in bytes and not in the resource's unit."""
    return meter.kind == "memory" and amount.is_binary


def format_amount(meter: Meter, amount: int, *, like: str) -> str:
    """Return a quantity for an amount, in the unit of the quantity `like`, parts of a unit counted as a whole one."""
    wanted = parse_quantity(like)
    if wanted is not None and _is_bytes(meter, wanted):
        return f"{-(-amount // MI)}Mi"
    return str(-(-amount // meter.unit))
