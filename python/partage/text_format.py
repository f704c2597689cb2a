"""Prometheus' text format, version 0.0.4: families of series, written down as fast as text can be joined.

Called by the agent's pages, which pay for what they load, and by `exposition.py`, which writes down the families of a
metrics library. A series is its labels as text, made once for a container and used in all its families, and a number;
None has no series, and a family without any is left out whole. Cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Number = float | int | bool | None

_WHOLE: Final = 1e17  # floats beyond it are no whole numbers that anybody counted
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as they stand behind a name; empty where there are none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items()) + "}"


def and_labels(text: str, more: Mapping[str, str]) -> str:
    """Return the text of labels with more of them behind; `text` is not empty."""
    return f"{text[:-1]},{labels_text(more)[1:]}"


def family(name: str, kind: str, text: str, series: Iterable[tuple[str, Number]]) -> str:
    """Return one family; `series`: labels' text and value."""
    lines = [f"{name}{labels} {number(value)}\n" for labels, value in series if value is not None]
    if not lines:
        return ""
    return f"# HELP {name} {text.translate(HELP_ESCAPES)}\n# TYPE {name} {kind}\n" + "".join(lines)


def number(value: float) -> str:
    """Return a value as it is written down: whole ones without a fraction."""
    if isinstance(value, int):
        return str(int(value))  # True is 1
    return str(int(value)) if value.is_integer() and abs(value) < _WHOLE else repr(value)
