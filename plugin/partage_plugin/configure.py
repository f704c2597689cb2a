"""Where settings come from: the file, then variables, then flags, each over the one before; and reloading them.

Every leaf of `Settings` is a key of the file (`nvidia.waterLine.buffer`), a variable
(`PARTAGE_AGENT_NVIDIA_WATER_LINE_BUFFER`) and a flag (`--nvidia-water-line-buffer`); lists are written with commas
there. `nodes:` in the file holds, for node names that match a pattern, what differs there. Called by the agent's start
and at SIGHUP. What can go wrong (UsageError): no such file where one was named, no YAML, a value of another kind, and
a key or flag that does not exist, for which the nearest known one is named: nothing is ever ignored.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from partage.model import UsageError, names
from partage_plugin.nvidia_options import nvidia_options
from partage_plugin.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NODES: Final = "nodes"
NODE_NAME: Final = "NODE_NAME"
VARIABLE_PREFIX: Final = "PARTAGE_AGENT_"
_XIDS_OFF: Final = "DP_DISABLE_HEALTHCHECKS"  # NVIDIA's plugin's
_XIDS_ON: Final = "DP_ENABLE_HEALTHCHECKS"
_STEP: Final = "correct it; docs/reference/agent.md lists every key"
_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Key:
    """One leaf: where it stands, what it may be, what it is for. `live`: a reload puts it into force."""

    path: tuple[str, ...]
    kind: Any
    default: Any
    text: str
    live: bool

    @property
    def name(self) -> str:
        """As messages and the reference page name it: `nvidia.waterLine.buffer`."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """The flag that sets it."""
        return "--" + "-".join(_BOUNDARY.sub("-", part).lower() for part in self.path)

    @property
    def variable(self) -> str:
        """The variable that sets it."""
        return VARIABLE_PREFIX + self.flag[2:].replace("-", "_").upper()

    @property
    def has_flag(self) -> bool:
        """Whether it has a flag and a variable: a list of sections and what has one value only have not."""
        if isinstance(self.kind, msgspec.inspect.LiteralType):
            return len(self.kind.values) > 1
        items = self.kind.item_type if isinstance(self.kind, msgspec.inspect.VarTupleType) else None
        return not isinstance(items, msgspec.inspect.StructType)


def keys(section: type[msgspec.Struct] = Settings, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every leaf below a section, in the order in which they stand there."""
    info = msgspec.inspect.type_info(section)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(section)
    for field in info.fields:
        kind, here = field.type, (*path, field.encode_name)
        if isinstance(kind, msgspec.inspect.StructType):
            yield from keys(kind.cls, here)
        elif isinstance(kind, msgspec.inspect.Metadata):
            described, extra = kind.extra_json_schema or {}, kind.extra or {}
            yield Key(here, kind.type, field.default, described["description"], extra["live"])
        else:
            raise TypeError(f"{'.'.join(here)} has no description")


# ---- the file --------------------------------------------------------------------------------------------------------


def read_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    """Return what the file says; nothing where it does not exist and nobody named it. Raises UsageError."""
    try:
        document = msgspec.yaml.decode(path.read_bytes())
    except FileNotFoundError as error:
        if not must_exist:
            return {}
        raise UsageError(str(path), "does not exist", "the file that --config names", "make it or leave it") from error
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise UsageError(str(path), f"cannot be read ({error})", "a YAML mapping", _STEP) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(str(path), f"a {type(document).__name__}", "a YAML mapping", _STEP)
    return {key: _without_nothing(value) for key, value in document.items() if value is not None}


def _without_nothing(value: Any) -> Any:
    """Leave out keys without a value: a section in which all is commented out says nothing."""
    if isinstance(value, dict):
        return {key: _without_nothing(below) for key, below in value.items() if below is not None}
    return value


def check_keys(
    found: Mapping[Any, Any], section: type[msgspec.Struct], source: str, path: tuple[str, ...] = ()
) -> None:
    """Raise UsageError for a key that does not exist, with the nearest known one."""
    info = msgspec.inspect.type_info(section)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(section)
    known = {field.encode_name: field.type for field in info.fields}
    for name, value in found.items():
        if name not in known:
            _refuse_key(str(name), list(known), source, path)
        below = known[name]
        if isinstance(below, msgspec.inspect.Metadata):
            below = below.type
        items = below.item_type if isinstance(below, msgspec.inspect.VarTupleType) else below
        if isinstance(items, msgspec.inspect.StructType):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    check_keys(one, items.cls, source, (*path, name))


def _refuse_key(name: str, siblings: list[str], source: str, path: tuple[str, ...]) -> NoReturn:
    here = ".".join((*path, name))
    all_keys = {key.path[-1].lower(): key.name for key in keys()}
    beside = {sibling.lower(): ".".join((*path, sibling)) for sibling in siblings}
    near = difflib.get_close_matches(name.lower(), beside, 1) or difflib.get_close_matches(name.lower(), all_keys, 1)
    limit = f"the nearest is '{(all_keys | beside)[near[0]]}'" if near else f"known here: {', '.join(sorted(siblings))}"
    raise UsageError(f"{source}, key '{here}'", "unknown", limit, _STEP)


