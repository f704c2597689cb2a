"""Pods as the API server tells them: what their containers ask for, in its own way of writing amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as KubePod

from partage_plugin.kubepods import pod_of
from partage_plugin.safe import SafeMode
from tests.plugin.kubelet import RESOURCE
from tests.plugin.world import NODE

if TYPE_CHECKING:
    from partage_plugin.ports import Pod

MEMORY = "nvidia.com/gpumem"


def told(limits: dict[str, str]) -> Pod:
    """Return a pod of one container with these limits."""
    app = Container(name="app", resources=ResourceRequirements(limits={**limits, "cpu": "1", "memory": "1Gi"}))
    meta = ObjectMeta(name="a", namespace="default", uid="u1")
    return pod_of(KubePod(metadata=meta, spec=PodSpec(containers=[app], nodeName=NODE)))


@pytest.mark.parametrize(
    ("written", "count"), [("3000", 3000), ("3k", 3000), ("16k", 16000), ("1M", 1_000_000), ("4096", 4096), ("0", None)]
)
def test_amounts_are_read_as_the_api_server_writes_them(written: str, count: int | None) -> None:
    """It tells 3000 as 3k."""
    asks = told({RESOURCE: "1", MEMORY: written}).containers[0].asks
    assert asks == {RESOURCE: 1} | ({} if count is None else {MEMORY: count})


@pytest.mark.parametrize(("memory", "applies"), [("3k", False), ("3000", False), ("0", True)])
def test_who_asks_for_memory_gets_no_whole_card(memory: str, *, applies: bool) -> None:
    """In whole-card safe mode, where a pod has no grant."""
    assert SafeMode(NODE, RESOURCE, "nvidia").applies(told({RESOURCE: "1", MEMORY: memory})) is applies
