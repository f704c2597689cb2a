"""What admission makes of pods: HAMi's forms, everything at once, and that it leaves alone what is not its business."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.admission.decide import decide
from partage.admission.options import WRITER, AdmissionOptions
from partage.admission.review import Answer, ReviewError, decode_review
from partage.devices.ask import read_ask
from partage.devices.requests import AskOptions
from tests.admission.support import Json, admitted, ask, container, pod_of, review_of

GPU = "nvidia.com/gpu"
MEMORY, CORES, PERCENTAGE, PRIORITY = (
    f"nvidia.com/{name}" for name in ("gpumem", "gpucores", "gpumem-percentage", "priority")
)
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def limits_of(pod: Json, number: int = 0) -> Json:
    found: Json = pod["spec"]["containers"][number]["resources"]["limits"]
    requests = pod["spec"]["containers"][number]["resources"].get("requests", {})
    assert all(found[name] == amount for name, amount in requests.items()), "the API wants both the same"
    return found


def env_of(container: Json) -> Json:
    return {variable["name"]: variable.get("value") for variable in container.get("env", [])}


def test_a_pod_of_hami_s_form() -> None:
    """Only the scheduler is named: nothing else is to be changed, so nothing is."""
    pod = pod_of(container(limits={GPU: 2, MEMORY: 3000, CORES: 30}))
    answer = ask(pod, AdmissionOptions(seccomp=False))
    assert answer.patch == ({"op": "add", "path": "/spec/schedulerName", "value": "partage-scheduler"},)
    assert answer.warnings == ()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({GPU: 1}, {GPU: "1", CORES: "100"}, id="a whole card is nobody else's"),
        pytest.param({GPU: 1, PERCENTAGE: 100}, {GPU: "1", PERCENTAGE: "100", CORES: "100"}, id="so is all its memory"),
        pytest.param({GPU: 1, PERCENTAGE: 50}, {GPU: "1", PERCENTAGE: "50"}, id="half of it is not"),
        pytest.param({GPU: 1, CORES: 0}, {GPU: "1", CORES: "0"}, id="what is written stays"),
        pytest.param({MEMORY: 3000}, {GPU: "1", MEMORY: "3000"}, id="memory only: one card"),
        pytest.param({GPU: 1, MEMORY: "4Gi"}, {GPU: "1", MEMORY: "4096"}, id="a unit becomes MiB: others count it"),
        pytest.param({GPU: 1, MEMORY: "30k"}, {GPU: "1", MEMORY: "30k"}, id="the API server's own spelling"),
        pytest.param(
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}, {GPU: "1", MEMORY: "1024"}, id="Volcano's"
        ),
        pytest.param({GPU: 1, MEMORY: 1, "cpu": 2}, {GPU: "1", MEMORY: "1", "cpu": "2"}, id="others are not ours"),
    ],
)  # fmt: skip
def test_resources(limits: Json, expected: Json) -> None:
    """C100 (K16): whole cards alone become exclusive; what is written stays."""
    assert limits_of(admitted(pod_of(container(limits=limits)))) == expected


def test_requests_alone_get_the_limits_that_the_api_wants() -> None:
    only = container()
    only["resources"] = {"requests": {GPU: "1", MEMORY: "3000", PRIORITY: "1"}}
    assert limits_of(admitted(pod_of(only))) == {GPU: "1", MEMORY: "3000", PRIORITY: "1"}


def test_the_short_form_is_rewritten() -> None:
    annotations = {"hami.io/gpu-memory": "16Gi", "hami.io/gpu-core": "50%"}
    after = admitted(pod_of(container(limits={"hami.io/gpu": 1}), meta={"annotations": annotations}))
    assert limits_of(after) == {GPU: "1", MEMORY: "16384", CORES: "50"}
    assert after["metadata"]["annotations"] == annotations
    fine = admitted(
        pod_of(container(limits={"hami.io/gpu": 1}), meta={"annotations": {**annotations, "hami.io/gpu-core": "30.5%"}})
    )
    assert limits_of(fine) == {GPU: "1", MEMORY: "16384"}, "0.5 % is no gpucores"
    again = read_ask(fine)
    assert again is not None
    assert again.shape.containers[0].cores == 305


def test_all_containers_at_once() -> None:
    """K20: init, sidecar and app containers, with and without shares, in one answer."""
    pod = pod_of(
        container("app", {MEMORY: 1000}),
        container("helper"),
        init=(container("load", {GPU: 1, MEMORY: "2Gi"}), container("proxy", restartPolicy="Always")),
    )
    after = admitted(pod)
    load, proxy = after["spec"]["initContainers"]
    app, helper = after["spec"]["containers"]
    assert load["resources"]["limits"] == {GPU: "1", MEMORY: "2048"}
    assert app["resources"]["limits"] == {GPU: "1", MEMORY: "1000"}
    assert env_of(proxy) == env_of(helper) == {VISIBLE: "none"}
    assert env_of(load) == env_of(app) == {}


def test_what_was_rounded_is_noted() -> None:
    """C131 (K20): the asked amount is kept."""
    after = admitted(pod_of(container(limits={"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 20000})))
    assert limits_of(after)["kunlunxin.com/vxpu-memory"] == "24576"
    assert json.loads(after["metadata"]["annotations"]["partage.io/asked"]) == {
        "app": {"kunlunxin.com/vxpu-memory": "20000"}
    }


def test_the_vendor_s_class_is_written_for_its_own_programs() -> None:
    after = admitted(pod_of(container(limits={"metax-tech.com/sgpu": 1})))
    assert after["metadata"]["annotations"] == {"metax-tech.com/sgpu-qos-policy": "best-effort"}
    burst = pod_of(container(limits={"metax-tech.com/sgpu": 1}), meta={"annotations": {"partage.io/class": "burst"}})
    assert admitted(burst)["metadata"]["annotations"]["metax-tech.com/sgpu-qos-policy"] == "burst-share"


# ---- schedulers ------------------------------------------------------------------------------------------------------


def test_schedulers() -> None:
    """C128 (K20): no name and Kubernetes' own are redirected (switchable); another's pod is left, with a warning."""
    share = container(limits={GPU: 1, MEMORY: "oops"})
    other = ask(pod_of(share, schedulerName="volcano"))
    assert other.allowed
    assert other.patch == ()
    assert "schedulerName is volcano: left alone" in other.warnings[0]
    fine = container(limits={GPU: 1, MEMORY: 100})
    kept = ask(pod_of(fine), AdmissionOptions(take_over_default=False))
    assert (kept.allowed, kept.patch) == (True, ())
    assert "default-scheduler" in kept.warnings[0]
    ours = pod_of(fine, schedulerName="partage-scheduler")
    assert ask(ours, AdmissionOptions(take_over_default=False, seccomp=False)).patch == ()
    unnamed = pod_of(fine)
    del unnamed["spec"]["schedulerName"]
    assert admitted(unnamed)["spec"]["schedulerName"] == "partage-scheduler"
    renamed = admitted(pod_of(fine), AdmissionOptions(scheduler="hami-scheduler"))
    assert renamed["spec"]["schedulerName"] == "hami-scheduler"


def test_further_names_of_our_scheduler_are_ours() -> None:
    """C128 (K20): a pod that names HAMi's, for which ours stands, gets all that others get, and keeps the name."""
    pod = pod_of(container(limits={GPU: 1, MEMORY: "4Gi"}), schedulerName="hami-scheduler")
    assert "left alone" in ask(pod).warnings[0]
    options = AdmissionOptions(also_known_as=frozenset({"hami-scheduler"}))
    after = admitted(pod, options)
    assert ask(pod, options).warnings == ()
    assert after["spec"]["schedulerName"] == "hami-scheduler"
    assert after["spec"]["containers"][0]["resources"]["limits"][MEMORY] == "4096"
    assert not ask(pod_of(container(limits={GPU: "x"}), schedulerName="hami-scheduler"), options).allowed


