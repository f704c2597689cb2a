"""We test these aspects of grants: the worked example, the same text for the same grant, every kind of bad text."""

from __future__ import annotations

import json

import pytest

from partage.model import GrantError, ShareClass
from partage.model.grant import encode_grant, parse_grant

EXAMPLE = (
    '{"boundAt":1796000000123456,"containers":{"app":{"class":"burst","mode":"shim","priority":1,"shares":['
    '{"backend":"nvidia","ceiling":600,"cores":300,"memory":8589934592,"uuid":"GPU-a","weight":300}]}},'
    '"gen":1,"node":"n1","term":3,"uid":"6f1c","v":1}'
)


def parse(text):
    return parse_grant(text, uid="6f1c", node="n1", pod="default/p")


def changed(path, value):
    """The example with one value changed; `...` takes it away."""
    tree = json.loads(EXAMPLE)
    at = tree
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(tree)


SHARE = ("containers", "app", "shares", 0)


def test_the_example_of_the_format_is_read_and_written_as_it_is():
    grant = parse(EXAMPLE)
    assert grant.containers["app"].share_class is ShareClass.BURST
    assert grant.containers["app"].shares[0].memory == 8 << 30
    assert grant.order == (3, 1796000000123456, "6f1c")
    assert encode_grant(grant) == EXAMPLE


def test_keys_of_a_later_release_are_ignored():
    assert parse(changed((*SHARE, "colour"), "blue")) == parse(EXAMPLE)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("v",), 2, "version 2"),
        (("v",), ..., "missing"),
        (("uid",), "other", "pod UID 'other'"),
        (("node",), "n2", "node 'n2'"),
        (("gen",), 0, "gen"),
        (("term",), -1, "term"),
        (("gen",), 1 << 63, "gen"),
        (("term",), 1 << 63, "term"),
        (("boundAt",), 10**30, "boundAt"),
        (("boundAt",), 0, "boundAt"),
        (("boundAt",), None, "boundAt"),
        ((*SHARE, "memory"), 0, "memory"),
        ((*SHARE, "memory"), 1 << 63, "memory"),
        ((*SHARE, "memory"), "8Gi", "memory"),
        ((*SHARE, "memory"), 1.5, "memory"),
        ((*SHARE, "cores"), 601, "at most its ceiling"),
        ((*SHARE, "ceiling"), 1001, "ceiling"),
        ((*SHARE, "ceiling"), 0, "ceiling"),
        ((*SHARE, "weight"), 0, "weight"),
        ((*SHARE, "uuid"), "GPU-\n", "not a UUID"),
        ((*SHARE, "uuid"), "G" * 64, "not a UUID"),
        ((*SHARE, "slice"), None, "slice"),
        ((*SHARE, "slice"), {"profile": "p", "start": 1 << 64, "size": 1}, "start"),
        (("containers", "app", "class"), "fixed", "a fixed share's ceiling is its guarantee"),
        (("containers", "app", "class"), "best-effort", "best-effort has no guarantee"),
        (("containers", "app", "class"), "gold", "gold"),
        (("containers", "app", "priority"), 3, "priority"),
        (("containers", "app", "mode"), "magic", "magic"),
        (("containers", "app", "shares"), [], "shares"),
        (("containers", "app", "shares"), json.loads(EXAMPLE)["containers"]["app"]["shares"] * 2, "listed twice"),
        (("containers",), [], "containers"),
    ],
)
def test_what_is_no_grant_is_refused_with_its_value(path, value, says):
    with pytest.raises(GrantError, match="default/p") as caught:
        parse(changed(path, value))
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "\ud800", "[" * 30_000, '{"v":1}', "x" * 40_000])
def test_text_that_is_no_record_is_refused(text):
    with pytest.raises(GrantError):
        parse(text)
