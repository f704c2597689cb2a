"""Why a card, a node or a pod is refused: stable codes, each with what it means and what can be done about it.

Said by the books, shown by events, the pod's condition, `partage explain` and metrics. Words that HAMi has are HAMi's,
so that whoever searches for one finds it; a code never changes its meaning. Imports nothing; cannot fail.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Code(enum.StrEnum):
    """The word that users see."""

    CARD_NOT_HEALTHY = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE = "CardTypeMismatch"
    CARD_MODE = "ModeNotFit"
    CARD_UUID = "CardUuidMismatch"
    CARD_INDEX = "CardIndexMismatch"
    CARD_UNKNOWN_USE = "CardUseUnknown"
    CARD_QOS = "CardQosPolicyMismatch"
    CARD_NOT_EMPTY = "ExclusiveDeviceAllocateConflict"
    CARD_SEATS = "CardTimeSlicingExhausted"
    CARD_MEMORY = "CardInsufficientMemory"
    CARD_CORES = "CardInsufficientCore"
    CARD_CORES_GONE = "CardComputeUnitsExhausted"
    NUMA = "NumaNotFit"
    NVLINK = "NvlinkNotFit"
    TOGETHER = "AllocatedCardsInsufficientRequest"
    SEARCH = "PlacementSearchExhausted"
    QUOTA = "ResourceQuotaNotFit"
    NODE_CARDS = "NodeInsufficientDevice"
    NODE_SEATS = "NodeInsufficientSeats"
    NODE_NO_DEVICES = "NodeUnregistered"
    NODE_UNREADABLE = "NodeDevicesUnreadable"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNKNOWN = "NodeUnknown"
    NODE_CHANGED = "NodeChanged"
    BACKEND = "BackendNotSupported"
    POD_TOO_LARGE = "PodTooLarge"
    NODE_CORDONED = "NodeUnschedulable"
    NODE_SELECTOR = "NodeSelectorMismatch"
    NODE_TAINT = "NodeTaintNotTolerated"


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code means, and what the pod's owner or the administrator can do."""

    code: Code
    meaning: str
    remedy: str


