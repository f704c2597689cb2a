"""The agent's settings: file, variables and flags over each other; nothing unknown is ignored; reloading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from partage.devices.nvidia.options import APPLICATION_XIDS
from partage.model import UsageError
from partage.run import libraries
from partage.scheduler.settings import LAYOUT as SCHEDULER
from partage.sim import machine, profiles
from partage_plugin import program
from partage_plugin.configure import Change, keys, load, reload
from partage_plugin.nvidia_options import nvidia_options
from partage_plugin.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

MI = 1 << 20


def of(tmp_path: Path, text: str, *argv: str, **environ: str) -> Settings:
    (tmp_path / "config.yaml").write_text(text)
    return load(["--config", str(tmp_path / "config.yaml"), *argv], environ)


def test_without_anything_the_defaults_hold() -> None:
    assert load([], {}) == Settings()


def test_each_source_goes_over_the_one_before(tmp_path: Path) -> None:
    text = "nvidia: {seats: 2, gds: true, waterLine: {buffer: 10%}}\nlogLevel: debug\n"
    found = of(tmp_path, text, "--nvidia-seats=4", PARTAGE_AGENT_NVIDIA_SEATS="3", PARTAGE_AGENT_LOG_LEVEL="error")
    assert found.nvidia.seats == 4
    assert found.log_level == "error"
    assert found.nvidia.gds
    assert found.nvidia.water_line.buffer == "10%"


@pytest.mark.parametrize("flag", ["--nvidia-gds", "--nvidia-gds=true"])
def test_flags_that_are_true_or_false(flag: str) -> None:
    assert load([flag], {}).nvidia.gds
    assert not load(["--nvidia-labels=false"], {}).nvidia.labels


def test_lists_are_written_with_commas() -> None:
    found = load(["--nvidia-health-ignored-xids", "13, 94"], {"PARTAGE_AGENT_NVIDIA_LEAVE_OUT_UUIDS": "GPU-a,GPU-b"})
    assert found.nvidia.health.ignored_xids == (13, 94)
    assert found.nvidia.leave_out.uuids == ("GPU-a", "GPU-b")


def test_the_nodes_name_from_kubernetes_variable_unless_given() -> None:
    assert load([], {"NODE_NAME": "n1"}).node == "n1"
    assert load(["--node", "n2"], {"NODE_NAME": "n1"}).node == "n2"


def test_what_differs_on_some_nodes(tmp_path: Path) -> None:
    text = """
        nvidia: {seats: 10, waterLine: {buffer: 5%, overhead: 1Gi}}
        nodes:
          - name: a100-*
            nvidia: {waterLine: {buffer: 10%}}
          - {name: a100-1, nvidia: {seats: 4}}
    """
    one, two, other = (of(tmp_path, text, NODE_NAME=name).nvidia for name in ("a100-1", "a100-2", "h100-1"))
    assert (one.seats, one.water_line.buffer, one.water_line.overhead) == (4, "10%", "1Gi")
    assert (two.seats, two.water_line.buffer) == (10, "10%")
    assert (other.seats, other.water_line.buffer) == (10, "5%")


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("nvidia: {seets: 1}", "nvidia.seets", "nvidia.seats"),
        ("nvidia: {waterline: {}}", "nvidia.waterline", "nvidia.waterLine"),
        ("nvidia: {waterLine: {buff: 1%}}", "nvidia.waterLine.buff", "nvidia.waterLine.buffer"),
        ("nvidia: {waterLineByType: [{type: A100, buff: 1}]}", "nvidia.waterLineByType.buff", "buffer"),
        ("seats: 1", "seats", "nvidia.seats"),
        ("nodes: [{name: a, nvidia: {seets: 1}}]", "nvidia.seets", "nvidia.seats"),
        ("xyzzy: 1", "xyzzy", "known here: apiVersion"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path, text: str, key: str, near: str) -> None:
    with pytest.raises(UsageError) as refused:
        of(tmp_path, text)
    assert f"'{key}'" in str(refused.value)
    assert near in str(refused.value)
    assert "config.yaml" in str(refused.value)


def test_an_unknown_flag_too() -> None:
    with pytest.raises(UsageError, match="nearest is --nvidia-seats"):
        load(["--nvidia-seets=4"], {})
    with pytest.raises(UsageError, match="unknown"):
        load(["--nvidia-sea=4"], {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "YAML mapping"),
        ("a: [", "cannot be read"),
        ("nvidia: 5", "nvidia"),
        ("nvidia: {seats: ten}", "nvidia.seats"),
        ("nvidia: {seats: 0}", "nvidia.seats"),
        ("nvidia: {health: 1}", "nvidia.health"),
        ("nvidia: {waterLine: {buffer: lots}}", "nvidia.waterLine.buffer"),
        ("nvidia: {waterLine: {buffer: 95%}}", "0 to 90 %"),
        ("nvidia: {waterLine: {overhead: 5Qi}}", "nvidia.waterLine.overhead"),
        ("nvidia: {waterLineByType: [{buffer: 1%}]}", "type"),
        ("nvidia: {preconfiguredMemory: -1}", "nvidia.preconfiguredMemory"),
        ("delivery: magic", "delivery"),
        ("apiVersion: config.partage.io/v9", "apiVersion"),
        ("memoryScaling: 1.5", "allowed by name"),
        ("memoryScaling: 100", "memoryScaling"),
        ('nvidia: {hamiNodeConfig: "/etc/a\\0b"}', "HAMi's node configuration file"),
        ("nodes: {a: b}", "nodes"),
        ("nodes: [{nvidia: {}}]", "no name"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        of(tmp_path, text, "--nvidia-gds")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "flag", "words"),
    [
        ("driver", "--driver", "auto, real, simulated"),
        ("delivery", "--delivery", "preload-file, variable"),
        ("logLevel", "--log-level", "debug, error, info, warning"),
        ("apiVersion", "", "config.partage.io/v1alpha1"),
    ],
)
def test_where_only_some_words_are_taken_they_are_named(tmp_path: Path, name: str, flag: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"key '{name}': not taken; accepted: {words};"):
        of(tmp_path, f"{name}: nvidia")
    if flag:
        with pytest.raises(UsageError, match=f"flag {flag}: 'nvidia'; accepted: {words};"):
            load([f"{flag}=nvidia"], {})
        assert words in next(one for one in keys() if one.name == name).told


def test_the_words_of_a_list_are_named(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("placement: {cardPolicies: [spread, binpak]}")
    with pytest.raises(UsageError, match=r"cardPolicies\[1\]': not taken; accepted: binpack, mutex, numa, spread"):
        SCHEDULER.load(["--config", str(file)], {})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load(["--config", str(tmp_path / "none")], {})


def test_sections_in_which_all_is_commented_out_say_nothing(tmp_path: Path) -> None:
    assert of(tmp_path, "nvidia:\n  # seats: 2\nplaces:\n  root:\n") == Settings()


def test_the_lectures_water_line_in_the_file(tmp_path: Path) -> None:
    text = "nvidia: {waterLine: {buffer: 10%, overhead: 1500Mi}, waterLineByType: [{type: H100, overhead: 0}]}"
    water = nvidia_options(of(tmp_path, text)).options.water
    assert water.of("NVIDIA A100 80GB PCIe").allocatable(81920 * MI, 768 * MI) == 72228 * MI
    assert water.of("NVIDIA H100 80GB HBM3").allocatable(81559 * MI, 551 * MI) == 81559 * MI


def test_hamis_node_file_goes_over_ours(tmp_path: Path) -> None:
    entry = {"name": "n1", "devicesplitcount": 7, "filterdevices": {"index": [1]}, "devicememoryscaling": 1.5}
    (tmp_path / "hami.json").write_text(json.dumps({"nodeconfig": [entry]}))
    text = f"nvidia: {{hamiNodeConfig: {tmp_path / 'hami.json'}, seats: 3, leaveOut: {{indexes: [0]}}}}\n"
    with pytest.raises(UsageError, match="devicememoryscaling"):
        of(tmp_path, text, NODE_NAME="n1")
    found = nvidia_options(of(tmp_path, text + "oversubscription: allowed\n", NODE_NAME="n1"))
    assert found.options.seats == 7
    assert found.options.left_out_indexes == {0, 1}
    assert found.oversub == 1500
    assert nvidia_options(of(tmp_path, text, NODE_NAME="n2")).options.seats == 3


@pytest.mark.parametrize(
    ("off", "on", "ignored", "watch"),
    [
        ("", "", APPLICATION_XIDS, True),
        ("48, 63", "", APPLICATION_XIDS | {48, 63}, True),
        ("all", "", APPLICATION_XIDS, False),
        ("xids", "", APPLICATION_XIDS, False),
        ("48," + "9" * 5000, "x", APPLICATION_XIDS | {48}, True),
        ("48", "13", (APPLICATION_XIDS | {48}) - {13}, True),
        ("all", "all", set(), True),
    ],
)
def test_the_variables_by_which_nvidias_plugin_chooses_xids(off: str, on: str, ignored: set[int], watch: bool) -> None:
    found = load([], {"DP_DISABLE_HEALTHCHECKS": off, "DP_ENABLE_HEALTHCHECKS": on}).nvidia.health
    assert set(found.ignored_xids) == ignored
    assert found.watch_xids == watch


def test_a_reload_says_what_changed_and_what_waits(tmp_path: Path) -> None:
    argv = ["--config", str(tmp_path / "config.yaml"), "--nvidia-seats", "4"]
    before = of(tmp_path, "nvidia: {waterLine: {buffer: 1%}}", *argv[2:])
    (tmp_path / "config.yaml").write_text(
        "nvidia: {seats: 9, waterLine: {buffer: 2%}, gds: true}\nplaces: {root: /run/elsewhere}"
    )
    found = reload(before, argv, {})
    assert found.live == (Change("nvidia.waterLine.buffer", "1%", "2%"),), "the flag still says how many seats"
    assert [change.key for change in found.later] == ["places.root", "nvidia.gds"]
    assert found.settings.nvidia.water_line.buffer == "2%"
    assert found.settings.places.root == before.places.root
    assert reload(found.settings, argv, {}).live == ()
    (tmp_path / "config.yaml").write_text("nvidia: {seets: 1}")
    with pytest.raises(UsageError):
        reload(before, argv, {})


def test_every_key_is_described_and_has_names_of_its_own() -> None:
    found = list(keys())
    assert all(key.text.endswith(".") and len(key.text) > 10 for key in found)
    for names in ([key.name for key in found], [key.flag for key in found], [key.variable for key in found]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("driver", ["auto", "real", "simulated"])
def test_a_node_without_a_driver_offers_no_simulated_cards_unless_somebody_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """A node without cards, or whose driver is loaded later (NVIDIA's GPU operator), has none: pods compute nothing."""
    monkeypatch.setattr(libraries, "real_driver", lambda: False)
    monkeypatch.setattr(libraries, "find_sim", lambda: tmp_path)
    monkeypatch.setenv("PARTAGE_SIM_DIR", str(tmp_path / "sim"))
    settings = load(["--driver", driver], {})
    assert program._driver(settings) == (tmp_path if driver == "simulated" else None)
    machine.create(profiles.find("8xh100"), tmp_path / "sim" / "machine")
    assert program._driver(settings) == (None if driver == "real" else tmp_path)
