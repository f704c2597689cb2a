"""The API server's question about one object (AdmissionReview, admission.k8s.io/v1), and the answer to it.

Decoded from what a stranger may have sent: anything on the network can call a webhook. What can go wrong (ReviewError):
no JSON, no review, of another version, or of something that is no pod.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
CREATE: Final = "CREATE"
EPHEMERAL: Final = "ephemeralcontainers"
NAME_MAX: Final = 253


class ReviewError(Exception):
    """Not a question that can be answered; the text says why."""


class User(msgspec.Struct, frozen=True):
    """Who asks."""

    username: str = ""


class Resource(msgspec.Struct, frozen=True):
    """What is asked about."""

    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The question. `object` and `old_object` are undecoded: what they are comes first.

    `sub_resource` is empty for the object itself.
    """

    uid: str
    resource: Resource = Resource()
    sub_resource: str | None = None
    name: str | None = None
    namespace: str | None = None
    operation: str = CREATE
    user_info: User = User()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """The question as it comes."""

    api_version: str
    kind: str
    request: Request


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `code` and `message`: why not; `patch`: JSON patch operations; `warnings`: for who asked."""

    allowed: bool = True
    code: int = 200
    reason: str = ""
    message: str = ""
    patch: tuple[dict[str, object], ...] = ()
    warnings: tuple[str, ...] = ()


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    reason: str
    message: str
    status: str = "Failure"


class _Response(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    patch: str | None = None
    patch_type: str | None = None
    status: _Status | None = None
    warnings: tuple[str, ...] = ()


class _Reply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    response: _Response
    api_version: str = API_VERSION
    kind: str = KIND


_DECODER: Final = msgspec.json.Decoder(Review)


def decode_review(body: bytes) -> Request:
    """Return the question in a request's body; raises ReviewError."""
    try:
        review = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReviewError(f"not an AdmissionReview: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise ReviewError(f"{review.api_version} {review.kind}; this webhook answers {API_VERSION} {KIND}")
    request = review.request
    known = request.sub_resource in {None, "", EPHEMERAL}
    if (request.resource.group, request.resource.resource) != ("", "pods") or not known:
        what = "/".join(filter(None, (request.resource.group, request.resource.resource, request.sub_resource)))
        raise ReviewError(f"about {what or 'nothing'}; this webhook answers for pods")
    if not request.uid or len(request.uid) > NAME_MAX:
        raise ReviewError("without a UID to answer to")
    return request


def encode_answer(uid: str, answer: Answer) -> bytes:
    """Return the body of the answer to the question with this UID."""
    status = None
    if not answer.allowed:
        status = _Status(code=answer.code, reason=answer.reason, message=answer.message)
    patch = base64.b64encode(msgspec.json.encode(answer.patch)).decode() if answer.patch else None
    response = _Response(
        uid=uid,
        allowed=answer.allowed,
        status=status,
        warnings=answer.warnings,
        patch=patch,
        patch_type="JSONPatch" if patch else None,
    )
    return msgspec.json.encode(_Reply(response=response))
