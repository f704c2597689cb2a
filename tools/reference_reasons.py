"""The page of reason codes, from the table that the scheduler itself says them from. Called by reference.py."""

from __future__ import annotations

from partage.model.reasons import REASONS

_ABOUT = """Why a card, a node or a pod is refused, in one word: the reason of the pod's condition `partage.io/Placed`,
in events, in `partage explain`, in `partage_scheduler_refusals_total`. Words that HAMi has are HAMi's; a code never
changes its meaning."""


def page(note: str) -> str:
    """Return the page."""
    rows = [f"| `{reason.code}` | {reason.meaning} | {reason.remedy} |" for reason in REASONS.values()]
    table = "\n".join(["| code | means | what to do |", "|---|---|---|", *rows])
    return "\n\n".join(["# Reason codes", note, _ABOUT, table]) + "\n"
