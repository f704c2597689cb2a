"""A running share changed by annotation, from the wish to the limit in the container, on the product as shipped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from partage.model import names
from partage.model.units import MI
from tests.cluster.agent import limits, total_of
from tests.cluster.images import BOX
from tests.cluster.installed.release import EAGER, condition, held_by, shares
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from tests.cluster.api import Json
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace

MEMORY = "limits.nvidia.com/gpumem"


def wish(namespace: Namespace, **amounts: str) -> None:
    text = json.dumps({"app": amounts})
    flags = (f"--namespace={namespace.name}", "--overwrite")
    namespace.cluster.kubectl("annotate", "pod", "a", f"{names.RESIZE}={text}", *flags)


def answered(namespace: Namespace, status: str, words: str) -> Json:
    """Wait until the pod's condition says so, and return the pod."""

    def says(found: Json) -> bool:
        said = condition(found, names.CONDITION_RESIZED)
        return said.get("status") == status and words in f"{said['reason']}: {said['message']}"

    return namespace.wait("a", says, what=f"Resized {status}: {words}")


def used(namespace: Namespace, amount: str) -> None:
    """Wait until the quota says so."""

    def says(found: Json) -> bool:
        return bool(found.get("status", {}).get("used", {}).get(MEMORY) == amount)

    namespace.api.wait("resourcequotas", "q", says, namespace.name, what=f"used {amount}")


def test_a_wish_becomes_the_limit_in_the_container(installed: Installed, namespace: Namespace) -> None:
    """Up, over the quota, down below what is in use, and up again: the same container all the time.

    What is given back is nobody else's before the node says that it is not used any more.
    """
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {MEMORY: "6144"}}}
    namespace.api.create("resourcequotas", body, namespace.name)
    first = namespace.run(pod("a", container("app", BOX, ["/greedy", "1500"], limits=limits(4096, 30))))
    assert "held 1500 MiB, then 0" in namespace.wait_log("a", "held ")
    used(namespace, "4096")
    wish(namespace, memory="5Gi", cores="60%")
    found = answered(namespace, "True", "generation 2")
    assert [(one.memory, one.cores) for one in shares(found)["app"]] == [(5120 * MI, 600)]
    used(namespace, "5120")
    told = namespace.exec("a", *EAGER).stdout
    assert total_of(told)[0] == 5120 * MI
    assert 2000 < held_by(told) <= 5120 - 1500
    wish(namespace, memory="8Gi")
    answered(namespace, "False", "ResourceQuotaNotFit")
    assert total_of(namespace.exec("a", *EAGER).stdout)[0] == 5120 * MI
    wish(namespace, memory="1Gi")
    answered(namespace, "False", "ShareStillUsed: generation 3: container 'app' uses ")
    used(namespace, "5120")
    refused = namespace.exec("a", *EAGER).stdout
    assert "held" not in refused or held_by(refused) == 0, "more than that is in use already"
    wish(namespace, memory="3Gi")
    found = answered(namespace, "True", "generation 4")
    used(namespace, "3072")
    assert 0 < held_by(namespace.exec("a", *EAGER).stdout) <= 3072 - 1500
    before, after = (one["status"]["containerStatuses"][0] for one in (first, found))
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
