"""Option types: the parsers of `model` behind click's interface, so that a bad value is a usage error (exit code 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from partage.model import ShareClass, UsageError, parse_cores, parse_memory, parse_priority

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Parsed(click.ParamType, Generic[T]):  # type: ignore[type-arg] # generic only since click 8.2
    """A value that one of our parsers understands."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value; a value that is parsed already is kept."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


MEMORY = Parsed("memory", parse_memory)
CORES = Parsed("cores", parse_cores)
PRIORITY = Parsed("priority", parse_priority)
CLASS = click.Choice([kind.value for kind in ShareClass])
