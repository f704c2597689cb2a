"""The grant: what each container of a pod gets, as the scheduler wrote it onto the pod together with its binding.

Written by the scheduler, read by the node agent, by the books and by `partage explain`. The text is JSON with sorted
keys and no blanks; keys that a reader does not know are ignored, an unknown version is refused, and optional fields
are left out where they say nothing, never null. What can go wrong: somebody else's text, or one for another pod or
node; GrantError says which value, and nothing of such a grant is used.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from partage.model.errors import GrantError
from partage.model.share import CORES_MAX, WEIGHT_MAX, ShareClass

GRANT_VERSION: Final = 1
GRANT_BYTES_MAX: Final = 32 << 10
DEVICES_MAX: Final = 16  # of one container: what its policy file holds
UUID_BYTES_MAX: Final = 63

Mode = Literal["shim", "mps", "mig", "timeslice", "vendor", "whole"]
_WHOLE_MAX: Final = (1 << 63) - 1  # JSON knows larger ones; no file, policy of the API or other language's reader does
_Count = Annotated[int, msgspec.Meta(ge=0, le=_WHOLE_MAX)]
_Positive = Annotated[int, msgspec.Meta(gt=0, le=_WHOLE_MAX)]
_Permille = Annotated[int, msgspec.Meta(ge=0, le=CORES_MAX)]
_Weight = Annotated[int, msgspec.Meta(ge=1, le=WEIGHT_MAX)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware slice (MIG, Kunlun, sGPU, DRS, NeuronCores); start and size in the units of its profile."""

    profile: _Text
    start: _Count
    size: _Positive


class GrantShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container's share of one device: memory in bytes (hard limit), cores and ceiling in permille, weight.

    `held`: bytes that may be in use still of a larger share before, until the node says that use is below; 0: none.
    """

    backend: _Text
    uuid: _Text
    memory: _Positive
    cores: _Permille
    ceiling: Annotated[int, msgspec.Meta(ge=1, le=CORES_MAX)]
    weight: _Weight
    slice: Slice | msgspec.UnsetType = msgspec.UNSET
    held: _Count = 0

    @property
    def counted(self) -> int:
        """Memory that nobody else can be promised, in bytes."""
        return max(self.memory, self.held)


class ContainerGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"share_class": "class"}):
    """What one container gets; a share's place in the list is its ordinal in the container."""

    share_class: ShareClass
    priority: Annotated[int, msgspec.Meta(ge=0, le=2)]
    mode: Mode
    shares: Annotated[tuple[GrantShare, ...], msgspec.Meta(min_length=1, max_length=DEVICES_MAX)]
    oversub: bool = False


class Grant(msgspec.Struct, frozen=True, kw_only=True, rename={"bound_at": "boundAt", "resized_in": "resizedIn"}):
    """The whole record.

    `term`: of the Lease under which the pod was bound; `bound_at`: Unix µs, set once; `resized_in`: the term of the
    last change since. The API server refuses one of an earlier term than the Lease's (deploy/policies/terms.yaml).
    """

    v: int
    uid: _Text
    node: _Text
    term: _Count
    bound_at: _Positive
    gen: _Positive
    containers: dict[str, ContainerGrant]
    resized_in: _Count | msgspec.UnsetType = msgspec.UNSET

    @property
    def order(self) -> tuple[int, int, str]:
        """Which of two grants that cannot both hold came first: the smaller one keeps its shares."""
        return self.term, self.bound_at, self.uid


class _Version(msgspec.Struct, frozen=True):
    """The one field that every version has."""

    v: int


def condition_message(generation: int) -> str:
    """Return how a node says, in the condition `partage.io/Resized`, that this generation holds and use is below it."""
    return f"generation {generation}"


def parse_grant(text: str, *, uid: str, node: str, pod: str) -> Grant:
    """Return the grant in `text` for the pod with this UID on this node; `pod` is how messages name it.

    Raises GrantError for text that is no grant, of another version, out of bounds, or another pod's or node's.
    """
    subject = f"grant of {pod}"
    if len(text.encode("utf-8", "replace")) > GRANT_BYTES_MAX:
        raise GrantError(subject, f"{len(text)} characters", f"at most {GRANT_BYTES_MAX} bytes", _STEP)
    try:
        version = msgspec.json.decode(text, type=_Version).v
        if version != GRANT_VERSION:
            raise GrantError(subject, f"version {version}", f"this release reads {GRANT_VERSION}", _UPGRADE)
        grant = msgspec.json.decode(text, type=Grant)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise GrantError(subject, str(error), "a grant as the scheduler writes it", _STEP) from error
    for found, wanted, what in ((grant.uid, uid, "pod UID"), (grant.node, node, "node")):
        if found != wanted:
            raise GrantError(subject, f"{what} {found!r}", f"this is {wanted!r}", _STEP)
    check_grant(grant, subject)
    return grant


def check_grant(grant: Grant, subject: str) -> None:
    """Raise GrantError where the parts of a grant contradict each other; the bounds of each value hold already."""
    for name, container in grant.containers.items():
        seen: set[str] = set()
        for share in container.shares:
            where = f"{subject}, container {name!r}, device {share.uuid}"
            if share.uuid in seen:
                raise GrantError(where, "listed twice", "a container has one share of a device", _STEP)
            seen.add(share.uuid)
            if not share.uuid.isprintable() or len(share.uuid.encode()) > UUID_BYTES_MAX:
                raise GrantError(where, "not a UUID", f"1 to {UUID_BYTES_MAX} printable bytes", _STEP)
            _check_times(container.share_class, share, where)


def _check_times(share_class: ShareClass, share: GrantShare, where: str) -> None:
    """Hold guarantee and ceiling to the rules of the class."""
    found = f"class {share_class.value}, cores {share.cores} ‰, ceiling {share.ceiling} ‰"
    if share.cores > share.ceiling:
        raise GrantError(where, found, "a guarantee is at most its ceiling", _STEP)
    if share_class is ShareClass.FIXED and share.cores != share.ceiling:
        raise GrantError(where, found, "a fixed share's ceiling is its guarantee", _STEP)
    if share_class is ShareClass.BEST_EFFORT and share.cores:
        raise GrantError(where, found, "best-effort has no guarantee", _STEP)


def encode_grant(grant: Grant) -> str:
    """Return the text of a grant: sorted keys, no blanks, byte for byte the same for the same grant."""
    return msgspec.json.encode(grant, order="sorted").decode()


_STEP: Final = "only Partage's scheduler writes grants: delete the pod and let its controller make a new one"
_UPGRADE: Final = "update this component to the release of the scheduler"
