"""A container that may not start, and why: raised on the way from kubelet's request to an open policy.

Caught by the device plugin's server, which answers kubelet with it and puts it onto the pod as event and condition, and
by the rebuild at start. `reason` is the CamelCase code that tools compare; the sentence is for people.
"""

from __future__ import annotations

from partage.model import PartageError


class Refused(PartageError):  # noqa: N818 -- a refusal is an answer, not a defect
    """A share that is not handed over; kubelet asks again, so what passes by itself needs nobody's hand."""

    def __init__(self, reason: str, error: PartageError | tuple[str, object, str, str]) -> None:
        subject, value, limit, step = (
            (error.subject, error.value, error.limit, error.step) if isinstance(error, PartageError) else error
        )
        super().__init__(subject, value, limit, step)
        self.reason = reason
