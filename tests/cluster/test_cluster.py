"""The test cluster itself: what it promises to the tests that stand on it.

A node gets Ready, pods run and are read, identities and bindings work as in production, control planes stand side by
side, faults of the node end as they should, and nothing is left on the machine, whatever way a session ends.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.api import RefusedError
from tests.cluster.images import BARE, BARE_USER, BOX_USER, CLIENT, CLIENT_USER
from tests.cluster.node import condition
from tests.cluster.pods import container, pod
from tests.cluster.state import TOP

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import OpenControlPlane
    from tests.cluster.namespace import Namespace


def test_node_is_ready_and_of_the_version_wanted(cluster: Cluster) -> None:
    node = cluster.api.get("nodes", cluster.node.name)
    assert condition(node, "Ready") == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{cluster.binaries.kubernetes}"
    assert cluster.api.request("GET", "/version")["gitVersion"] == f"v{cluster.binaries.kubernetes}"


def test_pod_runs_and_is_read(namespace: Namespace) -> None:
    ended = namespace.finish(pod("speaks", container(command=["sh", "-c", "echo hello; exit 3"]), restart="Never"))
    assert ended["status"]["phase"] == "Failed"
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert namespace.logs("speaks") == "hello\n"
    assert namespace.wait_event("speaks", "Started")["involvedObject"]["name"] == "speaks"


def test_init_and_sidecar_containers(namespace: Namespace) -> None:
    first = container("first", command=["sh", "-c", "echo first"])
    beside = container("beside", sidecar=True)
    running = namespace.run(pod("whole", container("app"), init=[first, beside]))
    assert [s["name"] for s in running["status"]["initContainerStatuses"]] == ["first", "beside"]
    assert namespace.logs("whole", "first") == "first\n"


def test_exec(namespace: Namespace) -> None:
    namespace.run(pod("as-root", container("app")))
    done = namespace.exec("as-root", "sh", "-c", "id -u; exit 4")
    assert (done.stdout, done.returncode) == ("0\n", 4)


def test_log_is_followed(namespace: Namespace) -> None:
    namespace.create(pod("counts", container(command=["sh", "-c", "echo one; echo two; sleep 1000"])))
    namespace.wait("counts", lambda p: p["status"]["phase"] == "Running", what="Running")
    assert namespace.wait_log("counts", "two").splitlines() == ["one", "two"]


def test_images_of_other_users(namespace: Namespace) -> None:
    namespace.run(pod("box", container("app", BOX_USER)))
    assert namespace.exec("box", "id", "-u").stdout == "1000\n"
    program = "import numba, os; print(os.getuid(), numba.__name__)"
    ended = namespace.finish(pod("client", container("app", CLIENT_USER, args=["-c", program]), restart="Never"))
    assert (namespace.logs("client"), ended["status"]["phase"]) == ("1000 numba\n", "Succeeded")


@pytest.mark.parametrize("image", [BARE, BARE_USER])
def test_bare_image_runs_one_program(namespace: Namespace, image: str) -> None:
    namespace.finish(pod("bare", container("app", image), restart="Never"))
    assert "no driver: libcuda.so.1" in namespace.logs("bare")


def test_programs_run_on_a_mounted_driver(namespace: Namespace) -> None:
    """A third-party client and a program in a bare image both find the simulated driver, as tests of shares need."""
    driver = Path(os.environ.get("PARTAGE_BUILD", TOP / "build")).absolute() / "sim"
    env = {"LD_LIBRARY_PATH": str(driver), "PARTAGE_SIM_DIR": "/tmp"}
    program = "from numba import cuda; import numpy; print(cuda.to_device(numpy.arange(10)).copy_to_host().sum())"
    client = container("app", CLIENT, args=["-c", program], env=env)
    namespace.finish(pod("client", client, host_paths=[driver], restart="Never"))
    assert namespace.logs("client") == "45\n"
    namespace.run(pod("bare", container("app", BARE, args=["100"], env=env), host_paths=[driver]))
    assert "held 100 MiB, then 0" in namespace.wait_log("bare", "held")


def test_pods_reach_each_other(namespace: Namespace) -> None:
    serve = container(command=["sh", "-c", "echo found > /tmp/index.html; exec /bin/busybox httpd -f -p 80 -h /tmp"])
    address = namespace.run(pod("serves", serve))["status"]["podIP"]
    namespace.run(pod("asks"))
    command = f"until wget -q -O - http://{address}/index.html; do :; done"
    assert namespace.exec("asks", "sh", "-c", command).stdout == "found\n"


def test_binding_carries_a_grant(namespace: Namespace) -> None:
    """The annotations of a binding become the pod's, and the product scheduler's own account may bind."""
    namespace.create(pod("placed", scheduler="partage-scheduler"))
    namespace.bind("placed", {"node": namespace.cluster.node.name})
    namespace.wait("placed", lambda p: condition(p, "Ready") == "True", what="Ready")
    assert namespace.get("placed")["metadata"]["annotations"]["partage.io/grant"] == '{"node": "node-1"}'


def test_binding_needs_the_right(namespace: Namespace) -> None:
    namespace.create(pod("stays", scheduler="partage-scheduler"))
    namespace.cluster.account("nobody", namespace.name)
    stranger = namespace.cluster.as_account("nobody", namespace.name)
    with pytest.raises(RefusedError) as refused:
        namespace.bind("stays", api=stranger)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")


def test_token_bound_to_a_pod_names_its_node(namespace: Namespace) -> None:
    running = namespace.run(pod("agent"))
    api = namespace.cluster.as_account("default", namespace.name, pod=running)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = api.create("selfsubjectreviews.authentication.k8s.io", review)["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{namespace.name}:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [namespace.cluster.node.name]
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [running["metadata"]["uid"]]


def test_admission_policies_are_enforced(namespace: Namespace) -> None:
    api, group = namespace.api, "admissionregistration.k8s.io"
    name = f"test-{namespace.name}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    own = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    common = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.metadata.name != 'forbidden'", "message": "not by this name"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": own}}
    kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    api.apply(f"{kinds[0]}.{group}", {**common, "kind": "ValidatingAdmissionPolicy", "spec": policy})
    api.apply(f"{kinds[1]}.{group}", {**common, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    forbidden = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "forbidden"}}
    try:
        namespace.wait_denied("configmaps", forbidden, "not by this name")
        api.create("configmaps", {**forbidden, "metadata": {"name": "allowed"}}, namespace.name)
    finally:
        for kind in reversed(kinds):
            api.delete(f"{kind}.{group}", name)


def test_control_planes_side_by_side(cluster: Cluster, control_plane: OpenControlPlane) -> None:
    other = control_plane(scheduler=False)
    third = control_plane(controller_manager=False, scheduler=False)
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "only-there"}}
    other.api.create("configmaps", made, "default")
    assert other.api.find("configmaps", "only-there", "default") is not None
    for one in (cluster, third):
        assert one.api.find("configmaps", "only-there", "default") is None
    assert len({one.control.server for one in (cluster, other, third)}) == 3
    for one in (other, third):
        assert one.api.list("nodes") == []


# ---- faults of the node -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pods_go_on_while_the_nodes_programs_restart(namespace: Namespace, number: signal.Signals) -> None:
    before = namespace.run(pod("stays"))["status"]["containerStatuses"][0]
    namespace.cluster.node.restart_containerd(number)
    namespace.cluster.node.restart_kubelet(number)
    namespace.run(pod("new"))
    after = namespace.get("stays")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_paused_containerd_holds_up_pods_until_it_goes_on(namespace: Namespace) -> None:
    node = namespace.cluster.node
    namespace.run(pod("first"))
    node.containerd.process.pause()
    try:
        namespace.create(pod("held"))
        namespace.wait_event("held", "Scheduled")
        assert namespace.get("held")["status"]["phase"] == "Pending"
    finally:
        node.containerd.process.resume()
    namespace.wait("held", lambda p: condition(p, "Ready") == "True", what="Ready")


def test_reboot(namespace: Namespace) -> None:
    """Every container's process is gone, what a node keeps in /run too; pods come back with new containers."""
    node = namespace.cluster.node
    before = namespace.run(pod("comes-back"))["status"]["containerStatuses"][0]
    assert node.container_pids()
    node.cdi.mkdir(exist_ok=True)
    (node.cdi / "left.json").write_text("{}")
    node.power_off()
    assert node.container_pids() == set()
    node.power_on()
    assert not (node.cdi / "left.json").exists()

    def again(item: dict[str, object]) -> bool:
        status = item["status"]["containerStatuses"][0]  # type: ignore[index]
        return bool(status["ready"]) and status["containerID"] != before["containerID"]

    namespace.wait("comes-back", again, what="running in a new container")
