"""What an administrator says of reading pods: a section of the webhook's and of the scheduler's settings, the same."""

from __future__ import annotations

from typing import Annotated

from partage.configuration import Section, key
from partage.devices.requests import AskOptions, CorePolicy


class AskSettings(Section, frozen=True, kw_only=True):
    """What pods mean; webhook and scheduler must have the same."""

    memory_factor: Annotated[int, key("How many MiB one of `nvidia.com/gpumem` means.", ge=1, le=1 << 20)] = 1
    default_cards: Annotated[
        int, key("Cards where a pod names memory or cores only; 0: such pods are refused.", ge=0, le=16)
    ] = 1
    default_memory: Annotated[int, key("MiB of a card where a pod names no memory; 0: the whole card.", ge=0)] = 0
    default_cores: Annotated[
        int, key("Percent of a card's time where a pod names no cores; 0: none.", ge=0, le=100)
    ] = 0
    core_policy: Annotated[
        CorePolicy,
        key("Class of shares where a pod names none: force = fixed, default and disable = burst; empty: by its cores."),
    ] = ""
    confined: Annotated[
        bool, key("Whether pods with shares may have neither `hostPID` nor the capability `SYS_ADMIN`.")
    ] = True

    def options(self) -> AskOptions:
        """Return it as `read_ask` takes it."""
        return AskOptions(
            memory_factor=self.memory_factor,
            default_cards=self.default_cards,
            default_memory=self.default_memory,
            default_cores=self.default_cores,
            core_policy=self.core_policy,
            confined=self.confined,
        )
