"""Controllers' pods over a reboot: what kubelet refuses is replaced, and the new pod has a new share of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.shm import read_policy
from tests.cluster.agent import GI, MI, limits, total_of
from tests.cluster.api import PATIENCE_S
from tests.cluster.images import BOX
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.namespace import Namespace

KINDS: Final = {"deployments.apps": "Deployment", "statefulsets.apps": "StatefulSet"}
REFUSED: Final = "UnexpectedAdmissionError"


def controller(resource: str, name: str, memory: int) -> Json:
    """Return a controller of one pod: an init container that ends, and an app, each with a share."""
    share = limits(memory // MI, 0)
    made = pod(
        name,
        container("app", BOX, ["/greedy", "1"], limits=share),
        init=[container("first", BOX, ["/greedy", "1", "once"], limits=share)],
        labels={"app": name},
        scheduler="partage-scheduler",
    )
    template = {"metadata": {"labels": {"app": name}}, "spec": made["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    if resource.startswith("stateful"):
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": KINDS[resource], "metadata": {"name": name}, "spec": spec}


def next_pod(namespace: Namespace, name: str, but: set[str], seconds: float = PATIENCE_S) -> Json:
    """Return the controller's pod that nobody has bound yet, as soon as it is there; `but`: UIDs of those before."""
    for event in namespace.api.watch("pods", namespace.name, seconds=seconds, labelSelector=f"app={name}"):
        found = dict(event["object"])
        if event["type"] != "DELETED" and found["metadata"]["uid"] not in but and not found["spec"].get("nodeName"):
            return found
    raise AssertionError(f"{name} made no new pod within {seconds:g} s")


def schedule(agent: NodeAgent, namespace: Namespace, made: Json, card: int, memory: int) -> str:
    """Bind a pod as the scheduler does, and see that it runs with this share; return its name."""
    name = str(made["metadata"]["name"])
    part = agent.part(agent.share(card, memory))
    namespace.bind(name, agent.grant(made, first=part, app=part))
    uid = made["metadata"]["uid"]
    namespace.wait(
        name,
        lambda p: p["metadata"]["uid"] == uid and p["status"]["phase"] == "Running",
        what="Running",
    )
    assert total_of(namespace.wait_log(name, "held ", "app")) == (memory, agent.uuids[card])
    return name


def test_a_controllers_new_pod_after_a_reboot(agent: NodeAgent, namespace: Namespace) -> None:
    """Old pods failed and nothing of them left; the new ones run on other cards with other limits: never the old one.

    Kubelet is back before the agent: it refuses whatever holds shares and does not run (K09).
    """
    agent.cluster.image(BOX)
    old: dict[str, set[str]] = {}
    for number, resource in enumerate(KINDS):
        name = resource.partition(".")[0]
        namespace.api.create(resource, controller(resource, name, GI), namespace.name)
        first = next_pod(namespace, name, set())
        schedule(agent, namespace, first, number, (1000 + number) * MI)
        old[name] = {first["metadata"]["uid"]}
    there = set(agent.hand_overs())
    node = agent.cluster.node
    node.power_off()
    node.power_on()
    new = {name: next_pod(namespace, name, uids) for name, uids in old.items()}
    agent.start()
    for number, made in enumerate(new.values()):
        schedule(agent, namespace, made, 2 + number, (2000 + number) * MI)
    failed = [p for p in namespace.api.list("pods", namespace.name) if p["status"]["phase"] == "Failed"]
    assert [p["status"]["reason"] for p in failed] == [REFUSED], "the Deployment's; a StatefulSet deletes its own"
    assert failed[0]["metadata"]["uid"] in old["deployments"]
    agent.until(lambda: not there & set(agent.hand_overs()), "nothing is left of what was refused")
    limits_there = {read_policy(path / "policy").devices[0].memory for path in agent.hand_overs().values()}
    assert limits_there == {2000 * MI, 2001 * MI}
