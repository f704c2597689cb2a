"""What pods in the forms people have mean; how each wrong value is refused; and that no pod whatever breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.devices.ask import NAMES, read_ask, read_pod
from partage.devices.requests import AskOptions
from partage.model import AskError, ShareClass
from partage.model.need import Role

if TYPE_CHECKING:
    from partage.model.ask import ContainerAsk

MI = 1 << 20


def pod_of(
    limits: dict[str, Any] | None = None,
    *,
    requests: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod of one container."""
    resources = {"limits": limits, "requests": requests}
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u-1", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "app", "resources": resources}], **spec},
    }


def only(pod: dict[str, Any], options: AskOptions | None = None) -> ContainerAsk:
    """Return the ask of the pod's only container with one."""
    ask = read_ask(pod, options or AskOptions())
    assert ask is not None
    (container,) = ask.shape.containers
    return container


def problems_of(pod: dict[str, Any], options: AskOptions | None = None) -> list[str]:
    """Return what is wrong with it, each as text."""
    with pytest.raises(AskError) as caught:
        read_ask(pod, options or AskOptions())
    return [str(problem) for problem in caught.value.problems]


def gpu(count: Any = 1, **amounts: Any) -> dict[str, Any]:
    """Return limits in HAMi's names: mem, percentage, cores, priority."""
    named = {"mem": "gpumem", "percentage": "gpumem-percentage", "cores": "gpucores", "priority": "priority"}
    return {"nvidia.com/gpu": count, **{f"nvidia.com/{named[key]}": value for key, value in amounts.items()}}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(gpu(), (1, None, None, 1000, ShareClass.FIXED), id="plain: whole cards, nobody else's"),
        pytest.param(gpu("2"), (2, None, None, 1000, ShareClass.FIXED), id="quoted"),
        pytest.param(gpu(2, mem=3000, cores=30), (2, 3000 * MI, None, 300, ShareClass.FIXED), id="memory and cores"),
        pytest.param(gpu(mem="3000"), (1, 3000 * MI, None, 0, ShareClass.BURST), id="memory only: no cores"),
        pytest.param(gpu(mem="30k"), (1, 30000 * MI, None, 0, ShareClass.BURST), id="as the API server writes 30000"),
        pytest.param(gpu(mem="4Gi"), (1, 4096 * MI, None, 0, ShareClass.BURST), id="with a unit"),
        pytest.param(gpu(mem="2.5Gi"), (1, 2560 * MI, None, 0, ShareClass.BURST), id="part of a unit"),
        pytest.param(gpu(percentage=50), (1, None, 500, 0, ShareClass.BURST), id="half of a card's memory"),
        pytest.param(gpu(percentage=100), (1, None, None, 1000, ShareClass.FIXED), id="all of it: nobody else's"),
        pytest.param(gpu(percentage=100, cores=40), (1, None, None, 400, ShareClass.FIXED), id="all of it, with cores"),
        pytest.param(gpu(cores=0), (1, None, None, 0, ShareClass.BURST), id="cores 0 named: none, and not exclusive"),
        pytest.param(gpu(mem=0, percentage=0), (1, None, None, 1000, ShareClass.FIXED), id="0 is as if not there"),
        pytest.param(gpu(mem=1000, percentage=50), (1, 1000 * MI, None, 0, ShareClass.BURST), id="memory counts"),
        pytest.param({"nvidia.com/gpumem": 2000}, (1, 2000 * MI, None, 0, ShareClass.BURST), id="no count: one card"),
        pytest.param({"nvidia.com/gpucores": "25"}, (1, None, None, 250, ShareClass.FIXED), id="cores alone"),
        pytest.param(gpu(mem=1000, priority=1), (1, 1000 * MI, None, 0, ShareClass.BEST_EFFORT), id="batch"),
        pytest.param(gpu(mem=1000, cores=20, priority=1), (1, 1000 * MI, None, 200, ShareClass.BURST), id="with cores"),
        pytest.param(gpu(mem=1000, cores=20, priority=0), (1, 1000 * MI, None, 200, ShareClass.FIXED), id="first"),
        pytest.param(
            {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 1024, "volcano.sh/vgpu-cores": 50},
            (2, 1024 * MI, None, 500, ShareClass.FIXED), id="Volcano's names",
        ),
        pytest.param(
            {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory-percentage": "30"},
            (1, None, 300, 0, ShareClass.BURST), id="Volcano's percentage",
        ),
    ],
)  # fmt: skip
def test_forms(limits: dict[str, Any], expected: tuple[int, int | None, int | None, int, ShareClass]) -> None:
    """C100 (K16): only shapes of whole cards become exclusive, and what is written is never changed."""
    for pod in (pod_of(limits), pod_of(requests=limits), pod_of(limits, requests=limits)):
        ask = only(pod)
        assert (ask.cards, ask.memory, ask.percent, ask.cores, ask.share_class) == expected
        assert (ask.backend, ask.resource) == ("nvidia", "nvidia.com/gpu")


