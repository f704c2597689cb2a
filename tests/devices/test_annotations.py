"""What a node says of its cards: HAMi's annotations, NVIDIA's labels; the same text for the same cards."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.devices.backend import Card, Inventory
from partage.devices.nvidia.hami import parse_cordon, register_text, score_text
from partage.devices.nvidia.labels import label_value, labels
from partage.model.node_devices import DeviceLink

MI = 1 << 20


def card(index: int, **values: object) -> Card:
    given_values = {
        "uuid": f"GPU-{index}",
        "index": index,
        "name": "NVIDIA A100 80GB PCIe",
        "physical": 81920 * MI,
        "allocatable": 72228 * MI,
        "seats": 10,
        "numa": index // 2,
    }
    return Card(**{**given_values, **values})  # type: ignore[arg-type]


def linked(*cards: Card) -> Inventory:
    def link(a: int, b: int) -> DeviceLink:
        if a == b:
            return DeviceLink()
        return DeviceLink(kind="nvlink", lanes=12) if a // 2 == b // 2 else DeviceLink(kind="system")

    matrix = tuple(tuple(link(a, b) for b in range(len(cards))) for a in range(len(cards)))
    facts = {"driver": "580.65.06", "cuda": "13.0", "mig.capable": "true"}
    return Inventory(cards, matrix, facts)


def test_the_register_annotation_as_hamis_readers_take_it() -> None:
    first, second = json.loads(register_text(linked(card(0, numa=1), card(1, healthy=False, reason="lost"))))
    assert first == {
        "id": "GPU-0",
        "count": 10,
        "devmem": 72228,
        "devcore": 100,
        "type": "NVIDIA A100 80GB PCIe",
        "numa": 1,
        "mode": "hami-core",
        "health": True,
    }, "index 0 is left out"
    assert second["index"] == 1
    assert "health" not in second
    assert "numa" not in second


def test_what_is_no_name_of_nvidias_gets_the_makers() -> None:
    (entry,) = json.loads(register_text(linked(card(0, name="Tesla V100-PCIE-32GB"))))
    assert entry["type"] == "NVIDIA-Tesla V100-PCIE-32GB"


def test_oversubscribed_memory_is_registered_so() -> None:
    (entry,) = json.loads(register_text(linked(card(0, allocatable=1000 * MI)), oversub=1500))
    assert entry["devmem"] == 1500


def test_the_score_counts_the_ancestor_and_each_lane() -> None:
    scores = {entry["uuid"]: entry["score"] for entry in json.loads(score_text(linked(*map(card, range(4)))))}
    assert scores["GPU-0"] == {"GPU-1": 20 + 1200, "GPU-2": 10, "GPU-3": 10}
    assert all(scores[a][b] == scores[b][a] for a in scores for b in scores[a])


def test_a_pair_in_two_nodes_counts_its_own_ancestor() -> None:
    scores = json.loads(score_text(linked(card(0, numa=0), card(1, numa=1))))
    assert scores[0]["score"] == {"GPU-1": 10 + 1200}


@pytest.mark.parametrize(
    ("text", "cards"), [(None, set()), ("", set()), ("GPU-a", {"GPU-a"}), (" GPU-a , GPU-b,", {"GPU-a", "GPU-b"})]
)
def test_cordoned_cards(text: str | None, cards: set[str]) -> None:
    assert parse_cordon(text) == cards


def test_labels_as_nvidias_feature_discovery_has_them() -> None:
    assert labels(linked(card(0), card(1))) == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe-SHARED",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.replicas": "10",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/cuda.driver-version.full": "580.65.06",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "65",
        "nvidia.com/cuda.driver-version.revision": "06",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
    }


def test_one_seat_is_not_shared() -> None:
    found = labels(linked(card(0, seats=1)))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-80GB-PCIe"
    assert found["nvidia.com/gpu.sharing-strategy"] == "none"


def test_of_several_products_the_one_with_most_cards() -> None:
    found = labels(linked(card(0, name="NVIDIA T4"), card(1), card(2)))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-80GB-PCIe-SHARED"
    assert found["nvidia.com/gpu.count"] == "3"


def test_no_cards_no_labels() -> None:
    assert labels(Inventory((), ())) == {}


@given(st.text(max_size=200), st.sampled_from(["", "-SHARED"]))
def test_a_label_is_always_one_that_kubernetes_takes(text: str, suffix: str) -> None:
    value = label_value(text, suffix)
    assert len(value) <= 63
    assert re.fullmatch(r"([A-Za-z0-9_.-]*[A-Za-z0-9])?", value)
