"""Builders of pods: a test writes what matters to it, the rest is filled in here.

`container("app", BOX, limits={"nvidia.com/gpu": "1"})`, `pod("name", container(...), init=[...])`. The result is the
plain object, so a test may change whatever it likes before it creates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster import images

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.cluster.api import Json


def container(
    name: str = "app",
    image: str = images.BOX,
    command: Sequence[str] | None = None,
    *,
    args: Sequence[str] | None = None,
    limits: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    sidecar: bool = False,
    mounts: Sequence[Json] = (),
) -> Json:
    """Return a container; `sidecar` makes it a restartable init container."""
    made: Json = {"name": name, "image": image, "imagePullPolicy": "Never", "volumeMounts": list(mounts)}
    if command is not None:
        made["command"] = list(command)
    if args is not None:
        made["args"] = list(args)
    if limits:
        made["resources"] = {"limits": dict(limits)}
    if env:
        made["env"] = [{"name": key, "value": value} for key, value in env.items()]
    if user is not None:
        made["securityContext"] = {"runAsUser": user, "runAsNonRoot": user != 0}
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    scheduler: str | None = None,
    host_paths: Sequence[Path] = (),
    restart: str = "Always",
    grace: int = 1,
    **spec: Any,
) -> Json:
    """Return a pod.

    `scheduler` other than None keeps Kubernetes' own from placing it, so a test binds it (`Namespace.bind`).
    `host_paths` are mounted read-only at their own paths into every container. The default `restart` is Kubernetes'
    own, `grace` is in seconds and short. Without containers it has one that sleeps.
    """
    own = list(containers) or [container()]
    used = {path for made in [*own, *init] if made["image"] in CLIENTS for path in images.client_mounts()}
    volumes, mounts = [], []
    for number, path in enumerate(sorted({*host_paths, *used})):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        mounts.append({"name": f"host-{number}", "mountPath": str(path), "readOnly": True})
    for made in [*own, *init]:
        made["volumeMounts"] = [*made["volumeMounts"], *mounts]
    whole: Json = {
        "containers": own,
        "initContainers": list(init),
        "volumes": [*volumes, *spec.pop("volumes", [])],
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": grace,
        **spec,
    }
    if scheduler:
        whole["schedulerName"] = scheduler
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


CLIENTS = (images.CLIENT, images.CLIENT_USER)
