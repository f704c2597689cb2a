"""What makes a pod inadmissible, and what its author should hear of though it is admitted.

Each refusal names field, value, what is accepted and what to do. Called by `decide`; pure.
"""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Final

from partage.model import Problem, names
from partage.model.errors import cut
from partage.model.guarded import guarded
from partage.model.names import GRANT
from partage.model.pod import DEFAULT_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.admission.options import AdmissionOptions
    from partage.model.pod import ContainerView, PodView

MIRROR: Final = "kubernetes.io/config.mirror"  # what kubelet shows of a pod that it has from a file
NAMED_MAX: Final = 8  # annotations of one answer: a pod may have a hundred thousand, and others wait meanwhile
STEP: Final = "drop it, or run what needs it in a pod without shares"
_UNCONFINED: Final = frozenset({"ALL", "SYS_ADMIN"})
#: Annotations of ours that a pod may have; the grant is another matter.
KNOWN: Final = frozenset(
    {
        names.CLASS,
        names.WEIGHT,
        names.CEILING,
        names.NVLINK,
        names.RESIZE,
        names.ASKED,
        names.USE_INDEX,
        names.NO_USE_INDEX,
        names.GANG,
        names.GANG_SIZE,
        names.GANG_MIN,
        names.GANG_SUBGROUP,
        names.GRANT,
    }
)


def is_guarded(annotation: str) -> bool:
    """Whether an annotation is a grant, or another system's twin of one: who writes it gives itself cards."""
    return annotation == GRANT or (annotation.startswith("hami.io/") and annotation.endswith("-allocated"))


def forged(pod: PodView, user: str, options: AdmissionOptions) -> Iterator[Problem]:
    """Yield the grants that somebody else than the scheduler wrote."""
    if user in options.writers:
        return
    for annotation in islice(filter(is_guarded, pod.annotations), NAMED_MAX):
        accepted = f"only {', '.join(sorted(options.writers))} writes grants"
        step = "leave the annotation out (of the pod template too) and let the scheduler place the pod"
        yield Problem(f"annotation {annotation}", f"written by {user or 'nobody known'}", accepted, step)


def escaping(pod: PodView, options: AdmissionOptions) -> Iterator[Problem]:
    """Yield what lets a pod with shares out of them: a mount over what holds the limit, and more where confined.

    That is the host's pids, by which root reaches into others' containers, and SYS_ADMIN, which can mount over what
    holds the limit. What no administrator can allow, a privileged container, is refused by whoever reads the pod.
    """
    for container, _, _ in pod.each():
        yield from covering(container)
    if not options.confined:
        return
    if pod.spec.host_pid:
        yield Problem("spec.hostPID", "true", "a pod with shares sees its own processes only", STEP)
    for container, _, _ in pod.each():
        yield from unconfined(container, f"container {container.name}", options)


def covering(container: ContainerView) -> Iterator[Problem]:
    """Yield the volumes of a container that would lie over what holds its limits."""
    for mount in container.volume_mounts or ():
        place = guarded(mount.mount_path)
        if place is not None:
            field = f"container {container.name}, volumeMounts"
            accepted = f"{place} is the library's"
            yield Problem(field, f"mountPath {cut(mount.mount_path)}", accepted, "mount it elsewhere")


def unconfined(container: ContainerView, where: str, options: AdmissionOptions) -> Iterator[Problem]:
    """Yield the capabilities by which a container gets out of the pod's shares, where pods are to be confined."""
    security = container.security_context
    if not options.confined or security is None or security.capabilities is None:
        return
    added = {name.upper().removeprefix("CAP_") for name in security.capabilities.add or ()}
    for name in sorted(added & _UNCONFINED):
        accepted = "a pod with shares cannot mount over what holds its limits"
        yield Problem(where, f"capability {name}", accepted, STEP)


def left_alone(pod: PodView, options: AdmissionOptions) -> str:
    """Return why a pod that asks for shares is left as it is, nothing where it is not.

    A label opts out of us, scheduler included: one that names ours gets its grant on the terms of all others.
    """
    named = {options.scheduler, *options.also_known_as}
    if (pod.metadata.labels or {}).get(names.HAMI_IGNORE) == "ignore" and pod.scheduler not in named:
        return (
            f"{pod.subject} is labelled {names.HAMI_IGNORE}=ignore: it gets no grant, and its containers do not start"
        )
    if pod.scheduler in named or (options.take_over_default and pod.scheduler == DEFAULT_SCHEDULER):
        return ""
    return (
        f"{pod.subject} asks for shares, but schedulerName is {pod.scheduler}: left alone; only {options.scheduler} "
        "gives shares, without its grant the containers do not start; leave schedulerName out"
    )


def is_mirror(pod: PodView) -> bool:
    """Whether it only shows what kubelet runs from a file already, which no answer changes: refused, nobody sees it.

    One that is no static pod's is deleted by kubelet; none gets a grant, for none is placed.
    """
    return bool(pod.spec.node_name) and MIRROR in pod.annotations


def already_placed(pod: PodView) -> Iterator[Problem]:
    """Yield that somebody chose the node: then nobody chooses the cards."""
    if pod.spec.node_name:
        accepted = "a pod with shares is placed by the scheduler"
        step = "leave nodeName out; use a nodeSelector with kubernetes.io/hostname"
        yield Problem("spec.nodeName", f"'{pod.spec.node_name}'", accepted, step)


def warnings_of(pod: PodView) -> Iterator[str]:
    """Yield what the pod's author probably did not mean."""
    unknown = sorted(each for each in pod.annotations if each.startswith(names.PREFIX) and each not in KNOWN)
    for annotation in unknown[:NAMED_MAX]:
        near = difflib.get_close_matches(annotation, KNOWN - {GRANT}, 1)
        known = f"the nearest is {near[0]}" if near else f"known: {', '.join(sorted(KNOWN - {GRANT}))}"
        yield f"annotation {cut(annotation)} is unknown and does nothing; {known}"
    if len(unknown) > NAMED_MAX:
        yield f"{len(unknown) - NAMED_MAX} further annotations {names.PREFIX}... are unknown and do nothing"
