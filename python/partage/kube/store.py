"""The objects that an informer knows, by UID and by name, and what a list or an event changes in them.

Pure bookkeeping without time or network. A name is used again and a UID never, so the UID is the key; of two objects
with one name the later one ends the earlier. An event that is no newer than what is known says nothing (streams are
joined again with overlaps), nor does one about an object as it was before it went: it may come back where it only left
a selection. A list is the API server's word on everything, so what stands there is believed whatever was known: after
a restore of its database versions are older, and what was gone is there again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GONE_MAX: Final = 4096  # of the last ones that went, to know a late event by

ChangeKind = Literal["added", "modified", "deleted", "resync"]


class Meta(Protocol):
    """What every object says of itself; lightkube's ObjectMeta, or a structure of a reader's own with less in it."""

    @property
    def uid(self) -> str | None:
        """Never used again."""

    @property
    def namespace(self) -> str | None:
        """Where it is; None for kinds without."""

    @property
    def name(self) -> str | None:
        """Used again once it is gone."""

    @property
    def resourceVersion(self) -> str | None:  # noqa: N802 -- the API's word, as lightkube has it
        """Which version of it this is."""


class HasMeta(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> Meta | None:
        """What it says of itself."""


T = TypeVar("T", bound=HasMeta)


@dataclass(frozen=True, slots=True)
class Key:
    """What an object is known by; `namespace` is empty where it has none."""

    uid: str
    namespace: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What became of an object; `old` is None for one that is new, `object` of a deleted one is how it was last."""

    kind: ChangeKind
    key: Key
    object: T
    old: T | None = None


def key_of(item: HasMeta) -> Key:
    """Return what an object is known by."""
    meta = item.metadata
    if meta is None:
        return Key("", "", "", "")
    return Key(meta.uid or "", meta.namespace or "", meta.name or "", meta.resourceVersion or "")


class Store(Generic[T]):
    """The objects as last heard of."""

    def __init__(self) -> None:
        self._items: dict[str, T] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()  # UID -> the version in which it went

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items.values()))

    def get(self, uid: str) -> T | None:
        """Return the object with this UID, or None."""
        return self._items.get(uid)

    def named(self, namespace: str, name: str) -> T | None:
        """Return the object that has this name now, or None."""
        return self._items.get(self._names.get((namespace, name), ""))

    def is_gone(self, uid: str) -> bool:
        """Whether this object was here and was deleted (of the last few thousand)."""
        return uid in self._gone

    def replace(self, items: Iterable[T]) -> list[Change[T]]:
        """Take a whole list; return what is other than before."""
        there = {key_of(item).uid: item for item in items}
        changes = [self._remove(uid) for uid in [uid for uid in self._items if uid not in there]]
        for item in there.values():
            key, old = key_of(item), self._items.get(key_of(item).uid)
            if old is None or key.version != key_of(old).version:
                changes += self._put(item, key, old)
        return changes

    def put(self, item: T) -> list[Change[T]]:
        """Take an object that was added or modified; return nothing where that is no news."""
        key = key_of(item)
        old = self._items.get(key.uid)
        known = self._gone.get(key.uid) if old is None else key_of(old).version
        return [] if known is not None and not _is_newer(key.version, known) else self._put(item, key, old)

    def _put(self, item: T, key: Key, old: T | None) -> list[Change[T]]:
        changes = list[Change[T]]()
        self._gone.pop(key.uid, None)
        before = self._names.get((key.namespace, key.name))
        if before is not None and before != key.uid:
            changes.append(self._remove(before))
        self._items[key.uid] = item
        self._names[key.namespace, key.name] = key.uid
        changes.append(Change("added" if old is None else "modified", key, item, old))
        return changes

    def remove(self, item: T) -> list[Change[T]]:
        """Take an object that was deleted; return nothing where it was not known, or is newer than that."""
        key = key_of(item)
        if key.uid not in self._items:
            self._bury(key.uid, key.version)
            return []
        if _is_newer(key_of(self._items[key.uid]).version, key.version):
            return []
        self._items[key.uid] = item
        return [self._remove(key.uid)]

    def _remove(self, uid: str) -> Change[T]:
        item = self._items.pop(uid)
        key = key_of(item)
        if self._names.get((key.namespace, key.name)) == uid:
            del self._names[key.namespace, key.name]
        self._bury(uid, key.version)
        return Change("deleted", key, item, item)

    def _bury(self, uid: str, version: str) -> None:
        self._gone[uid] = version
        self._gone.move_to_end(uid)
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)


def _is_newer(version: str, than: str) -> bool:
    """Versions of one object are whole numbers that grow; where they are not, only the same one is no news."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than
