"""The webhook as shipped, asked by a real API server: what becomes of pods with it up and down, and its certificates.

K20: who never depends on it (pods without shares, system namespaces), what every verdict is, what 200 broken questions
do. K09: forged grants are denied with it up and down.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from cryptography import x509

from partage.devices.ask import NAMES, read_ask
from tests.admission.support import review_of
from tests.cluster.api import PATIENCE_S, Api, Json, RefusedError
from tests.cluster.changes import deadline, left
from tests.cluster.cluster import SYSTEM, Cluster
from tests.cluster.conftest import opened
from tests.cluster.controlplane import Options, free_port
from tests.cluster.webhook import DEPLOY, NAME, SECRET, WebhookProgram, is_asked, probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.binaries import Binaries
    from tests.cluster.process import Process

GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
VXPU = "kunlunxin.com/vxpu"
GRANT, TWIN = "partage.io/grant", "hami.io/vgpu-devices-allocated"


class Site:
    """A control plane with webhook and policies in force, and a tenant."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = cluster.api
        for namespace in ("default", "tenant", "kube-system"):
            cluster.account("default", namespace)
        cluster.account("tenant", "tenant", [{"apiGroups": ["", "apps"], "resources": ["*"], "verbs": ["*"]}])
        self.tenant = cluster.as_account("tenant", "tenant")
        self.program = WebhookProgram(cluster)
        cluster.apply(DEPLOY / "policies")
        self.replica = self.program.start()
        self._until_policies_hold()
        self.made = 0

    def _until_policies_hold(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < end, f"the policy of grants is not in force after {PATIENCE_S:g} s"
            try:
                self.admin.create("pods", probe(annotations={GRANT: "x"}), "kube-system", dryRun="All")
            except RefusedError:
                return
            time.sleep(0.1)

    def create(self, pod: Json, *, by: Api | None = None, namespace: str = "tenant") -> Json:
        """Create a pod under a name of its own and return it as stored."""
        self.made += 1
        pod["metadata"]["name"] = f"p{self.made}"
        return (by or self.tenant).create("pods", pod, namespace)

    def refused(self, pod: Json) -> str:
        """Return why a pod is not created."""
        with pytest.raises(RefusedError) as caught:
            self.create(pod)
        return caught.value.message


@pytest.fixture(scope="module")
def site(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Site]:
    options = Options(scheduler=False, controller_manager=False)
    for cluster in opened(pytestconfig, binaries, node=False, options=options):
        yield Site(cluster)


def limits_of(pod: Json) -> Json:
    resources: Json = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    return dict(resources["limits"])


# ---- pods ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, {GPU: "1", CORES: "100"}),
        ({GPU: "2", MEMORY: "3000", CORES: "30"}, {GPU: "2", MEMORY: "3k", CORES: "30"}),
        ({MEMORY: "4Gi"}, {GPU: "1", MEMORY: "4096"}),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-cores": 10}, {GPU: "1", CORES: "10"}),
        ({VXPU: 1, f"{VXPU}-memory": 1}, {VXPU: "1", f"{VXPU}-memory": "24576"}),
    ],
)  # fmt: skip
def test_pods_of_hami_s_forms(site: Site, limits: Json, expected: Json) -> None:
    pod = site.create(probe(limits))
    assert pod["spec"]["schedulerName"] == "partage-scheduler"
    assert limits_of(pod) == expected
    asked, stored = read_ask(probe(limits)), read_ask(pod)
    assert asked is not None
    assert stored is not None
    assert stored.shape == asked.shape, "what is stored means what was asked"


def test_the_short_form(site: Site) -> None:
    pod = site.create(probe({"hami.io/gpu": 1}, annotations={"hami.io/gpu-memory": "16Gi", "hami.io/gpu-core": "25"}))
    assert limits_of(pod) == {GPU: "1", MEMORY: "16384", CORES: "25"}


