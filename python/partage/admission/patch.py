"""A JSON patch in the making: the fewest operations that change a pod as wanted, and none where it is so already.

Knows which maps and lists the pod lacks, so that they are made once and before what goes into them. Cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Patch:
    """Operations in the order in which they are to be done."""

    def __init__(self) -> None:
        self.operations: list[dict[str, object]] = []
        self._made: set[str] = set()

    def put(self, path: str, value: object) -> None:
        """Set a field, whether it is there or not."""
        self.operations.append({"op": "add", "path": path, "value": value})

    def replace(self, path: str, value: object) -> None:
        """Set an element of a list that is there; `put` would lay the new one before it."""
        self.operations.append({"op": "replace", "path": path, "value": value})

    def remove(self, path: str) -> None:
        """Remove a field that is there."""
        self.operations.append({"op": "remove", "path": path})

    def put_into(self, path: str, there: Mapping[str, object] | None, key: str, value: object) -> None:
        """Set a key of the map at `path`, which is `there` now or not at all."""
        if there is None and path not in self._made:
            self._made.add(path)
            self.put(path, {key: value})
        elif there is None or there.get(key) != value:
            self.put(f"{path}/{pointer(key)}", value)

    def append(self, path: str, there: object | None, value: object) -> None:
        """Add to the end of the list at `path`, which is `there` now or not at all."""
        if there is None and path not in self._made:
            self._made.add(path)
            self.put(path, [value])
        else:
            self.put(f"{path}/-", value)


def pointer(key: str) -> str:
    """Return a key as it stands in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
