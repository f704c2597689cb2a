"""HAMi's twin: the worked examples, what is written is read back, and everything else is refused with its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model import GrantError, ShareClass
from partage.model.grant import ContainerGrant, Grant, GrantShare
from partage.model.hami_twin import encode_twin, named_cards, parse_twin
from partage.model.need import Role

MI = 1 << 20


def parse(text, *containers):
    roles = {"init": Role.INIT, "proxy": Role.SIDECAR}
    order = [(name, roles.get(name, Role.APP)) for name in containers]
    return parse_twin(text, order, uid="u1", node="n1", pod="default/p")


def share(uuid="GPU-a", memory=8 << 30, cores=300, backend="nvidia"):
    return GrantShare(backend=backend, uuid=uuid, memory=memory, cores=cores, ceiling=1000, weight=100)


def grant(**containers):
    parts = {
        name: ContainerGrant(share_class=ShareClass.BURST, priority=1, mode="shim", shares=tuple(shares))
        for name, shares in containers.items()
    }
    return Grant(v=1, uid="u1", node="n1", term=3, bound_at=1, gen=1, containers=parts)


def told(found):
    return {name: [(one.uuid, one.memory, one.cores) for one in part.shares] for name, part in found.containers.items()}


def test_two_containers_on_one_card():
    found = parse("GPU-0fc3,NVIDIA,3000,0:;GPU-0fc3,NVIDIA,5000,0:;", "a", "b")
    assert told(found) == {"a": [("GPU-0fc3", 3000 * MI, 0)], "b": [("GPU-0fc3", 5000 * MI, 0)]}
    assert found.order == (0, 0, "u1")
    assert found.gen == 0
    part = found.containers["a"]
    assert (part.share_class, part.shares[0].ceiling) == (ShareClass.BURST, 1000)


def test_an_init_container_without_a_card_keeps_its_empty_entry():
    found = parse(";GPU-a,NVIDIA,4000,30:GPU-b,NVIDIA,4000,30:;", "init", "app")
    assert told(found) == {"app": [("GPU-a", 4000 * MI, 300), ("GPU-b", 4000 * MI, 300)]}
    part = found.containers["app"]
    assert (part.share_class, part.shares[0].ceiling) == (ShareClass.FIXED, 300)


@pytest.mark.parametrize(
    ("text", "apps"),
    [
        pytest.param("GPU-a,NVIDIA,1000,0:;GPU-b,NVIDIA,2000,0:;", ("app", "more"), id="init containers left out"),
        pytest.param(";;GPU-a,NVIDIA,1000,0:;GPU-b,NVIDIA,2000,0:;", ("app", "more"), id="as today"),
        pytest.param(
            "GPU-a,NVIDIA,1000,0:;,,0,0:;GPU-b,NVIDIA,2000,0:;", ("app", "none", "more"), id="nothing in words"
        ),
    ],
)
def test_k25_pods_that_an_older_hami_placed_are_counted(text, apps):
    """HAMi#2899, HAMi#991: without entries of init containers, and with `,,0,0:` where a container has nothing.

    One that is not understood would close its cards to everybody until the pod is deleted.
    """
    found = parse(text, "init", "proxy", *apps)
    assert told(found) == {"app": [("GPU-a", 1000 * MI, 0)], "more": [("GPU-b", 2000 * MI, 0)]}


def test_an_entry_too_few_is_nobodys_to_guess():
    with pytest.raises(GrantError, match="2 entries; the pod has 4 containers"):
        parse("GPU-a,NVIDIA,1000,0:;GPU-b,NVIDIA,2000,0:;", "init", "proxy", "init", "app")


def test_memory_is_written_rounded_down_and_cores_up():
    given_ = grant(app=[share(memory=8 * MI - 1, cores=301), share("GPU-b", 8 * MI, 1)])
    assert encode_twin(given_, ["init", "app", "more"]) == ";GPU-a,NVIDIA,7,31:GPU-b,NVIDIA,8,1:;;"


def test_a_share_of_another_vendor_is_not_in_nvidias_annotation():
    assert encode_twin(grant(app=[share("MLU-1", backend="mlu")]), ["app"]) == ";"


@pytest.mark.parametrize("uuid", ["GPU-a,b", "GPU-a;", "GPU-a:", "GPU-a[1-0]", "MIG-a", "GPU-", "GPU-" + "a" * 60])
def test_a_card_that_the_text_cannot_hold_is_not_written(uuid):
    with pytest.raises(GrantError):
        encode_twin(grant(app=[share(uuid)]), ["app"])


uuids = st.text("abcdef0123456789-", min_size=1, max_size=36).map("GPU-{}".format)
amounts = st.tuples(st.integers(MI, (1 << 63) - 1), st.integers(0, 1000))
parts = st.dictionaries(uuids, amounts, min_size=1, max_size=16)
spec = st.lists(st.tuples(st.uuids().map(str), st.none() | parts), max_size=5, unique_by=lambda one: one[0])


@given(spec)
def test_what_is_written_is_read_back(containers):
    """Rounded as the form rounds; what was read is written as the same text."""
    order = [name for name, _ in containers]
    cards = {name: [share(uuid, *amount) for uuid, amount in part.items()] for name, part in containers if part}
    text = encode_twin(grant(**cards), order)
    found = parse(text, *order)
    assert told(found) == {
        name: [(one.uuid, one.memory // MI * MI, -(-one.cores // 10) * 10) for one in shares]
        for name, shares in cards.items()
    }
    assert encode_twin(found, order) == text
    assert named_cards(text) == {one.uuid for shares in cards.values() for one in shares}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 entries"),
        ("GPU-a,NVIDIA,1,1:", "after the last ;"),
        ("GPU-a,NVIDIA,1,1;", "after the last :"),
        ("GPU-a,NVIDIA,1,1:;;", "2 entries"),
        ("GPU-a,NVIDIA,1:;", "3 fields"),
        ("GPU-a,NVIDIA,1,1,1:;", "5 fields"),
        (":;", "1 fields"),
        ("GPU-a,MLU,1,1:;", "'MLU'"),
        ("GPU-a,NVIDIA,0,1:;", "memory '0'"),
        ("GPU-a,NVIDIA,-1,1:;", "memory '-1'"),
        ("GPU-a,NVIDIA,1.5,1:;", "memory '1.5'"),
        ("GPU-a,NVIDIA,\u0661,1:;", "memory"),
        ("GPU-a,NVIDIA,8796093022208,1:;", "memory '8796093022208'"),
        ("GPU-a,NVIDIA,1,101:;", "cores '101'"),
        ("GPU-a,NVIDIA,1,:;", "cores ''"),
        ("GPU-a,NVIDIA,1," + "9" * 5000 + ":;", "cores"),
        ("GPU-a[1-0],NVIDIA,1,1:;", "MIG instance 'GPU-a[1-0]'"),
        ("MIG-a,NVIDIA,1,1:;", "card 'MIG-a'"),
        (" GPU-a,NVIDIA,1,1:;", "card ' GPU-a'"),
        ("GPU-a,NVIDIA,1,1:GPU-a,NVIDIA,1,1:;", "one share of a device"),
        ("GPU-a,NVIDIA,1,1:" * 17 + ";", "17 shares"),
        ("x" * 40_000, "40000 characters"),
    ],
)
def test_another_text_is_refused_with_its_value(text, says):
    with pytest.raises(GrantError, match="default/p") as caught:
        parse(text, "app")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.limit
    assert caught.value.step


@given(st.text() | st.text("GPU-a,NVIDIA1:;[]"), st.lists(st.uuids().map(str), max_size=3, unique=True))
def test_any_text_is_a_grant_or_refused_with_our_own_error(text, containers):
    try:
        found = parse(text, *containers)
    except GrantError:
        named_cards(text)
        return
    assert encode_twin(found, containers) == text.replace(",,0,0:", "")


def test_the_cards_of_a_text_that_cannot_be_read():
    assert named_cards("GPU-a[1-0],NVIDIA,1,1:; GPU-b,NVIDIA,x:") == {"GPU-a", "GPU-b"}
    assert named_cards("nothing,of:that;") == frozenset()
