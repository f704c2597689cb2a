"""Settings of a long-running program: from a file, then variables, then flags, each over the one before.

A program describes them as msgspec structures of `key`s in `Section`s (`partage_plugin.settings`,
`partage.scheduler.settings`) and makes a `Layout` of them. Every leaf is a key of the file
(`nvidia.waterLine.buffer`), a variable (`PARTAGE_AGENT_NVIDIA_WATER_LINE_BUFFER`) and a flag
(`--nvidia-water-line-buffer`); lists are written with commas there. What can go wrong (UsageError): no such file where
one was named, no YAML, a value of another kind, and a key or flag that does not exist, for which the nearest known one
is named: nothing is ever ignored.
"""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import msgspec

from partage.model import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file: keys in camel case, none beside those that stand here."""


S = TypeVar("S", bound=Section)


def key(text: str, *, live: bool = False, **bounds: Any) -> msgspec.Meta:
    """Describe a key; `live`: a reload puts a new value into force without a restart."""
    return msgspec.Meta(description=text, extra={"live": live}, **bounds)


@dataclass(frozen=True, slots=True)
class Key:
    """One leaf: where it stands, what it may be, what it is for. `live`: a reload puts it into force."""

    path: tuple[str, ...]
    kind: Any
    default: Any
    text: str
    live: bool
    prefix: str

    @property
    def name(self) -> str:
        """As messages and the reference page name it: `nvidia.waterLine.buffer`."""
        return ".".join(self.path)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it may be; none where it is not one of a few."""
        items = self.kind.item_type if isinstance(self.kind, msgspec.inspect.VarTupleType) else self.kind
        values = items.values if isinstance(items, msgspec.inspect.LiteralType) else ()
        return tuple(filter(None, map(str, values)))

    @property
    def told(self) -> str:
        """What it is for, and its words where there is a choice."""
        return f"{self.text} Accepted: {', '.join(self.words)}." if len(self.words) > 1 else self.text

    @property
    def flag(self) -> str:
        """The flag that sets it."""
        return "--" + "-".join(_BOUNDARY.sub("-", part).lower() for part in self.path)

    @property
    def variable(self) -> str:
        """The variable that sets it."""
        return self.prefix + self.flag[2:].replace("-", "_").upper()

    @property
    def has_flag(self) -> bool:
        """Whether it has a flag and a variable: a list of sections and what has one value only have not."""
        if isinstance(self.kind, msgspec.inspect.LiteralType):
            return len(self.kind.values) > 1
        items = self.kind.item_type if isinstance(self.kind, msgspec.inspect.VarTupleType) else None
        return not isinstance(items, msgspec.inspect.StructType)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that a reload found changed."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Reloaded(Generic[S]):
    """`settings`: those in force now; `live`: what changed in them; `later`: what a restart will change."""

    settings: S
    live: tuple[Change, ...]
    later: tuple[Change, ...]


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as ours."""

    step = ""

    def error(self, message: str) -> NoReturn:
        raise UsageError("command line", message, "flags as --help lists them", self.step)


@dataclass(frozen=True, slots=True)
class Layout(Generic[S]):
    """Where one program's settings stand: `program` and `about` for --help, `prefix` of variables, default `file`.

    `page` is the page of the documentation that lists every key.
    """

    settings: type[S]
    program: str
    about: str
    prefix: str
    file: str
    page: str

    @property
    def step(self) -> str:
        """What to do about a setting that is wrong."""
        return f"correct it; {self.page} lists every key"

    def keys(self) -> Iterator[Key]:
        """Yield every leaf in the order in which they stand in the structures."""
        return _keys(self.settings, (), self.prefix)

    # ---- the file ----------------------------------------------------------------------------------------------------

    def read_file(self, path: Path, *, must_exist: bool) -> dict[str, Any]:
        """Return what the file says; nothing where it does not exist and nobody named it. Raises UsageError."""
        try:
            document = msgspec.yaml.decode(path.read_bytes())
        except FileNotFoundError as error:
            if not must_exist:
                return {}
            limit = "the file that --config names"
            raise UsageError(str(path), "does not exist", limit, "make it or leave it") from error
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
            raise UsageError(str(path), f"cannot be read ({error})", "a YAML mapping", self.step) from error
        if document is None:
            return {}
        if not isinstance(document, dict):
            raise UsageError(str(path), f"a {type(document).__name__}", "a YAML mapping", self.step)
        return {name: _without_nothing(value) for name, value in document.items() if value is not None}

    def check_keys(
        self,
        found: Mapping[Any, Any],
        source: str,
        section: type[msgspec.Struct] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        """Raise UsageError for a key that does not exist, with the nearest known one."""
        known = {field.encode_name: field.type for field in _fields(section or self.settings)}
        for name, value in found.items():
            if name not in known:
                self._refuse_key(str(name), list(known), source, path)
            below = known[name]
            if isinstance(below, msgspec.inspect.Metadata):
                below = below.type
            items = below.item_type if isinstance(below, msgspec.inspect.VarTupleType) else below
            if isinstance(items, msgspec.inspect.StructType):
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, dict):
                        self.check_keys(one, source, items.cls, (*path, name))

    def _refuse_key(self, name: str, siblings: list[str], source: str, path: tuple[str, ...]) -> NoReturn:
        here = ".".join((*path, name))
        everywhere = {one.path[-1].lower(): one.name for one in self.keys()}
        beside = {sibling.lower(): ".".join((*path, sibling)) for sibling in siblings}
        near = difflib.get_close_matches(name.lower(), beside, 1)
        near = near or difflib.get_close_matches(name.lower(), everywhere, 1)
        known = f"known here: {', '.join(sorted(siblings))}"
        limit = f"the nearest is '{(everywhere | beside)[near[0]]}'" if near else known
        raise UsageError(f"{source}, key '{here}'", "unknown", limit, self.step)

    # ---- variables and flags -----------------------------------------------------------------------------------------

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return key -> text of those that the environment sets."""
        return {one.name: environ[one.variable] for one in self.keys() if one.has_flag and one.variable in environ}

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of all flags."""
        made = _Parser(prog=self.program, description=self.about, allow_abbrev=False)
        made.step = self.step
        made.add_argument("--config", metavar="FILE", help=f"Configuration file. Default: {self.file}, if any.")
        for one in self.keys():
            if not one.has_flag:
                continue
            text = one.told.replace("%", "%%")
            if isinstance(one.kind, msgspec.inspect.BoolType):
                made.add_argument(one.flag, dest=one.name, nargs="?", const="true", metavar="BOOL", help=text)
            else:
                made.add_argument(one.flag, dest=one.name, metavar="VALUE", help=text)
        return made

    def flags(self, argv: Sequence[str]) -> dict[str, str]:
        """Return key (and `config`) -> text of the flags that were given; raises UsageError."""
        given, unknown = self.parser().parse_known_args(argv)
        if unknown:
            known = ["--config", *(one.flag for one in self.keys() if one.has_flag)]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1)
            limit = f"the nearest is {near[0]}" if near else "flags as --help lists them"
            raise UsageError(f"flag {unknown[0]}", "unknown", limit, self.step)
        return {name: value for name, value in vars(given).items() if value is not None}

    def put_texts(self, document: dict[str, Any], variables: Mapping[str, str], flags: Mapping[str, str]) -> None:
        """Put what variables and flags say into a document; raises UsageError."""
        for one in self.keys():
            if one.name in variables:
                put(document, one.path, self._from_text(one, variables[one.name], f"variable {one.variable}"))
            if one.name in flags:
                put(document, one.path, self._from_text(one, flags[one.name], f"flag {one.flag}"))

    def _from_text(self, one: Key, text: str, source: str) -> Any:
        """Return a leaf's value from a variable or flag; raises UsageError."""
        value: Any = text
        if isinstance(one.kind, msgspec.inspect.VarTupleType):
            value = [part.strip() for part in text.split(",") if part.strip()]
        try:
            typed = msgspec.convert({one.path[-1]: value}, self._alone(one), strict=False)
        except msgspec.ValidationError as error:
            what = str(error).partition(" - at `$")[0]
            raise UsageError(source, f"'{text}'", _accepted(one) or what, self.step) from error
        return msgspec.to_builtins(getattr(typed, typed.__struct_fields__[0]))

    def _alone(self, one: Key) -> type[msgspec.Struct]:
        """Return a structure with this one leaf, as it stands in its section."""
        section: Any = self.settings
        for part in one.path[:-1]:
            section = next(f.type for f in msgspec.structs.fields(section) if f.encode_name == part)
        field = next(f for f in msgspec.structs.fields(section) if f.encode_name == one.path[-1])
        return msgspec.defstruct("Leaf", [(field.name, field.type)], rename="camel")

    # ---- all of it ---------------------------------------------------------------------------------------------------

    def load(self, argv: Sequence[str], environ: Mapping[str, str]) -> S:
        """Return the settings that file, variables and flags make; raises UsageError."""
        flags = self.flags(argv)
        named = flags.pop("config", None) or environ.get(f"{self.prefix}CONFIG")
        path = Path(named or self.file)
        document = self.read_file(path, must_exist=named is not None)
        self.check_keys(document, str(path))
        self.convert(document, str(path))  # so that what is wrong in the file is said of the file
        self.put_texts(document, self.variables(environ), flags)
        return self.convert(document, str(path))

    def convert(self, document: Mapping[str, Any], source: str) -> S:
        """Return the settings that a document makes; raises UsageError."""
        try:
            return msgspec.convert(document, self.settings)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$.")
            name = where.rstrip("`")
            known = {one.name: one for one in self.keys()}.get(name.partition("[")[0])
            limit = (_accepted(known) if known else "") or what
            raise UsageError(f"{source}, key '{name}'", "not taken", limit, self.step) from error

    def compare(self, current: S, wanted: S) -> Reloaded[S]:
        """Return what of the wanted settings is in force without a restart, and what waits for one."""
        after, in_force = msgspec.to_builtins(wanted), msgspec.to_builtins(current)
        live: list[Change] = []
        later: list[Change] = []
        for one in self.keys():
            change = Change(one.name, _at(in_force, one.path), _at(after, one.path))
            if change.before == change.after:
                continue
            (live if one.live else later).append(change)
            if one.live:
                put(in_force, one.path, change.after)
        return Reloaded(msgspec.convert(in_force, self.settings), tuple(live), tuple(later))


def _accepted(one: Key) -> str:
    return f"accepted: {', '.join(one.words)}" if one.words else ""


def put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set one leaf of a document."""
    for part in path[:-1]:
        document = document.setdefault(part, {})
    document[path[-1]] = value


def _keys(section: type[msgspec.Struct], path: tuple[str, ...], prefix: str) -> Iterator[Key]:
    for field in _fields(section):
        kind, here = field.type, (*path, field.encode_name)
        if isinstance(kind, msgspec.inspect.StructType):
            yield from _keys(kind.cls, here, prefix)
        elif isinstance(kind, msgspec.inspect.Metadata):
            described, extra = kind.extra_json_schema or {}, kind.extra or {}
            yield Key(here, kind.type, field.default, described["description"], extra["live"], prefix)
        else:
            raise TypeError(f"{'.'.join(here)} has no description")


def _fields(section: type[msgspec.Struct]) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(section)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(section)
    return info.fields


def _without_nothing(value: Any) -> Any:
    """Leave out keys without a value: a section in which all is commented out says nothing."""
    if isinstance(value, dict):
        return {name: _without_nothing(below) for name, below in value.items() if below is not None}
    return value


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        document = document[part]
    return document
