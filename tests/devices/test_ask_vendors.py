"""What pods ask of the other vendors' cards: each one's names, units and rounding; which of them count shares."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partage.devices.ask import FOREIGN_KINDS, FOREIGN_PREFIX, KINDS, VENDORS, read_ask, read_pod
from partage.devices.nvidia.resources import SHORT, VOLCANO
from partage.model import AskError, ShareClass
from tests.devices.test_ask import MI, gpu, only, pod_of, problems_of

if TYPE_CHECKING:
    from partage.devices.requests import Vendor

GI = 1 << 30
POLICY = Path(__file__).resolve().parents[2] / "deploy" / "policies" / "shares.yaml"


@pytest.mark.parametrize(
    ("limits", "backend", "expected"),
    [
        ({"kunlunxin.com/xpu": 4}, "kunlun", (4, None, 1000, "whole", "")),
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 1}, "kunlun", (1, 24576 * MI, 250, "vendor", "")),
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24576}, "kunlun", (1, 24576 * MI, 250, "vendor", "")),
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24577}, "kunlun", (1, 49152 * MI, 500, "vendor", "")),
        (
            {"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": "98304"},
            "kunlun",
            (2, 98304 * MI, 1000, "vendor", ""),
        ),
        ({"kunlunxin.com/vxpu": 1}, "kunlun", (1, None, 1000, "vendor", "")),
        ({"metax-tech.com/gpu": 8}, "metax", (8, None, 1000, "whole", "")),
        ({"aws.amazon.com/neuron": 4}, "neuron", (4, None, 1000, "whole", "")),
        ({"aws.amazon.com/neuroncore": 2}, "neuron", (1, None, 0, "vendor", "neuroncore-2")),
        ({"enflame.com/gcu": 2}, "enflame", (2, None, 1000, "whole", "")),
        ({"enflame.com/drs-gcu": 2}, "enflame", (1, None, 0, "vendor", "2g")),
        ({"enflame.com/gcu-memory": 8}, "enflame", (1, 8 * GI, 0, "vendor", "")),
        ({"enflame.com/gcu-memory": 8192, "enflame.com/gcu-core": 20}, "enflame", (1, 8 * GI, 200, "vendor", "")),
    ],
)
def test_forms(limits: dict[str, Any], backend: str, expected: tuple[object, ...]) -> None:
    ask = only(pod_of(limits))
    assert ask.backend == backend
    assert (ask.cards, ask.memory, ask.cores, ask.mode, ask.profile) == expected


def test_what_was_rounded_is_noted() -> None:
    """K20: the asked amount is kept."""
    reading = read_pod(pod_of({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": "20k"}))
    assert reading is not None
    amounts = reading.found[0].amounts
    assert amounts.asked == {"kunlunxin.com/vxpu-memory": "20k"}
    assert amounts.written["kunlunxin.com/vxpu-memory"] == 24576
    exact = read_pod(pod_of({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 49152}))
    assert exact is not None
    assert exact.found[0].amounts.asked == {}


@pytest.mark.parametrize(
    ("limits", "memory", "cores"),
    [
        ({"metax-tech.com/sgpu": 1}, None, 1000),
        ({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4}, 4 * GI, 1000),
        ({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": "2048Mi", "metax-tech.com/vcore": 60}, 2 * GI, 600),
        ({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 0}, None, 1000),
    ],
)
def test_shares_of_metax_cards(limits: dict[str, Any], memory: int | None, cores: int) -> None:
    """A bare number is GiB; the vendor's word is the class, and without one the pod gets what others leave."""
    fixed = only(pod_of(limits, annotations={"metax-tech.com/sgpu-qos-policy": "fixed-share"}))
    assert (fixed.memory, fixed.cores, fixed.share_class) == (memory, cores, ShareClass.FIXED)
    effort = only(pod_of(limits))
    assert (effort.cores, effort.ceiling, effort.share_class) == (0, cores, ShareClass.BEST_EFFORT)
    burst = only(pod_of(limits, annotations={"partage.io/class": "burst"}))
    assert (burst.cores, burst.share_class) == (cores, ShareClass.BURST)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 98305}, "kunlunxin.com/vxpu-memory"),
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": "16Gi"}, "kunlunxin.com/vxpu-memory"),
        ({"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 101}, "metax-tech.com/vcore"),
        ({"aws.amazon.com/neuroncore": 129}, "aws.amazon.com/neuroncore"),
        ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 101}, "enflame.com/vgcu-percentage"),
        ({"enflame.com/drs-gcu": 2, "enflame.com/vgcu-percentage": 50}, "enflame.com/vgcu-percentage"),
        ({"enflame.com/vgcu": 2, "enflame.com/gcu-memory": 8}, "enflame.com/gcu-memory and enflame.com/vgcu"),
        ({"enflame.com/gcu": 2, "enflame.com/gcu-core": 50}, "enflame.com/gcu and enflame.com/gcu-core"),
        ({"enflame.com/gcu": 2, "enflame.com/vgcu-percentage": 50}, "enflame.com/gcu and enflame.com/vgcu-percentage"),
        ({"metax-tech.com/gpu": 2, "metax-tech.com/vmemory": 4}, "metax-tech.com/gpu and metax-tech.com/vmemory"),
        ({"metax-tech.com/gpu": 2, "metax-tech.com/vcore": 4}, "metax-tech.com/gpu and metax-tech.com/vcore"),
        ({"kunlunxin.com/xpu": 2, "kunlunxin.com/vxpu-memory": 24576}, "kunlunxin.com/vxpu-memory and kunlunxin"),
        ({"enflame.com/gcu-memory": 8, "enflame.com/vgcu-percentage": 50}, "enflame.com/vgcu-percentage"),
        ({"kunlunxin.com/xpu": 1, "kunlunxin.com/vxpu": 1}, "kunlunxin.com/vxpu and kunlunxin.com/xpu"),
        ({**gpu(), "metax-tech.com/sgpu": 1}, "metax-tech.com/sgpu and nvidia.com/gpu"),
        ({"enflame.com/drs-gcu": 2, "enflame.com/gcu-memory": 8}, "'2' parts beside enflame.com/gcu-memory '8'"),
        ({"enflame.com/vgcu": 0, "enflame.com/vgcu-percentage": 50}, "enflame.com/vgcu-percentage: '50' of no card"),
        ({"kunlunxin.com/vxpu": 0, "kunlunxin.com/vxpu-memory": 24576}, "vxpu-memory: '24576' of no card"),
        ({"metax-tech.com/sgpu": 0, "metax-tech.com/vcore": 50}, "metax-tech.com/vcore: '50' of no card"),
        ({"nvidia.com/priority": 1}, "nvidia.com/priority: '1' of no card"),
    ],
)
def test_wrong_values(limits: dict[str, Any], named: str) -> None:
    assert any(named in problem for problem in problems_of(pod_of(limits)))


