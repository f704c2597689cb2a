"""What kube-scheduler and an extender say to each other, as JSON.

The keys are the names of the Go fields, since those have no tags; an answer to `prioritize` is a bare list. Two forms
of a question: names alone (`nodeCacheCapable`) and whole nodes, of which the answer gives back the ones that fit, byte
for byte as they came. What can go wrong: text that is no such question; `read` raises UsageError, which says where.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from partage.model import UsageError
from partage.model.pod import PodView  # noqa: TC001 -- msgspec reads annotations at run time
from partage.scheduler.views import WatchedNode

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_MESSAGE_MAX: Final = 300


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes as they came."""

    items: tuple[msgspec.Raw, ...] | None = None


class NodeName(msgspec.Struct, frozen=True):
    """The name of a whole node."""

    class Meta(msgspec.Struct, frozen=True):
        """The part that has it."""

        name: _Text

    metadata: Meta


class Args(msgspec.Struct, frozen=True, rename="pascal"):
    """A question of `filter` or `prioritize`: which of these nodes, for this pod."""

    pod: PodView
    node_names: list[_Text] | None = None
    nodes: NodeList | None = None


class BindArgs(
    msgspec.Struct,
    frozen=True,
    rename={"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"},
):
    """`bind`: this pod to this node."""

    name: _Text
    namespace: _Text
    uid: _Text
    node: _Text


class FilterAnswer(msgspec.Struct, rename="pascal", omit_defaults=True):
    """The nodes that fit, in the form of the question, and why the others do not.

    `failed_and_unresolvable_nodes`: kube-scheduler tries no preemption of its own there.
    """

    node_names: list[str] | None = None
    nodes: NodeList | None = None
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """A node's score, 0 to 10."""

    host: str
    score: int


class BindAnswer(msgspec.Struct, rename="pascal", omit_defaults=True):
    """Empty: bound."""

    error: str = ""


_ARGS: Final = msgspec.json.Decoder(Args)
_BIND: Final = msgspec.json.Decoder(BindArgs)
_NAME: Final = msgspec.json.Decoder(NodeName)
_NODE: Final = msgspec.json.Decoder(WatchedNode)
encode: Final = msgspec.json.Encoder().encode


def read_args(body: bytes) -> Args:
    """Return a question of `filter` or `prioritize`; raises UsageError."""
    try:
        args = _ARGS.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(error) from error
    meta = args.pod.metadata
    if not (meta.uid and meta.name and meta.namespace):
        raise _refused("Pod.metadata lacks uid, name or namespace")
    if args.node_names is None and args.nodes is None:
        raise _refused("neither NodeNames nor Nodes")
    return args


def read_bind(body: bytes) -> BindArgs:
    """Return a question of `bind`; raises UsageError."""
    try:
        return _BIND.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(error) from error


def named(nodes: NodeList) -> dict[str, msgspec.Raw]:
    """Return name -> node of whole nodes; raises UsageError."""
    try:
        return {_NAME.decode(node).metadata.name: node for node in nodes.items or ()}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(error) from error


def read_node(node: msgspec.Raw) -> WatchedNode:
    """Return a whole node; raises UsageError."""
    try:
        return _NODE.decode(node)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(error) from error


def _refused(why: object) -> UsageError:
    limit = "what kube-scheduler sends to an extender"
    return UsageError("request", str(why)[:_MESSAGE_MAX], limit, "see who else calls this port")
