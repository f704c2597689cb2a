"""HAMi's twin of a grant: the annotation in which HAMi keeps what a pod has of each NVIDIA card, read and written.

Written beside every grant for whoever reads HAMi's. A pod that has only the twin was placed by HAMi: the agent and the
books count what it has as a grant of term 0, generation 0, and leave the pod itself alone. The text has an entry per
container in the order of the spec, init containers (sidecars among them) first, each ended by `;` and empty where the
container has nothing: `uuid,NVIDIA,<MiB>,<cores %>:` per share. Two older forms are read, too, of pods that HAMi has
placed long ago: without entries for init containers, and with `,,0,0:` where a container has nothing. What can go
wrong: any other text (GrantError).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from partage.model.errors import GrantError
from partage.model.grant import DEVICES_MAX, GRANT_BYTES_MAX, GRANT_VERSION, ContainerGrant, Grant, GrantShare
from partage.model.need import Role
from partage.model.share import CORES_MAX, DEFAULT_PRIORITY, ShareClass, default_weight, times_of
from partage.model.units import MI

if TYPE_CHECKING:
    from collections.abc import Sequence

ANNOTATION: Final = "hami.io/vgpu-devices-allocated"
BIND_PHASE: Final = "hami.io/bind-phase"  # what HAMi's plugin says once a pod has its devices:
BOUND: Final = "success"
TERM: Final = 0  # of a grant that no scheduler of ours wrote: before all others
GENERATION: Final = 0
BACKEND: Final = "nvidia"
_VENDOR: Final = "NVIDIA"
_NOTHING: Final = ",,0,0:"
_PERMILLE: Final = 10  # in a percent
_MIB_MAX: Final = ((1 << 63) - 1) // MI
_UUID: Final = re.compile(r"GPU-[!-+\--9<-Z\\^-~]{1,59}")  # printable ASCII without , : ; [ ]
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_FORM: Final = "accepted: uuid,NVIDIA,MiB,percent: per share and ; after each container"
_STEP: Final = "delete the pod and let its controller make a new one; until then its cards take no other share"
_GRANT_STEP: Final = "only Partage's scheduler writes grants: delete the pod and let its controller make a new one"


def parse_twin(text: str, containers: Sequence[tuple[str, Role]], *, uid: str, node: str, pod: str) -> Grant:
    """Return what the twin in `text` gives; `containers`: in the order of the spec, init ones first; `pod`: its name.

    `bound_at` is 0: the twin does not say. Raises GrantError for anything that is not such a text for such containers.
    """
    subject = f"annotation {ANNOTATION} of {pod}"
    if len(text) > GRANT_BYTES_MAX:
        raise GrantError(subject, f"{len(text)} characters", f"at most {GRANT_BYTES_MAX}", _STEP)
    *entries, rest = text.split(";")
    if rest:
        raise GrantError(subject, f"{_shown(rest)} after the last ;", _FORM, _STEP)
    order = [name for name, _ in containers]
    if len(entries) < len(order):  # HAMi before 2.10 did not place init containers, and 2.10 leaves out empty ones
        order = [name for name, role in containers if role is Role.APP]
    if len(entries) != len(order):
        raise GrantError(subject, f"{len(entries)} entries", f"the pod has {len(containers)} containers", _STEP)
    parts = {
        name: _container(entry, f"{subject}, container {name!r}")
        for name, entry in zip(order, entries, strict=True)
        if entry not in {"", _NOTHING}
    }
    return Grant(v=GRANT_VERSION, uid=uid, node=node, term=TERM, bound_at=0, gen=GENERATION, containers=parts)


def named_cards(text: str) -> frozenset[str]:
    """Return all cards that a text names, however wrong the rest of it is."""
    return frozenset(_UUID.findall(text))


def can_name(uuid: str) -> bool:
    """Whether the text can hold a card of this UUID."""
    return _UUID.fullmatch(uuid) is not None


def encode_twin(grant: Grant, containers: Sequence[str]) -> str:
    """Return the twin of a grant: memory rounded down to MiB, cores up to percent; other vendors' shares are not in it.

    Raises GrantError for a card whose UUID the text cannot hold.
    """
    return "".join(
        _entry(grant.containers.get(name), f"grant of {grant.uid}, container {name!r}") for name in containers
    )


def _entry(part: ContainerGrant | None, subject: str) -> str:
    shares = () if part is None else [share for share in part.shares if share.backend == BACKEND]
    for share in shares:
        if not can_name(share.uuid):
            raise GrantError(subject, f"card {_shown(share.uuid)}", "GPU- and up to 59 printable", _GRANT_STEP)
    return "".join(f"{one.uuid},{_VENDOR},{one.memory // MI},{-(-one.cores // _PERMILLE)}:" for one in shares) + ";"


def _container(entry: str, subject: str) -> ContainerGrant:
    *texts, rest = entry.split(":")
    if rest:
        raise GrantError(subject, f"{_shown(rest)} after the last :", _FORM, _STEP)
    if len(texts) > DEVICES_MAX:
        raise GrantError(subject, f"{len(texts)} shares", f"at most {DEVICES_MAX}", _STEP)
    asked = [_share(text, subject) for text in texts]
    cards = [uuid for uuid, _, _ in asked]
    if len(set(cards)) != len(cards):
        raise GrantError(subject, f"cards {', '.join(cards)}", "a container has one share of a device", _STEP)
    kind = ShareClass.FIXED if all(cores for _, _, cores in asked) else ShareClass.BURST
    shares = []
    for uuid, memory, cores in asked:
        guarantee, ceiling = times_of(kind, cores)
        shares.append(
            GrantShare(
                backend=BACKEND,
                uuid=uuid,
                memory=memory,
                cores=guarantee,
                ceiling=ceiling,
                weight=default_weight(cores),
            )
        )
    return ContainerGrant(share_class=kind, priority=DEFAULT_PRIORITY, mode="shim", shares=tuple(shares))


def _share(text: str, subject: str) -> tuple[str, int, int]:
    """Return card, bytes and permille of one share."""
    fields = text.split(",")
    if len(fields) != 4:
        raise GrantError(subject, f"share {_shown(text)} of {len(fields)} fields", _FORM, _STEP)
    uuid, vendor, memory, cores = fields
    if "[" in uuid:
        limit = "shares of whole cards; what a MIG instance takes of its card is not told by this form"
        raise GrantError(subject, f"MIG instance {_shown(uuid)}", limit, _STEP)
    if _UUID.fullmatch(uuid) is None:
        raise GrantError(subject, f"card {_shown(uuid)}", "a UUID as NVML has it: GPU- and up to 59 printable", _STEP)
    if vendor != _VENDOR:
        raise GrantError(subject, f"type {_shown(vendor)} of {uuid}", f"{_VENDOR} in this annotation", _STEP)
    if _NUMBER.fullmatch(memory) is None or not 0 < int(memory) <= _MIB_MAX:
        raise GrantError(subject, f"memory {_shown(memory)} of {uuid}", f"1 to {_MIB_MAX} MiB", _STEP)
    if _NUMBER.fullmatch(cores) is None or int(cores) * _PERMILLE > CORES_MAX:
        raise GrantError(subject, f"cores {_shown(cores)} of {uuid}", "0 to 100 percent", _STEP)
    return uuid, int(memory) * MI, int(cores) * _PERMILLE


def _shown(text: str) -> str:
    """Return a piece of a text for a message: quoted, and short."""
    longest = 80
    return repr(text if len(text) <= longest else text[:longest] + "…")
