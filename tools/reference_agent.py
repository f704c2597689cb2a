"""The page of the node agent's settings, from the structures that hold them. Called by reference.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugin"))

from partage.kube import Rate
from partage_plugin import condition_writer
from partage_plugin.configure import NODE_NAME, NODES, keys
from partage_plugin.settings import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage_plugin.configure import Key


_ABOUT: Final = """
`partage-plugin` reads `/etc/partage/config.yaml` (`--config FILE`), then variables, then flags, each over the one
before. Every key has a flag, and a variable: `PARTAGE_AGENT_` and the flag's name in capitals with underscores. Lists
are written with commas there. An unknown key or flag is an error that names the nearest known one. SIGHUP reads all of
it again: keys marked *live* are in force at once, for the others the log says that they wait for the next start; a file
that cannot be used changes nothing.
""".strip()
_OTHER_VARIABLES: Final = f"""
`{NODE_NAME}` names the node where nothing else does. `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS` (XID
numbers, `xids`, `all`) are followed as NVIDIA's device plugin follows them, where the file says nothing of XIDs.
""".strip()
_WRITES: Final = f"""
However many pods come together, an agent sets conditions of at most {condition_writer.AT_ONCE} of them at once and of
{condition_writer.PER_S:g} a second after that, and writes at most {Rate().burst} events at once and {Rate().per_s:g} a
second after that; a condition that stands already is not written. What fails is tried again with growing waits.
""".strip()


def _default(key: Key) -> str:
    if key.default == "":
        return ""
    return f"`{msgspec.json.encode(key.default).decode()}`"


def _row(key: Key) -> str:
    flag = f"`{key.flag}`" if key.has_flag else ""
    text = key.told.replace("|", "\\|")
    return f"| `{key.name}` | {flag} | {_default(key)} | {text}{' Live.' if key.live else ''} |"


def table(keys_of: Iterable[Key]) -> str:
    """Return the table of a program's keys."""
    return "\n".join(["| key | flag | default | meaning |", "|---|---|---|---|", *map(_row, keys_of)])


def page(note: str) -> str:
    """Return the page."""
    parts = [
        "# The node agent's settings",
        note,
        _ABOUT,
        f"""```yaml
apiVersion: {API_VERSION}
kind: {KIND}
nvidia:
  seats: 10
  waterLine: {{buffer: 10%, overhead: 1500Mi}}
  waterLineByType:
    - {{type: H100, buffer: 5%}}
{NODES}:
  - name: a100-*       # what differs on nodes whose name fits, later entries over earlier ones
    nvidia: {{seats: 4}}
```""",
        table(keys()),
        _OTHER_VARIABLES,
        _WRITES,
    ]
    return "\n\n".join(parts) + "\n"
