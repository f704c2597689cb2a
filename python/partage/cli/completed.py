"""Values that a shell offers after TAB. It cannot show an error there, so what cannot be looked at offers nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from partage.model import PartageError

if TYPE_CHECKING:
    import click


def profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the profiles of simulated machines."""
    from partage.sim.profiles import load_all  # noqa: PLC0415 -- only where somebody presses TAB

    with contextlib.suppress(PartageError, OSError):
        found = [(name, profile.description) for profile in load_all() for name in (profile.name, *profile.aliases)]
        return [CompletionItem(name, help=text.replace(",", "")) for name, text in found if name.startswith(incomplete)]
    return []


def hand_overs(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the hand-overs in use."""
    from partage.run import handover  # noqa: PLC0415 -- only where somebody presses TAB

    with contextlib.suppress(PartageError, OSError):
        return [CompletionItem(entry.name) for entry in handover.living() if entry.name.startswith(incomplete)]
    return []


def program(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave programs and their arguments to the shell's own completion of files."""
    return [CompletionItem(incomplete, type="file")]