AMOUNTS = {
    "kunlunxin.com/vxpu-memory": 24576,
    "metax-tech.com/vmemory": 4,
    "metax-tech.com/vcore": 60,
    "enflame.com/vgcu-percentage": 50,
    "enflame.com/gcu-memory": 8,
    "enflame.com/gcu-core": 20,
    "nvidia.com/priority": 1,
}


def amount_of(name: str) -> int:
    if name in AMOUNTS:
        return AMOUNTS[name]
    words = {"gpumem": 4000, "vgpu-memory": 4000, "gpucores": 30, "vgpu-cores": 30}
    return words.get(name.partition("/")[2], 50 if name.endswith("percentage") else 2)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: str(vendor.name))
def test_k20_nothing_that_is_asked_for_is_passed_over_in_silence(vendor: Vendor) -> None:
    """Of up to three of a vendor's resources each changes what is asked for, or is named, or all are refused."""

    def read(names: tuple[str, ...]) -> Any:
        try:
            reading = read_pod(pod_of({name: amount_of(name) for name in names}))
        except AskError:
            return None
        assert reading is not None, names
        return reading.found[0]

    silent = set()
    for size in (1, 2, 3):
        for names in combinations(sorted(vendor.names), size):
            found = read(names)
            for name in names if found is not None and size > 1 else ():
                others = read(tuple(other for other in names if other != name))
                if others is not None and found.ask == others.ask and name not in found.amounts.asked:
                    silent.add((name, names))
    assert silent == set()


def test_unknown_qos() -> None:
    (problem,) = problems_of(pod_of({"metax-tech.com/sgpu": 1}, annotations={"metax-tech.com/sgpu-qos-policy": "best"}))
    assert "accepted: best-effort, fixed-share, burst-share" in problem


def test_percentages_of_enflame_cards() -> None:
    part = only(pod_of({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 33}))
    assert (part.percent, part.cores) == (330, 330)
    several = only(pod_of({"enflame.com/vgcu": 2, "enflame.com/vgcu-percentage": 33}))
    assert (several.percent, several.cores) == (None, 1000), "several are whole ones"
    reading = read_pod(pod_of({"enflame.com/vgcu": 2, "enflame.com/vgcu-percentage": 33}))
    assert reading is not None
    assert reading.found[0].amounts.asked == {"enflame.com/vgcu-percentage": "33"}


def test_selectors_are_those_of_the_vendors_asked() -> None:
    pod = pod_of(
        {"metax-tech.com/sgpu": 1},
        annotations={"metax-tech.com/use-gpuuuid": "GPU-m", "nvidia.com/use-gpuuuid": "GPU-n"},
    )
    ask = read_ask(pod)
    assert ask is not None
    assert ask.shape.wishes.uuids == {"GPU-m"}


def test_pods_of_two_vendors() -> None:
    pod = pod_of(gpu(mem=1000))
    pod["spec"]["containers"].append({"name": "xpu", "resources": {"limits": {"kunlunxin.com/xpu": 1}}})
    ask = read_ask(pod)
    assert ask is not None
    assert [(each.name, each.backend) for each in ask.shape.containers] == [("app", "nvidia"), ("xpu", "kunlun")]


def test_the_policy_that_needs_no_webhook_knows_the_same_kinds() -> None:
    """K25: lists of resources that must agree do."""
    text = POLICY.read_text()
    listed = set(
        re.findall(r"'([a-z.-]+/[a-z.-]+)'", text[text.index("- name: kinds") : text.index("- name: several")])
    )
    assert listed == (KINDS - {SHORT, VOLCANO}) | FOREIGN_KINDS, "those two are rewritten, and nobody registers them"
    assert f"startsWith('{FOREIGN_PREFIX}')" in text
    assert len({name for vendor in VENDORS for name in vendor.names}) == sum(len(vendor.names) for vendor in VENDORS)