def _merge(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _for_node(document: dict[str, Any], node: str, source: str) -> dict[str, Any]:
    """Return the document with what differs on this node put in."""
    differing = document.pop(NODES, [])
    if not isinstance(differing, list) or not all(isinstance(entry, dict) for entry in differing):
        raise UsageError(f"{source}, key '{NODES}'", "not a list of mappings", "entries with a name and keys", _STEP)
    for number, entry in enumerate(differing):
        what = dict(entry)
        pattern = what.pop("name", None)
        where = f"{source}, {NODES}[{number}]"
        if not isinstance(pattern, str):
            raise UsageError(where, "has no name", "a node's name, or a pattern with * and ?", _STEP)
        check_keys(what, Settings, where)
        if fnmatch.fnmatchcase(node, pattern):
            document = _merge(document, what)
    return document


# ---- variables and flags ---------------------------------------------------------------------------------------------


def _from_text(key: Key, text: str, source: str) -> Any:
    """Return a leaf's value from a variable or flag; raises UsageError."""
    value: Any = text
    if isinstance(key.kind, msgspec.inspect.VarTupleType):
        value = [part.strip() for part in text.split(",") if part.strip()]
    try:
        typed = msgspec.convert({key.path[-1]: value}, _alone(key), strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(source, f"'{text}'", str(error), _STEP) from error
    return msgspec.to_builtins(getattr(typed, typed.__struct_fields__[0]))


def _alone(key: Key) -> type[msgspec.Struct]:
    """Return a structure with this one leaf, as it stands in its section."""
    section: Any = Settings
    for part in key.path[:-1]:
        section = next(f.type for f in msgspec.structs.fields(section) if f.encode_name == part)
    field = next(f for f in msgspec.structs.fields(section) if f.encode_name == key.path[-1])
    return msgspec.defstruct("Leaf", [(field.name, field.type)], rename="camel")


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("command line", message, "flags as --help lists them", _STEP)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    made = _Parser(prog="partage-plugin", description="The node agent of Partage.", allow_abbrev=False)
    made.add_argument("--config", metavar="FILE", help=f"Configuration file. Default: {names.CONFIG_FILE}, if any.")
    for key in keys():
        if not key.has_flag:
            continue
        text = key.text.replace("%", "%%")
        if isinstance(key.kind, msgspec.inspect.BoolType):
            made.add_argument(key.flag, dest=key.name, nargs="?", const="true", metavar="BOOL", help=text)
        else:
            made.add_argument(key.flag, dest=key.name, metavar="VALUE", help=text)
    return made


def _flags(argv: Sequence[str]) -> dict[str, str]:
    given, unknown = parser().parse_known_args(argv)
    if unknown:
        flags = [key.flag for key in keys() if key.has_flag]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1)
        limit = f"the nearest is {near[0]}" if near else "flags as --help lists them"
        raise UsageError(f"flag {unknown[0]}", "unknown", limit, _STEP)
    return {name: value for name, value in vars(given).items() if value is not None}


def _set(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document.setdefault(part, {})
    document[path[-1]] = value


# ---- all of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A key that a reload found changed."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`settings`: those in force now; `live`: what changed in them; `later`: what a restart will change."""

    settings: Settings
    live: tuple[Change, ...]
    later: tuple[Change, ...]


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that file, variables and flags make; raises UsageError."""
    flags = _flags(argv)
    named = flags.pop("config", None) or environ.get(f"{VARIABLE_PREFIX}CONFIG")
    path = Path(named or names.CONFIG_FILE)
    document = read_file(path, must_exist=named is not None)
    variables = {key.name: environ[key.variable] for key in keys() if key.has_flag and key.variable in environ}
    node = flags.get("node") or variables.get("node") or document.get("node") or environ.get(NODE_NAME, "")
    check_keys({key: value for key, value in document.items() if key != NODES}, Settings, str(path))
    document = _for_node(document, str(node), str(path))
    _set(document, ("node",), node)
    _convert(document, str(path))
    _nvidias_variables(document, environ)
    for key in keys():
        if key.name in variables:
            _set(document, key.path, _from_text(key, variables[key.name], f"variable {key.variable}"))
        if key.name in flags:
            _set(document, key.path, _from_text(key, flags[key.name], f"flag {key.flag}"))
    settings = _convert(document, str(path))
    nvidia_options(settings)
    return settings


def _convert(document: dict[str, Any], source: str) -> Settings:
    try:
        return msgspec.convert(document, Settings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise UsageError(f"{source}, key '{where.rstrip('`')}'", "not taken", what, _STEP) from error


def _nvidias_variables(document: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Take over the variables by which NVIDIA's plugin chooses XIDs, where the file says nothing of them."""
    off, on = environ.get(_XIDS_OFF, "").lower(), environ.get(_XIDS_ON, "").lower()
    health = document.get("nvidia", {}).get("health", {}) if isinstance(document.get("nvidia"), dict) else {}
    if not (off or on) or not isinstance(health, dict) or "ignoredXids" in health or "watchXids" in health:
        return
    words = {part.strip() for part in off.split(",")} - {""}
    default = next(key.default for key in keys() if key.name == "nvidia.health.ignoredXids")
    ignored = set(default) | {int(word) for word in words if word.isdecimal()}
    wanted = {part.strip() for part in on.split(",")} - {""}
    ignored -= {int(word) for word in wanted if word.isdecimal()}
    _set(document, ("nvidia", "health", "ignoredXids"), [] if wanted & {"all", "xids"} else sorted(ignored))
    if words & {"all", "xids"} and not wanted:
        _set(document, ("nvidia", "health", "watchXids"), value=False)


def reload(current: Settings, argv: Sequence[str], environ: Mapping[str, str]) -> Reloaded:
    """Return what file, variables and flags make now, beside `current`; raises UsageError, and `current` holds on."""
    wanted = msgspec.to_builtins(load(argv, environ))
    in_force = msgspec.to_builtins(current)
    live: list[Change] = []
    later: list[Change] = []
    for key in keys():
        before, after = _at(in_force, key.path), _at(wanted, key.path)
        if before == after:
            continue
        (live if key.live else later).append(Change(key.name, before, after))
        if key.live:
            _set(in_force, key.path, after)
    return Reloaded(msgspec.convert(in_force, Settings), tuple(live), tuple(later))


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        document = document[part]
    return document
