"""The schema of the chart's values: what stands in values.yaml, of which kind, and nothing else.

Called by reference.py and chart.py. The programs' configurations are described by their own structures, so helm
refuses what they would refuse. What can go wrong: nothing; a structure that msgspec cannot describe is an error of
the code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugin"))

from partage.admission.settings import Settings as WebhookSettings
from partage.devices.ask_settings import AskSettings
from partage.scheduler.settings import Settings as SchedulerSettings
from partage_plugin.settings import Settings as AgentSettings

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string"}
YES_NO: Final[Schema] = {"type": "boolean"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
ANY: Final[Schema] = {"type": "object"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
LIST: Final[Schema] = {"type": "array", "items": ANY}
PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
TAG: Final[Schema] = {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"}
#: The cluster's own scheduler stays the cluster's: two would place the same pods.
OTHER_SCHEDULER: Final[Schema] = {
    "type": "string",
    "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    "not": {"enum": ["default-scheduler", "partage-scheduler"]},
}
NAMESPACED: Final[Schema] = {"type": "string", "pattern": "^([a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*)?$"}
PEM: Final[Schema] = {"type": "string", "pattern": "^(\\s*-----BEGIN CERTIFICATE-----[\\s\\S]*)?$"}
#: It stands between quotes in a policy's expression.
USER: Final[Schema] = {"type": "string", "pattern": "^[^'\\\\]+$"}
USERS: Final[Schema] = {"type": "array", "items": USER}
#: Rights and Service of the chart are of these names: the webhook would ask for what it may not have.
OWN_CERTIFICATES: Final = ("tls.namespace", "tls.secret", "tls.service", "tls.configurations")
#: What the chart says itself, by the program's structure.
_NOT_IN_VALUES: Final = ("apiVersion", "kind", "kubeconfig", "ask")
_SAID_BY_THE_PROGRAM: Final = ("title", "default", "extra", "live")


def only(**keys: Schema) -> Schema:
    """Return the schema of an object with these keys and no others."""
    return {"type": "object", "additionalProperties": False, "properties": keys}


RESOURCES: Final[Schema] = only(requests=ANY, limits=ANY, claims=LIST)


def _inlined(schema: Schema, found: dict[str, Schema], without: tuple[str, ...] = ()) -> Schema:
    """Return a structure's schema with those below it in place; several programs name theirs alike."""

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return put(found[value["$ref"].rpartition("/")[2]])
        return {key: put(below) for key, below in value.items() if key not in _SAID_BY_THE_PROGRAM}

    whole: Schema = put(schema)
    return whole | {"properties": {name: below for name, below in whole["properties"].items() if name not in without}}


def settings_of(structure: type[msgspec.Struct], *without: str) -> Schema:
    """Return the schema of a program's configuration as values hold it: without what the chart says itself.

    `without`: further such keys, `tls.secret` for one of a section's.
    """
    (reference,), found = msgspec.json.schema_components((structure,), ref_template="#/$defs/{name}")
    whole = _inlined(found[reference["$ref"].rpartition("/")[2]], found, (*_NOT_IN_VALUES, *without))
    for section, _, key in (name.partition(".") for name in without if "." in name):
        del whole["properties"][section]["properties"][key]
    return whole


def _agent() -> Schema:
    """Return the schema of the agents' configuration, with what differs on some nodes."""
    whole = settings_of(AgentSettings, "node", "driver")
    differing = only(name=TEXT, **whole["properties"])
    return only(**whole["properties"], nodes={"type": "array", "items": differing})


def _part(**more: Schema) -> Schema:
    """Return the schema of one part of the product that runs as pods."""
    return only(
        enabled=YES_NO,
        image=only(repository=TEXT, digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}),
        nodeSelector=LABELS,
        tolerations=LIST,
        affinity=ANY,
        priorityClassName=TEXT,
        resources=RESOURCES,
        podLabels=LABELS,
        podAnnotations=LABELS,
        env=LIST,
        hostNetwork=YES_NO,
        **more,
    )


def schema() -> Schema:
    """Return the whole schema."""
    classes = {name: {"type": "integer"} for name in ("p0-system", "p1-onlineserving", "p2-batchtraining")}
    values = only(
        image=only(registry=TEXT, tag=TAG, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        imagePullSecrets={"type": "array", "items": only(name=TEXT)},
        labels=LABELS,
        namespace=only(create=YES_NO),
        agent=_part(
            config=_agent(),
            runtimeClassName=TEXT,
            privileged=YES_NO,
            maxSurge={"type": ["integer", "string"]},
            simulated=only(profile=TEXT, directory=TEXT),
        ),
        scheduler=_part(
            config=settings_of(SchedulerSettings, "schedulers", "election.lease", "election.metrics"),
            replicas=WHOLE,
            alsoKnownAs={"type": "array", "uniqueItems": True, "items": OTHER_SCHEDULER},
            kubeScheduler=only(image=only(repository=TEXT, tag=TAG), port=PORT, resources=RESOURCES),
        ),
        webhook=_part(
            config=settings_of(WebhookSettings, "writers", "alsoKnownAs", *OWN_CERTIFICATES),
            replicas=WHOLE,
            timeoutSeconds={"type": "integer", "minimum": 1, "maximum": 30},
            namespaces=LIST,
            certificates=only(secret=TEXT, injectCaFrom=NAMESPACED, caBundle=PEM),
            service=only(port=PORT, externalName=TEXT),
        ),
        ask=settings_of(AskSettings),
        networkPolicies=only(enabled=YES_NO),
        metrics=only(podMonitors=YES_NO, rules=YES_NO, dashboards=YES_NO, labels=LABELS),
        policies=only(enabled=YES_NO, writers=USERS, statusWriters=USERS),
        priorityClasses=only(create=YES_NO, **classes),
    )
    values["properties"]["global"] = ANY  # helm puts it there for charts below another
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **values}


def schema_text() -> str:
    """Return it as the file beside values.yaml."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
