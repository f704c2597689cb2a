"""We test these aspects of a node's device annotation: the same text for the same state, and every kind of bad text."""

from __future__ import annotations

import json

import msgspec
import pytest

from partage.model import NodeDevicesError
from partage.model.node_devices import DeviceLink, NodeDevice, NodeDevices, encode_node_devices, parse_node_devices

GIB = 1 << 30


def card(index, **values):
    fixed = {"uuid": f"GPU-{index}", "index": index, "backend": "nvidia", "kind": "H100", "mode": "shim", "seats": 10}
    sizes = {"physical": 80 * GIB, "memory": 72 * GIB, "cores": 1000, "numa": -1, "health": True}
    return NodeDevice(**(fixed | sizes | values))


def devices(*cards):
    link = DeviceLink(kind="nvlink", lanes=4)
    links = tuple(tuple(DeviceLink() if a is b else link for b in cards) for a in cards)
    return NodeDevices(v=1, gen=1, agent="0.1", oversub=1000, devices=cards, links=links)


def test_what_is_written_is_read_and_says_nothing_needless():
    state = devices(card(0), card(1, health=False, reason="XID 79"))
    text = encode_node_devices(state)
    assert parse_node_devices(text, node="n1") == state
    assert " " not in text.replace("XID 79", "")
    tree = json.loads(text)
    assert tree["links"][0] == [{}, {"kind": "nvlink", "lanes": 4}]
    assert "reason" not in tree["devices"][0]
    assert list(tree) == sorted(tree)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 2}, "version 2"),
        ({"links": []}, "links of another size"),
        ({"links": [[{}], [{}, {}]]}, "links of another size"),
        ({"devices": None}, "devices"),
        ({"oversub": 999}, "oversub"),
    ],
)
def test_what_is_no_annotation_is_refused(change, says):
    tree = json.loads(encode_node_devices(devices(card(0), card(1)))) | change
    with pytest.raises(NodeDevicesError, match="n1") as caught:
        parse_node_devices(json.dumps(tree), node="n1")
    assert says in str(caught.value)


def test_a_card_listed_twice_is_refused():
    with pytest.raises(NodeDevicesError, match="listed twice"):
        parse_node_devices(encode_node_devices(devices(card(0), card(0))), node="n1")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":1}', "[" * 30_000])
def test_text_that_is_no_record_is_refused(text):
    with pytest.raises(NodeDevicesError):
        parse_node_devices(text, node="n1")


@pytest.mark.parametrize(
    ("backend", "uuid"),
    [("nvidia", "0000:01:00.0"), ("nvidia", "GPU-a,b"), ("nvidia", "GPU-" + "0" * 60), ("kunlun", "x" * 64),
     ("kunlun", "a\nb"), ("nvidia", "MIG-0")],
)  # fmt: skip
def test_k18_a_card_that_no_grant_can_name_is_no_card_to_place_on(backend: str, uuid: str) -> None:
    """Else pods go there again and again, and their binding fails each time."""
    bad = msgspec.structs.replace(card(0), uuid=uuid, backend=backend)
    with pytest.raises(NodeDevicesError, match="no grant can name"):
        parse_node_devices(encode_node_devices(devices(bad)), node="n1")
