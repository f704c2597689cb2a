"""Questions as an API server puts them, and its way of applying a patch."""

from __future__ import annotations

import copy
import json
from typing import Any

from partage.admission.decide import decide
from partage.admission.options import AdmissionOptions
from partage.admission.review import Answer, decode_review

Json = dict[str, Any]
TENANT = "system:serviceaccount:team:builder"


def pod_of(*containers: Json, init: tuple[Json, ...] = (), meta: Json | None = None, **spec: Any) -> Json:
    """Return a pod with the defaults that the API server has filled in when it asks."""
    metadata = {"name": "p", "namespace": "team", "creationTimestamp": None, **(meta or {})}
    spec = {"schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority", **spec}
    spec["containers"] = list(containers)
    if init:
        spec["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def container(name: str = "app", limits: Json | None = None, **fields: Any) -> Json:
    """Return a container; requests are set from limits, as the API server does."""
    made: Json = {"name": name, "image": "none", "resources": {}, **fields}
    if limits:
        amounts = {key: str(value) for key, value in limits.items()}
        made["resources"] = {"limits": amounts, "requests": dict(amounts)}
    return made


def review_of(pod: Any, *, user: str = TENANT, operation: str = "CREATE", **fields: Any) -> bytes:
    """Return the body of a question about a pod."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "operation": operation,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        **fields,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def ask(pod: Json, options: AdmissionOptions | None = None, *, changes: bool = True, **fields: Any) -> Answer:
    """Return the answer to the question about this pod."""
    return decide(decode_review(review_of(pod, **fields)), options or AdmissionOptions(), changes=changes)


def admitted(pod: Json, options: AdmissionOptions | None = None, **fields: Any) -> Json:
    """Return the pod as it comes out; asked about once more, it comes out as it is."""
    answer = ask(pod, options, **fields)
    assert answer.allowed, answer.message
    after = apply(pod, answer.patch)
    assert ask(after, options, **fields).patch == (), "a second time changes nothing"
    return after


def apply(document: Json, patch: tuple[dict[str, object], ...]) -> Json:
    """Return the document changed by a JSON patch, strictly as RFC 6902 has it."""
    after = copy.deepcopy(document)
    for operation in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in str(operation["path"]).split("/")[1:]]
        target: Any = after
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        kind, value = operation["op"], copy.deepcopy(operation.get("value"))
        if isinstance(target, list):
            index = len(target) if last == "-" else int(last)
            assert index <= len(target)
            if kind == "add":
                target.insert(index, value)
            else:
                target[index] = value
        elif kind == "remove":
            del target[last]
        else:
            assert kind == "add" or last in target
            target[last] = value
    return after
