"""The dashboard and the alert rules name figures that the programs export, and no others. What promtool thinks of the
rules is tested in tests/cluster."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from partage.admission.server import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools"))

from sample_figures import agent_page, scheduler_families  # noqa: E402

FILES = TOP / "deploy" / "chart" / "partage" / "files"
SERIES = re.compile(r"\b(?:partage|hami)_[a-z0-9_]+")


def exported() -> set[str]:
    names = {
        line.partition("{")[0].partition(" ")[0]
        for line in agent_page().splitlines()
        if line and not line.startswith("#")
    }
    for family in [*Tally().families(), *scheduler_families()]:
        names |= {sample.name for sample in family.samples}
    return names


def test_all_under_hamis_names_have_its_label() -> None:
    families = [*text_string_to_metric_families(agent_page()), *scheduler_families()]
    theirs = [one for one in families if not one.name.startswith("partage_")]
    assert len(theirs) > 20
    without = {one.name for one in theirs for sample in one.samples if sample.labels.get("zone") != "vGPU"}
    assert without == set(), "HAMi has it on all series, and dashboards select by it"


def expressions(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            if name == key and isinstance(below, str):
                yield below
            yield from expressions(below, key)
    elif isinstance(value, list):
        for below in value:
            yield from expressions(below, key)


def dashboard() -> dict[str, Any]:
    return dict(json.loads((FILES / "dashboard.json").read_text()))


def test_the_dashboards_figures_exist() -> None:
    asked = [*expressions(dashboard(), "expr"), *expressions(dashboard()["templating"], "query")]
    assert len(asked) > 20
    known = exported()
    used = {name for text in asked for name in SERIES.findall(text)}
    assert used <= known, used - known


def test_the_alerts_figures_exist() -> None:
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text())
    used = {name for text in expressions(rules, "expr") for name in SERIES.findall(text)}
    assert used
    assert used <= exported(), used - exported()


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: str(panel["title"]))
def test_every_panel_has_its_place_and_source(panel: dict[str, Any]) -> None:
    place = panel["gridPos"]
    assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    others = [one["gridPos"] for one in dashboard()["panels"] if one["id"] != panel["id"]]
    for other in others:
        apart = (
            place["x"] + place["w"] <= other["x"]
            or other["x"] + other["w"] <= place["x"]
            or place["y"] + place["h"] <= other["y"]
            or other["y"] + other["h"] <= place["y"]
        )
        assert apart, (panel["title"], place, other)
    for target in panel.get("targets", []):
        assert target["datasource"]["uid"] == "${datasource}"
