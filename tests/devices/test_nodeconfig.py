"""HAMi's node configuration file as it is: what it says of a node, what is refused, what has no effect."""

from __future__ import annotations

import json

import pytest

from partage.devices.nvidia.nodeconfig import NodeConfig, parse_node_config
from partage.model import UsageError


def of(*entries: object, node: str = "n1", allow: bool = False) -> NodeConfig:
    text = json.dumps({"nodeconfig": list(entries)})
    return parse_node_config(text, node=node, source="config.json", allow_oversub=allow)


def test_the_file_as_hamis_chart_writes_it() -> None:
    found = of(
        {
            "name": "n1",
            "operatingmode": "hami-core",
            "devicememoryscaling": 1,
            "devicesplitcount": 10,
            "preconfigureddevicememory": 0,
            "enablenumatopology": False,
            "migstrategy": "none",
            "filterdevices": {"uuid": ["GPU-a"], "index": [0, 3]},
        }
    )
    assert found.seats == 10
    assert found.memory is None
    assert found.oversub == 1000
    assert found.left_out_uuids == {"GPU-a"}
    assert found.left_out_indexes == {0, 3}


def test_another_nodes_entry_says_nothing_and_the_last_of_ours_wins() -> None:
    found = of(
        {"name": "n1", "devicesplitcount": 4, "preconfigureddevicememory": 1024},
        {"name": "n2", "devicesplitcount": 5},
        {"name": "n1", "devicesplitcount": 6, "preconfigureddevicememory": 0},
    )
    assert (found.seats, found.memory) == (6, 1 << 30)
    assert of({"name": "n1", "devicesplitcount": 4}, node="n10") == NodeConfig()


def test_keys_in_any_case_and_unknown_ones_are_noted() -> None:
    found = of({"name": "n1", "DeviceSplitCount": 3, "colour": "red", "libcudaloglevel": "3"})
    assert found.seats == 3
    assert any("'colour'" in note for note in found.notes)
    assert any("libcudaloglevel" in note for note in found.notes)


def test_more_memory_than_there_is_only_where_allowed_by_name() -> None:
    with pytest.raises(UsageError, match="allowed by name"):
        of({"name": "n1", "devicememoryscaling": 1.5})
    assert of({"name": "n1", "devicememoryscaling": 1.5}, allow=True).oversub == 1500


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"operatingmode": "mig"}, "operatingmode"),
        ({"devicesplitcount": "10"}, "devicesplitcount"),
        ({"devicesplitcount": True}, "devicesplitcount"),
        ({"devicesplitcount": -1}, "devicesplitcount"),
        ({"enablenumatopology": 1}, "enablenumatopology"),
        ({"devicememoryscaling": 0.5}, "waterLine"),
        ({"filterdevices": {"index": ["0"]}}, "filterdevices"),
        ({"filterdevices": {"uuid": "GPU-a"}}, "filterdevices"),
        ({"filterdevices": []}, "filterdevices"),
    ],
)
def test_a_wrong_value_is_named(entry: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        of({"name": "n1", **entry})
    assert "node n1" in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodeconfig": {}}', '{"nodeconfig": [1]}', "[" * 30_000])
def test_text_that_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        parse_node_config(text, node="n1", source="config.json")
