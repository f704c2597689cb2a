"""The extender's HTTP side: questions of kube-scheduler in, answers out, whatever comes.

    POST /filter  POST /prioritize  POST /bind  GET /healthz  GET /readyz

Owned by the program's task group (`serve`). A question that is none is answered with 400 and says why; one that comes
while these books do not count (no leader, not all listed yet) waits a little, then is answered with an error that
promises nothing; a defect of ours costs one answer (500, logged in full) and never the process. What can go wrong: the
port is taken or a certificate cannot be read (OSError from `serve`).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from aiohttp import web

from partage.model import PartageError, UsageError
from partage.scheduler.echo import Echo
from partage.scheduler.protocol import BindAnswer, FilterAnswer, encode, read_args, read_bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from partage.scheduler.extender import Extender
    from partage.scheduler.metrics import Requests
    from partage.scheduler.settings import ExtenderSettings, TlsSettings

SHUT_DOWN_S: Final = 5.0
JSON: Final = "application/json"
BAD_REQUEST: Final = 400
DEFECT: Final = 500
UNAVAILABLE: Final = 503

log = structlog.get_logger("partage.scheduler")


class NotReadyError(PartageError):
    """These books do not count now."""


class Service(Protocol):
    """Who has the books, while there are any."""

    requests: Requests

    async def extender(self) -> Extender:
        """Return the present term's, waiting a little for it; raises NotReadyError."""

    def not_ready(self) -> list[str]:
        """Return why questions are not answered; nothing: they are."""


def application(service: Service, request_bytes: int) -> web.Application:
    """Return the pages, for `serve` or for a test's server."""
    echo = Echo()

    async def filter_(body: bytes) -> bytes:
        args = read_args(body)
        answer = (await service.extender()).filter(args)
        service.requests.filtered(len(answer.node_names or ()))
        return echo.write(answer)

    async def prioritize(body: bytes) -> bytes:
        args = echo.read(body)
        return encode((await service.extender()).prioritize(args))

    async def bind(body: bytes) -> bytes:
        args = read_bind(body)
        extender = await service.extender()
        # Shielded: a caller that hangs up must not leave an order half sent.
        answer = await asyncio.shield(extender.bind(args))
        if answer.error:
            log.info("not bound", pod=f"{args.namespace}/{args.name}", node=args.node, problem=answer.error)
        return encode(answer)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = service.not_ready()
        text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
        return web.Response(status=UNAVAILABLE if reasons else 200, text=text)

    app = web.Application(client_max_size=request_bytes)
    app.router.add_post("/filter", _verb("filter", filter_, service, filter_error))
    app.router.add_post("/prioritize", _verb("prioritize", prioritize, service, filter_error))
    app.router.add_post("/bind", _verb("bind", bind, service, bind_error))
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def filter_error(text: str) -> bytes:
    """Return the answer that says why there is none; the list that `prioritize` owes has no place for it."""
    return encode(FilterAnswer(error=text))


def bind_error(text: str) -> bytes:
    """Return the answer that says why a pod is not bound."""
    return encode(BindAnswer(text))


def _verb(
    name: str, answer: Callable[[bytes], Awaitable[bytes]], service: Service, refuse: Callable[[str], bytes]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that reads, measures, and never fails."""
    requests = service.requests

    async def handle(request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            requests.count(name, "too-large")
            return web.Response(status=error.status, body=refuse(str(error.text)), content_type=JSON)
        begin = requests.now()
        try:
            text = await answer(body)
        except UsageError as error:
            requests.count(name, "malformed")
            log.warning("a question that is none", verb=name, problem=str(error))
            return web.Response(status=BAD_REQUEST, body=refuse(str(error)), content_type=JSON)
        except NotReadyError as error:
            requests.count(name, "not-ready")
            return web.Response(status=UNAVAILABLE, body=refuse(str(error)), content_type=JSON)
        except Exception as error:  # one question's defect must not stop the others: logged in full
            requests.count(name, "defect")
            log.exception("a question could not be answered", verb=name)
            found = f"defect: {type(error).__name__}: {error}"
            return web.Response(status=DEFECT, body=refuse(found), content_type=JSON)
        requests.took(name, begin)
        return web.Response(body=text, content_type=JSON)

    return handle


def tls_of(tls: TlsSettings) -> ssl.SSLContext | None:
    """Return how callers are known; None where only the loopback interface is served. Raises OSError."""
    if not tls.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.private_key)
    return context


async def serve(app: web.Application, settings: ExtenderSettings) -> None:
    """Answer on an address until cancelled; raises OSError."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUT_DOWN_S)
    await runner.setup()
    try:
        tls = tls_of(settings.tls)
        await web.TCPSite(runner, settings.address, settings.port, ssl_context=tls).start()
        log.info("listening", address=settings.address, port=settings.port, tls=tls is not None)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
