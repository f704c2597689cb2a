"""We test these aspects of the manifests: the rights are exactly these and each has its reason beside it; names are
those of `model/names.py`; the configuration is one that the agent takes. What the API server thinks of them is tested
in tests/cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from partage._version import __version__
from partage.model import names
from partage.scheduler.fence import POLICY
from partage_plugin.configure import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
AGENT = sorted((DEPLOY / "agent").glob("*.yaml"))
POLICIES = sorted((DEPLOY / "policies").glob("*.yaml"))
SCHEDULER_USER = f"system:serviceaccount:{names.NAMESPACE}:{names.ACCOUNT_SCHEDULER}"
AGENT_USER = f"system:serviceaccount:{names.NAMESPACE}:{names.ACCOUNT_AGENT}"

Object = dict[str, Any]


def objects(*paths: Path) -> list[Object]:
    return [found for path in paths for found in yaml.safe_load_all(path.read_text()) if found]


def one(kind: str, name: str | None = None) -> Object:
    (found,) = [obj for obj in objects(*AGENT) if obj["kind"] == kind and name in (None, obj["metadata"]["name"])]
    return found


def pod() -> Object:
    return dict(one("DaemonSet")["spec"]["template"]["spec"])


def container() -> Object:
    (found,) = pod()["containers"]
    return dict(found)


@pytest.mark.parametrize("path", [*AGENT, *POLICIES], ids=lambda path: path.name)
def test_every_manifest_begins_with_what_it_is_for(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith((".", ",", ":")) or len(first) > 60


def test_a_plain_apply_makes_the_namespace_first() -> None:
    assert objects(AGENT[0])[0]["kind"] == "Namespace"


def test_names_are_the_products() -> None:
    assert one("Namespace")["metadata"]["name"] == names.NAMESPACE
    accounts = {obj["metadata"]["name"] for obj in objects(*AGENT) if obj["kind"] == "ServiceAccount"}
    assert accounts == {names.ACCOUNT_AGENT, names.ACCOUNT_SCHEDULER, names.ACCOUNT_WEBHOOK}
    assert one("ConfigMap")["metadata"]["name"] == names.CONFIG_MAP
    assert pod()["serviceAccountName"] == names.ACCOUNT_AGENT
    assert container()["image"].endswith(f":{__version__}")
    assert [port["containerPort"] for port in container()["ports"]] == [names.PORT_METRICS]
    for obj in objects(*AGENT):
        assert obj["metadata"].get("namespace", names.NAMESPACE) == names.NAMESPACE


def test_the_agent_takes_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(one("ConfigMap")["data"]["config.yaml"])
    settings = load(["--config", str(file)], {"NODE_NAME": "n1"})
    assert (settings.node, settings.metrics.port) == ("n1", names.PORT_METRICS)


def test_the_container_may_do_what_is_listed_and_no_more() -> None:
    assert container()["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]},
    }
    spec = pod()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["hostPID"] is True
    assert not {"hostNetwork", "hostIPC", "initContainers"} & spec.keys()
    assert container()["resources"]["requests"]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container().keys()


def test_host_directories_are_these_and_mounted_where_they_lie() -> None:
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod()["volumes"] if "hostPath" in volume}
    writable = {path for name, path in paths.items() if not mounts[name].get("readOnly")}
    assert writable == {
        names.HOST_ROOT,
        names.LOCK_DIRECTORIES[0],
        names.HOST_LIBRARY_DIRECTORY,
        "/var/lib/kubelet/device-plugins",
        names.CDI_DIRECTORY,
    }
    assert set(paths.values()) - writable == {"/var/lib/kubelet/pod-resources", "/etc/cdi"}
    assert all(mounts[name]["mountPath"] == path for name, path in paths.items())
    assert mounts["config"]["mountPath"] == str(Path(names.CONFIG_FILE).parent)
    assert mounts.keys() == {volume["name"] for volume in pod()["volumes"]}


def test_each_right_has_its_reason_beside_it() -> None:
    lines = (DEPLOY / "agent" / "4-daemonset.yaml").read_text().splitlines()
    lines += (DEPLOY / "agent" / "2-accounts.yaml").read_text().splitlines()
    rights = re.compile(r"hostPID:|runAsUser:|runtimeClassName:|- SYS_|- apiGroups:")
    found = 0
    for number, line in enumerate(lines):
        below_name = line.strip().startswith("hostPath:")
        if below_name or rights.search(line):
            found += 1
            assert lines[number - (2 if below_name else 1)].strip().startswith("#"), line
    assert found == 7 + 4 + 4


def test_the_agents_role_is_exactly_this() -> None:
    granted = {
        (group, resource, verb)
        for rule in one("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        *(("", "pods", verb) for verb in ("get", "list", "watch")),
        ("", "pods/status", "patch"),
        *(("", "nodes", verb) for verb in ("get", "patch")),
        *(("events.k8s.io", "events", verb) for verb in ("create", "patch")),
    }
    (subject,) = one("ClusterRoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (names.ACCOUNT_AGENT, names.NAMESPACE)


def test_every_policy_is_in_force_and_fails_closed() -> None:
    found = objects(*POLICIES)
    policies = {obj["metadata"]["name"]: obj for obj in found if obj["kind"] == "ValidatingAdmissionPolicy"}
    bindings = {obj["spec"]["policyName"]: obj for obj in found if obj["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert policies.keys() == bindings.keys()
    others = [obj["kind"] for obj in found if not obj["kind"].startswith("ValidatingAdmissionPolicy")]
    assert others == ["Lease"]
    failing = {name: policy["spec"]["failurePolicy"] for name, policy in policies.items() if name != POLICY}
    assert set(failing.values()) == {"Fail"}
    assert all(binding["spec"]["validationActions"] == ["Deny"] for binding in bindings.values())
    assert not any("matchResources" in binding["spec"] for binding in bindings.values())
    for policy in policies.values():
        assert all("messageExpression" in rule for rule in policy["spec"]["validations"])


def test_policies_name_the_products_accounts_and_annotations() -> None:
    text = {path.stem: path.read_text() for path in POLICIES}
    assert f"['{SCHEDULER_USER}']" in text["grants"]
    assert f"'{names.GRANT}'" in text["grants"]
    assert all(f"'{AGENT_USER}'" in text[name] for name in ("nodes", "agent-pods"))
    assert f"'{names.DEVICES}'" in text["nodes"]
    assert all(f"'{user}'" in text["conditions"] for user in (AGENT_USER, SCHEDULER_USER))
    assert f"'{names.PREFIX}'" in text["conditions"]
    assert all(f"'{kind}'" in text["agent-pods"] for kind in (names.CONDITION_ENFORCED, names.CONDITION_RESIZED))


def test_the_grant_policy_watches_every_door() -> None:
    (policy,) = [obj for obj in objects(DEPLOY / "policies" / "grants.yaml") if "validations" in obj["spec"]]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert {"pods", "pods/status", "pods/binding", "bindings"} <= set(rule["resources"])
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}


def test_the_policy_of_terms_looks_at_the_schedulers_own_lease_and_at_nobody_else() -> None:
    own, policy, binding = objects(DEPLOY / "policies" / "terms.yaml")
    assert policy["metadata"]["name"] == POLICY
    assert any(SCHEDULER_USER in condition["expression"] for condition in policy["spec"]["matchConditions"])
    lease = {"namespace": names.NAMESPACE, "name": names.SCHEDULER, "parameterNotFoundAction": "Allow"}
    assert binding["spec"]["paramRef"] == lease
    assert (own["kind"], own["metadata"]["namespace"], own["metadata"]["name"]) == ("Lease", *list(lease.values())[:2])
    assert policy["spec"]["failurePolicy"] == "Ignore", "it is asked about pods of everybody"


# ---- the webhook -----------------------------------------------------------------------------------------------------

WEBHOOK = sorted((DEPLOY / "webhook").glob("*.yaml"))


def of_webhook(kind: str) -> Object:
    (found,) = [obj for obj in objects(*WEBHOOK) if obj["kind"] == kind]
    return found


def test_the_webhook_s_rights_are_exactly_these() -> None:
    for kind, granted in (
        ("Role", {("secrets", ("get", "update"), ("partage-webhook-certificates",)), ("secrets", ("create",), ())}),
        (
            "ClusterRole",
            {
                (
                    "mutatingwebhookconfigurations,validatingwebhookconfigurations",
                    ("get", "patch"),
                    ("partage-webhook",),
                )
            },
        ),
    ):
        rules = of_webhook(kind)["rules"]
        found = {(",".join(r["resources"]), tuple(r["verbs"]), tuple(r.get("resourceNames", ()))) for r in rules}
        assert found == granted
        (subject,) = of_webhook(f"{kind}Binding")["subjects"]
        assert (subject["name"], subject["namespace"]) == (names.ACCOUNT_WEBHOOK, names.NAMESPACE)


def test_no_pod_waits_for_the_webhook() -> None:
    """C130 (K20): pods without shares and system namespaces never reach it, and nobody is refused for its sake."""
    for kind, path in (("MutatingWebhookConfiguration", "/mutate"), ("ValidatingWebhookConfiguration", "/validate")):
        (hook,) = of_webhook(kind)["webhooks"]
        assert hook["failurePolicy"] == "Ignore"
        assert hook["sideEffects"] == "None"
        assert hook["timeoutSeconds"] <= 5
        assert hook["clientConfig"]["service"]["path"] == path
        asked = [(rule["operations"], rule["resources"]) for rule in hook["rules"]]
        assert asked == [(["CREATE"], ["pods"]), (["UPDATE"], ["pods/ephemeralcontainers"])]
        left_out = {each["key"]: set(each["values"]) for each in hook["namespaceSelector"]["matchExpressions"]}
        assert {"kube-system", names.NAMESPACE} <= left_out["kubernetes.io/metadata.name"]
        assert left_out[names.HAMI_IGNORE] == {"ignore"}
        (condition,) = hook["matchConditions"]
        assert f"'{names.GRANT}'" in condition["expression"]


def test_the_webhook_runs_twice_and_may_nothing() -> None:
    deployment = of_webhook("Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert of_webhook("PodDisruptionBudget")["spec"]["minAvailable"] == 1
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {port["containerPort"] for port in container["ports"]} == {names.PORT_WEBHOOK, names.PORT_METRICS}
    assert container["image"].endswith(f":{__version__}")
    assert of_webhook("Service")["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