def test_a_pod_that_is_left_alone_names_no_cards_by_hand() -> None:
    """C062 (K09): to ask for a share of another scheduler, or to opt out, shows nobody the node's cards."""
    by_hand = [{"name": VISIBLE, "value": "all"}]
    share, beside = container(limits={GPU: 1}, env=list(by_hand)), container("beside", env=list(by_hand))
    for more in ({"schedulerName": "volcano"}, {"meta": {"labels": {"hami.io/webhook": "ignore"}}}):
        after = admitted(pod_of(share, beside, **more))
        assert [env_of(one)[VISIBLE] for one in after["spec"]["containers"]] == ["all", "none"]
        assert ask(pod_of(share, beside, **more), changes=False).patch == ()


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_cards_of_nvidias_own_plugin_are_left_to_it(name: str) -> None:
    """A container beside one with a share has no share, but it has a card: the variable would hide that."""
    beside, none = container("beside", {name: 1}), container("none", {name: 0})
    after = admitted(pod_of(container(limits={GPU: 1, MEMORY: 100}), beside, none))
    assert [env_of(one).get(VISIBLE) for one in after["spec"]["containers"]] == [None, None, "none"]


def test_opting_out_by_label() -> None:
    answer = ask(pod_of(container(limits={GPU: 1}), meta={"labels": {"hami.io/webhook": "ignore"}}))
    assert (answer.allowed, answer.patch) == (True, ())
    assert "gets no grant" in answer.warnings[0]
    meta = {"labels": {"hami.io/webhook": "ignore"}}
    kept = ask(pod_of(container(limits={GPU: 1}), meta=meta, schedulerName="partage-scheduler", hostPID=True))
    assert "spec.hostPID" in kept.message, "K09: our scheduler would place it, and no label takes its confines away"


