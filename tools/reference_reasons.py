"""The page of reasons: every word that stands as the reason of a condition or an event of ours.

Called by reference.py. What keeps a pod from being placed is read from the table that the scheduler itself says it
from; the other words are the agent's and the scheduler's own, found in their sources by `said`, and explained in
`AGENT` and `SCHEDULER`. What can go wrong: a word that is new there, or gone; a test fails where these differ.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.model.reasons import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOP: Final = Path(__file__).resolve().parent.parent
AGENT_SOURCES: Final = TOP / "plugin/partage_plugin"
SCHEDULER_SOURCES: Final = TOP / "python/partage/scheduler"
#: Whose arguments are reasons: what raises and decides them, and what writes them down.
_SAYERS: Final = frozenset(
    {"Refused", "ResizeRefused", "_Verdict", "Verdict", "_refuse", "event", "pod_event", "condition"}
)

_ABOUT = """Why a card, a node or a pod is refused, in one word: the reason of the pod's condition `partage.io/Placed`,
in events, in `partage explain`, in `partage_scheduler_refusals_total`. Words that HAMi has are HAMi's; a code never
changes its meaning."""

_ABOUT_AGENT = """What the agent of its node says of a pod that was placed. An event has the word and the sentence:
object; value; limit; next step. The pod's condition has both as long as it is so (`partage explain pod`, or
`kubectl get pod POD -o jsonpath='{.status.conditions}'`; events are gone after an hour). `partage.io/Enforced` false:
a container of the pod does not start, or is not held as it should be; kubelet tries again by itself. Where it is true,
the reason is what holds the limits (`shim`)."""

_ABOUT_SCHEDULER = """Of a pod where nothing else is named. A resize is refused with the codes at the top, too."""

_ANEW = "delete the pod and let its controller make a new one, which gets a grant of its own"
_RESIZED = "condition `partage.io/Resized`: "

#: The agent's reasons -> what it means, what to do.
AGENT: Final[Mapping[str, tuple[str, str]]] = {
    "GrantMissing": (
        "nobody granted the pod a share: another scheduler placed it, or it names its node itself",
        "create it again with `schedulerName: partage-scheduler` (or none, where the webhook runs) and no `nodeName`",
    ),
    "GrantInvalid": (
        "its annotation `partage.io/grant` cannot be read, or is of another pod or node",
        _ANEW + "; if that says so too, compare the versions of scheduler and agent",
    ),
    "GrantOfHami": (
        "HAMi's scheduler placed the pod: what it has is counted, and HAMi's device plugin alone starts it",
        "to have it here, create it again with `schedulerName: partage-scheduler`",
    ),
    "GrantOfHamiInvalid": (
        "what HAMi's scheduler wrote onto the pod cannot be read, so the cards that it names take no further shares",
        "delete the pod, or correct `hami.io/vgpu-devices-allocated`",
    ),
    "ContainerNotGranted": ("the pod's grant has no share for this container", _ANEW),
    "SeatsDiffer": ("kubelet gave the container another number of seats than its grant has shares", _ANEW),
    "TooManyShares": (
        "the container asks for shares of several cards, and this node allows one",
        "ask for one, or set `nvidia.failRequestsGreaterThanOne: false`",
    ),
    "CardMissing": ("the node has no card of the UUID that was granted: it was taken out, or replaced", _ANEW),
    "CardUnhealthy": (
        "the card that was granted failed after the pod was placed",
        "wait for it ([when a card fails](../how-to/nvidia-node.md#when-a-card-fails)), or " + _ANEW,
    ),
    "ShareTooLarge": ("the card has less memory in all than was granted", _ANEW),
    "CardOverpromised": (
        "with this pod more would be promised of the card than it carries: memory, or more than all of its time",
        "wait for one of the pods that the message names to end, or delete this one; see who else places pods there",
    ),
    "CardUseUnknown": (
        "a pod has something of the card and nobody can tell how much",
        "see the events of the pods that the message names, and delete them or wait for their end",
    ),
    "ModeNotEnforced": (
        "the grant is of a mode (MIG, MPS, a vendor's) that nothing on this node holds",
        "place the pod anew without that mode (`nvidia.com/vgpu-mode`)",
    ),
    "DeviceNotReady": (
        "what a container needs of the card cannot be had: a device node or a file of the driver is not there",
        "what the message says; see [what containers get](../how-to/nvidia-node.md#what-containers-get)",
    ),
    "HandOverNotWritten": (
        "the files of the container's share cannot be written: a disk is full or read-only, or something lies there",
        "what the message says, below `/run/partage` or the CDI directory of the node; kubelet asks again",
    ),
    "HandOverOfAnother": (
        "kubelet names a container whose place was given to another pod before",
        "kubelet asks again; delete the pod if this stays",
    ),
    "HandOverDamaged": (
        "somebody removed a file of a running container's share on the node",
        "restart the container, and let nothing there clean `/run/partage` (tmpfiles.d, a script)",
    ),
    "LedgerSpoilt": (
        "a process of the container wrote over its own ledger: it gets no more memory",
        "restart the container, which gets a new one; see what runs in it",
    ),
    "LibraryMissing": (
        "libvgpu.so cannot be put onto the node, or the version under which the container began is gone",
        "make room and let the agent write to `places.library`; or " + _ANEW,
    ),
    "LimitCovered": (
        "a volume of the container, or its `terminationMessagePath`, lies over what holds its limits",
        "create the pod again with that elsewhere",
    ),
    "OwnerUnknown": (
        "kubelet's checkpoint does not say whose the device ids are, or another device plugin answered for them",
        "kubelet asks again; if it stays, see kubelet's log, and whether HAMi's plugin runs on this node",
    ),
    "OwnerAmbiguous": (
        "kubelet's checkpoint cannot be used and several containers could be meant: nothing is guessed",
        "delete the pod and let its controller make a new one; use a version of Partage that knows this kubelet",
    ),
    "OwnerContradicted": (
        "kubelet's checkpoint and its PodResources name different containers",
        "kubelet asks again; see its log if this stays",
    ),
    "PodUnknown": (
        "the API server has not shown the pod to the agent in time",
        "see whether the node reaches the API server; kubelet asks again",
    ),
    "PodStatic": (
        "kubelet has the pod from a manifest on the node, so nobody binds it and it has no grant",
        "create it at the API server, as of a DaemonSet, without `nodeName`",
    ),
    "NoWholeCardFree": (
        "`wholeCardSafeMode` is on, and fewer whole cards are free than the pod asks for",
        "wait for a card, or let `partage-scheduler` place the pod",
    ),
    "ResizeMovesCards": (
        _RESIZED + "the pod's grant names other cards than it runs on",
        "start the pod anew: a running container stays on its cards",
    ),
    "ShareResized": (_RESIZED + "true, the new amounts are in force", "nothing"),
    "ShareStillUsed": (
        _RESIZED + "the container uses more than its new limit; it gets no more, and nobody else is promised that part",
        "wait until it has freed enough, or restart it",
    ),
    "ShareUseUnknown": (
        _RESIZED + "the driver does not say what its processes hold, so what it had stays promised to it",
        "see the message and the health of the card; it ends with the pod at the latest",
    ),
}

#: The scheduler's reasons beside the codes -> what it means, what to do.
SCHEDULER: Final[Mapping[str, tuple[str, str]]] = {
    "InvalidRequest": (
        "the pod asks for shares in a way that has no meaning",
        "what the message says, then create it again ([ask for shares](../how-to/ask-for-shares.md))",
    ),
    "FilteringFailed": ("no node takes it now; the message begins with the code", "see the code"),
    "OtherScheduler": (
        "it asks for shares and names a scheduler that gives none",
        "create it again without `schedulerName`, or name that one in `schedulers`",
    ),
    "BindingSucceed": ("it was placed, with a grant", "nothing"),
    "BindingFailed": ("it was not bound to the node that was chosen", "nothing: it is placed again"),
    "Placed": ("condition `partage.io/Placed` true: it waited, and is bound now", "nothing"),
    "PreemptionStarted": ("less important pods are evicted to make room for it", "nothing"),
    "PlaceKept": ("less important pods end anyway; their place is kept for it", "nothing"),
    "Preempted": ("it was evicted to make room for a more important pod", "give it a higher PriorityClass"),
    "PreemptionFailed": (
        "the room that was being made for it is not to be had now, as for a disruption budget",
        "nothing: the next best is tried; look at the budgets if this stays",
    ),
    "ResizeInvalid": (
        "the annotation `partage.io/resize` does not parse, or names what the pod has not",
        'write `{"CONTAINER": {"memory": "12Gi", "cores": "60%"}}`',
    ),
    "QuotaKeyUnknown": (
        "of a ResourceQuota: a key or an amount of it means nothing to anybody",
        "write one of the keys that the message names ([quotas](../how-to/quotas-and-priorities.md))",
    ),
    "DevicesUnreadable": (
        "of a node: its annotation `partage.io/devices` cannot be read, so nothing is placed there",
        "restart the agent of that node; compare the versions of agent and scheduler",
    ),
}


def said(sources: Path) -> set[str]:
    """Return the reasons that the programs below a directory say: words that are handed to one of `_SAYERS`."""
    trees = [ast.parse(path.read_text()) for path in sorted(sources.rglob("*.py"))]
    found: set[str] = set()
    for tree in trees:
        words = dict(_constants(tree))
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _name(call.func) in _SAYERS:
                given = [*call.args, *(one.value for one in call.keywords if one.arg != "action")]
                found |= {words.get(_name(one), "") for one in given} | {_literal(one) for one in given}
    return {word for word in found if word.isalpha() and word[0].isupper()}


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the texts that a module has names for."""
    for line in tree.body:
        if isinstance(line, ast.AnnAssign) and line.value is not None and _literal(line.value):
            yield _name(line.target), _literal(line.value)


def _name(of: ast.expr) -> str:
    return of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""


def _literal(of: ast.expr) -> str:
    return of.value if isinstance(of, ast.Constant) and isinstance(of.value, str) else ""


def _table(rows: Mapping[str, tuple[str, str]]) -> str:
    lines = [f"| `{word}` | {meaning} | {remedy} |" for word, (meaning, remedy) in rows.items()]
    return "\n".join(["| reason | means | what to do |", "|---|---|---|", *lines])


def page(note: str) -> str:
    """Return the page."""
    codes = [f"| `{reason.code}` | {reason.meaning} | {reason.remedy} |" for reason in REASONS.values()]
    table = "\n".join(["| code | means | what to do |", "|---|---|---|", *codes])
    parts = ["# Reason codes", note, _ABOUT, table]
    parts += ["## What a node's agent says", _ABOUT_AGENT, _table(AGENT)]
    parts += ["## What else the scheduler says", _ABOUT_SCHEDULER, _table(SCHEDULER)]
    return "\n\n".join(parts) + "\n"
