"""HAMi's values in our chart's words: every key is taken over or named with what to do instead (K25), and what
comes out is what our chart's schema takes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from partage.cli.app import cli
from partage.cli.hami_values import KEYS, translate
from partage.model import UsageError

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "partage"
NODES = {
    "nodeconfig": [
        {"name": "a100-1", "devicesplitcount": 4, "devicememoryscaling": 1.5, "operatingmode": "hami-core"},
        {"name": "a100-2", "filterdevices": {"uuid": ["GPU-x"], "index": [3]}, "operatingmode": "mps"},
        {"name": "left-as-it-is"},
    ]
}
#: What somebody may have who changed most of what HAMi lets one change.
MUCH: dict[str, Any] = {
    "global": {"imageTag": "v2.10.0", "imagePullSecrets": [{"name": "s"}], "gpuHookPath": "/usr/local"},
    "schedulerName": "hami-scheduler",
    "resourceName": "nvidia.com/gpu",
    "legacyMetrics": True,
    "scheduler": {
        "replicas": 2,
        "leaderElect": True,
        "defaultSchedulerPolicy": {"nodeSchedulerPolicy": "spread", "gpuSchedulerPolicy": "binpack, numa"},
        "forceOverwriteDefaultScheduler": False,
        "overwriteEnv": True,
        "nodeLockExpire": "10m",
        "kubeScheduler": {"image": {"repository": "r.example/kube-scheduler", "tag": ""}},
        "admissionWebhook": {"failurePolicy": "Fail", "whitelistNamespaces": ["ci"], "enabled": True},
        "tolerations": [{"operator": "Exists"}],
        "service": {"type": "NodePort", "httpPort": 443},
        "patch": {"image": {"repository": "x"}},
    },
    "devicePlugin": {
        "deviceSplitCount": 20,
        "deviceMemoryScaling": 1.2,
        "deviceCoreScaling": 1,
        "runtimeClassName": "nvidia",
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "nvidiaNodeSelector": {"gpu": "on"},
        "disablecorelimit": "true",
        "migStrategy": "mixed",
        "preConfiguredDeviceMemory": 98304,
        "nodeConfiguration": {"config": json.dumps(NODES)},
        "gdsEnabled": True,
    },
    "devices": {"nvidia": {"gpuCorePolicy": "force"}, "ascend": {"enabled": True}},
    "kunlunResourceName": "kunlunxin.com/vxpu",
    "somethingNew": {"deep": 1},
}


def test_k25_what_has_a_counterpart_becomes_it() -> None:
    values = translate(MUCH).values
    agent, scheduler, webhook = values["agent"], values["scheduler"], values["webhook"]
    assert agent["config"]["nvidia"] | {} == {
        "seats": 20,
        "driverRoot": "/run/nvidia/driver",
        "preconfiguredMemory": "98304Mi",
        "gds": True,
    }
    assert agent["config"]["memoryScaling"] == 1.2
    assert agent["config"]["oversubscription"] == "allowed"
    assert agent["config"]["nodes"] == [
        {"name": "a100-1", "nvidia": {"seats": 4}, "memoryScaling": 1.5, "oversubscription": "allowed"},
        {"name": "a100-2", "nvidia": {"leaveOut": {"uuids": ["GPU-x"], "indexes": [3]}}},
    ]
    assert agent["nodeSelector"] == {"gpu": "on"}
    assert agent["runtimeClassName"] == webhook["config"]["runtimeClass"] == "nvidia"
    assert scheduler["alsoKnownAs"] == ["hami-scheduler"]
    assert scheduler["kubeScheduler"]["image"] == {"repository": "r.example/kube-scheduler"}
    assert webhook["config"]["takeOverDefault"] is False
    assert webhook["namespaces"][0]["values"] == ["ci"]
    assert scheduler["config"]["placement"] == {"nodePolicy": "spread", "cardPolicies": ["binpack", "numa"]}
    assert values["ask"] == {"corePolicy": "force"}
    assert values["imagePullSecrets"] == [{"name": "s"}]


def test_k25_what_has_none_is_told_with_what_to_do() -> None:
    notes = translate(MUCH).notes
    told = {note.partition(": ")[0] for note in notes}
    assert told == {
        "global.imageTag",
        "scheduler.nodeLockExpire",
        "scheduler.admissionWebhook.failurePolicy",
        "scheduler.service.type",
        "scheduler.service.httpPort",
        "devicePlugin.migStrategy",
        "devicePlugin.disablecorelimit",
        "devicePlugin.nodeConfiguration.config[1].operatingmode",
        "devices.ascend.enabled",
        "somethingNew.deep",
    }


def test_a_policy_without_meaning_is_told_and_ours_stays() -> None:
    words = {"nodeSchedulerPolicy": "fullest", "gpuSchedulerPolicy": "spread,fullest"}
    found = translate({"scheduler": {"defaultSchedulerPolicy": words}})
    assert "config" not in found.values["scheduler"]
    assert [("'fullest'" in note or "'spread,fullest'" in note) for note in found.notes] == [True, True]


def test_k25_what_would_mean_less_is_told_and_not_taken_over() -> None:
    """C062 (K09): HAMi's default shows every card to containers that ask for none; nobody chose that."""
    plugin = {"deviceMemoryScaling": 0.9, "deviceSplitCount": None}
    found = translate(
        {"schedulerName": "default-scheduler", "scheduler": {"overwriteEnv": False}, "devicePlugin": plugin}
    )
    assert found.values == {}
    told = {note.partition(": ")[0] for note in found.notes}
    assert told == {"schedulerName", "scheduler.overwriteEnv", "devicePlugin.deviceMemoryScaling"}