# ---- environment, classes --------------------------------------------------------------------------------------------


def test_containers_are_told_of_no_card_but_theirs() -> None:
    """C062 (K09): whoever names cards by hand is overwritten, also in pods that ask for nothing."""
    by_hand = [{"name": "A", "value": "1"}, {"name": VISIBLE, "value": "all"}]
    for share in (None, {GPU: 1, MEMORY: 1}):
        after = admitted(pod_of(container(limits=share, env=by_hand)))
        assert env_of(after["spec"]["containers"][0]) == {"A": "1", VISIBLE: "none"}
    referred = [{"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    assert env_of(admitted(pod_of(container(env=referred)))["spec"]["containers"][0]) == {VISIBLE: "none"}
    for harmless in ("none", "void", ""):
        assert ask(pod_of(container(env=[{"name": VISIBLE, "value": harmless}]))).patch == ()
    assert ask(pod_of(container(env=by_hand)), AdmissionOptions(hide_cards=False)).patch == ()
    system = container(env=by_hand, securityContext={"privileged": True})
    assert ask(pod_of(system)).patch == (), "it sees all of them anyway"


@pytest.mark.parametrize(
    ("one", "spec"),
    [
        pytest.param(container(), {"runtimeClassName": "nvidia"}, id="by the runtime"),
        pytest.param(container(limits={GPU: 0}), {}, id="0 cards"),
        pytest.param(container(env=[{"name": VISIBLE, "value": "all"}]), {}, id="by hand"),
        pytest.param(container(limits={GPU: 1}), {"schedulerName": "volcano"}, id="another scheduler"),
        pytest.param(container(limits={MEMORY: 1}), {"schedulerName": "volcano"}, id="an amount, another scheduler"),
    ],
)
def test_k09_an_image_that_names_all_cards_sees_none(one: Json, spec: Json) -> None:
    """NVIDIA's images have the variable, and its runtime believes them: a container without a share is told of none."""
    after = admitted(pod_of(one, container("image"), init=(container("load"),), **spec))
    assert env_of(after["spec"]["containers"][1]) == env_of(after["spec"]["initContainers"][0]) == {VISIBLE: "none"}
    assert ask(pod_of(one, container("image"), **spec), AdmissionOptions(hide_cards=False)).patch == ()
    assert ask(pod_of(container("image"), runtimeClassName="gvisor")).patch == ()


def test_priority() -> None:
    pod = pod_of(
        container(limits={GPU: 1, MEMORY: 1, PRIORITY: 1}), container("second", {GPU: 1, MEMORY: 1, PRIORITY: 0})
    )
    after = admitted(pod)
    assert [env_of(each) for each in after["spec"]["containers"]] == [
        {"CUDA_TASK_PRIORITY": "1"},
        {"CUDA_TASK_PRIORITY": "0"},
    ]
    assert after["spec"]["priority"] == 0
    classed = admitted(pod, AdmissionOptions(priority_classes=True))
    assert classed["spec"]["priorityClassName"] == "p1-onlineserving"
    assert "priority" not in classed["spec"]
    assert "preemptionPolicy" not in classed["spec"]
    own = admitted(
        pod_of(*pod["spec"]["containers"], priorityClassName="mine"), AdmissionOptions(priority_classes=True)
    )
    assert (own["spec"]["priorityClassName"], own["spec"]["priority"]) == ("mine", 0)
    plain = admitted(pod_of(container(limits={GPU: 1, MEMORY: 1})), AdmissionOptions(priority_classes=True))
    assert "priorityClassName" not in plain["spec"]


def test_system_calls() -> None:
    """K09: the runtime's profile, by which nobody mounts over the library; the author's own word stays."""
    share = container(limits={GPU: 1, MEMORY: 1})
    default = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert admitted(pod_of(share))["spec"]["securityContext"] == default
    user = {"runAsUser": 1}
    assert admitted(pod_of(share, securityContext=user))["spec"]["securityContext"] == user | default
    own = {"seccompProfile": {"type": "Unconfined"}}
    assert admitted(pod_of(share, securityContext=own))["spec"]["securityContext"] == own
    assert "securityContext" not in admitted(pod_of(share), AdmissionOptions(seccomp=False))["spec"]
    assert "securityContext" not in admitted(pod_of(container()))["spec"]


UNCONFINED = AdmissionOptions(ask=AskOptions(confined=False))


def test_pods_with_shares_are_confined() -> None:
    share = container(limits={GPU: 1, MEMORY: 1})
    for name in ("SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"):
        mighty = container("mighty", securityContext={"capabilities": {"add": [name, "SYS_PTRACE"], "drop": ["ALL"]}})
        answer = ask(pod_of(share, mighty))
        assert (answer.allowed, answer.code) == (False, 422)
        assert f"container mighty: capability {name.removeprefix('CAP_')}; " in answer.message
        assert ask(pod_of(share, mighty), UNCONFINED).allowed
        assert ask(pod_of(mighty)).allowed
    assert "spec.hostPID" in ask(pod_of(share, hostPID=True)).message
    assert ask(pod_of(share, hostPID=True), UNCONFINED).allowed


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/etc/ld.so.preload", "/etc/ld.so.preload"),
        ("//etc/x/../ld.so.preload/", "/etc/ld.so.preload"),
        ("etc/ld.so.preload", "/etc/ld.so.preload"),
        ("/etc/ld-nix.so.preload", "/etc/ld-nix.so.preload"),
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so"),
        ("/run/partage", "/run/partage"),
        ("/var/run/partage/policy", "/run/partage"),
        ("/etc", None),
        ("/run/partage-of-mine", None),
        ("/usr/local/vgpu", None),
    ],
)
@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("by", ["volumeMounts", "volumeDevices", "terminationMessagePath"])
def test_k09_no_volume_lies_over_what_holds_the_limit(by: str, path: str, place: str | None, confined: bool) -> None:
    """The runtime mounts what a pod asks for after ours: an empty file there would be the end of every limit.

    Such a file is also what kubelet mounts for the message that a container leaves at its end.
    """
    options = AdmissionOptions(ask=AskOptions(confined=confined))
    key = "mountPath" if by == "volumeMounts" else "devicePath"
    volumes = [{"name": "v", key: "/data"}, {"name": "v", key: path}]
    mounts: dict[str, Any] = {by: path if by == "terminationMessagePath" else volumes}
    answer = ask(pod_of(container(limits={GPU: 1, MEMORY: 1}, **mounts)), options)
    assert answer.allowed == (place is None)
    assert place is None or f"{place} is the library's" in answer.message
    assert place is None or f"container app, {by}" in answer.message
    assert ask(pod_of(container(**mounts)), options).allowed, "without shares there is nothing to hold"