def test_requests_alone_and_other_containers(site: Site) -> None:
    """The API refuses requests of such resources without limits; ours come before it looks."""
    body = probe()
    body["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1", MEMORY: "100"}}
    body["spec"]["initContainers"] = [{"name": "wait", "image": "none"}]
    pod = site.create(body)
    assert limits_of(pod) == {GPU: "1", MEMORY: "100"}
    assert pod["spec"]["initContainers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_what_is_wrong_is_said_to_whoever_creates_it(site: Site) -> None:
    message = site.refused(probe({GPU: 1, MEMORY: "16G", CORES: 101}))
    assert 'admission webhook "mutate.partage.io" denied the request: pod tenant/p' in message
    assert "container app, nvidia.com/gpumem: '16G'" in message
    assert "| container app, nvidia.com/gpucores: '101'" in message
    different = probe({GPU: 1, MEMORY: 100})
    different["spec"]["containers"][0]["resources"]["requests"] = {GPU: 1, MEMORY: 200}
    assert "limit '100', request '200'" in site.refused(different)
    loud = probe({GPU: 1, MEMORY: 100})
    loud["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "no privileged container" in site.refused(loud)
    assert "spec.nodeName: 'n1'" in site.refused(_on_node(probe({GPU: 1, MEMORY: 100})))
    assert "kunlunxin.com/xpu and nvidia.com/gpu" in site.refused(probe({GPU: 1, "kunlunxin.com/xpu": 1}))
    assert "accepted: binpack, spread" in site.refused(
        probe({GPU: 1}, annotations={"hami.io/gpu-scheduler-policy": "pack"})
    )


def _on_node(pod: Json) -> Json:
    pod["spec"]["nodeName"] = "n1"
    return pod


def test_another_scheduler_s_pod_is_left_alone_with_a_warning(site: Site) -> None:
    body = probe({GPU: 1, MEMORY: 100})
    body["spec"]["schedulerName"] = "volcano"
    pod = site.create(body)
    assert (pod["spec"]["schedulerName"], limits_of(pod)) == ("volcano", {GPU: "1", MEMORY: "100"})
    answer = site.tenant.http.post("/api/v1/namespaces/tenant/pods", json={**body, "metadata": {"name": "warned"}})
    assert "schedulerName is volcano: left alone" in answer.headers["warning"]


def test_priority_classes(site: Site) -> None:
    """The API server has filled in the priority of no class by then, and fills in the right one afterwards."""
    group = "scheduling.k8s.io"
    for name, value in (("p1-onlineserving", 1000), ("p2-batchtraining", 10)):
        body = {"apiVersion": f"{group}/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        site.admin.apply(f"priorityclasses.{group}", body)
    site.program.stop()
    site.program.start("--priority-classes=true")
    try:
        pod = site.create(probe({GPU: 1, MEMORY: 1, "nvidia.com/priority": 1}))
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("p2-batchtraining", 10)
        assert pod["spec"]["containers"][0]["env"] == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]
    finally:
        site.program.stop()
        site.program.start()


def _has_said(replica: Process, words: str) -> bool:
    return words in replica.said()


def test_settings_are_read_again(site: Site) -> None:
    """SIGHUP puts them into force without a missed question; those that cannot be read change nothing."""
    file = site.cluster.state.directory / "webhook.yaml"
    file.write_text("scheduler: first\n")
    site.program.stop()
    replica = site.program.start(f"--config={file}")
    try:
        body = probe({GPU: 1, MEMORY: 1})
        assert site.create(body)["spec"]["schedulerName"] == "first"
        for text, logged, scheduler in (
            ("schedulre: second\n", "the nearest is 'scheduler'", "first"),
            ("scheduler: second\n", '"live":["scheduler"]', "second"),
        ):
            file.write_text(text)
            os.kill(replica.pid, signal.SIGHUP)
            replica.until(partial(_has_said, replica, logged), seconds=PATIENCE_S, what=f"saying {logged}")
            assert site.create(body)["spec"]["schedulerName"] == scheduler
    finally:
        site.program.stop()
        site.program.start()


def test_who_names_cards_by_hand_gets_none(site: Site) -> None:
    """C062 (K09)."""
    body = probe()
    body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    none = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert site.create(body)["spec"]["containers"][0]["env"] == none
    site.admin.create("runtimeclasses.node.k8s.io", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    body = probe()
    body["spec"]["runtimeClassName"] = "nvidia"  # which believes an image that names all cards
    assert site.create(body)["spec"]["containers"][0]["env"] == none


def test_who_debugs_a_pod_with_a_share_sees_no_card(site: Site) -> None:
    """C062, C063 (K09, K20): by `kubectl debug`, which changes a pod through a door of its own."""

    def debug(name: str, **fields: Any) -> Any:
        added = {"name": "debug", "image": "none", "terminationMessagePolicy": "File", **fields}
        body = {"spec": {"ephemeralContainers": [added]}}
        found = site.tenant.patch("pods", name, body, "tenant", sub="ephemeralcontainers")
        return found["spec"]["ephemeralContainers"][0]

    name = site.create(probe({GPU: 1, MEMORY: 1}))["metadata"]["name"]
    with pytest.raises(RefusedError, match="ephemeral container debug: privileged"):
        debug(name, securityContext={"privileged": True})
    assert debug(name)["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    plain = site.create(probe())["metadata"]["name"]
    by_hand = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert debug(plain, env=by_hand)["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    before = _asked(site)
    other = site.create(probe())["metadata"]["name"]
    assert debug(other, securityContext={"privileged": True})["securityContext"] == {"privileged": True}
    assert _asked(site) == before, "the API server asked about it"


@pytest.mark.parametrize("annotation", [GRANT, TWIN])
def test_forged_grants_with_the_webhook_up(site: Site, annotation: str) -> None:
    """Denied by us where we are asked first; by the policy where not (system namespaces)."""
    assert f"annotation {annotation}" in site.refused(probe({GPU: 1, MEMORY: 1}, annotations={annotation: "{}"}))
    assert f"annotation {annotation}" in site.refused(probe(annotations={annotation: "{}"}))
    with pytest.raises(RefusedError, match=annotation):
        site.admin.create("pods", probe(annotations={annotation: "{}"}), "kube-system")


def test_pods_without_shares_are_no_business_of_ours(site: Site) -> None:
    before = _asked(site)
    site.create(probe({"cpu": "1", "memory": "1Gi"}))
    site.create(probe({GPU: 1, MEMORY: "16G"}), by=site.admin, namespace="kube-system")
    assert _asked(site) == before, "the API server asked about it"
    site.create(probe({GPU: 1, MEMORY: 1}))
    assert _asked(site) > before


def _asked(site: Site) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in site.program.says(site.program.metrics, "metrics").splitlines()
        if line.startswith("partage_webhook_reviews_total")
    )


# ---- down ------------------------------------------------------------------------------------------------------------


def test_down(site: Site) -> None:
    """C129, C130 (K20): whatever becomes of us: pods without shares are created at once, those with shares as they were
    written (without a grant, so the agent lets them not start), and a forged grant is denied all the same."""
    site.program.stop()
    try:
        before = _unanswered(site)
        cpu = site.create(probe({"cpu": "1"}))
        system = site.create(probe({GPU: 1}), by=site.admin, namespace="kube-system")
        assert cpu["spec"]["schedulerName"] == system["spec"]["schedulerName"] == "default-scheduler"
        assert _unanswered(site) == before, "nobody was asked, so nobody was waited for"
        shared = site.create(probe({GPU: 1, MEMORY: "4Gi"}))
        assert _unanswered(site) > before
        assert shared["spec"]["schedulerName"] == "default-scheduler"
        assert limits_of(shared) == {GPU: "1", MEMORY: "4Gi"}
        assert GRANT not in shared["metadata"].get("annotations", {})
        for annotation in (GRANT, TWIN):
            for limits in (None, {GPU: 1, MEMORY: 1}):
                assert f"annotation {annotation}" in site.refused(probe(limits, annotations={annotation: "{}"}))
        assert "one kind of share" in site.refused(probe({GPU: 1, "metax-tech.com/sgpu": 1}))
    finally:
        site.program.start()


def _unanswered(site: Site) -> float:
    """Return how often the API server went on without an answer."""
    name = "apiserver_admission_webhook_fail_open_count"
    lines = site.admin.text("/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


# ---- broken questions ------------------------------------------------------------------------------------------------


def broken() -> list[bytes]:
    """Return two hundred questions that are none."""
    whole = review_of(probe({GPU: 1, MEMORY: 1}))
    made = [whole[: len(whole) * part // 60] for part in range(60)]  # cut short
    values: tuple[Any, ...] = (None, 7, "x", [], [1], True, {"a": {}}, 1.5, [[]], {"metadata": 1})
    made += [review_of(value) for value in values if value != {"a": {}}]  # an object of other types
    for field in ("uid", "resource", "userInfo", "operation"):
        made += [review_of(probe(), **_field(field, value)) for value in (7, [], [1], True, 1.5)]
    for place in ("spec", "metadata"):
        made += [review_of({**probe(), place: value}) for value in (7, "x", [1], True, 1.5)]
    for inner in ("containers", "initContainers"):
        wrong: tuple[Any, ...] = (7, "x", {"a": 1}, [7], ["x"], [None], [[]], [True])
        made += [review_of({"spec": {inner: value}}) for value in wrong]
    for resource in ("deployments", "nodes", "pods/status", "", "secrets", "replicasets", "jobs", "services"):
        made.append(review_of(probe(), resource={"group": "", "version": "v1", "resource": resource}))
        made.append(review_of(probe(), resource={"group": "apps", "version": "v1", "resource": resource}))
    made += [b"[" * 10**number for number in range(1, 7)] + [b'{"a":' * 10**number for number in range(1, 6)]
    made += [b"\xff" * 10**number for number in range(7)] + [b"null", b"0", b'"x"', b"true", b" ", b"{}"]
    made += [json.dumps({"apiVersion": version, "kind": "AdmissionReview", "request": {"uid": "u"}}).encode()
             for version in ("", "v1", "admission.k8s.io/v1beta1", "admission.k8s.io/v2", "x" * 1000)]  # fmt: skip
    made += [whole.replace(b'"AdmissionReview"', kind) for kind in (b'""', b'"Pod"', b"null", b"7")]
    number = 0
    while len(made) < 199:
        number += 1
        made.append(whole[: len(whole) // 2] + bytes([number % 32]) * number + whole[len(whole) // 2 :])
    return [*made, b"x" * (9 << 20)]  # longer than any


def _field(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def test_two_hundred_broken_questions(site: Site) -> None:
    """K20: an error each, no restart, and no patch that nobody asked for."""
    pid = site.program.replicas[-1].pid
    authority = base64.b64decode(site.program.secret()["bundle.crt"]).decode()
    context = ssl.create_default_context(cadata=authority)
    context.check_hostname = False  # this test dials it by its address
    url = f"https://127.0.0.1:{site.program.port}"
    questions = broken()
    assert len(questions) == 200
    with httpx.Client(verify=context, trust_env=False, timeout=30) as http:
        for question in questions:
            for door in ("mutate", "validate"):
                answer = http.post(f"{url}/{door}", content=question)
                assert answer.status_code in {400, 413}, (question[:200], answer.text[:200])
                assert b"JSONPatch" not in answer.content
        assert http.get(f"{url}/mutate").status_code == 405
        assert http.post(f"{url}/elsewhere").status_code == 404
        thousand = probe()
        thousand["spec"]["containers"] = [
            {"name": f"c{number}", "resources": {"limits": {GPU: "1"}}} for number in range(1000)
        ]
        refused = http.post(f"{url}/mutate", content=review_of(thousand)).json()["response"]
        assert (refused["allowed"], "patch" in refused) == (False, False)
    assert site.program.replicas[-1].alive()
    assert site.program.replicas[-1].pid == pid
    assert site.create(probe({GPU: 1, MEMORY: 1}))["spec"]["schedulerName"] == "partage-scheduler"
    assert 'door="mutate",verdict="failed"} 0' in site.program.says(site.program.metrics, "metrics")


# ---- certificates ----------------------------------------------------------------------------------------------------


def serial_of(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


def test_replicas_agree_and_both_configurations_trust_them(site: Site) -> None:
    port, metrics = free_port(), free_port()
    second = site.program.run(port=port, metrics=metrics)
    try:
        secret = site.program.secret()
        assert site.program.bundles() == [secret["bundle.crt"]] * 2
        shown = {serial_of(ssl.get_server_certificate(("127.0.0.1", at)).encode()) for at in (port, site.program.port)}
        assert shown == {serial_of(base64.b64decode(secret["tls.crt"]))}
    finally:
        second.kill(15)
        site.program.replicas.remove(second)
    forbidden = site.cluster.as_account(NAME)
    for request in (
        lambda: forbidden.list("secrets", SYSTEM),
        lambda: forbidden.get("secrets", "another", SYSTEM),
        lambda: forbidden.list("pods"),
        lambda: forbidden.delete("secrets", SECRET, SYSTEM),
    ):
        with pytest.raises(RefusedError, match="forbidden"):
            request()


def test_certificates_are_renewed_without_a_failed_request(site: Site) -> None:
    """Leaves and CAs are renewed many times over, by two replicas in turns, and no pod slips past or is refused."""
    site.program.stop()
    site.admin.delete("secrets", SECRET, SYSTEM)
    hours = 1 / 3600
    # A third of its life is left for a renewal to be seen by all: seconds, in which even a starved process gets a turn.
    lives = (f"--tls-leaf-hours={12 * hours}", f"--tls-authority-hours={30 * hours}", "--tls-check-seconds=0.5")
    try:
        site.program.start(*lives)
        site.program.run(*lives, port=free_port(), metrics=free_port())
        leaves: set[str] = set()
        authorities: set[str] = set()
        missed: list[int] = []
        ended = threading.Event()

        def create() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                pod = site.tenant.create("pods", probe({GPU: 1, MEMORY: 1}, name=f"r{number}"), "tenant", dryRun="All")
                if pod["spec"]["schedulerName"] != "partage-scheduler":
                    missed.append(number)

        with ThreadPoolExecutor(1) as pool:
            creator = pool.submit(create)
            end = deadline(PATIENCE_S)
            while (len(leaves) < 5 or len(authorities) < 3) and left(end) > 0 and not creator.done():
                secret = site.program.secret()
                leaves.add(secret["tls.crt"])
                authorities.add(secret["ca.crt"])
                time.sleep(0.2)
            ended.set()
            creator.result()
        assert len(leaves) >= 5
        assert len(authorities) >= 3
        assert missed == [], "pods that nobody looked at"
        assert all(replica.alive() for replica in site.program.replicas)
    finally:
        site.program.stop()
        site.admin.delete("secrets", SECRET, SYSTEM)
        site.program.start()


def test_files_that_somebody_brings(site: Site) -> None:
    """As cert-manager does: files are shown, renewed files too, and the configurations are not touched."""
    authority = site.cluster.control.authority
    names = (f"{NAME}.{SYSTEM}.svc",)
    authority.issue("brought", NAME, names=names)
    files = [authority.directory / f"brought.{kind}" for kind in ("crt", "key")]
    bundle = base64.b64encode(authority.certificate.read_bytes()).decode()
    site.program.stop()
    for kind in ("mutating", "validating"):
        hook = {"name": f"{'mutate' if kind == 'mutating' else 'validate'}.partage.io"}
        body = {"webhooks": [{**hook, "clientConfig": {"caBundle": bundle}}]}
        path = site.admin.path(f"{kind}webhookconfigurations.admissionregistration.k8s.io", NAME)
        site.admin.request("PATCH", path, body=body, kind="application/strategic-merge-patch+json")
    try:
        flags = (f"--tls-certificate={files[0]}", f"--tls-private-key={files[1]}", "--tls-check-seconds=0.2")
        site.program.start(*flags)
        assert site.program.bundles() == [bundle] * 2
        first = ssl.get_server_certificate(("127.0.0.1", site.program.port))
        for file in files:
            file.unlink()
        authority.issue("brought", NAME, names=names)
        end = time.monotonic() + PATIENCE_S
        while ssl.get_server_certificate(("127.0.0.1", site.program.port)) == first:
            assert time.monotonic() < end, "the new files are not shown"
        assert is_asked(site.cluster)
    finally:
        site.program.stop()
        site.program.start()


def test_every_resource_reaches_us() -> None:
    """K25: what the manifests let through and what is read agree."""
    text = (DEPLOY / "webhook" / "3-configurations.yaml").read_text()
    prefixes = ("nvidia.com/", "hami.io/", "volcano.sh/vgpu-", "kunlunxin.com/", "metax-tech.com/", "enflame.com/")
    for prefix in (*prefixes, "aws.amazon.com/neuron"):
        assert text.count(f"r.startsWith('{prefix}')") == 4, prefix
    for name in NAMES - {"hami.io/gpu-memory", "hami.io/gpu-core"}:
        assert name.startswith((*prefixes, "aws.amazon.com/neuron")), name
