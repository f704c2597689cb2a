"""The end of a release: nothing of it is left in the cluster, and what runs under its limits goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from partage.model import names
from tests.cluster.agent import limits
from tests.cluster.images import BOX
from tests.cluster.installed.release import EAGER, SYSTEM, held_by
from tests.cluster.namespace import running
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace

KINDS: Final = (
    "deployments,daemonsets,jobs,services,configmaps,secrets,serviceaccounts,leases,roles,rolebindings,clusterroles,"
    "clusterrolebindings,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "mutatingwebhookconfigurations,validatingwebhookconfigurations,networkpolicies,poddisruptionbudgets,nodes"
)


def traces(installed: Installed) -> list[str]:
    """Return what of the cluster has to do with us: by its name, its labels, its annotations.

    Without the roles that tests make for accounts of their own (`Cluster.account`).
    """
    listed = installed.cluster.kubectl("get", KINDS, "--all-namespaces", "--output=json").stdout
    found = []
    for one in json.loads(listed)["items"]:
        meta = one["metadata"]
        if meta["name"].startswith("test:"):
            continue
        marks = [*meta.get("labels", {}), *meta.get("annotations", {})]
        ours = [mark for mark in marks if mark.startswith(("partage.io/", "hami.io/", "nvidia.com/"))]
        if "partage" in meta["name"] or "partage" in meta.get("labels", {}).values() or ours:
            found.append(f"{one['kind']}/{meta['name']} {' '.join(ours)}".strip())
    return sorted(found)


def test_nothing_is_left_and_what_runs_keeps_its_limit(installed: Installed, namespace: Namespace) -> None:
    namespace.run(pod("a", container("app", BOX, ["/greedy", "1000"], limits=limits(3000, 10))))
    assert f"Node/{installed.cluster.node.name} " in "\n".join(traces(installed))
    installed.uninstall()
    said = installed.partage("forget")
    assert said.startswith(f"{installed.cluster.node.name}: ")
    installed.cluster.api.delete("namespaces", SYSTEM)
    installed.cluster.api.wait_gone("namespaces", SYSTEM)
    assert traces(installed) == []
    assert running(namespace.get("a"))
    assert 0 < held_by(namespace.exec("a", *EAGER).stdout) <= 3000 - 1000
    namespace.run(pod("plain", container("app", BOX), labels={"app": names.NAMESPACE}))
