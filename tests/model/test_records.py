"""Grant and node annotation under any content: what is written is read back, byte for byte the same, and text that is
neither is refused with an error of ours, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model import GrantError, NodeDevicesError, ShareClass
from partage.model.grant import ContainerGrant, Grant, GrantShare, Slice, encode_grant, parse_grant
from partage.model.node_devices import (
    CutSlice,
    DeviceLink,
    NodeDevice,
    NodeDevices,
    Profile,
    SafeMode,
    encode_node_devices,
    parse_node_devices,
)

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
uuids = st.text("abcdefGPU-0123456789", min_size=1, max_size=40)
counts = st.integers(0, 1 << 40)


@st.composite
def shares(draw: Any, share_class: ShareClass, uuid: str) -> GrantShare:
    ceiling = draw(st.integers(1, 1000))
    cores = {ShareClass.FIXED: ceiling, ShareClass.BEST_EFFORT: 0}.get(share_class, draw(st.integers(0, ceiling)))
    cut = st.builds(Slice, profile=names, start=counts, size=st.integers(1, 64))
    return GrantShare(
        backend=draw(names),
        uuid=uuid,
        memory=draw(st.integers(1, (1 << 63) - 1)),
        cores=cores,
        ceiling=ceiling,
        weight=draw(st.integers(1, 10000)),
        slice=draw(st.just(msgspec.UNSET) | cut),
    )


@st.composite
def container_grants(draw: Any) -> ContainerGrant:
    share_class = draw(st.sampled_from(ShareClass))
    cards = draw(st.lists(uuids, min_size=1, max_size=4, unique=True))
    return ContainerGrant(
        share_class=share_class,
        priority=draw(st.integers(0, 2)),
        mode=draw(st.sampled_from(["shim", "mps", "mig", "timeslice", "vendor", "whole"])),
        shares=tuple(draw(shares(share_class, card)) for card in cards),
        oversub=draw(st.booleans()),
    )


grants = st.builds(
    Grant,
    v=st.just(1),
    uid=names,
    node=names,
    term=counts,
    bound_at=st.integers(1, 1 << 60),
    gen=st.integers(1, 1 << 40),
    containers=st.dictionaries(names, container_grants(), max_size=3),
)


@given(grants)
def test_a_grant_is_read_back_and_written_the_same(grant: Grant) -> None:
    text = encode_grant(grant)
    assert parse_grant(text, uid=grant.uid, node=grant.node, pod="p") == grant
    backwards = msgspec.structs.replace(grant, containers=dict(reversed(grant.containers.items())))
    assert encode_grant(backwards) == text
    assert json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True, ensure_ascii=False) == text


@given(grants, grants)
def test_another_pods_grant_is_never_taken(grant: Grant, other: Grant) -> None:
    if (grant.uid, grant.node) == (other.uid, other.node):
        return
    with pytest.raises(GrantError):
        parse_grant(encode_grant(grant), uid=other.uid, node=other.node, pod="p")


profiles = st.builds(Profile, name=names, memory=counts, cores=counts, size=counts, starts=st.tuples(counts, counts))
slices = st.builds(CutSlice, pod=names, container=names, profile=names, start=counts, id=names)


def devices_of(cards: list[str]) -> st.SearchStrategy[NodeDevices]:
    device = [
        st.builds(
            NodeDevice,
            uuid=st.just(uuid),
            index=st.just(index),
            backend=names,
            kind=names,
            mode=st.sampled_from(["shim", "whole", "mig"]),
            physical=counts,
            memory=counts,
            cores=st.integers(0, 1000),
            seats=counts,
            numa=st.integers(-1, 8),
            health=st.booleans(),
            reason=st.just(msgspec.UNSET) | names,
            qos=st.just(msgspec.UNSET) | st.sampled_from(ShareClass),
            profiles=st.lists(profiles, max_size=2).map(tuple),
            slices=st.lists(slices, max_size=2).map(tuple),
        )
        for index, uuid in enumerate(cards)
    ]
    link = st.builds(
        DeviceLink, kind=st.sampled_from(["nvlink", "nvswitch", "node", "system"]), lanes=st.integers(0, 18)
    )
    row = st.tuples(*[link] * len(cards))
    return st.builds(
        NodeDevices,
        v=st.just(1),
        gen=st.integers(1, 1 << 40),
        agent=names,
        oversub=st.integers(1000, 9000),
        devices=st.tuples(*device),
        links=st.tuples(*[row] * len(cards)),
        safe=st.lists(st.builds(SafeMode, pod=names, uuids=st.tuples(uuids)), max_size=2).map(tuple),
    )


@given(st.lists(uuids, max_size=4, unique=True).flatmap(devices_of))
def test_a_nodes_cards_are_read_back_and_written_the_same(devices: NodeDevices) -> None:
    text = encode_node_devices(devices)
    assert parse_node_devices(text, node="n") == devices
    assert json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True, ensure_ascii=False) == text


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
KEYS = ["v", "uid", "node", "term", "boundAt", "gen", "containers", "agent", "oversub", "devices", "links", "safe"]


@given(st.dictionaries(st.sampled_from(KEYS), anything).map(json.dumps) | st.text() | anything.map(json.dumps))
def test_any_other_text_is_refused_with_our_own_errors(text: str) -> None:
    with pytest.raises(GrantError):
        parse_grant(text, uid="\0", node="\0", pod="p")
    try:
        parse_node_devices(text, node="n")
    except NodeDevicesError:
        return
    assert json.loads(text)["v"] == 1


@given(grants, st.sampled_from(["uid", "node", "term", "boundAt", "gen", "containers"]), anything)
def test_one_value_changed_in_a_grant(grant: Grant, key: str, value: object) -> None:
    changed = {**json.loads(encode_grant(grant)), key: value}
    try:
        found = parse_grant(json.dumps(changed), uid=grant.uid, node=grant.node, pod="p")
    except GrantError:
        return
    assert (found.uid, found.node) == (grant.uid, grant.node)
