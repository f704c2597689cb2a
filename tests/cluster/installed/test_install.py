"""The release itself: its images, its parts, and an upgrade under a running pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage._version import __version__
from tests.cluster import product
from tests.cluster.agent import GI, MI, limits
from tests.cluster.images import BOX
from tests.cluster.installed.release import EAGER, SEATS, held, held_by, shares
from tests.cluster.pods import container, pod
from tests.cluster.test_chart import rendered

if TYPE_CHECKING:
    from tests.cluster.installed.release import Installed
    from tests.cluster.namespace import Namespace


def test_the_agents_image_runs_in_a_container(installed: Installed, namespace: Namespace) -> None:
    """Read-only, without a right, as the user that its image names and as another."""
    for name, user in (("root", None), ("other", 65532)):
        made = container("app", product.reference("agent"), ["partage-plugin", "--version"], user=user)
        security = {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        made["securityContext"] = made.get("securityContext", {}) | security
        ended = namespace.finish(pod(name, made, restart="Never"))
        assert ended["status"]["phase"] == "Succeeded", namespace.logs(name)
        assert namespace.logs(name).strip() == f"partage-plugin {__version__}"


def test_an_upgrade_while_a_pod_runs_leaves_it_as_it_is(installed: Installed, namespace: Namespace) -> None:
    """Every part is another afterwards, and means what the new values say; the pod goes on, with its limit."""
    namespace.run(pod("a", container("app", BOX, ["/greedy", "1000"], limits=limits(2 * GI // MI, 10))))
    assert "held 1000 MiB, then 0" in namespace.wait_log("a", "held ")
    before = {one["metadata"]["uid"] for one in installed.pods().values()}
    config = installed.values["agent"]["config"] | {"nvidia": {"seats": 5}}
    scheduler = installed.values["scheduler"] | {"alsoKnownAs": ["hami-scheduler"]}
    agent = installed.values["agent"] | {"config": config}
    installed.upgrade(agent=agent, scheduler=scheduler, ask={"memoryFactor": 2})
    installed.wait_seats(SEATS // 2)
    installed.wait_deployed()
    installed.wait_replaced(before)
    named = pod("named", container("app", BOX, ["/greedy"], limits=limits(500, 10)), scheduler="hami-scheduler")
    found = namespace.run(named)
    assert found["spec"]["schedulerName"] == "hami-scheduler"
    assert found["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, "admitted as any other"
    assert shares(found)["app"][0].memory == 1000 * MI
    assert held(namespace, "named") < 1000
    installed.upgrade()
    installed.wait_serving()
    (status,) = namespace.get("a")["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)
    assert 0 < held_by(namespace.exec("a", *EAGER).stdout) <= 2048 - 1000


def test_what_runs_is_what_the_chart_renders(installed: Installed) -> None:
    text = rendered(installed.tools, installed.values)
    (agent,) = (one for name, one in installed.pods().items() if "agent" in name)
    assert agent["spec"]["containers"][0]["image"] in text
    assert agent["spec"]["containers"][0]["securityContext"]["capabilities"] == {"add": ["SYS_PTRACE"], "drop": ["ALL"]}
