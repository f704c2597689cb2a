"""The answer to one question about a pod. A pure function of the question and the administrator's options.

It needs no state and no other service, so any number of replicas give the same answer, twice the same for the same
pod. A pod that another scheduler is to place is left alone, and its author told what that means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from partage.admission.added import patch_of_added, problems_of_added
from partage.admission.mutate import hide_by_hand, mutate
from partage.admission.review import CREATE, EPHEMERAL, Answer, Request, ReviewError
from partage.admission.validate import already_placed, forged, is_mirror, left_alone, warnings_of
from partage.devices.ask import asks_for_shares, read_pod
from partage.model import AskError
from partage.model.pod import PodView

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
    if request.sub_resource == EPHEMERAL:
        return _added(request, options, changes=changes)
    if request.operation == CREATE:
        return _created(request, options, changes=changes)
    return Answer()


def _created(request: Request, options: AdmissionOptions, *, changes: bool) -> Answer:
    """Return what is to be done with a new pod."""
    pod = _pod_of(request, request.object)
    written = list(forged(pod, request.user_info.username, options))
    if written:
        return _refusal(pod, written, _FORBIDDEN)
    if is_mirror(pod):
        return Answer()
    other = left_alone(pod, options) if asks_for_shares(pod) else ""
    if other:
        return Answer(patch=hide_by_hand(pod, options) if changes else (), warnings=(other,))
    try:
        reading = read_pod(pod, options.ask)
    except AskError as error:
        return _refusal(pod, [*error.problems, *already_placed(pod)], _INVALID)
    problems = list(already_placed(pod)) if reading else []
    if problems:
        return _refusal(pod, problems, _FORBIDDEN)
    patch = mutate(pod, reading, options) if changes else ()
    return Answer(patch=patch, warnings=tuple(warnings_of(pod)) if reading else ())


def _added(request: Request, options: AdmissionOptions, *, changes: bool) -> Answer:
    """Return what is to be done with ephemeral containers that somebody adds to a pod."""
    pod = _pod_of(request, request.object)
    before = PodView() if bytes(request.old_object) == b"null" else _pod_of(request, request.old_object)
    problems = list(problems_of_added(pod, before, options))
    if problems:
        return _refusal(pod, problems, _FORBIDDEN)
    return Answer(patch=patch_of_added(pod, before, options) if changes else ())


def _pod_of(request: Request, thing: msgspec.Raw) -> PodView:
    """Return the pod in question, in the namespace of the question: an object from `kubectl` may not say it."""
    try:
        pod = _POD.decode(thing)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReviewError(f"its object is no pod: {error}") from error
    meta = pod.metadata
    if meta.namespace or not request.namespace:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(meta, namespace=request.namespace))


def _refusal(pod: PodView, problems: Iterable[Problem], why: tuple[int, str]) -> Answer:
    message = f"{pod.subject}: " + " | ".join(map(str, problems))
    return Answer(allowed=False, code=why[0], reason=why[1], message=message[:MESSAGE_MAX])
