"""Machine profiles: TOML files that describe a simulated machine, checked and expanded.

`load()` turns a file into a `Profile`: every device with all members of `struct sim_device_model`, the links between
them, the cost rules. The build's generator turns the shipped profiles into a C table, `partage sim` lists and shows
them, `machine.create()` writes any of them into a machine file. Only the standard library is used, since the build runs
this without an installation. What can go wrong: every defect of a file raises ProfileError, which names the file, the
key, the value found and what is accepted.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from partage.sim.fields import MODEL_FIELDS, parse_bytes, parse_time
from partage.sim.links import LINK_KINDS, Link, build_links

MAX_DEVICES = 16
MAX_COSTS = 64
MAX_SWITCHES = 8
MAX_MIG_PROFILES = 8
MIG_SLICES = 8

MIG_CARD = 1
MIG_INSTANCE = 2

_PCI = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")

__all__ = ["Cost", "Device", "Link", "MigProfile", "Profile", "ProfileError", "find", "load", "load_all", "parse"]

Table = dict[str, object]
Members = dict[str, int | str]
_Card = tuple[Members, list[tuple[int, int]]]  # members, and the places of its MIG instances


class ProfileError(Exception):
    """A profile cannot be used; the text names file, key, value and what is accepted."""

    def __init__(self, source: str, key: str, value: object, accepted: str) -> None:
        super().__init__(f"{source}: {key} = {value!r}: accepted is {accepted}")
        self.source, self.key, self.value, self.accepted = source, key, value, accepted


@dataclass(frozen=True)
class Cost:
    """How long kernels take whose name matches `pattern` (fnmatch); times in ns."""

    pattern: str
    fixed_ns: int = 0
    wave_ns: int = 0
    duration_arg: int = -1
    collective: int = 0


@dataclass(frozen=True)
class MigProfile:
    """A GPU instance profile: memory in bytes, slices, and the memory slices where it may begin."""

    name: str
    memory: int
    id: int
    kind: int
    slices: int
    memory_slices: int
    sms: int
    copy_engines: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Device:
    """One entry of the machine: a card, or a MIG instance of one. `members` are those of struct sim_device_model."""

    members: Members

    @property
    def name(self) -> str:
        """Product name, as the driver and NVML report it."""
        return str(self.members["name"])

    @property
    def memory(self) -> int:
        """Bytes that contexts and allocations can use together."""
        return int(self.members["memory"])


@dataclass(frozen=True)
class Profile:
    """A whole machine, ready to be written."""

    name: str
    aliases: tuple[str, ...]
    description: str
    driver: str
    cuda_version: int
    seed: int
    devices: tuple[Device, ...]
    links: tuple[tuple[Link, ...], ...]
    costs: tuple[Cost, ...]
    mig_profiles: tuple[MigProfile, ...]
    switches: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)


class _Reader:
    """Takes keys out of a TOML table with checks, and at the end refuses what nobody asked for."""

    def __init__(self, source: str, path: str, table: object) -> None:
        self.source, self.path = source, path
        if not isinstance(table, dict):
            raise ProfileError(source, path, table, "a table")
        self.table: Table = dict(cast("Table", table))
        self.known: list[str] = []

    def fail(self, key: str, value: object, accepted: str) -> ProfileError:
        return ProfileError(self.source, f"{self.path}.{key}" if self.path else key, value, accepted)

    def take(self, key: str, default: object = None) -> object:
        self.known.append(key)
        value = self.table.pop(key, default)
        if value is None:
            raise self.fail(key, None, "a value: the key must be given")
        return value

    def text(self, key: str, default: str | None = None, limit: int = 200) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > limit:
            raise self.fail(key, value, f"printable text of at most {limit} bytes")
        return value

    def integer(self, key: str, default: int | None, low: int, high: int) -> int:
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, value, f"an integer from {low} to {high}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, value, "a list of texts")
        return tuple(value)

    def tables(self, key: str, limit: int) -> list[_Reader]:
        value = self.take(key, [])
        if not isinstance(value, list) or len(value) > limit:
            raise self.fail(key, value, f"at most {limit} tables [[{key}]]")
        place = f"{self.path}.{key}" if self.path else key
        return [_Reader(self.source, f"{place}[{index}]", item) for index, item in enumerate(value)]

    def parsed(self, key: str, default: object, parse: object) -> int | str:
        value = self.take(key, default)
        try:
            return cast("int | str", parse(value))  # type: ignore[operator]
        except ValueError as error:
            raise self.fail(key, value, str(error)) from None

    def end(self) -> None:
        for key, value in self.table.items():
            raise self.fail(key, value, "one of the keys " + ", ".join(sorted(set(self.known))))


def _read_costs(root: _Reader) -> tuple[Cost, ...]:
    costs = []
    for reader in root.tables("cost", MAX_COSTS):
        pattern = reader.text("pattern", limit=63)
        fixed = int(reader.parsed("fixed", "0 ns", parse_time))
        wave = int(reader.parsed("wave", "0 ns", parse_time))
        argument = reader.integer("duration_arg", -1, -1, 63)
        collective = reader.take("collective", default=False)
        if not isinstance(collective, bool):
            raise reader.fail("collective", collective, "true or false")
        reader.end()
        costs.append(Cost(pattern, fixed, wave, argument, int(collective)))
    return tuple(costs)


def _read_mig_profiles(root: _Reader) -> tuple[MigProfile, ...]:
    found = []
    for reader in root.tables("mig_profile", MAX_MIG_PROFILES):
        starts = reader.take("starts")
        if not isinstance(starts, list) or not starts or not all(isinstance(s, int) and 0 <= s < 8 for s in starts):
            raise reader.fail("starts", starts, "a list of memory slices, each from 0 to 7")
        profile = MigProfile(
            reader.text("name", limit=31),
            int(reader.parsed("memory", None, parse_bytes)),
            reader.integer("id", None, 0, 255),
            reader.integer("kind", None, 0, 32),
            reader.integer("slices", None, 1, 7),
            reader.integer("memory_slices", None, 1, MIG_SLICES),
            reader.integer("sms", None, 1, 1024),
            reader.integer("copy_engines", 1, 0, 16),
            tuple(starts),
        )
        reader.end()
        found.append(profile)
    return tuple(found)


def _fit(wanted: list[MigProfile], taken: frozenset[int]) -> list[int] | None:
    """First memory slices for all the wanted instances, or None where they do not fit together."""
    if not wanted:
        return []
    for start in wanted[0].starts:
        span = frozenset(range(start, start + wanted[0].memory_slices))
        if span & taken or max(span) >= MIG_SLICES:
            continue
        rest = _fit(wanted[1:], taken | span)
        if rest is not None:
            return [start, *rest]
    return None


def _place_instances(reader: _Reader, wanted: tuple[str, ...], known: tuple[MigProfile, ...]) -> list[tuple[int, int]]:
    """(profile index, first memory slice) of each instance."""
    names = [profile.name for profile in known]
    for name in wanted:
        if name not in names:
            there = ", ".join(names) or "the [[mig_profile]] tables, and there are none"
            raise reader.fail("mig", name, f"one of {there}")
    chosen = [known[names.index(name)] for name in wanted]
    starts = _fit(chosen, frozenset())
    if starts is None or sum(profile.slices for profile in chosen) > 7:
        raise reader.fail("mig", list(wanted), "instances that fit together on one card")
    return [(names.index(name), start) for name, start in zip(wanted, starts, strict=True)]


def _instance(card: Members, parent: int, order: int, place: tuple[int, int], mig: MigProfile) -> Device:
    """Return the entry of a MIG instance: its card's members with the instance's own memory and SMs."""
    share = {"memory": mig.memory, "sms": mig.sms, "reserved": 0, "mig": MIG_INSTANCE, "parent": parent}
    ids = {"gpu_instance": order + 1, "compute_instance": 0, "mig_profile": place[0], "mig_start": place[1]}
    return Device({**card, **share, **ids, "part": mig.name, "name": f"{card['name']} MIG {mig.name}"})


def _check_model(reader: _Reader, model: Members) -> None:
    """Check what holds between members; the driver refuses a machine where it does not."""
    for key in ("granule", "pitch"):
        if int(model[key]) & (int(model[key]) - 1):
            raise reader.fail(key, model[key], "a power of two")
    if int(model["reserved"]) >= int(model["memory"]):
        raise reader.fail("reserved", model["reserved"], f"less than memory ({model['memory']} bytes)")
    if int(model["pool_granule"]) % int(model["granule"]):
        raise reader.fail("pool_granule", model["pool_granule"], f"a multiple of granule ({model['granule']} bytes)")
    if int(model["pitch"]) > int(model["granule"]):
        raise reader.fail("pitch", model["pitch"], f"at most granule ({model['granule']} bytes)")


def _read_group(reader: _Reader, first: int, mig: tuple[MigProfile, ...]) -> list[_Card]:
    """Read the cards of one [[device]] table, each with the places of its MIG instances."""
    count = reader.integer("count", 1, 1, MAX_DEVICES)
    pci = reader.strings("pci")
    if pci and len(pci) != count:
        raise reader.fail("pci", list(pci), f"one bus address for each of the {count} devices")
    for address in pci:
        if not _PCI.match(address):
            raise reader.fail("pci", address, 'bus addresses such as "0000:1a:00.0"')
    numa = reader.take("numa", [0] * count)
    if not isinstance(numa, list) or len(numa) != count or not all(isinstance(n, int) and 0 <= n < 64 for n in numa):
        raise reader.fail("numa", numa, f"{count} NUMA node numbers, each from 0 to 63")
    wanted = reader.strings("mig")
    model = {field.name: reader.parsed(field.name, field.default, field.parse) for field in MODEL_FIELDS}
    reader.end()
    _check_model(reader, model)
    if "SIMULATED" not in str(model["name"]):
        raise reader.fail("name", model["name"], "a name that contains SIMULATED, so that nobody takes it for hardware")
    if wanted and not model["mig_capable"]:
        raise reader.fail("mig", list(wanted), "no instances, since mig_capable is 0")
    places = _place_instances(reader, wanted, mig)
    cards = []
    for index in range(count):
        address = pci[index] if pci else f"0000:{0x17 + 4 * (first + index):02x}:00.0"
        domain, rest = address.lower().split(":", 1)
        place = {"part": "", "pci": f"{domain:0>8}:{rest}", "numa": numa[index], "minor": first + index}
        state = {"mig": MIG_CARD if wanted else 0, "parent": -1}
        empty = {"gpu_instance": 0, "compute_instance": 0, "mig_profile": 0, "mig_start": 0}
        cards.append(({**model, **place, **state, **empty}, places))
    return cards


def _read_devices(root: _Reader, mig: tuple[MigProfile, ...]) -> tuple[tuple[Device, ...], int]:
    """All entries, cards first, and how many are cards."""
    groups = root.tables("device", MAX_DEVICES)
    if not groups:
        raise root.fail("device", None, "at least one table [[device]]")
    cards: list[_Card] = []
    for reader in groups:
        cards += _read_group(reader, len(cards), mig)
    devices = [Device(members) for members, _ in cards]
    for parent, (members, places) in enumerate(cards):
        devices += [_instance(members, parent, i, place, mig[place[0]]) for i, place in enumerate(places)]
    if len(devices) > MAX_DEVICES:
        raise root.fail("device", len(devices), f"at most {MAX_DEVICES} devices and MIG instances together")
    addresses = [str(members["pci"]) for members, _ in cards]
    twice = {address for address in addresses if addresses.count(address) > 1}
    if twice:
        raise root.fail("device.pci", sorted(twice), "a bus address of its own for each device")
    return tuple(devices), len(cards)


def _read_links(root: _Reader, cards: int, devices: tuple[Device, ...]) -> tuple[tuple[Link, ...], ...]:
    numa = [int(device.members["numa"]) for device in devices]
    groups = []
    for reader in root.tables("link", 128):
        members = reader.take("devices")
        if not isinstance(members, list) or len(set(members)) < 2 or not all(m in range(cards) for m in members):
            raise reader.fail("devices", members, f"two or more device indices, each from 0 to {cards - 1}")
        kind = reader.text("kind")
        if kind not in LINK_KINDS:
            raise reader.fail("kind", kind, "one of " + ", ".join(LINK_KINDS))
        lanes = reader.integer("lanes", 0, 0, 36)
        if kind.startswith("nv") != (lanes > 0):
            raise reader.fail("lanes", lanes, "1 to 36 for nvlink and nvswitch, and none for the others")
        reader.end()
        groups.append((tuple(members), Link(LINK_KINDS[kind], lanes)))
    parents = [int(device.members["parent"]) for device in devices]
    return build_links(numa, parents, groups)


def _default_seed(name: str) -> int:
    """FNV-1a of the name: a profile's devices have the same UUIDs everywhere, and no other profile's."""
    value = 0xCBF29CE484222325
    for byte in name.lower().encode():
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    return value


def parse(text: str, source: str) -> Profile:
    """Check and expand the text of a profile; `source` names it in errors. Raises ProfileError."""
    try:
        root = _Reader(source, "", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(source, "(file)", str(error), "valid TOML") from None
    name = root.text("name")
    aliases = root.strings("aliases")
    for word in (name, *aliases):
        if not _NAME.match(word):
            key = "name" if word == name else "aliases"
            raise root.fail(key, word, "letters, digits, '.', '_' and '-', at most 63")
    mig = _read_mig_profiles(root)
    devices, cards = _read_devices(root, mig)
    switches = root.strings("switches")
    if len(switches) > MAX_SWITCHES or not all(_PCI.match(address) for address in switches):
        raise root.fail("switches", list(switches), f'at most {MAX_SWITCHES} bus addresses such as "0000:05:00.0"')
    profile = Profile(
        name=name,
        aliases=aliases,
        description=root.text("description", ""),
        driver=root.text("driver", "615.71.05", limit=31),
        cuda_version=root.integer("cuda_version", 13050, 11000, 99000),
        seed=root.integer("seed", _default_seed(name), 1, 2**64 - 1),
        devices=devices,
        links=_read_links(root, cards, devices),
        costs=_read_costs(root),
        mig_profiles=mig,
        switches=tuple(f"{a.split(':', 1)[0]:0>8}:{a.split(':', 1)[1]}".lower() for a in switches),
    )
    root.end()
    return profile


def load(path: Path) -> Profile:
    """Read one profile file. Raises ProfileError, also where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(str(path), "(file)", str(error), "a readable TOML file") from None
    return parse(text, str(path))


