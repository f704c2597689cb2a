"""What a container asks of AWS Neuron devices.

    aws.amazon.com/neuron       whole devices
    aws.amazon.com/neuroncore   cores: parts of one device, or several whole ones

How many cores a device has depends on the node, so a wish for cores is one card with the profile `neuroncore-<n>`; the
books make as many devices of it as the node's need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.requests import Amounts, Selectors, Vendor
from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import AskOptions, Requested

BACKEND: Final = "neuron"
WHOLE: Final = "aws.amazon.com/neuron"
CORES: Final = "aws.amazon.com/neuroncore"
CORES_ON_A_NODE: Final = 128  # 16 devices of 8


def read(asked: Requested, _annotations: Mapping[str, str], _options: AskOptions) -> Amounts | None:
    """Return what the container asks of Neuron devices, None for nothing. Problems are noted in `asked`."""
    if CORES in asked:
        count = asked.integer(CORES, CORES_ON_A_NODE, "how many cores")
        return Amounts(BACKEND, CORES, 1, mode="vendor", profile=f"neuroncore-{count}") if count else None
    cards = asked.cards(WHOLE)
    return Amounts(BACKEND, WHOLE, cards, cores=CORES_MAX, mode="whole") if cards else None


VENDOR: Final = Vendor(
    name=BACKEND,
    kinds=(WHOLE, CORES),
    default=WHOLE,
    names=frozenset({WHOLE, CORES}),
    read=read,
    selectors=Selectors(uuids=("aws.amazon.com/use-neuron-uuid",), no_uuids=("aws.amazon.com/nouse-neuron-uuid",)),
)
