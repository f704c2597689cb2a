"""The agent's settings: the shared mechanism (`partage.configuration`), and what only an agent has.

That is `nodes:` in the file, which holds, for node names that match a pattern, what differs there; the node's name from
`NODE_NAME`; and the variables of NVIDIA's plugin that are followed. Called by the agent's start and at SIGHUP. What can
go wrong: UsageError, as the mechanism says.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from partage.configuration import Change, Key, Layout, Reloaded, put
from partage.model import UsageError, names
from partage.model.units import whole_number
from partage_plugin.nvidia_options import nvidia_options
from partage_plugin.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LAYOUT", "NODES", "NODE_NAME", "Change", "Key", "Reloaded", "keys", "load", "reload"]

NODES: Final = "nodes"
NODE_NAME: Final = "NODE_NAME"
LAYOUT: Final = Layout(
    settings=Settings,
    program="partage-plugin",
    about="The node agent of Partage.",
    prefix="PARTAGE_AGENT_",
    file=names.CONFIG_FILE,
    page="docs/reference/agent.md",
)
_XIDS_OFF: Final = "DP_DISABLE_HEALTHCHECKS"  # NVIDIA's plugin's
_XIDS_ON: Final = "DP_ENABLE_HEALTHCHECKS"


def keys() -> Iterator[Key]:
    """Yield every key, in the order in which they stand in the file."""
    return LAYOUT.keys()


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that file, variables and flags make; raises UsageError."""
    flags = LAYOUT.flags(argv)
    named = flags.pop("config", None) or environ.get(f"{LAYOUT.prefix}CONFIG")
    path = Path(named or LAYOUT.file)
    document = LAYOUT.read_file(path, must_exist=named is not None)
    variables = LAYOUT.variables(environ)
    node = flags.get("node") or variables.get("node") or document.get("node") or environ.get(NODE_NAME, "")
    LAYOUT.check_keys({key: value for key, value in document.items() if key != NODES}, str(path))
    document = _for_node(document, str(node), str(path))
    put(document, ("node",), node)
    LAYOUT.convert(document, str(path))
    _nvidias_variables(document, environ)
    LAYOUT.put_texts(document, variables, flags)
    settings = LAYOUT.convert(document, str(path))
    nvidia_options(settings)
    return settings


def reload(current: Settings, argv: Sequence[str], environ: Mapping[str, str]) -> Reloaded[Settings]:
    """Return what file, variables and flags make now, beside `current`; raises UsageError, and `current` holds on."""
    return LAYOUT.compare(current, load(argv, environ))


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
        limit = "entries with a name and keys"
        raise UsageError(f"{source}, key '{NODES}'", "not a list of mappings", limit, LAYOUT.step)
    for number, entry in enumerate(differing):
        what = dict(entry)
        pattern = what.pop("name", None)
        where = f"{source}, {NODES}[{number}]"
        if not isinstance(pattern, str):
            raise UsageError(where, "has no name", "a node's name, or a pattern with * and ?", LAYOUT.step)
        LAYOUT.check_keys(what, where)
        if fnmatch.fnmatchcase(node, pattern):
            document = _merge(document, what)
    return document


def _nvidias_variables(document: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Take over the variables by which NVIDIA's plugin chooses XIDs, where the file says nothing of them."""
    off, on = environ.get(_XIDS_OFF, "").lower(), environ.get(_XIDS_ON, "").lower()
    health = document.get("nvidia", {}).get("health", {}) if isinstance(document.get("nvidia"), dict) else {}
    if not (off or on) or not isinstance(health, dict) or "ignoredXids" in health or "watchXids" in health:
        return
    words = {part.strip() for part in off.split(",")} - {""}
    default = next(key.default for key in keys() if key.name == "nvidia.health.ignoredXids")
    ignored = set(default) | _numbers(words)
    wanted = {part.strip() for part in on.split(",")} - {""}
    ignored -= _numbers(wanted)
    put(document, ("nvidia", "health", "ignoredXids"), [] if wanted & {"all", "xids"} else sorted(ignored))
    if words & {"all", "xids"} and not wanted:
        put(document, ("nvidia", "health", "watchXids"), value=False)


def _numbers(words: set[str]) -> set[int]:
    return {number for word in words if (number := whole_number(word)) is not None}
