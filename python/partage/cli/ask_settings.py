"""How the cluster reads pods: what its administrator decided about asks, for commands that judge as the scheduler does.

Called when a cluster is read. The scheduler's own file is taken as the manifests and the chart ship it, a ConfigMap
beside it; a file that the user names goes before that. Of the ConfigMap only what judging needs is read, so that a
cluster of another version is understood. What can go wrong: a key without meaning is a UsageError that names it; a
ConfigMap that is not there or may not be read means the defaults, and the command says so. Flags and variables of the
scheduler's container are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from lightkube.resources.core_v1 import ConfigMap

from partage.model import KubeError, UsageError, names
from partage.scheduler.plan import Defaults
from partage.scheduler.settings import LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

    from partage.devices.requests import AskOptions
    from partage.kube import Client
    from partage.scheduler.settings import Settings

FILE: Final = "scheduler.yaml"
READ: Final = ("ask", "schedulers", "placement")
SOURCE: Final = f"configmap {names.NAMESPACE}/{names.SCHEDULER}"


@dataclass(frozen=True, slots=True)
class AskSource:
    """What was found. `note`: why it is the defaults, empty where it is not; `schedulers`: names that pods may use.

    `defaults`: where pods go that do not say themselves.
    """

    options: AskOptions
    note: str = ""
    schedulers: frozenset[str] = frozenset({names.SCHEDULER})
    defaults: Defaults = field(default_factory=Defaults)


async def read_options(client: Client, config: Path | None) -> AskSource:
    """Return how pods are read: by the file, else by the cluster's ConfigMap, else the defaults."""
    if config is not None:
        document = LAYOUT.read_file(config, must_exist=True)
        LAYOUT.check_keys(document, str(config))
        return _source(LAYOUT.convert(document, str(config)))
    try:
        found = await client.get(ConfigMap, names.SCHEDULER, namespace=names.NAMESPACE)
    except KubeError as error:
        return _defaults(str(error))
    text = (found.data or {}).get(FILE)
    return _defaults(f"{SOURCE} has no {FILE}") if text is None else _of_text(text)


def _of_text(text: str) -> AskSource:
    try:
        document: Any = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{SOURCE}, {FILE}", f"cannot be read ({error})", "a YAML mapping", LAYOUT.step) from error
    known = document if isinstance(document, dict) else {}
    section = {name: known[name] for name in READ if known.get(name) is not None}
    LAYOUT.check_keys(section, SOURCE)
    return _source(LAYOUT.convert(section, SOURCE))


def _source(settings: Settings) -> AskSource:
    return AskSource(
        settings.ask.options(), schedulers=frozenset(settings.schedulers), defaults=settings.placement.defaults()
    )


def _defaults(why: str) -> AskSource:
    note = f"pods are read by the defaults, which may not be this cluster's: {why}; --config names the scheduler's file"
    return AskSource(LAYOUT.settings().ask.options(), note)