@pytest.mark.parametrize(
    ("limits", "named", "value"),
    [
        (gpu(mem="lots"), "nvidia.com/gpumem", "'lots'"),
        (gpu(mem="-1"), "nvidia.com/gpumem", "'-1'"),
        (gpu(mem="0.5"), "nvidia.com/gpumem", "'0.5'"),
        (gpu(mem=1 << 31), "nvidia.com/gpumem", "'2147483648'"),
        (gpu(mem="16G"), "nvidia.com/gpumem", "'16G'"),
        (gpu(mem="512Ki"), "nvidia.com/gpumem", "'512Ki'"),
        (gpu(mem="4GB"), "nvidia.com/gpumem", "'4GB'"),
        (gpu(percentage=101), "nvidia.com/gpumem-percentage", "'101'"),
        (gpu(percentage="50%"), "nvidia.com/gpumem-percentage", "'50%'"),
        (gpu(cores=101), "nvidia.com/gpucores", "'101'"),
        (gpu(cores="half"), "nvidia.com/gpucores", "'half'"),
        (gpu(cores=30.5), "nvidia.com/gpucores", "'30.5'"),
        (gpu(priority=2), "nvidia.com/priority", "'2'"),
        (gpu(17), "nvidia.com/gpu", "'17'"),
        (gpu("1e99"), "nvidia.com/gpu", "'1e99'"),
        (gpu(0, mem=4000), "nvidia.com/gpu", "0 cards"),
    ],
)
def test_wrong_values(limits: dict[str, Any], named: str, value: str) -> None:
    """C131 (K20): the message names container, field, value and the accepted forms."""
    (problem,) = problems_of(pod_of(limits))
    assert problem.startswith(f"container app, {named}: ")
    assert value in problem
    assert "accepted" in problem or "1 card or more" in problem


