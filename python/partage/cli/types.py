"""Option types: the parsers of `model` behind click's interface. Their UsageError reaches the user as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partage.model import ShareClass, parse_cores, parse_memory, parse_priority, parse_weight

if TYPE_CHECKING:
    from collections.abc import Callable


class Parsed(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.2
    """A value that one of our parsers understands; `name` stands for it in the help."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ARG002
        """Return the parsed value; raises UsageError."""
        return self._parse(value)


MEMORY = Parsed("memory", parse_memory)
CORES = Parsed("cores", parse_cores)
PRIORITY = Parsed("priority", parse_priority)
WEIGHT = Parsed("weight", parse_weight)
CLASSES = click.Choice([kind.value for kind in ShareClass])