def directory() -> Path:
    """Where the shipped profiles lie: beside this package when installed, else in the source tree."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "hook" / "sim" / "profiles"


def load_all(folder: Path | None = None) -> tuple[Profile, ...]:
    """Load all profiles of a folder (default: the shipped ones). Raises ProfileError, also for a name used twice."""
    place = folder or directory()
    found = tuple(load(path) for path in sorted(place.glob("*.toml")))
    if not found:
        raise ProfileError(
            str(place), "(folder)", "no *.toml", "a folder with profiles; a broken installation has none"
        )
    owners: dict[str, str] = {}
    for profile in found:
        for word in profile.names:
            if owners.setdefault(word.lower(), profile.name) != profile.name:
                raise ProfileError(profile.name, "aliases", word, f"a name that {owners[word.lower()]} does not have")
    return found


def find(name: str) -> Profile:
    """Return the shipped profile of this name or alias (case does not matter), or the one in a TOML file of this path.

    Raises ProfileError listing the known names.
    """
    if name.endswith(".toml") or "/" in name:
        return load(Path(name))
    known = load_all()
    for profile in known:
        if name.lower() in (word.lower() for word in profile.names):
            return profile
    raise ProfileError("profiles", "name", name, "a TOML file or one of " + ", ".join(p.name for p in known))
