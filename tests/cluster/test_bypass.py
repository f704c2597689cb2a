"""The ways past a preloaded library, tried in containers as a runtime makes them. Each has its outcome written down.

Limited: refused at the container's own limit. Past: gets more than its limit; nothing inside a process can see these
ways. A process in which the library is not at all is seen from outside: by the card's use against what the shares
account for, and by its container's figures; a neighbour keeps its own. Nothing: it does not come to the card at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from partage.model import names
from partage.model.guarded import PRELOAD_FILES
from tests.cluster.agent import GI, MI, limits, total_of
from tests.cluster.images import BARE, BARE_USER, BOX, BOX_USER, LOADER, MUSL
from tests.cluster.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.agent import NodeAgent
    from tests.cluster.api import Json
    from tests.cluster.cluster import Cluster
    from tests.cluster.namespace import Namespace

AGENT: Final = {"pages": True}
CARD: Final = 5
LIMIT: Final = 2 * GI
MORE: Final = 3 * GI  # what is tried
GREEDY: Final = ["/greedy", str(MORE // MI), "once"]
OUT_OF_MEMORY: Final = 2
#: How a program is started in a container in which the library is.
STARTED: Final = {
    "kubectl-exec": GREEDY,
    "empty-environment": ["env", "-i", *GREEDY],
    "preload-cleared": ["env", "-u", "LD_PRELOAD", *GREEDY],
    "preload-of-its-own": ["env", "LD_PRELOAD=/lib/none.so", *GREEDY],
    "through-the-loader": [LOADER, *GREEDY],
    "login-shell": ["su", "-", "tenant", "-c", " ".join(GREEDY)],
    "shell-of-another-user": ["su", "nobody", "-c", " ".join(GREEDY)],
}
#: How a program comes to the call that allocates (programs/ways.h), and whether the library is in the way.
WAYS: Final = {"deep": True, "namespace": True, "address": True, "library": False, "table": False}


def held(said: str) -> tuple[int, int]:
    """Return how many bytes a greedy program got, and the code that refused it the next piece."""
    found = re.search(r"held (\d+) MiB, then (\d+)", said)
    assert found, said
    return int(found[1]) * MI, int(found[2])


def resized(made: Json) -> Json:
    """Return the condition that says whether a pod uses no more than it is given."""
    return next((c for c in made["status"].get("conditions", []) if c["type"] == names.CONDITION_RESIZED), {})


def is_limited(said: str) -> None:
    got, code = held(said)
    assert (got < LIMIT, code) == (True, OUT_OF_MEMORY), said
    assert total_of(said)[0] == LIMIT


@pytest.fixture(scope="module")
def box(agent: NodeAgent, cluster: Cluster) -> Iterator[Namespace]:
    """A namespace with a pod that has a share and does nothing: what is tried is started in it."""
    from tests.cluster.namespace import Namespace  # noqa: PLC0415 -- annotated above, needed here alone

    made = Namespace(cluster, "bypass").open()
    agent.bound(
        made,
        pod("box", container("app", BOX, limits=limits(LIMIT // MI, 0))),
        app=agent.part(agent.share(CARD, LIMIT)),
    )
    made.wait("box", lambda p: p["status"]["phase"] == "Running", what="Running")
    yield made
    made.close()


@pytest.mark.parametrize("command", STARTED.values(), ids=STARTED.keys())
def test_however_it_is_started_it_is_limited(box: Namespace, command: Sequence[str]) -> None:
    done = box.exec("box", *command)
    is_limited(done.stdout)


@pytest.mark.parametrize(("way", "limited"), WAYS.items(), ids=WAYS.keys())
def test_ways_to_the_driver(box: Namespace, way: str, limited: bool) -> None:
    said = box.exec("box", *GREEDY, way).stdout
    if limited:
        is_limited(said)
    else:
        assert held(said) == (MORE, 0), f"documented as a way past: {said}"


@pytest.mark.parametrize("image", [BARE, BARE_USER, BOX_USER], ids=["distroless", "distroless-user", "user"])
def test_whatever_the_image_it_is_limited(agent: NodeAgent, namespace: Namespace, image: str) -> None:
    made = container("app", image, ["/greedy"], limits=limits(LIMIT // MI, 0))
    agent.bound(namespace, pod("a", made), app=agent.part(agent.share(CARD, LIMIT)))
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    is_limited(namespace.wait_log("a", "held "))


def test_the_preload_file_cannot_be_changed(box: Namespace) -> None:
    """Root in the container neither writes it nor takes it away, nor what lies beside it."""
    for file in PRELOAD_FILES:
        for command in (f"echo > {file}", f"rm {file}", f"mv /tmp {file}"):
            done = box.exec("box", "sh", "-c", command)
            assert done.returncode != 0, command
        assert "umount" in box.exec("box", "umount", file).stderr
        assert box.exec("box", "cat", file).stdout == f"{names.CONTAINER_LIBRARY}\n"
    for target in ("/usr/local/vgpu/libvgpu.so", "/run/partage/policy", "/run/partage/turns"):
        assert box.exec("box", "sh", "-c", f"echo > {target}").returncode != 0, target
    is_limited(box.exec("box", *GREEDY).stdout)


def test_k09_kubelets_file_for_last_words_hides_no_limit(agent: NodeAgent, namespace: Namespace) -> None:
    """Kubelet mounts an empty file where a container's spec wants its last words: no library would be loaded there."""
    made = container("app", BOX, ["/greedy", str(MORE // MI)], limits=limits(LIMIT // MI, 0))
    made["terminationMessagePath"] = "/etc/ld.so.preload"
    agent.bound(namespace, pod("a", made), app=agent.part(agent.share(CARD, LIMIT)))
    assert "/etc/ld.so.preload is the library's" in namespace.wait_event("a", "LimitCovered")["message"]
    assert namespace.get("a")["status"]["phase"] == "Pending"


@pytest.mark.parametrize("path", ["/var/run", "/run", "/etc", "/usr/local"])
def test_k08_a_volume_around_what_holds_it_leaves_a_container_its_share(
    agent: NodeAgent, namespace: Namespace, path: str
) -> None:
    """The first is in nearly all images a link to /run, below which the container has its hand-over."""
    made = container("app", BOX, ["/greedy"], limits=limits(LIMIT // MI, 0))
    made["volumeMounts"] = [{"name": "own", "mountPath": path}]
    whole = pod("a", made, volumes=[{"name": "own", "emptyDir": {}}])
    agent.bound(namespace, whole, app=agent.part(agent.share(CARD, LIMIT)))
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    is_limited(namespace.wait_log("a", "held "))


def test_a_mount_namespace_of_its_own(box: Namespace) -> None:
    """Who may make user namespaces covers the file; a runtime's default seccomp profile does not let it."""
    script = f"mount -o bind /dev/null /etc/ld.so.preload && {' '.join(GREEDY)}"
    done = box.exec("box", "su", "tenant", "-c", f"unshare -r -m sh -c '{script}'")
    if done.returncode:
        assert "held" not in done.stdout
    else:
        assert held(done.stdout) == (MORE, 0), "documented as a way past, without a seccomp profile"


def test_another_c_library_comes_to_no_card(agent: NodeAgent, namespace: Namespace) -> None:
    """musl honours no ld.so.preload; it loads no driver that was made for glibc either."""
    made = container("app", MUSL, limits=limits(LIMIT // MI, 0))
    agent.bound(namespace, pod("a", made), app=agent.part(agent.share(CARD, LIMIT)))
    namespace.wait("a", lambda p: p["status"]["phase"] == "Running", what="Running")
    done = namespace.exec("a", *GREEDY)
    assert (done.returncode, "no driver" in done.stdout) == (2, True), done


def test_a_static_program_is_seen_on_the_card(agent: NodeAgent, box: Namespace, namespace: Namespace) -> None:
    """It carries the driver in itself, as one that talks to the device node does: past the limit, seen by the host."""
    beside = container("app", BOX, ["/greedy", "100"], limits=limits(LIMIT // MI, 0))
    agent.bound(namespace, pod("beside", beside), app=agent.part(agent.share(CARD, LIMIT)))
    namespace.wait("beside", lambda p: p["status"]["phase"] == "Running", what="Running")
    assert held(namespace.wait_log("beside", "held ")) == (100 * MI, 0)
    static = container("app", BOX, ["sh", "-c", f"sleep 600 | /static {MORE}"], limits=limits(LIMIT // MI, 0))
    created = agent.bound(namespace, pod("static", static), app=agent.part(agent.share(CARD, LIMIT)))
    namespace.wait("static", lambda p: p["status"]["phase"] == "Running", what="Running")
    namespace.wait_log("static", "ready")
    view = agent.top()
    device = next(device for device in view["devices"] if device["index"] == CARD)
    accounted = sum(row["used"] or 0 for row in view["shares"] if row["uuid"] == agent.uuids[CARD])
    assert device["used"] - accounted > MORE - 100 * MI, (device, accounted)
    less = agent.share(CARD, LIMIT // 2) | {"held": LIMIT}  # its ledger knows nothing of what it uses
    grant = {"metadata": {"annotations": {names.GRANT: agent.grant(created, gen=2, app=agent.part(less))}}}
    namespace.api.patch("pods", "static", grant, namespace.name)
    said = namespace.wait("static", lambda p: resized(p) != {}, what="told of its share")
    assert resized(said)["reason"] == "ShareStillUsed", resized(said)
    assert "by the driver's word, its share is 1 GiB" in resized(said)["message"]
    agent.until_told("partage_container_hooked", "static/app", 0)
    assert agent.metrics()["partage_container_hooked"]["beside/app"] == 1
    neighbour = next(row for row in view["shares"] if row["owner"] == f"{namespace.name}/beside/app")
    assert neighbour["state"] == "open"
    is_limited(box.exec("box", *GREEDY).stdout)