def test_what_a_share_means_nothing_with() -> None:
    """C063 (K09): said by whoever reads the pod, so a pod that came past the webhook gets no grant either."""
    loud = [{"name": "loud", "securityContext": {"privileged": True}}]
    (problem,) = problems_of(pod_of(gpu(), initContainers=loud))
    assert problem.startswith("container loud: privileged; a pod with shares has no privileged container")
    (problem,) = problems_of(pod_of(gpu(), os={"name": "windows"}))
    assert problem.startswith("spec.os.name: windows; shares are held on Linux nodes")
    (problem,) = problems_of(pod_of(gpu(), hostPID=True))
    assert problem.startswith("spec.hostPID: true; a pod with shares sees its own processes only")
    mighty = [{"name": "mighty", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]
    (problem,) = problems_of(pod_of(gpu(), hostPID=False, initContainers=mighty))
    assert problem.startswith("container mighty: capability SYS_ADMIN; a pod with shares cannot mount over")
    assert read_ask(pod_of(gpu(), hostPID=True, initContainers=mighty), AskOptions(confined=False)) is not None
    assert len(problems_of(pod_of(gpu(), initContainers=loud), AskOptions(confined=False))) == 1
    assert read_ask(pod_of(gpu(0), initContainers=[*loud, *mighty], hostPID=True, os={"name": "windows"})) is None
    assert read_ask(pod_of(gpu(), os={"name": "linux"})) is not None


def test_every_problem_is_named_at_once() -> None:
    pod = pod_of(
        gpu(mem="x", cores=200), annotations={"hami.io/gpu-scheduler-policy": "pack", "partage.io/weight": "0"}
    )
    pod["spec"]["initContainers"] = [{"name": "load", "resources": {"limits": gpu(99)}}]
    found = problems_of(pod)
    assert len(found) == 5
    for part in ("container load, nvidia.com/gpu", "gpumem", "gpucores", "'pack'", "partage.io/weight"):
        assert any(part in problem for problem in found), part


def test_limit_and_request_must_agree() -> None:
    (problem,) = problems_of(pod_of(gpu(mem=1000), requests=gpu(mem=2000)))
    assert "limit '1000', request '2000'" in problem


def test_limit_and_request_may_be_spelled_differently() -> None:
    assert only(pod_of(gpu("1", mem="30000"), requests=gpu(1, mem="30k"))).memory == 30000 * MI


def test_containers_are_read_together_with_their_roles() -> None:
    pod = pod_of(gpu(mem=1000))
    pod["spec"]["initContainers"] = [
        {"name": "load", "resources": {"limits": gpu(2, mem=500)}},
        {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": gpu(mem=200)}},
        {"name": "wait"},
    ]
    ask = read_ask(pod)
    assert ask is not None
    assert [(each.name, each.role, each.cards) for each in ask.shape.containers] == [
        ("load", Role.INIT, 2),
        ("proxy", Role.SIDECAR, 1),
        ("app", Role.APP, 1),
    ]
    assert [name for name, _ in ask.shape.order] == ["load", "proxy", "wait", "app"]
    assert (ask.uid, ask.namespace, ask.name) == ("u-1", "team", "p")


@pytest.mark.parametrize("pod", [pod_of({"cpu": 1}), pod_of(), pod_of({"nvidia.com/gpu": 0}), {}, {"spec": {}}])
def test_nothing_of_ours(pod: dict[str, Any]) -> None:
    assert read_ask(pod) is None


def test_two_kinds_in_one_container() -> None:
    (problem,) = problems_of(pod_of({**gpu(mem=1), "nvidia.com/mig-1g.10gb": 1}))
    assert "nvidia.com/gpu and nvidia.com/mig-1g.10gb" in problem
    assert any("one name for one thing" in each for each in problems_of(pod_of({**gpu(), "volcano.sh/vgpu-number": 1})))


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpumemory", "nvidia.com/gpu-cores", "hami.io/gpumen", "volcano.sh/vgpu-x"]
)
def test_k16_a_misspelt_amount_is_no_wish_for_a_whole_card(name: str) -> None:
    """It would be read as not asked for: all memory and all cores of a card, which nobody else may use then."""
    (problem,) = problems_of(pod_of({**gpu(), name: 4096}))
    assert problem.startswith(f"container app, {name}: '4096' of what nobody counts; known: ")
    assert "nvidia.com/gpumem" in problem
    assert read_ask(pod_of({**gpu(), "nvidia.com/hostdev": 1})) == read_ask(pod_of(gpu())), "others' are theirs"


def test_ephemeral_containers_have_no_shares() -> None:
    pod = pod_of({"cpu": 1}, ephemeralContainers=[{"name": "debug", "resources": {"limits": gpu()}}])
    (problem,) = problems_of(pod)
    assert "ephemeral container debug" in problem
    assert "kubectl exec" in problem


def test_short_form() -> None:
    short = {"hami.io/gpu-memory": "16Gi", "hami.io/gpu-core": "30.5%"}
    ask = only(pod_of({"hami.io/gpu": 1}, annotations=short))
    assert (ask.resource, ask.memory, ask.cores) == ("nvidia.com/gpu", 16384 * MI, 305)
    assert only(pod_of({"hami.io/gpu": "2"}, annotations={"hami.io/gpu-memory": "4096"})).memory == 4096 * MI
    assert only(pod_of({"hami.io/gpu": 1}, annotations={"hami.io/gpu-core": "0"})).cores == 0
    named = only(pod_of({"hami.io/gpu": 1, "hami.io/gpumem": 4000, "hami.io/gpucores": 30}))
    assert named == only(pod_of(gpu(mem=4000, cores=30)))
    for wrong in ({"hami.io/gpu-memory": "16 gigs"}, {"hami.io/gpu-memory": "-4"}, {"hami.io/gpu-core": "most"}):
        (problem,) = problems_of(pod_of({"hami.io/gpu": 1}, annotations=wrong))
        assert problem.startswith(f"annotation {next(iter(wrong))}: '")
    own = only(pod_of(gpu(mem=100, cores=10), annotations=short))
    assert (own.memory, own.cores) == (100 * MI, 100), "what the container says itself counts"


def test_options() -> None:
    """What the administrator sets: factor, defaults, core policy."""
    assert only(pod_of(gpu(mem=4)), AskOptions(memory_factor=1024)).memory == 4096 * MI
    assert only(pod_of(gpu(mem="4Gi")), AskOptions(memory_factor=1024)).memory == 4096 * MI, "a unit is a unit"
    defaults = AskOptions(default_memory=2048, default_cores=20)
    assert (only(pod_of(gpu()), defaults).memory, only(pod_of(gpu()), defaults).cores) == (2048 * MI, 200)
    assert only(pod_of(gpu(percentage=100)), defaults).is_whole
    (problem,) = problems_of(pod_of({"nvidia.com/gpumem": 1000}), AskOptions(default_cards=0))
    assert "add nvidia.com/gpu: 1" in problem
    forced, shared = AskOptions(core_policy="force"), AskOptions(core_policy="default")
    assert only(pod_of(gpu(mem=1, cores=20, priority=1)), forced).share_class is ShareClass.FIXED
    assert only(pod_of(gpu(mem=1)), forced).share_class is ShareClass.BURST
    assert only(pod_of(gpu(mem=1, cores=20)), shared).share_class is ShareClass.BURST


def test_classes_and_amounts_of_the_pod() -> None:
    def ask(limits: dict[str, Any], **wishes: str) -> ContainerAsk:
        return only(pod_of(limits, annotations={f"partage.io/{key}": value for key, value in wishes.items()}))

    effort = ask(gpu(mem=1, cores=30), **{"class": "best-effort"})
    assert (effort.cores, effort.ceiling) == (0, 300)
    assert not ask(gpu(), **{"class": "best-effort"}).is_alone, "what others leave is not the whole card"
    burst = ask(gpu(mem=1, cores=30), **{"class": "burst"}, ceiling="60%", weight="500")
    assert (burst.cores, burst.ceiling, burst.weight) == (300, 600, 500)
    assert ask(gpu(), **{"class": "fixed"}).is_alone
    for limits, wishes in (
        (gpu(mem=1), {"class": "fixed"}),
        (gpu(mem=1, cores=30), {"ceiling": "60%"}),  # fixed
        (gpu(mem=1, cores=30), {"class": "burst", "ceiling": "20%"}),
        (gpu(mem=1), {"class": "quick"}),
        (gpu(mem=1), {"weight": "heavy"}),
        (gpu(mem=1), {"nvlink": "yes"}),
    ):
        assert problems_of(pod_of(limits, annotations={f"partage.io/{key}": value for key, value in wishes.items()})), (
            wishes
        )


@pytest.mark.parametrize(
    ("name", "priority"), [("p0-system", 0), ("p1-onlineserving", 1), ("p2-batchtraining", 2), ("x", 1)]
)
def test_priority_from_its_class(name: str, priority: int) -> None:
    assert only(pod_of(gpu(mem=1), priorityClassName=name)).priority == priority
    assert only(pod_of(gpu(mem=1, priority=1), priorityClassName=name)).priority == 2


def test_wishes() -> None:
    """K19: all selectors and policies, as HAMi spells them."""
    ask = read_ask(
        pod_of(
            gpu(2),
            annotations={
                "hami.io/node-scheduler-policy": "spread",
                "hami.io/gpu-scheduler-policy": "binpack, numa",
                "hami.io/device-scoring-weights": "slot=1, core=0,memory=3",
                "nvidia.com/use-gputype": "A100, H100,",
                "nvidia.com/nouse-gputype": "A10",
                "nvidia.com/use-gpuuuid": " GPU-a ,GPU-b",
                "nvidia.com/nouse-gpuuuid": "GPU-c",
                "nvidia.com/numa-bind": "true",
                "nvidia.com/vgpu-mode": "hami-core",
                "partage.io/nvlink": "required",
                "partage.io/use-index": "0,1",
                "partage.io/nouse-index": "7",
                "nvidia.com/use-gpuindexes": "1, 2",
                "nvidia.com/nouse-gpuindexes": "6",
            },
        )
    )
    assert ask is not None
    wishes = ask.shape.wishes
    assert wishes.node_policy == "spread"
    assert wishes.card_policies == ("binpack", "numa")
    assert wishes.weights == (("slot", 1), ("core", 0), ("memory", 3))
    assert (wishes.types, wishes.no_types) == (("A100", "H100"), ("A10",))
    assert (wishes.uuids, wishes.no_uuids) == (frozenset({"GPU-a", "GPU-b"}), frozenset({"GPU-c"}))
    assert (wishes.indexes, wishes.no_indexes) == (frozenset({0, 1, 2}), frozenset({6, 7}))
    assert wishes.one_numa_node
    assert wishes.nvlink == "required"
    assert ask.shape.containers[0].mode == "shim"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hami.io/node-scheduler-policy", "pack"),
        ("hami.io/node-scheduler-policy", "Spread"),
        ("hami.io/gpu-scheduler-policy", "binpack,pack"),
        ("hami.io/gpu-scheduler-policy", "binpack,binpack"),
        ("hami.io/device-scoring-weights", "slot=1,core=1"),
        ("hami.io/device-scoring-weights", "slot=0,core=0,memory=0"),
        ("hami.io/device-scoring-weights", "slot=1,core=1,memory=-1"),
        ("hami.io/device-scoring-weights", "slot=1,core=1,memory=1,memory=2"),
        ("nvidia.com/numa-bind", "yes"),
        ("nvidia.com/vgpu-mode", "fast"),
        ("partage.io/use-index", "zero"),
        ("nvidia.com/nouse-gpuindexes", "-1"),
        ("nvidia.com/use-gputype", "A100,--"),
        ("nvidia.com/nouse-gputype", "\u4e2d"),  # no card has it in its name, so none would be kept off
        ("nvidia.com/use-gpuuuid", '"GPU-a"'),
        ("nvidia.com/nouse-gpuuuid", "GPU-b,gpu-a"),
        ("nvidia.com/nouse-gpuuuid", "MIG-a"),
    ],
)
def test_unknown_words(key: str, value: str) -> None:
    """C119 (K19): refused with the list of what there is, never taken as something else; empty is as if not there."""
    (problem,) = problems_of(pod_of(gpu(), annotations={key: value}))
    assert problem.startswith(f"annotation {key}: '{value}'; accepted: ")
    assert read_ask(pod_of(gpu(), annotations={key: " "})) == read_ask(pod_of(gpu()))