_ALL: Final = (
    Reason(
        Code.CARD_NOT_HEALTHY,
        "the card failed, or its driver does not answer",
        "see `partage doctor` on the node; the card comes back by itself once it is well",
    ),
    Reason(
        Code.CARD_CORDONED,
        "an administrator keeps new pods off the card",
        "take its UUID out of the node's annotation hami.io/device-cordon",
    ),
    Reason(
        Code.CARD_TYPE,
        "the pod wants other types of cards",
        "change the pod's annotation nvidia.com/use-gputype or nvidia.com/nouse-gputype, or add nodes of that type",
    ),
    Reason(
        Code.CARD_MODE,
        "the card is shared in another way than the pod asks for",
        "ask for the mode of the node's cards, or let the pod leave the mode open",
    ),
    Reason(
        Code.CARD_UUID,
        "the pod names the cards that it takes or does not take, and this is none for it",
        "change the pod's annotation nvidia.com/use-gpuuuid or nvidia.com/nouse-gpuuuid",
    ),
    Reason(
        Code.CARD_INDEX,
        "the pod names the indexes of the cards that it takes or does not take, and this is none for it",
        "change the pod's annotation partage.io/use-index or partage.io/nouse-index",
    ),
    Reason(
        Code.CARD_UNKNOWN_USE,
        "a pod has something of the card and nobody can tell how much",
        "see the events of the pods on the node, and delete the one whose record cannot be read",
    ),
    Reason(
        Code.CARD_QOS,
        "the card serves another class as long as anybody is on it",
        "ask for the class of the pods on the card, or wait for their end",
    ),
    Reason(
        Code.CARD_NOT_EMPTY,
        "the pod wants the card for itself and others are on it, or another has it for itself",
        "ask for less than all cores of a card, or wait for the others to end",
    ),
    Reason(
        Code.CARD_SEATS,
        "the card has as many shares as it may have",
        "wait for a pod to end, or raise the number of shares of a card in the node's settings",
    ),
    Reason(
        Code.CARD_MEMORY,
        "less memory of the card is free than the pod asks for",
        "ask for less memory, or wait for a pod to end",
    ),
    Reason(
        Code.CARD_CORES,
        "less cores of the card are free than the pod asks for",
        "ask for less cores, or for class burst or best-effort without a guarantee",
    ),
    Reason(
        Code.CARD_CORES_GONE,
        "all cores of the card are promised, and a share without cores would never run",
        "wait for a pod to end, or choose other cards",
    ),
    Reason(
        Code.NUMA,
        "enough cards fit, but no NUMA node has enough of them",
        "ask for fewer cards, or leave out nvidia.com/numa-bind",
    ),
    Reason(
        Code.NVLINK,
        "enough cards fit, but not all of them are joined by NVLink with each other",
        "ask for fewer cards, or set partage.io/nvlink: preferred",
    ),
    Reason(
        Code.TOGETHER,
        "each container fits, but not all of them together",
        "ask for less in one of the containers, or wait for a pod to end",
    ),
    Reason(
        Code.SEARCH,
        "so many containers and cards can be combined that the search was given up",
        "ask for the same share in all containers, or split the pod",
    ),
    Reason(
        Code.QUOTA,
        "a quota of the namespace would be exceeded",
        "see `kubectl describe quota`; ask for less, or have the quota raised",
    ),
    Reason(
        Code.NODE_CARDS,
        "a container asks for more cards than the node has: each of its shares is on a card of its own",
        "ask for at most as many cards as a node has; for more memory of one card raise the memory, not the count",
    ),
    Reason(
        Code.NODE_SEATS,
        "kubelet has no device ids left for the node's shares",
        "wait for a pod to end; pods of other schedulers that ask for the resource count as well",
    ),
    Reason(
        Code.NODE_NO_DEVICES,
        "the node has no cards, or its agent does not run",
        "see `kubectl -n partage-system get pods -o wide` for the agent of the node",
    ),
    Reason(
        Code.NODE_UNREADABLE,
        "what the node says of its cards cannot be read",
        "restart the node's agent: it writes the annotation anew",
    ),
    Reason(
        Code.NODE_NOT_READY,
        "the node is not ready, or its kubelet knows no shares",
        "see `kubectl describe node`; shares come back with the node's agent",
    ),
    Reason(
        Code.NODE_UNKNOWN,
        "the scheduler has not seen the node yet",
        "wait a moment; see that the scheduler may watch nodes",
    ),
    Reason(
        Code.NODE_CHANGED,
        "the node could not take the pod and can now",
        "wait: the scheduler tries again by itself",
    ),
    Reason(
        Code.BACKEND,
        "this release does not place shares of this vendor's cards",
        "use the vendor's own scheduler for them",
    ),
    Reason(
        Code.POD_TOO_LARGE,
        "so many of the pod's containers ask for shares, or for so many cards, that no record of ours holds it",
        "split the pod: at most 16 containers of a pod may ask for shares, for about a hundred in all",
    ),
    Reason(
        Code.NODE_CORDONED,
        "an administrator keeps new pods off the node",
        "see `kubectl uncordon`",
    ),
    Reason(
        Code.NODE_SELECTOR,
        "the pod wants nodes with other labels",
        "change the pod's spec.nodeSelector or its nodeAffinity, or label the node",
    ),
    Reason(
        Code.NODE_TAINT,
        "the node has a taint that the pod does not tolerate",
        "add the taint to the pod's spec.tolerations, or take it from the node (`kubectl taint`)",
    ),
)

REASONS: Final[Mapping[Code, Reason]] = {reason.code: reason for reason in _ALL}


def remedy(code: Code) -> str:
    """Return what can be done about it."""
    return REASONS[code].remedy
