"""HAMi's node configuration file, read as it is: what it says of one node, in this backend's words.

`{"nodeconfig":[{"name":"n1","devicesplitcount":10,"filterdevices":{"uuid":[],"index":[]}, …}]}`; entries go by the
node's exact name, later ones over earlier ones, and a value that is 0 or empty says nothing, as with HAMi. Keys in any
case, unknown ones ignored with a note. What can go wrong (UsageError): no JSON, a value of another kind, and what this
agent does not do: memory beyond what the card has (unless the administrator allowed it by name), another mode than
`hami-core`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from partage.model import UsageError

_WHOLE: Final = 1000  # permille
_STEP: Final = "correct HAMi's node configuration file (ConfigMap hami-device-plugin), or leave it out"
_KEYS: Final = {
    "operatingmode": str,
    "devicememoryscaling": float,
    "devicecorescaling": float,
    "devicesplitcount": int,
    "preconfigureddevicememory": int,
    "enablenumatopology": bool,
    "enablegetpreferredallocation": bool,
    "libcudaloglevel": str,
    "migstrategy": str,
    "filterdevices": dict,
}
_WITHOUT_EFFECT: Final = {
    "libcudaloglevel": "what the library says is set with PARTAGE_LOG_LEVEL in the pod",
    "migstrategy": "it has no effect in HAMi either",
    "enablegetpreferredallocation": "preferred allocation is always offered",
}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What the file says of a node; None where it says nothing. `memory`: bytes a card; `oversub`: permille."""

    seats: int | None = None
    memory: int | None = None
    oversub: int | None = None
    numa: bool | None = None
    left_out_uuids: frozenset[str] = frozenset()
    left_out_indexes: frozenset[int] = frozenset()
    notes: tuple[str, ...] = field(default=())


def parse_node_config(text: str | bytes, *, node: str, source: str, allow_oversub: bool = False) -> NodeConfig:
    """Return what the file says of `node`; `source` is how messages name the file. Raises UsageError."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(source, f"no JSON ({error})", 'an object with "nodeconfig": a list', _STEP) from error
    entries = _lower(document).get("nodeconfig") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(source, "no list of nodes", 'an object with "nodeconfig": a list of objects', _STEP)
    merged: dict[str, Any] = {}
    notes: list[str] = []
    for entry in map(_lower, entries):
        if entry.get("name") == node:
            merged |= {key: value for key, value in _checked(entry, f"{source}, node {node}", notes).items() if value}
    return _in_our_words(merged, f"{source}, node {node}", notes, allow_oversub=allow_oversub)


def _lower(entry: dict[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in entry.items()}


def _checked(entry: dict[str, Any], subject: str, notes: list[str]) -> dict[str, Any]:
    """Return the known keys of an entry; raises UsageError for a value of another kind."""
    found: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "name" or value is None:
            continue
        if key not in _KEYS:
            notes.append(f"{subject}: unknown key '{key}' is ignored")
            continue
        kind = _KEYS[key]
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == isinstance(value, bool)
        if not fits:
            raise UsageError(f"{subject}, {key}", msgspec.json.encode(value).decode(), f"a {kind.__name__}", _STEP)
        if key in _WITHOUT_EFFECT and value:
            notes.append(f"{subject}: '{key}' has no effect here: {_WITHOUT_EFFECT[key]}")
        found[key] = value
    return found


def _in_our_words(found: dict[str, Any], subject: str, notes: list[str], *, allow_oversub: bool) -> NodeConfig:
    mode = found.get("operatingmode", "hami-core")
    if mode != "hami-core":
        raise UsageError(f"{subject}, operatingmode", mode, "this agent serves hami-core", "leave this node to HAMi")
    for key in ("devicesplitcount", "preconfigureddevicememory", "devicememoryscaling", "devicecorescaling"):
        value = found.get(key, 1)
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{subject}, {key}", value, "0 or more", _STEP)
    uuids, indexes = _filters(found.get("filterdevices", {}), subject)
    memory = found.get("preconfigureddevicememory")
    return NodeConfig(
        seats=found.get("devicesplitcount"),
        memory=memory << 20 if memory else None,
        oversub=_oversub(found, subject, notes, allow_oversub=allow_oversub),
        numa=found.get("enablenumatopology"),
        left_out_uuids=uuids,
        left_out_indexes=indexes,
        notes=tuple(notes),
    )


def _oversub(found: dict[str, Any], subject: str, notes: list[str], *, allow_oversub: bool) -> int | None:
    """Return the factor for memory in permille; cores are never promised twice."""
    if found.get("devicecorescaling", 1) != 1:
        notes.append(f"{subject}: 'devicecorescaling' is ignored: a card's cores add up to 100 %; use class burst")
    if "devicememoryscaling" not in found:
        return None
    factor = found["devicememoryscaling"]
    if factor > 1 and not allow_oversub:
        limit = "more than a card has is promised only where that is allowed by name"
        step = "set it to 1, or oversubscription: allowed in the agent's configuration"
        raise UsageError(f"{subject}, devicememoryscaling", factor, limit, step)
    if factor < 1:
        limit, step = "1 or more", "set nvidia.waterLine.buffer to promise less than the card has"
        raise UsageError(f"{subject}, devicememoryscaling", factor, limit, step)
    return int(factor * _WHOLE)


def _filters(filters: dict[str, Any], subject: str) -> tuple[frozenset[str], frozenset[int]]:
    filters = _lower(filters)
    uuids, indexes = filters.get("uuid") or [], filters.get("index") or []
    good = isinstance(uuids, list) and all(isinstance(uuid, str) for uuid in uuids)
    good = good and isinstance(indexes, list) and all(type(index) is int and index >= 0 for index in indexes)
    if not good:
        limit = '{"uuid": [texts], "index": [numbers]}'
        raise UsageError(f"{subject}, filterdevices", msgspec.json.encode(filters).decode(), limit, _STEP)
    return frozenset(uuids), frozenset(indexes)