def test_same_pods_have_the_same_shape() -> None:
    first, second = read_ask(pod_of(gpu("1", mem="30000"))), read_ask(pod_of(gpu(1, mem="30k")))
    assert first is not None
    assert second is not None
    assert hash(first.shape) == hash(second.shape)
    assert first.shape == second.shape


def test_other_types_than_the_api_s() -> None:
    with pytest.raises(AskError, match="pod"):
        read_ask({"spec": {"containers": "many"}})


WORDS = st.sampled_from(
    ["0", "1", "17", "30k", "4Gi", "-1", "0.5", "1e9", "", "x", "nvidia", "true", "binpack", "‰", "٣"]
)
VALUES = st.one_of(WORDS, st.text(max_size=8), st.integers(), st.floats())
LIMITS = st.dictionaries(st.sampled_from([*sorted(NAMES), "cpu", "nvidia.com/mig-1g.10gb"]), VALUES, max_size=5)
KEYS = st.sampled_from(
    [
        "hami.io/gpu-memory", "hami.io/gpu-core", "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy",
        "hami.io/device-scoring-weights", "nvidia.com/use-gputype", "nvidia.com/use-gpuuuid", "nvidia.com/numa-bind",
        "nvidia.com/vgpu-mode", "partage.io/class", "partage.io/weight", "partage.io/ceiling", "partage.io/use-index",
    ]
)  # fmt: skip
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=3), "resources": st.fixed_dictionaries({"limits": LIMITS, "requests": LIMITS})}
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(CONTAINERS, CONTAINERS, st.dictionaries(KEYS, st.one_of(WORDS, st.text(max_size=12)), max_size=4))
def test_any_pod_has_a_meaning_or_is_refused(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], annotations: dict[str, str]
) -> None:
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": containers, "initContainers": init}}
    refused: AskError | None = None
    reading = None
    try:
        reading = read_pod(pod)
    except AskError as error:
        refused = error
    assert refused is None or all(each.where and each.value and each.accepted for each in refused.problems)
    for found in reading.found if reading else ():
        ask = found.ask
        assert 1 <= ask.cards <= 16
        assert 0 <= ask.cores <= 1000
        assert ask.memory is None or ask.memory > 0
        assert ask.percent is None or 0 < ask.percent < 1000
        assert ask.memory is None or ask.percent is None
