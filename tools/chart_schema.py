"""The schema of the chart's values: what stands in values.yaml, of which kind, and nothing else. Called by chart.py.

The agent's configuration is described by the agent's own structures, so helm refuses what the agent would refuse. What
can go wrong: nothing; a structure that msgspec cannot describe is an error of the code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugin"))

from partage_plugin.settings import Settings

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string"}
YES_NO: Final[Schema] = {"type": "boolean"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
ANY: Final[Schema] = {"type": "object"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
LIST: Final[Schema] = {"type": "array", "items": ANY}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
#: What the chart says itself, and what each agent knows of its node.
_NOT_IN_VALUES: Final = ("apiVersion", "kind", "node", "kubeconfig", "driver")


def only(**keys: Schema) -> Schema:
    """Return the schema of an object with these keys and no others."""
    return {"type": "object", "additionalProperties": False, "properties": keys}


def _settings() -> dict[str, Schema]:
    """Return the schemas of the agent's settings, by the structures' names."""
    _, found = msgspec.json.schema_components((Settings,), ref_template="#/$defs/{name}")
    made = {name: _plain(schema) for name, schema in found.items()}
    whole = made.pop("Settings")
    keys = {name: schema for name, schema in whole["properties"].items() if name not in _NOT_IN_VALUES}
    made["NodeSettings"] = only(name=TEXT, **keys)
    made["AgentConfiguration"] = only(**keys, nodes={"type": "array", "items": {"$ref": "#/$defs/NodeSettings"}})
    return made


def _plain(schema: Any) -> Any:
    """Leave out titles, and defaults that the agent has anyway."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key not in ("title", "default", "extra")}
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema


def _part(**more: Schema) -> Schema:
    """Return the schema of one part of the product that runs as pods."""
    return only(
        enabled=YES_NO,
        image=only(repository=TEXT, digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}),
        nodeSelector=LABELS,
        tolerations=LIST,
        affinity=ANY,
        priorityClassName=TEXT,
        resources=only(requests=ANY, limits=ANY, claims=LIST),
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
        image=only(registry=TEXT, tag=TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        imagePullSecrets={"type": "array", "items": only(name=TEXT)},
        labels=LABELS,
        namespace=only(create=YES_NO),
        agent=_part(
            config={"$ref": "#/$defs/AgentConfiguration"},
            runtimeClassName=TEXT,
            maxSurge={"type": ["integer", "string"]},
            simulated=only(profile=TEXT, directory=TEXT),
        ),
        policies=only(enabled=YES_NO, writers=TEXTS),
        priorityClasses=only(create=YES_NO, **classes),
    )
    values["properties"]["global"] = ANY  # helm puts it there for charts below another
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **values, "$defs": _settings()}
