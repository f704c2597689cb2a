"""We test these aspects of the page of reasons: every word that the agent or the scheduler says on a pod, a quota or a
node as the reason of an event or a condition is explained with what to do, and none that is not said any more."""

from __future__ import annotations

import sys
from pathlib import Path

from partage.model.reasons import REASONS

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools"))

import reference_reasons  # noqa: E402


def test_every_reason_of_the_agent_is_explained() -> None:
    said = reference_reasons.said(reference_reasons.AGENT_SOURCES)
    assert said - reference_reasons.AGENT.keys() == set(), "explain them in tools/reference_reasons.py"
    assert reference_reasons.AGENT.keys() - said == set(), "not said any more"
    assert len(said) > 25


def test_every_reason_of_the_scheduler_is_explained() -> None:
    said = reference_reasons.said(reference_reasons.SCHEDULER_SOURCES) - {str(code) for code in REASONS}
    assert said - reference_reasons.SCHEDULER.keys() == set(), "explain them in tools/reference_reasons.py"
    assert reference_reasons.SCHEDULER.keys() - said == set(), "not said any more"
    assert len(said) > 10
