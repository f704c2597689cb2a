"""The vendors whose cards this agent can hand out, made from its settings. Another vendor is another function here.

Called by the agent's start. What can go wrong: settings that contradict each other (UsageError), no driver of the kind
that was asked for (DeviceError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.devices.nvidia.backend import NvidiaBackend
from partage.run.libraries import driver_directory
from partage_plugin.nvidia_options import nvidia_options

if TYPE_CHECKING:
    from pathlib import Path

    from partage_plugin.ports import Clock
    from partage_plugin.settings import Settings


def nvidia_backend(settings: Settings, clock: Clock) -> NvidiaBackend:
    """Return the NVIDIA cards of this node, real or simulated as the settings say."""
    return NvidiaBackend(nvidia_options(settings).options, clock, driver_libraries(settings))


def driver_libraries(settings: Settings) -> Path | None:
    """Return the directory of the simulated driver's libraries; None: the real driver's, by their names."""
    if settings.driver == "real":
        return None
    return driver_directory(simulate=settings.driver == "simulated")
