"""The webhook over HTTPS: two doors to `decide`, and beside them figures, health and readiness over HTTP.

`/mutate` changes and judges, `/validate` only judges what came out after everybody's changes. A question that cannot be
read is 400, one longer than any object of the API 413, a defect of ours 500; each is an error to the API server, which
then goes by its failure policy, and none ends the program. Owned by the program's task group.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from partage.admission.decide import decide
from partage.admission.review import ReviewError, decode_review, encode_answer
from partage.exposition import CONTENT_TYPE, exposition, family

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client.core import Metric

    from partage.admission.options import AdmissionOptions

MUTATE: Final = "/mutate"
VALIDATE: Final = "/validate"
BODY_MAX: Final = 8 << 20  # an object of the API has at most 3 MiB, and a review quotes it
BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
CHANGED: Final = "changed"
VERDICTS: Final = ("unchanged", CHANGED, "refused", "warned", "unreadable", "failed")

log = structlog.get_logger("partage.webhook")


@dataclass(slots=True)
class Tally:
    """What was answered, for the page of figures. `expires`: when the certificate does, Unix seconds, 0: unknown."""

    verdicts: dict[tuple[str, str], int] = field(default_factory=dict)
    below: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    count: int = 0
    seconds: float = 0.0
    expires: Callable[[], float] = lambda: 0.0

    def add(self, door: str, verdict: str, seconds: float) -> None:
        """Count one answer."""
        self.verdicts[door, verdict] = self.verdicts.get((door, verdict), 0) + 1
        self.count += 1
        self.seconds += seconds
        for number, bound in enumerate(BOUNDS):
            self.below[number] += seconds <= bound

    def families(self) -> Iterator[Metric]:
        """Yield the figures."""
        yield family(
            "partage_webhook_reviews_total",
            "counter",
            "Questions of the API server, by what became of them.",
            [
                ({"door": door, "verdict": verdict}, self.verdicts.get((door, verdict), 0))
                for door in ("mutate", "validate")
                for verdict in VERDICTS
            ],
        )
        took = family("partage_webhook_review_seconds", "histogram", "How long an answer took to make.", [])
        for bound, below in [*zip(map(str, BOUNDS), self.below, strict=True), ("+Inf", self.count)]:
            took.add_sample("partage_webhook_review_seconds_bucket", {"le": bound}, below)
        took.add_sample("partage_webhook_review_seconds_sum", {}, self.seconds)
        took.add_sample("partage_webhook_review_seconds_count", {}, self.count)
        yield took
        yield family(
            "partage_webhook_certificate_expiry_timestamp_seconds",
            "gauge",
            "When the certificate that is shown to the API server expires.",
            [({}, self.expires())],
        )


def application(options: Callable[[], AdmissionOptions], tally: Tally) -> web.Application:
    """Return the webhook, for `program` or for a test's server."""

    def door(name: str, *, changes: bool) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()  # aiohttp answers 413 by itself
            begin = time.perf_counter()
            response, verdict = _answered(body, options(), changes=changes)
            tally.add(name, verdict, time.perf_counter() - begin)
            return response

        return answer

    made = web.Application(client_max_size=BODY_MAX)
    made.router.add_post(MUTATE, door("mutate", changes=True))
    made.router.add_post(VALIDATE, door("validate", changes=False))
    return made


def _answered(body: bytes, options: AdmissionOptions, *, changes: bool) -> tuple[web.Response, str]:
    """Return the answer to one question, and which kind it is."""
    try:
        request = decode_review(body)
        answer = decide(request, options, changes=changes)
    except ReviewError as error:
        log.info("unreadable", error=str(error), bytes=len(body))
        return web.Response(status=400, text=f"partage webhook: {error}\n"), "unreadable"
    except Exception:  # a defect of ours is one pod's answer, in the log and counted, and no end of the program
        log.exception("defect", bytes=len(body))
        return web.Response(status=500, text="partage webhook: a defect; its log has the details\n"), "failed"
    verdict = "refused" if not answer.allowed else CHANGED if answer.patch else "warned" if answer.warnings else ""
    if verdict in {"refused", "warned"}:
        what = {"namespace": request.namespace, "name": request.name, "user": request.user_info.username}
        log.info(verdict, **what, message=answer.message or answer.warnings[0])
    reply = web.Response(body=encode_answer(request.uid, answer), content_type="application/json")
    return reply, verdict or "unchanged"


@dataclass(frozen=True, slots=True)
class Pages:
    """What the pages beside it are made of: figures, and why it is not ready (nothing: it is)."""

    tally: Tally
    not_ready: Callable[[], str]


def pages(shown: Pages) -> web.Application:
    """Return the pages for kubelet and Prometheus."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(shown.tally.families()), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = shown.not_ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    made = web.Application()
    made.router.add_get("/metrics", metrics)
    made.router.add_get("/healthz", healthz)
    made.router.add_get("/readyz", readyz)
    return made