def test_runtime_class() -> None:
    options = AdmissionOptions(runtime_class="nvidia")
    assert admitted(pod_of(container(limits={GPU: 1, MEMORY: 1})), options)["spec"]["runtimeClassName"] == "nvidia"
    own = pod_of(container(limits={GPU: 1, MEMORY: 1}), runtimeClassName="mine")
    assert admitted(own, options)["spec"]["runtimeClassName"] == "mine"
    assert "runtimeClassName" not in admitted(pod_of(container(limits={"kunlunxin.com/xpu": 1})), options)["spec"]


@pytest.mark.parametrize(
    "meta",
    [{"labels": {"leaderworkerset.sigs.k8s.io/name": "w"}}, {"annotations": {"scheduling.k8s.io/group-name": "g"}}],
)
def test_half_a_distributed_job_gives_up(meta: Json) -> None:
    share = container(limits={GPU: 1, MEMORY: 1}, env=[{"name": "NCCL_TIMEOUT", "value": "60"}])
    after = admitted(pod_of(share, container("helper"), meta=meta))
    assert env_of(after["spec"]["containers"][0]) == {
        "NCCL_TIMEOUT": "60",
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert "NCCL_TIMEOUT" not in env_of(after["spec"]["containers"][1])
    off = admitted(pod_of(container(limits={GPU: 1, MEMORY: 1}), meta=meta), AdmissionOptions(nccl_seconds=0))
    assert env_of(off["spec"]["containers"][0]) == {}
    single = admitted(pod_of(container(limits={GPU: 1, MEMORY: 1})))
    assert env_of(single["spec"]["containers"][0]) == {}


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_every_problem_is_named() -> None:
    """K20: field, value, unit and what is accepted, of all containers at once."""
    answer = ask(pod_of(container(limits={GPU: 1, MEMORY: "16G"}), init=(container("load", {GPU: 1, CORES: 300}),)))
    assert (answer.allowed, answer.code, answer.reason) == (False, 422, "Invalid")
    assert answer.message.startswith("pod team/p: container load, nvidia.com/gpucores: '300'; accepted: percent")
    assert "| container app, nvidia.com/gpumem: '16G' is 16000000000 MiB or decimal bytes; accepted: " in answer.message
    assert answer.patch == ()


@pytest.mark.parametrize("place", ["beside", "before", "same", "init"])
def test_privileged_containers_and_shares(place: str) -> None:
    """C063, C125, C126 (K20): one verdict whatever the order; and the answer is what is logged."""
    loud: Json = {"securityContext": {"privileged": True}}
    share = container(limits={GPU: 1, MEMORY: 1}, **(loud if place == "same" else {}))
    other = container("other", **loud)
    pods = {
        "beside": pod_of(share, other),
        "before": pod_of(other, share),
        "same": pod_of(share),
        "init": pod_of(share, init=(other,)),
    }
    answer = ask(pods[place])
    assert (answer.allowed, answer.code, answer.patch) == (False, 422, ())
    assert "privileged; a pod with shares has no privileged container" in answer.message
    assert ask(pod_of(other)).allowed, "without shares it is not our business"


def debugged(*containers: Json, before: tuple[Json, ...] = (), share: bool = True, **spec: Any) -> Answer:
    """Return the answer to somebody who adds ephemeral containers to a pod that runs."""
    meta = {"annotations": {"partage.io/grant": "{}"}} if share else {}
    pod = pod_of(container(limits={GPU: 1, MEMORY: 1} if share else None), meta=meta, nodeName="n1", **spec)
    old, new = copy.deepcopy(pod), copy.deepcopy(pod)
    old["spec"]["ephemeralContainers"] = list(before)
    new["spec"]["ephemeralContainers"] = [*before, *containers]
    return ask(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)


def test_ephemeral_containers_and_shares() -> None:
    """C062, C063 (K09, K20): `kubectl debug` shows nobody a card; whoever may do that is no writer of grants."""
    loud = {"name": "d", "securityContext": {"privileged": True}}
    answer = debugged(loud)
    assert (answer.allowed, answer.code, answer.patch) == (False, 403, ())
    assert "ephemeral container d: privileged; a pod with shares has no privileged" in answer.message
    assert debugged(loud, share=False).allowed
    assert debugged({"name": "e"}, before=(loud,)).allowed, "what is there cannot be changed"
    admin = {"name": "d", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
    assert "capability SYS_ADMIN" in debugged(admin).message
    assert debugged({"name": "d", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}).allowed
    none = {"name": VISIBLE, "value": "none"}
    assert debugged({"name": "d"}).patch == ({"op": "add", "path": "/spec/ephemeralContainers/0/env", "value": [none]},)
    by_hand = {"name": "e", "env": [{"name": VISIBLE, "value": "all"}]}
    replaced = ({"op": "replace", "path": "/spec/ephemeralContainers/1/env/0", "value": none},)
    assert debugged(by_hand, before=(loud,), share=False).patch == replaced
    assert debugged({"name": "d"}, share=False).patch == ()
    waiting = pod_of(container(limits={GPU: 1}), ephemeralContainers=[loud])
    for name, allowed in (("partage-scheduler", False), ("volcano", True)):
        waiting["spec"]["schedulerName"] = name
        assert ask(waiting, operation="UPDATE", subResource="ephemeralcontainers").allowed is allowed


@pytest.mark.parametrize(
    "annotation", ["partage.io/grant", "hami.io/vgpu-devices-allocated", "hami.io/kunlun-allocated"]
)
def test_forged_grants(annotation: str) -> None:
    """K09: denied, never silently stripped; the scheduler's own are not."""
    for limits in (None, {GPU: 1, MEMORY: 1}):
        pod = pod_of(container(limits=limits), meta={"annotations": {annotation: "{}"}}, schedulerName="volcano")
        answer = ask(pod)
        assert (answer.allowed, answer.code) == (False, 403)
        assert (
            f"annotation {annotation}: written by system:serviceaccount:team:builder; only {WRITER}" in answer.message
        )
        assert ask(pod, user=WRITER).allowed
        assert not ask(pod, changes=False).allowed, "the last door judges too"


def test_a_node_that_was_chosen_already() -> None:
    share = container(limits={GPU: 1, MEMORY: 1})
    answer = ask(pod_of(share, nodeName="n1"))
    assert (answer.allowed, answer.code) == (False, 403)
    assert "spec.nodeName: 'n1'" in answer.message
    mirror = pod_of(share, nodeName="n1", meta={"annotations": {"kubernetes.io/config.mirror": "h"}})
    assert ask(mirror).allowed, "kubelet only shows what runs already"
    mirror["spec"]["containers"][0] |= {
        "securityContext": {"privileged": True},
        "env": [{"name": VISIBLE, "value": "all"}],
    }
    assert (ask(mirror).allowed, ask(mirror).patch) == (True, ()), "refused or changed it would only say less"
    mirror["metadata"]["annotations"]["partage.io/grant"] = "{}"
    assert not ask(mirror).allowed


def test_unknown_annotations_are_warned_of() -> None:
    pod = pod_of(container(limits={GPU: 1, MEMORY: 1}), meta={"annotations": {"partage.io/clas": "fixed"}})
    assert ask(pod).warnings == (
        "annotation partage.io/clas is unknown and does nothing; the nearest is partage.io/class",
    )


def test_what_a_tenant_writes_at_length_holds_nobody_up() -> None:
    """K18, K20: a question has up to 3 MiB, and all pods of the cluster wait for one answer at a time."""
    many = {f"partage.io/x{number}": "" for number in range(2000)}
    warnings = ask(pod_of(container(limits={GPU: 1}), meta={"annotations": many})).warnings
    assert len(warnings) == 9
    assert warnings[-1] == "1992 further annotations partage.io/... are unknown and do nothing"
    forged = {f"hami.io/{number}-allocated": "" for number in range(2000)}
    assert ask(pod_of(container(), meta={"annotations": forged})).message.count("writes grants") == 8
    pod = pod_of(*(container(f"c{number}", {GPU: 1, CORES: 999}) for number in range(1025)))
    assert "1025 containers with shares; at most 1024 are read" in ask(pod).message


@pytest.mark.parametrize(
    "key", ["partage.io/weight", "partage.io/ceiling", "hami.io/gpu-memory", "hami.io/gpu-core", "partage.io/use-index"]
)
@pytest.mark.parametrize("value", ["9" * 5000, "0" * 20 + "9" * 10, "x" * 100_000])
def test_a_value_of_any_length_is_refused_with_what_is_accepted(key: str, value: str) -> None:
    """C114, C131 (K18, K20): no defect, by which the pod would slip past; and the message is read to its end."""
    answer = ask(pod_of(container(limits={GPU: 1, CORES: 30} if "core" not in key else {GPU: 1}),
                        meta={"annotations": {key: value}}))  # fmt: skip
    assert (answer.allowed, answer.code) == (False, 422)
    assert f"annotation {key}: '{value[:20]}" in answer.message
    assert "accepted: " in answer.message
    assert len(answer.message) < 500


def test_what_the_last_door_sees_is_only_judged() -> None:
    pod = pod_of(container(limits={GPU: 1}), container("late", securityContext={"privileged": True}))
    assert not ask(pod, changes=False).allowed
    assert ask(pod_of(container(limits={GPU: 1})), changes=False).patch == ()


def test_updates_and_pods_that_ask_for_nothing_pass() -> None:
    assert ask(pod_of(container(limits={GPU: "x"})), operation="UPDATE").allowed
    assert ask(pod_of(container(limits={"cpu": 1}))).patch == ()
    hidden = {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": VISIBLE, "value": "none"}]}
    assert ask(pod_of(container(limits={GPU: 0}))).patch == (hidden,), "C062 (K09): 0 is nothing asked for"


def test_the_administrator_s_reading() -> None:
    options = AdmissionOptions(ask=AskOptions(memory_factor=1024, default_cores=20))
    assert limits_of(admitted(pod_of(container(limits={GPU: 1, MEMORY: "4Gi"})), options)) == {
        GPU: "1",
        MEMORY: "4",
        CORES: "20",
    }


def test_a_pod_without_a_namespace_of_its_own() -> None:
    pod = pod_of(container(limits={GPU: 99}))
    del pod["metadata"]["namespace"], pod["metadata"]["name"]
    pod["metadata"]["generateName"] = "web-"
    assert ask(pod, namespace="prod").message.startswith("pod prod/web-: ")


# ---- what may come over the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100000,
        review_of(None), review_of([]), review_of("x"), review_of({"spec": {"containers": "x"}}),
        review_of({"metadata": {"annotations": {"a": 1}}}), review_of({"spec": {"containers": [None]}}),
        review_of(pod_of(), resource={"group": "apps", "version": "v1", "resource": "deployments"}),
        review_of(pod_of(), subResource="status"), review_of(pod_of(), uid=""), review_of(pod_of(), uid=7),
        review_of(pod_of()).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_an_error(body: bytes) -> None:
    with pytest.raises(ReviewError):
        decide(decode_review(body), AdmissionOptions())


FIELDS = ["metadata", "spec", "containers", "name", "resources", "limits", "env", "annotations", GPU, MEMORY, "value"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(FIELDS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=3)), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.booleans())
def test_any_object_is_answered_or_an_error(thing: Any, in_spec: bool) -> None:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": thing}]}} if in_spec else thing
    try:
        answer = decide(decode_review(review_of(pod)), AdmissionOptions())
    except ReviewError:
        return
    assert answer.allowed or answer.message


def test_a_thousand_containers() -> None:
    answer = ask(pod_of(*(container(f"c{number}", {GPU: 1, MEMORY: 1}) for number in range(1000))))
    assert not answer.allowed
    assert "a pod's grant has at most 32 KiB" in answer.message
    assert "named twice" in ask(pod_of(container(limits={GPU: 1}), container(limits={GPU: 1}))).message
    many = ask(pod_of(*(container(f"c{number}", {GPU: 99}) for number in range(1000))))
    assert len(many.message) <= 16384


AMOUNTS = st.sampled_from(["0", "1", "2", "30", "100", "3k", "4Gi", "512Mi", "1500m", "-1", "x"])
LIMITS = st.dictionaries(
    st.sampled_from(
        [GPU, MEMORY, CORES, PERCENTAGE, PRIORITY, "hami.io/gpu", "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory",
         "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", "metax-tech.com/sgpu", "metax-tech.com/vmemory", "cpu"]
    ), AMOUNTS, max_size=4,
)  # fmt: skip
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["hami.io/gpu-memory", "hami.io/gpu-core", "partage.io/class", "nvidia.com/vgpu-mode"]),
    st.sampled_from(["4Gi", "1000", "30", "30.5%", "burst", "best-effort", "hami-core", ""]), max_size=2,
)  # fmt: skip
ENV = st.lists(st.sampled_from([{"name": VISIBLE, "value": "all"}, {"name": "A", "value": "b"}]), max_size=2)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LIMITS, LIMITS, ENV), max_size=3), ANNOTATIONS, st.booleans())
def test_what_comes_out_means_what_went_in(
    containers: list[tuple[Json, Json, list[Json]]], annotations: dict[str, str], bare: bool
) -> None:
    """Any pod is refused, or comes out asking for the same, and a second time changes nothing."""
    made: list[Any] = []
    for number, (limits, requests, env) in enumerate(containers):
        one: Json = {"name": f"c{number}", "resources": {"limits": limits, "requests": requests}, "env": env}
        if bare:
            one = {key: value for key, value in one.items() if key == "name" or value}
            one["resources"] = {key: value for key, value in one.get("resources", {}).items() if value}
        made.append(one)
    pod = pod_of(*made, meta={"annotations": annotations} if annotations or not bare else {})
    if not ask(pod).allowed:
        return
    after = admitted(pod)
    before_ask, after_ask = read_ask(pod), read_ask(after)
    assert (before_ask is None) == (after_ask is None)
    if before_ask is not None and after_ask is not None:
        assert before_ask.shape == after_ask.shape
        for one in after["spec"]["containers"]:
            resources = one.get("resources", {})
            for name, amount in resources.get("requests", {}).items():
                if name != "cpu":
                    assert name in resources.get("limits", {}), "the API wants limits of such resources"
                    assert amount is not None