def test_untouched_values_say_next_to_nothing() -> None:
    found = translate({"devicePlugin": {"deviceSplitCount": 10, "deviceMemoryScaling": 1, "migStrategy": "none"}})
    assert found.notes == []
    assert found.values == {
        "agent": {"config": {"nvidia": {"seats": 10}}},
        "scheduler": {"alsoKnownAs": ["hami-scheduler"]},
    }


@pytest.mark.parametrize(
    "values",
    [
        {"devicePlugin": {"deviceSplitCount": "many"}},
        {"devicePlugin": {"deviceSplitCount": 2.5}},
        {"devicePlugin": {"deviceSplitCount": 0}},
        {"devicePlugin": {"deviceMemoryScaling": True}},
        {"devicePlugin": {"deviceMemoryScaling": "inf"}},
        {"devicePlugin": {"deviceMemoryScaling": float("nan")}},
        {"devicePlugin": {"deviceMemoryScaling": -1}},
        {"devicePlugin": {"preConfiguredDeviceMemory": 10**400}},
        {"schedulerName": ["a"]},
        {"devicePlugin": {"nodeConfiguration": {"config": "{"}}},
        {"devicePlugin": {"nodeConfiguration": {"config": '{"nodeconfig": [{}]}'}}},
        {"devices": {"nvidia": {"gpuCorePolicy": "sometimes"}}},
    ],
    ids=str,
)
def test_what_is_wrong_there_is_named(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        translate(values)


def test_what_comes_out_is_known_to_our_schema() -> None:
    def check(value: Any, schema: dict[str, Any], path: str) -> None:
        if isinstance(value, dict) and "properties" in schema:
            for key, below in value.items():
                assert key in schema["properties"], f"{path}.{key}"
                check(below, schema["properties"][key], f"{path}.{key}")
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            for below in value:
                check(below, schema["items"], f"{path}[]")

    schema = json.loads((CHART / "values.schema.json").read_text())
    check(translate(MUCH).values, schema, "")
    for key in KEYS:
        kinds: list[Any] = [True, 2, "x", ["a"], {"requests": {}}]
        for value in kinds:
            document: Any = value
            for part in reversed(key.removesuffix(".*").split(".")):
                document = {part: document}
            with contextlib.suppress(UsageError):
                check(translate(document).values, schema, "")


def test_the_command_prints_values_and_tells_the_rest_beside(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_bytes(msgspec.yaml.encode(MUCH))
    done = CliRunner().invoke(cli, ["chart", "values", "--from-hami", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    assert msgspec.yaml.decode(done.stdout) == translate(MUCH).values
    assert done.stderr.splitlines() == translate(MUCH).notes
