"""What an administrator decides about admission, as `decide` takes it; filled by the webhook's settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from partage.devices.requests import AskOptions
from partage.model import names

WRITER: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.ACCOUNT_SCHEDULER}"
NCCL_SECONDS: Final = 1800


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """All of it.

    `also_known_as`: further names under which pods may ask for our scheduler, and keep; `take_over_default`: pods that
    name no scheduler, or Kubernetes' own, become ours; `runtime_class` for pods with NVIDIA shares, empty: none;
    `priority_classes`: whether they follow `nvidia.com/priority`; `hide_cards`: containers without a share are told of
    no card; `writers`: who may write grants; `nccl_seconds`: after how long a distributed job of which a part is
    missing gives up, 0: that is left to its image; `seccomp`: whether pods with shares that name no seccomp profile get
    the runtime's.
    """

    ask: AskOptions = field(default_factory=AskOptions)
    scheduler: str = names.SCHEDULER
    also_known_as: frozenset[str] = frozenset()
    take_over_default: bool = True
    runtime_class: str = ""
    priority_classes: bool = False
    hide_cards: bool = True
    writers: frozenset[str] = frozenset({WRITER})
    nccl_seconds: int = NCCL_SECONDS
    seccomp: bool = True
