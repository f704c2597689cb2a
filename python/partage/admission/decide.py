"""The answer to one question about a pod. A pure function of the question and the administrator's options.

It needs no state and no other service, so any number of replicas give the same answer, twice the same for the same
pod. A pod that another scheduler is to place is left alone, and its author told what that means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from partage.admission.mutate import hide_by_hand, mutate
from partage.admission.review import CREATE, Answer, Request, ReviewError
from partage.admission.validate import already_placed, escaping, forged, warnings_of
from partage.devices.ask import asks_for_shares, read_pod
from partage.model import AskError, names
from partage.model.pod import DEFAULT_SCHEDULER, PodView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.admission.options import AdmissionOptions
    from partage.model import Problem

MESSAGE_MAX: Final = 16 << 10  # the API server cuts longer ones off anyhow
_FORBIDDEN: Final = (403, "Forbidden")
_INVALID: Final = (422, "Invalid")
_POD: Final = msgspec.json.Decoder(PodView)


def decide(request: Request, options: AdmissionOptions, *, changes: bool = True) -> Answer:
    """Return what is to be done with the pod; `changes`: whether it may still be changed, else it is only judged.

    Raises ReviewError for an object that is no pod.
    """
    if request.operation != CREATE:
        return Answer()
    pod = _pod_of(request)
    written = list(forged(pod, request.user_info.username, options))
    if written:
        return _refusal(pod, written, _FORBIDDEN)
    other = _left_alone(pod, options) if asks_for_shares(pod) else ""
    if other:
        return Answer(patch=hide_by_hand(pod, options) if changes else (), warnings=(other,))
    try:
        reading = read_pod(pod, options.ask)
    except AskError as error:
        return _refusal(pod, [*error.problems, *escaping(pod, options), *already_placed(pod)], _INVALID)
    problems = [*escaping(pod, options), *already_placed(pod)] if reading else []
    if problems:
        return _refusal(pod, problems, _FORBIDDEN)
    patch = mutate(pod, reading, options) if changes else ()
    return Answer(patch=patch, warnings=tuple(warnings_of(pod)) if reading else ())


def _pod_of(request: Request) -> PodView:
    """Return the pod in question, in the namespace of the question: an object from `kubectl` may not say it."""
    try:
        pod = _POD.decode(request.object)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReviewError(f"its object is no pod: {error}") from error
    meta = pod.metadata
    if meta.namespace or not request.namespace:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(meta, namespace=request.namespace))


def _left_alone(pod: PodView, options: AdmissionOptions) -> str:
    """Return why a pod that asks for shares is left as it is, nothing where it is not."""
    if (pod.metadata.labels or {}).get(names.HAMI_IGNORE) == "ignore":
        return (
            f"{pod.subject} is labelled {names.HAMI_IGNORE}=ignore: it gets no grant, and its containers do not start"
        )
    ours = {options.scheduler, *options.also_known_as, *((DEFAULT_SCHEDULER,) if options.take_over_default else ())}
    if pod.scheduler in ours:
        return ""
    return (
        f"{pod.subject} asks for shares, but schedulerName is {pod.scheduler}: left alone; only {options.scheduler} "
        "gives shares, without its grant the containers do not start; leave schedulerName out"
    )


def _refusal(pod: PodView, problems: Iterable[Problem], why: tuple[int, str]) -> Answer:
    message = f"{pod.subject}: " + " | ".join(map(str, problems))
    return Answer(allowed=False, code=why[0], reason=why[1], message=message[:MESSAGE_MAX])
