"""Imports in which a module is not to be found: libraries do with less where an optional one is not installed.

Used where the agent starts (`main`) and where its pages do (`program`): what a library would load for a use that the
agent never makes of it costs every node memory and every start time. The module itself stays as it was for all others.
Only for a library that says it can do without. What can go wrong: one that cannot raises ImportError.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let `import name` fail inside, in this thread and all others; what holds the module already keeps it."""
    there = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]  # so Python says that it cannot be imported
    try:
        yield
    finally:
        if there is None:
            del sys.modules[name]
        else:
            sys.modules[name] = there
