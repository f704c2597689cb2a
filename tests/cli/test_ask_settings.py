"""`partage explain` and `simulate` read pods as the cluster's scheduler does: by its ConfigMap as it is shipped, by a
file that is named, and by the defaults, which is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from lightkube.resources.core_v1 import ConfigMap

from partage.cli.ask_settings import AskSource, read_options
from partage.cli.cluster import look_of
from partage.cli.explain import tell_note
from partage.cli.explaining import explain_new, explain_pod
from partage.cli.simulating import place_all
from partage.devices.ask import DEFAULTS
from partage.devices.requests import AskOptions
from partage.model import KubeError, UsageError
from partage.model.pod import PodView
from partage.scheduler.views import WatchedPod
from tests.cli.test_explain import node_object, pod_json
from tests.scheduler.support import node

if TYPE_CHECKING:
    from partage.kube import Client

SHIPPED = Path(__file__).parents[2] / "deploy" / "scheduler" / "2-config.yaml"


class Api:
    """Has one ConfigMap, or none that may be read."""

    def __init__(self, has: ConfigMap | None) -> None:
        self.has = has

    async def get(self, _kind: type, name: str, *, namespace: str) -> ConfigMap:
        meta = self.has.metadata if self.has else None
        if self.has is None or meta is None or (meta.name, meta.namespace) != (name, namespace):
            raise KubeError(f"GET configmap {name}", "403", "may not be read", "ask for the right to", status=403)
        return self.has


def config_map(document: dict[str, Any]) -> ConfigMap:
    return cast("ConfigMap", ConfigMap.from_dict(document))


def read(api: Api, config: Path | None = None) -> AskSource:
    return asyncio.run(read_options(cast("Client", api), config))


def shipped(ask: str = "ask: {}") -> Api:
    """The ConfigMap as the manifests have it, with this section."""
    made = config_map(msgspec.yaml.decode(SHIPPED.read_bytes()))
    assert made.data is not None
    assert "ask: {}" in made.data["scheduler.yaml"]
    made.data["scheduler.yaml"] = made.data["scheduler.yaml"].replace("ask: {}", ask)
    return Api(made)


def test_the_clusters_configmap_says_how_pods_are_read() -> None:
    assert read(shipped()) == AskSource(DEFAULTS)
    assert read(shipped("ask: {memoryFactor: 1024}")) == AskSource(AskOptions(memory_factor=1024))
    assert read(shipped("ask: {memoryFactor: 2}\nofALaterVersion: 1")).options.memory_factor == 2


def test_a_file_that_is_named_goes_before(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("ask: {defaultCards: 2}")
    assert read(shipped("ask: {memoryFactor: 1024}"), file) == AskSource(AskOptions(default_cards=2))
    file.write_text("ask: {defaultCard: 2}")
    with pytest.raises(UsageError, match=r"the nearest is 'ask\.defaultCards'"):
        read(Api(None), file)


def test_where_nothing_is_found_the_defaults_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for api in (Api(None), Api(config_map({"metadata": {"name": "x"}}))):
        found = read(api)
        assert found.options == DEFAULTS
        assert "may not be read" in found.note
    tell_note(look_of([], [], [], found))
    said = capsys.readouterr()
    assert (said.out, said.err.startswith("note: pods are read by the defaults")) == ("", True)


@pytest.mark.parametrize("ask", ["ask: {memoryFacto: 2}", "ask: 5", "ask: {memoryFactor: -1}", "ask: ]"])
def test_a_section_without_meaning_is_named(ask: str) -> None:
    with pytest.raises(UsageError, match="configmap partage-system/partage-scheduler"):
        read(shipped(ask))


def test_a_further_name_of_the_scheduler_is_no_other_scheduler() -> None:
    source = read(shipped("schedulers: [partage-scheduler, hami-scheduler]"))
    pod = pod_json(gpu=1)
    pod["spec"]["schedulerName"] = "hami-scheduler"
    for ask, notes in ((source, 0), (read(shipped()), 1)):
        look = look_of([node_object(node("n", 1))], [msgspec.convert(pod, WatchedPod)], [], ask)
        said = explain_pod(look, look.pod("default", "a")).notes
        assert sum(note.startswith("spec.schedulerName is hami-scheduler") for note in said) == notes


def test_commands_judge_by_the_policies_of_the_cluster() -> None:
    """Two cards, each with one pod: a cluster in which cards are for one pod alone has no place for a third."""
    pods = [msgspec.convert(pod_json(name, gpu=1, gpumem=50), PodView) for name in "abc"]
    for text, last in (("placement: {}", "fits"), ("placement: {cardPolicies: [mutex, spread]}", "pending")):
        look = look_of([node_object(node("n", 2))], [], [], read(shipped(f"ask: {{}}\n{text}")))
        assert [one.state for one in place_all(look, pods)] == ["fits", "fits", last]


def test_commands_read_pods_by_it() -> None:
    """80 GiB on the node: 50 GiB of a factor of 1024 fit once."""
    source = AskSource(AskOptions(memory_factor=1024))
    look = look_of([node_object(node("n", 1))], [], [], source)
    pods = [msgspec.convert(pod_json(name, gpu=1, gpumem=50), PodView) for name in "ab"]
    assert "50 GiB" in explain_new(look, pods[0]).asks[0]
    assert [one.state for one in place_all(look, pods)] == ["fits", "pending"]
