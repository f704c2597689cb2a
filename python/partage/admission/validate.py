"""What makes a pod inadmissible, and what its author should hear of though it is admitted.

Each refusal names field, value, what is accepted and what to do. Called by `decide`; pure.
"""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Final

from partage.model import Problem, names
from partage.model.errors import cut
from partage.model.names import GRANT
from partage.model.pod import DEFAULT_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.admission.options import AdmissionOptions
    from partage.model.pod import PodView

NAMED_MAX: Final = 8  # annotations of one answer: a pod may have a hundred thousand, and others wait meanwhile
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
    return bool(pod.spec.node_name) and names.MIRROR in pod.annotations


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
