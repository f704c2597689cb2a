"""The pods that a file of manifests would make: its own, and those of workloads' templates, one for each replica.

Called by `partage simulate`. YAML with several documents, JSON, and `List` objects; objects that make no pods are
passed over, and so are those of which only their controller knows how many pods they make, which `unread` names. What
can go wrong: a file that is no such text, or without any pod (UsageError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from partage.model import UsageError
from partage.model.pod import PodView

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLICAS_MAX: Final = 1000
DEEP_MAX: Final = 12  # below an object: a RayCluster's template lies four deep
_COUNTS: Final = {
    "Deployment": "replicas",
    "StatefulSet": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
}
_FORM: Final = "YAML or JSON with pods, or workloads that make pods"


def pods_of(text: bytes, name: str, namespace: str) -> list[PodView]:
    """Return the pods, each with a name and a UID of its own; `namespace`: of those that name none."""
    documents = _documents(text, name)
    pods = [pod for document in documents for pod in _each(document, name)]
    if not pods:
        kinds = ", ".join(str(one.get("kind")) for one in documents if isinstance(one, dict)) or "nothing"
        raise UsageError(name, f"no pod in it, but {kinds}", _FORM, "name a file that makes pods")
    return [_viewed(pod, number, name, namespace) for number, pod in enumerate(pods)]


def unread(text: bytes, name: str) -> list[str]:
    """Return the objects that make pods of which nobody knows here how many; raises UsageError as `pods_of`."""
    found = []
    waiting = _documents(text, name)[::-1]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and isinstance(one.get("items"), list):
            waiting += one["items"][::-1]
        elif isinstance(one, dict) and one.get("kind") not in {"Pod", "CronJob", *_COUNTS} and _has_containers(one):
            found.append(f"{one.get('kind')} {_part(one, 'metadata').get('name') or '(without a name)'}")
    return found


def _documents(text: bytes, name: str) -> list[Any]:
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError) as error:
        raise UsageError(name, " ".join(str(error).split()), _FORM, "correct the file") from error


def _has_containers(value: object, deep: int = 0) -> bool:
    """Whether a pod's template is somewhere in an object."""
    if isinstance(value, list):
        return any(_has_containers(one, deep + 1) for one in value) if deep < DEEP_MAX else False
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("containers"), list):
        return True
    return deep < DEEP_MAX and any(_has_containers(one, deep + 1) for one in value.values())


def _each(document: object, name: str) -> Iterator[dict[str, Any]]:
    """Yield the pods of one document as they stand there."""
    if not isinstance(document, dict):
        raise UsageError(name, f"a document that is a {type(document).__name__}", _FORM, "correct the file")
    kind = document.get("kind")
    if isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _each(item, name)
    elif kind == "Pod":
        yield document
    elif kind == "CronJob":
        yield from _each({"kind": "Job", **_part(_part(document, "spec"), "jobTemplate"), **_names(document)}, name)
    elif kind in _COUNTS:
        spec = _part(document, "spec")
        count = spec.get(_COUNTS[kind], 1)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= REPLICAS_MAX:
            step = "write fewer: where the first fit, the others are told apart by cards alone"
            raise UsageError(f"{name}, {kind}", f"{_COUNTS[kind]} {count}", f"0 to {REPLICAS_MAX}", step)
        template = _part(spec, "template")
        for number in range(count):
            meta = {**_part(template, "metadata"), **_numbered(document, number)}
            yield {"kind": "Pod", "metadata": meta, "spec": _part(template, "spec")}


def _part(of: dict[str, Any], key: str) -> dict[str, Any]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def _names(document: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": _part(document, "metadata")}


def _numbered(document: dict[str, Any], number: int) -> dict[str, Any]:
    meta = _part(document, "metadata")
    found = {"name": f"{meta.get('name') or 'pod'}-{number}"}
    return found | ({"namespace": meta["namespace"]} if meta.get("namespace") else {})


def _viewed(pod: dict[str, Any], number: int, name: str, namespace: str) -> PodView:
    meta = _part(pod, "metadata")
    own = {
        "name": meta.get("name") or meta.get("generateName") or f"pod-{number}",
        "namespace": meta.get("namespace") or namespace,
        "uid": f"simulated-{number}",
        "creationTimestamp": "~",  # after all pods that are there
    }
    try:
        return msgspec.convert({"metadata": {**meta, **own}, "spec": pod.get("spec") or {}}, PodView)
    except msgspec.ValidationError as error:
        step = "see `kubectl explain pod.spec`"
        raise UsageError(f"{name}, pod {own['name']}", str(error), "a pod as the API has it", step) from error
