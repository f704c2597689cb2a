"""We test these aspects of the scheduler's manifests: no right is a wildcard; the account is the one that may write
grants; kube-scheduler asks us about every name that pods may use; our settings are ones that the program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from partage._version import __version__
from partage.devices.ask import KINDS, NAMES
from partage.model import names
from partage.model.names import PORT_EXTENDER, PORT_METRICS
from partage.scheduler.settings import POD_NAME, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "scheduler").glob("*.yaml"))
REWRITTEN = {"hami.io/gpu", "volcano.sh/vgpu-number"}  # by admission: no kubelet knows these

Object = dict[str, Any]


def objects(kind: str) -> list[Object]:
    found = [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text()) if found]
    return [obj for obj in found if obj["kind"] == kind]


def config(name: str) -> Object:
    (found,) = objects("ConfigMap")
    return dict(yaml.safe_load(found["data"][name]))


def test_no_right_is_a_wildcard() -> None:
    rules = [rule for role in (*objects("ClusterRole"), *objects("Role")) for rule in role["rules"]]
    assert rules
    assert not [rule for rule in rules if any("*" in value for part in rule.values() for value in part)]


def test_rights_are_those_of_the_account_that_may_write_grants() -> None:
    subjects = [
        one for kind in ("ClusterRoleBinding", "RoleBinding") for obj in objects(kind) for one in obj["subjects"]
    ]
    assert {(one["kind"], one["name"], one["namespace"]) for one in subjects} == {
        ("ServiceAccount", names.ACCOUNT_SCHEDULER, names.NAMESPACE)
    }


def test_kube_scheduler_asks_about_every_name_that_pods_may_use() -> None:
    (extender,) = config("kube-scheduler.yaml")["extenders"]
    managed = {one["name"]: one.get("ignoredByScheduler", False) for one in extender["managedResources"]}
    assert set(managed) == set(NAMES)
    assert {name for name, ignored in managed.items() if not ignored} == set(KINDS) - REWRITTEN
    assert extender["nodeCacheCapable"]
    assert not extender["ignorable"]
    assert extender["urlPrefix"] == f"http://127.0.0.1:{PORT_EXTENDER}"
    assert config("kube-scheduler.yaml")["percentageOfNodesToScore"] == 100


def test_our_settings_are_taken_and_name_the_same_lease(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config("scheduler.yaml")))
    settings = load(["--config", str(file)], {})
    election = config("kube-scheduler.yaml")["leaderElection"]
    assert settings.election.lease == f"{election['resourceNamespace']}/{election['resourceName']}"
    assert settings.leader == "follow"
    (extender,) = config("kube-scheduler.yaml")["extenders"]
    assert settings.extender.patience_seconds < float(extender["httpTimeout"].removesuffix("s"))


@pytest.mark.parametrize("name", ["kube-scheduler", "scheduler"])
def test_containers_have_the_least_rights(name: str) -> None:
    (deployment,) = objects("Deployment")
    (container,) = [one for one in deployment["spec"]["template"]["spec"]["containers"] if one["name"] == name]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


def test_the_image_is_of_this_version_and_tells_its_pods_name() -> None:
    (deployment,) = objects("Deployment")
    (container,) = [one for one in deployment["spec"]["template"]["spec"]["containers"] if one["name"] == "scheduler"]
    assert container["image"].endswith(f":{__version__}")
    assert [one["name"] for one in container["env"]] == [POD_NAME]
    assert [port["containerPort"] for port in container["ports"]] == [PORT_METRICS]
