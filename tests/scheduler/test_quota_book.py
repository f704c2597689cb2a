"""What pods take of quotas: the per-card amount times the cards, who waits, never below 0 (K21: C133, C134, C135)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model import UsageError
from partage.model.ask import ContainerAsk, Shape, Wishes
from partage.model.grant import ContainerGrant, Grant, GrantShare
from partage.model.need import Role
from partage.model.pod import SpecView
from partage.model.share import ShareClass
from partage.model.units import GI, MI
from partage.scheduler.quota.book import QuotaBook, QuotaPod
from partage.scheduler.quota.charge import asked_charge, granted_charge
from partage.scheduler.quota.limits import Limit
from partage.scheduler.quota.meters import BY_KEY, format_amount, misspelt, parse_amount
from partage.scheduler.quota.scope import Scope, Traits, traits_of

MEMORY, CORES, CARDS = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores", "limits.nvidia.com/gpu"


def ask(
    name: str = "app",
    *,
    role: Role = Role.APP,
    cards: int = 1,
    memory: int | None = None,
    percent: int | None = None,
    cores: int = 0,
    backend: str = "nvidia",
    resource: str = "nvidia.com/gpu",
) -> ContainerAsk:
    mib = None if memory is None else memory * MI
    return ContainerAsk(name, role, backend, resource, cards, mib, percent, cores, ShareClass.BURST, 1)


def shape(*containers: ContainerAsk) -> Shape:
    return Shape(containers, Wishes(), tuple((one.name, one.role) for one in containers))


def of_charge(*containers: ContainerAsk, physical: int = 0) -> dict[str, int]:
    return dict(asked_charge(shape(*containers), physical=physical))


@dataclass(frozen=True)
class Card:
    physical: int
    allocatable: int


def no_card(uuid: str) -> Card | None:
    return None


def granted(*shares: tuple[str, int], name: str = "app", cores: int = 0) -> Grant:
    parts = tuple(
        GrantShare(backend="nvidia", uuid=uuid, memory=memory, cores=cores, ceiling=1000, weight=100)
        for uuid, memory in shares
    )
    container = ContainerGrant(share_class=ShareClass.BURST, priority=1, mode="shim", shares=parts)
    return Grant(v=1, uid="u", node="n", term=1, bound_at=1, gen=1, containers={name: container})


# ---- what a pod comes to ---------------------------------------------------------------------------------------------


def test_the_amount_of_one_card_counts_for_every_card() -> None:
    assert of_charge(ask(cards=2, memory=2000, cores=300))[MEMORY] == 4000 * MI
    assert of_charge(ask(cards=2, memory=2000, cores=300))[CORES] == 600
    assert of_charge(ask(cards=2, memory=2000))[CARDS] == 2


def test_half_of_a_card_is_half_of_what_it_physically_has() -> None:
    wanted = shape(ask(percent=500))
    assert MEMORY not in dict(asked_charge(wanted)), "no card, no amount"
    devices = {"GPU-a": Card(24 * GI, 23 * GI)}
    grant = granted(("GPU-a", 23 * GI // 2))
    assert dict(granted_charge(grant, wanted.order, wanted, devices.get))[MEMORY] == 12288 * MI
    resized = granted(("GPU-a", 2 * GI))
    assert dict(granted_charge(resized, wanted.order, wanted, devices.get))[MEMORY] == 2 * GI
    assert dict(granted_charge(grant, wanted.order, wanted, no_card))[MEMORY] == 23 * GI // 2, "its card is gone"


def test_two_cards_of_a_grant_add_up_in_an_init_container_too() -> None:
    grant = granted(("GPU-a", 2000 * MI), ("GPU-b", 2000 * MI))
    for role in Role:
        assert dict(granted_charge(grant, [("app", role)], None, no_card))[MEMORY] == 4000 * MI


def test_what_does_not_run_at_once_does_not_add_up() -> None:
    first, side = ask("first", role=Role.INIT, memory=5000), ask("side", role=Role.SIDECAR, memory=1000)
    last = ask("last", role=Role.INIT, memory=5500)
    one, two = ask("one", memory=2000), ask("two", memory=3000)
    assert of_charge(first, one, two)[MEMORY] == 5000 * MI
    assert of_charge(first, side, one, two)[MEMORY] == 6000 * MI, "the sidecar runs on beside both"
    assert of_charge(side, last, one, two)[MEMORY] == 6500 * MI, "and beside the init container after it"


def test_every_vendor_has_its_keys() -> None:
    metax = of_charge(ask(backend="metax", resource="metax-tech.com/sgpu", memory=8192, cores=500))
    assert metax == {
        "limits.metax-tech.com/sgpu": 1, "limits.metax-tech.com/vmemory": 8 * GI, "limits.metax-tech.com/vcore": 500,
    }  # fmt: skip
    for backend, resource in (
        ("kunlun", "kunlunxin.com/vxpu"), ("kunlun", "kunlunxin.com/xpu"), ("neuron", "aws.amazon.com/neuroncore"),
        ("enflame", "enflame.com/drs-gcu"), ("metax", "metax-tech.com/gpu"),
    ):  # fmt: skip
        found = of_charge(ask(backend=backend, resource=resource, cards=2, memory=1024))
        assert found[f"limits.{resource}"] == 2
        assert all(key.split("/")[0] == f"limits.{resource.split('/')[0]}" for key in found)
    assert of_charge(ask(resource="volcano.sh/vgpu-number", memory=100))[MEMORY] == 100 * MI


# ---- amounts and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "amount"),
    [
        (MEMORY, "30000", 30000 * MI),
        (MEMORY, "30k", 30000 * MI),
        (MEMORY, "3e4", 30000 * MI),
        (MEMORY, "30Gi", 30 * GI),
        (MEMORY, "1.5", MI * 3 // 2),
        (MEMORY, "0", 0),
        (CORES, "150", 1500),
        (CARDS, "4", 4),
        (CARDS, "1Ki", 1024),
        ("limits.metax-tech.com/vmemory", "8", 8 * GI),
        ("limits.metax-tech.com/vmemory", "2048Mi", 2 * GI),
    ],
)
def test_amounts(key: str, text: str, amount: int) -> None:
    assert parse_amount(BY_KEY[key], text) == amount


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "1gi", "many", "1e999", "0x10"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match="accepted"):
        parse_amount(BY_KEY[MEMORY], text)


@pytest.mark.parametrize("text", ["100G", "4000M", "1T", "1e11", "99999999999"])
def test_k21_decimal_bytes_are_no_limit_of_so_many_mib(text: str) -> None:
    """100G of MiB is more than there is in the world: whoever wrote it meant bytes, and would have no limit."""
    with pytest.raises(UsageError, match=r"MiB, or decimal bytes; .*write a binary unit"):
        parse_amount(BY_KEY[MEMORY], text)
    assert parse_amount(BY_KEY[MEMORY], "1M") == 1_000_000 * MI, "so the API server writes 1000000"
    assert parse_amount(BY_KEY[CARDS], text) >= 10**9


def test_amounts_are_told_as_they_were_written_and_never_too_small() -> None:
    assert format_amount(BY_KEY[MEMORY], 12288 * MI, like="30k") == "12288"
    assert format_amount(BY_KEY[MEMORY], 12288 * MI + 1, like="30k") == "12289"
    assert format_amount(BY_KEY[MEMORY], 3 * GI, like="30Gi") == "3072Mi"
    assert format_amount(BY_KEY[CORES], 305, like="100") == "31"


def test_c133_a_misspelt_key_is_told_with_those_there_are() -> None:
    told = misspelt("limits.nvidia.com/gpumemory")
    assert told is not None
    assert "did you mean limits.nvidia.com/gpumem?" in told
    assert CORES in told
    for wrong in (
        "nvidia.com/gpumem",
        "limit.nvidia.com/gpumem",
        "limits.limits.nvidia.com/gpu",
        "limits.hami.io/gpux",
    ):
        assert misspelt(wrong) is not None, "nobody counts it"
    for fine in (
        MEMORY,
        "requests.nvidia.com/gpu",
        "limits.cpu",
        "pods",
        "limits.example.com/x",
        "xnvidia.com/a",
        "cpu",
    ):
        assert misspelt(fine) is None


# ---- scopes ----------------------------------------------------------------------------------------------------------


def traits(**spec: object) -> Traits:
    return traits_of(msgspec.convert(spec, SpecView))


def affinity(kind: str, **term: object) -> dict[str, object]:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_traits_of_a_spec() -> None:
    assert traits(containers=[{"name": "a"}]) == Traits()
    assert traits(activeDeadlineSeconds=5).terminating
    assert traits(priorityClassName="high").priority_class == "high"
    assert traits(containers=[{"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "0"}}}]).best_effort
    assert not traits(initContainers=[{"resources": {"requests": {"memory": "1Mi"}}}]).best_effort
    assert not traits(resources={"limits": {"cpu": "100m"}}).best_effort
    assert traits(affinity=affinity("podAntiAffinity", namespaces=["other"])).crosses_namespaces
    assert traits(affinity=affinity("podAffinity", namespaceSelector={})).crosses_namespaces
    assert not traits(affinity=affinity("podAffinity", topologyKey="zone")).crosses_namespaces


PLAIN = Traits()
HIGH = Traits(priority_class="high")


@pytest.mark.parametrize(
    ("scope", "pod_traits", "meant"),
    [
        (Scope("BestEffort"), Traits(), True),
        (Scope("NotBestEffort"), Traits(), False),
        (Scope("Terminating"), Traits(), False),
        (Scope("NotTerminating"), Traits(), True),
        (Scope("PriorityClass"), Traits(), False),
        (Scope("PriorityClass"), HIGH, True),
        (Scope("PriorityClass", "In", frozenset({"high"})), HIGH, True),
        (Scope("PriorityClass", "In", frozenset({"low"})), HIGH, False),
        (Scope("PriorityClass", "NotIn", frozenset({"low"})), Traits(), True),
        (Scope("PriorityClass", "DoesNotExist"), HIGH, False),
        (Scope("VolumeAttributesClass", "Exists"), HIGH, False),
    ],
)
def test_scopes(scope: Scope, pod_traits: Traits, meant: bool) -> None:
    assert scope.matches(pod_traits) is meant


# ---- the book --------------------------------------------------------------------------------------------------------


def limit(hard: dict[str, int], name: str = "q", *scopes: Scope) -> Limit:
    return Limit("ns", name, hard, {}, scopes)


def pod(uid: str, mib: int, *, placed: bool = False, traits: Traits = PLAIN, created: str = "") -> QuotaPod:
    return QuotaPod(uid, "ns", created or uid, traits, ((MEMORY, mib * MI),), placed)


def used(book: QuotaBook, name: str = "q", key: str = MEMORY) -> int:
    return book.usage("ns", name)[key] // MI


def test_older_pods_count_first_and_the_newest_waits() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 4000 * MI}))
    for uid in "cab":
        book.set_pod(pod(uid, 2000))
    assert [book.verdict(uid) is None for uid in "abc"] == [True, True, False]
    assert used(book) == 4000, "one that waits for the quota is not in it"
    told = book.verdict("c")
    assert told is not None
    assert (told.code, told.key, told.left) == ("ResourceQuotaNotFit", MEMORY, "0")
    assert "2000 asked, 4000 used; 4000 allowed" in str(told)
    book.drop_pod("a")
    assert used(book) == 4000, "who waited counts as soon as there is room"
    assert book.verdict("c") is None


def test_a_small_one_goes_past_one_that_is_too_large() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 4000 * MI}))
    book.set_pod(pod("a", 5000))
    book.set_pod(pod("b", 3000))
    assert book.verdict("a") is not None
    assert book.verdict("b") is None


def test_placed_pods_count_even_over_a_limit_that_was_lowered() -> None:
    book = QuotaBook()
    book.set_pod(pod("a", 3000, placed=True))
    book.set_pod(pod("b", 3000))
    book.set_quota(limit({MEMORY: 2000 * MI}))
    assert used(book) == 3000
    assert book.verdict("a") is None
    assert book.verdict("b") is not None


def test_a_key_that_is_no_more_limits_no_more() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 0, CARDS: 1}))
    book.set_pod(pod("a", 1))
    assert book.verdict("a") is not None
    book.set_quota(limit({CARDS: 1}))
    assert book.verdict("a") is None
    assert MEMORY not in book.usage("ns", "q")
    book.drop_quota("ns", "q")
    assert book.usage("ns", "q") == {}


def test_two_quotas_with_scopes_both_hold() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 5000 * MI}, "all"))
    book.set_quota(limit({MEMORY: 2000 * MI}, "high", Scope("PriorityClass", "In", frozenset({"high"}))))
    book.set_pod(pod("a", 2000, traits=HIGH))
    book.set_pod(pod("b", 2000))
    book.set_pod(pod("c", 1000, traits=HIGH))
    assert (used(book, "all"), used(book, "high")) == (4000, 2000)
    told = book.verdict("c")
    assert told is not None
    assert told.quota == "ns/high"
    book.drop_quota("ns", "high")
    assert book.verdict("c") is None


def test_what_is_held_counts_with_its_cards_until_it_is_given_back() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 20000 * MI}))
    book.set_pod(pod("a", 0))
    half = ((MEMORY, 12288 * MI),)
    assert book.exceeds("a", half) is None
    book.hold("a", half)
    assert used(book) == 12288
    book.set_pod(pod("a", 0))  # the API does not know of it yet
    assert used(book) == 12288
    book.set_pod(pod("b", 0))
    assert book.exceeds("b", half) is not None
    assert book.exceeds("a", half) is None, "it does not stand in its own way"
    book.release("a", ())
    assert used(book) == 0
    book.set_pod(replace(pod("a", 0), charge=half, placed=True))
    book.drop_pod("a")
    book.drop_pod("a")
    assert used(book) == 0


def test_one_that_is_not_here_yet() -> None:
    book = QuotaBook()
    book.set_quota(limit({MEMORY: 1000 * MI}))
    assert book.would_exceed("ns", Traits(), ((MEMORY, 1000 * MI),)) is None
    assert book.would_exceed("ns", Traits(), ((MEMORY, 1001 * MI),)) is not None
    assert book.would_exceed("other", Traits(), ((MEMORY, 1001 * MI),)) is None


def test_it_says_what_may_have_changed() -> None:
    book, told = QuotaBook(), list[int]()
    book.listen(lambda: told.append(1))
    book.set_quota(limit({MEMORY: 1000 * MI}))
    book.set_pod(pod("a", 10))
    assert told
    assert book.take_changed() == {("ns", "q")}
    assert book.take_changed() == set()


STEP = st.tuples(
    st.sampled_from(["wait", "place", "drop", "hold", "release", "limit", "look"]),
    st.sampled_from("abcdefgh"),
    st.integers(0, 5),
)


@given(st.lists(STEP, max_size=60))
def test_used_is_the_sum_of_what_counts_and_waiting_pods_never_go_over(steps: list[tuple[str, str, int]]) -> None:
    book, pods, hard = QuotaBook(), dict[str, QuotaPod](), 8
    book.set_quota(limit({MEMORY: hard * MI}))
    lowered = False
    for step, uid, amount in steps:
        charge = ((MEMORY, amount * MI),) if amount else ()
        if step in {"wait", "place"}:
            if uid in pods and pods[uid].placed:
                continue
            pods[uid] = QuotaPod(uid, "ns", uid, Traits(), charge, step == "place")
            lowered |= step == "place"
            book.set_pod(pods[uid])
        elif step == "drop":
            pods.pop(uid, None)
            book.drop_pod(uid)
        elif step == "hold" and uid in pods and book.exceeds(uid, charge) is None:
            pods[uid] = replace(pods[uid], charge=charge, placed=True)
            book.hold(uid, charge)
        elif step == "release" and uid in pods and pods[uid].placed:
            pods[uid] = replace(pods[uid], charge=charge, placed=False)
            book.release(uid, charge)
        elif step == "limit":
            lowered |= amount + 4 < hard
            hard = amount + 4
            book.set_quota(limit({MEMORY: hard * MI}))
        counted = [one for one in pods.values() if book.verdict(one.uid) is None]
        assert book.usage("ns", "q")[MEMORY] == sum(dict(one.charge).get(MEMORY, 0) for one in counted)
        assert all(one in counted for one in pods.values() if one.placed)
        assert lowered or used(book) <= hard
        free = hard * MI - book.usage("ns", "q")[MEMORY]
        assert not any(dict(one.charge).get(MEMORY, 0) <= free for one in pods.values() if one not in counted)
