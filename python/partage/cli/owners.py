"""Whose a hand-over is: pod and container, asked of the node's agent, for `partage top --node`.

Hand-over names are random, so that they are never used twice; the agent knows whose each is. What can go wrong: no
agent answers; that is a note beside the table, which then shows the bare names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import msgspec

from partage.model.names import PORT_METRICS

if TYPE_CHECKING:
    from partage.cli.look import View

AGENT: Final = f"http://127.0.0.1:{PORT_METRICS}"
ANSWER_S: Final = 3.0
ANSWER_BYTES: Final = 4 << 20


class _Owner(msgspec.Struct, frozen=True):
    """As the agent's page /hand-overs says it."""

    namespace: str
    pod: str
    container: str


def owners_of(agent: str = AGENT) -> tuple[dict[str, str], str]:
    """Return hand-over name -> `namespace/pod/container`, and a note that says why it is empty, or ""."""
    page = f"{agent if '://' in agent else f'http://{agent}'}".rstrip("/") + "/hand-overs"
    try:
        with build_opener(ProxyHandler({})).open(page, timeout=ANSWER_S) as answer:  # the node's own: by no proxy
            found = msgspec.json.decode(answer.read(ANSWER_BYTES), type=dict[str, _Owner])
    except (OSError, ValueError) as error:  # msgspec's are ValueErrors
        said = error.reason if isinstance(error, URLError) else error  # without the library's name around it
        step = "see whether the agent runs on this node, or name where it answers with --agent"
        return {}, f"{page}: {said}; shares are shown by hand-over name; {step}"
    return {name: f"{of.namespace}/{of.pod}/{of.container}" for name, of in found.items()}, ""


def with_owners(view: View, agent: str = AGENT) -> View:
    """Return a look whose rows say whose they are."""
    owners, note = owners_of(agent)
    shares = tuple(replace(row, owner=owners.get(row.name, "")) for row in view.shares)
    return replace(view, shares=shares, notes=(*view.notes, note) if note else view.notes)
