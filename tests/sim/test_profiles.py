"""Profiles: the shipped ones are sound, and every defect of a file is named with key, value and what is accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from partage.sim import profiles
from partage.sim.fields import parse_bytes, parse_time
from partage.sim.profiles import ProfileError

TOP = Path(__file__).resolve().parents[2]
DEVICE = """
[[device]]
name = "Card SIMULATED"
memory = "1 GiB"
sms = 4
cc_major = 8
clock_khz = 1000000
memory_clock_khz = 1000000
bus_width = 256
l2_bytes = "4 MiB"
architecture = 7
power_limit_mw = 100000
"""
SMALL = 'name = "small"\n' + DEVICE


def test_shipped_profiles_say_simulated_and_fit_the_machine() -> None:
    shipped = profiles.load_all()
    wanted = {
        "h100-80g",
        "8xh100",
        "4xa100-pcie",
        "4xl40s",
        "v100",
        "rtx4090",
        "a100-mig",
        "zero",
        "zero2",
        "zero-nvswitch",
    }
    assert wanted <= {profile.name for profile in shipped}
    for profile in shipped:
        assert all("SIMULATED" in device.name for device in profile.devices)
        assert profile.costs[-1].pattern == "*", "every kernel has a cost"


def test_default_card_reports_the_memory_of_an_80_gb_h100() -> None:
    assert profiles.find("1xH100").devices[0].memory == 81559 << 20


@pytest.mark.parametrize("name", ["8xh100", "8xH100", "8XH100", "HGX-H100"])
def test_names_and_aliases_ignore_case(name: str) -> None:
    profile = profiles.find(name)
    assert profile.name == "8xh100"
    assert all(profile.links[a][b].word == "nvswitch" for a in range(8) for b in range(8) if a != b)


def test_pairs_of_the_pcie_machine_have_a_bridge_and_meet_over_the_cpus() -> None:
    links = profiles.find("4xA100").links
    assert [links[0][b].word for b in range(1, 4)] == ["nvlink", "system", "system"]
    assert links[2][3].lanes == 12


def test_zero_costs_nothing_but_time() -> None:
    for name in ("zero", "zero2", "zero-nvswitch"):
        members = profiles.find(name).devices[0].members
        costs = ("context", "module", "reserved", "context_ms", "copy_mbps", "switch_us")
        assert [members[key] for key in costs] == [0] * 6


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"b300.*h100-80g.*zero"):
        profiles.find("b300")


def test_a_path_is_a_profile_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SMALL)
    assert profiles.find(str(tmp_path / "mine.toml")).devices[0].members["pci"] == "00000000:17:00.0"


DEFECTS = [
    (SMALL.replace('"1 GiB"', '"1 gigabyte"'), r"device\[0\]\.memory", "KiB, MiB, GiB"),
    (SMALL.replace('"1 GiB"', "true"), r"device\[0\]\.memory", "bytes as an integer"),
    (SMALL.replace('"1 GiB"', '"-1 GiB"'), r"device\[0\]\.memory", "bytes as an integer"),
    (SMALL.replace("sms = 4", "sms = 0"), r"device\[0\]\.sms", "from 1 to 1024"),
    (SMALL.replace("sms = 4\n", ""), r"device\[0\]\.sms", "must be given"),
    (SMALL.replace("SIMULATED", "real"), r"device\[0\]\.name", "contains SIMULATED"),
    (SMALL + "speed = 3\n", r"device\[0\]\.speed", "one of the keys"),
    (SMALL + 'pci = ["1a:00"]\n', r"device\[0\]\.pci", "bus addresses such as"),
    (SMALL + "numa = [0, 1]\n", r"device\[0\]\.numa", "1 NUMA node"),
    (SMALL + "count = 17\n", r"device\[0\]\.count", "from 1 to 16"),
    (SMALL + 'mig = ["1g.10gb"]\n', r"device\[0\]\.mig", "mig_capable is 0"),
    (SMALL + "granule = 3000000\n", r"device\[0\]\.granule", "power of two"),
    (SMALL + 'reserved = "1 GiB"\n', r"device\[0\]\.reserved", "less than memory"),
    ('name = "small"\n', "device = None", "at least one table"),
    ('name = "small"\nseed = 0\n' + DEVICE, "seed", "from 1 to"),
    ('name = "a b"\n' + DEVICE, "name", "letters, digits"),
    ("name = ", r"\(file\)", "valid TOML"),
    (SMALL + '[[link]]\ndevices = [0, 1]\nkind = "nvlink"\nlanes = 4\n', r"link\[0\]\.devices", "from 0 to 0"),
    (SMALL + '[[cost]]\npattern = "*"\nfixed = 20\n', r"cost\[0\]\.fixed", "with its unit"),
    (SMALL + '[[cost]]\npattern = "*"\ncollective = 1\n', r"cost\[0\]\.collective", "true or false"),
    (SMALL + DEVICE.replace("sms", 'pci = ["0000:17:00.0"]\nsms'), r"device\.pci", "of its own"),
]


@pytest.mark.parametrize(("text", "key", "accepted"), DEFECTS)
def test_a_defect_names_file_key_and_what_is_accepted(text: str, key: str, accepted: str) -> None:
    with pytest.raises(ProfileError, match=rf"mine\.toml: {key}.*accepted is .*{accepted}"):
        profiles.parse(text, "mine.toml")


def test_link_kinds_are_checked() -> None:
    two = SMALL + "count = 2\n"
    with pytest.raises(ProfileError, match=r"link\[0\]\.kind = 'wire'.*nvlink"):
        profiles.parse(two + '[[link]]\ndevices = [0, 1]\nkind = "wire"\n', "f")
    with pytest.raises(ProfileError, match=r"link\[0\]\.lanes = 0.*1 to 36"):
        profiles.parse(two + '[[link]]\ndevices = [0, 1]\nkind = "nvlink"\n', "f")


MIG = (profiles.directory() / "a100-mig.toml").read_text()


def test_mig_instances_get_places_that_do_not_overlap() -> None:
    profile = profiles.find("a100-mig")
    assert profile.devices[0].members["mig"] == 1
    taken: set[int] = set()
    for device in profile.devices[1:]:
        mig = profile.mig_profiles[int(device.members["mig_profile"])]
        span = set(range(int(device.members["mig_start"]), int(device.members["mig_start"]) + mig.memory_slices))
        assert not span & taken
        assert device.memory == mig.memory
        assert device.members["parent"] == 0
        taken |= span


@pytest.mark.parametrize("cut", ['["7g.80gb", "1g.10gb"]', '["3g.40gb", "3g.40gb", "1g.10gb"]', '["9g.90gb"]'])
def test_mig_instances_that_do_not_fit_are_refused(cut: str) -> None:
    with pytest.raises(ProfileError, match=r"device\[0\]\.mig"):
        profiles.parse(MIG.replace('["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]', cut), "f")


def test_seeds_differ_between_profiles_and_never_change() -> None:
    seeds = [profile.seed for profile in profiles.load_all()]
    assert len(set(seeds)) == len(seeds)
    assert profiles.parse(SMALL, "f").seed == profiles.parse(SMALL, "g").seed


def test_one_name_for_one_profile(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    (tmp_path / "b.toml").write_text(SMALL.replace('"small"', '"other"\naliases = ["SMALL"]'))
    with pytest.raises(ProfileError, match=r"SMALL.*small does not have"):
        profiles.load_all(tmp_path)


def test_a_folder_without_profiles_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="broken installation"):
        profiles.load_all(tmp_path)


def test_units() -> None:
    assert [parse_bytes(v) for v in (5, "5", "5B", "2 KiB", "1TiB")] == [5, 5, 5, 2048, 1 << 40]
    assert [parse_time(v) for v in ("7 ns", "3us", "2 ms", "1 s")] == [7, 3000, 2_000_000, 10**9]
    for bad in ("4g", "1.5 GiB", "GiB", "0x10", 3.0, None):
        with pytest.raises(ValueError, match="bytes"):
            parse_bytes(bad)


def test_generator_stops_at_a_defect(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(SMALL.replace("sms = 4", 'sms = "four"'))
    command = [sys.executable, str(TOP / "hook/gen/profiles.py"), "--out", str(tmp_path), "--profiles", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "bad.toml: device[0].sms = 'four'" in done.stderr
    assert not (tmp_path / "sim_profiles.c").exists()


def test_generator_writes_every_profile_once(tmp_path: Path) -> None:
    command = [sys.executable, str(TOP / "hook/gen/profiles.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    text = (tmp_path / "sim_profiles.c").read_text()
    for profile in profiles.load_all():
        assert text.count(f'.name = "{profile.name}"') == 1
    before = (tmp_path / "sim_profiles.c").stat().st_mtime_ns
    subprocess.run(command, check=True)
    assert (tmp_path / "sim_profiles.c").stat().st_mtime_ns == before, "unchanged text is not written again"
