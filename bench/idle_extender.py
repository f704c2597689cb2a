"""An extender that does nothing but bind: what bench/scheduler.py compares with. `idle_extender.py KUBECONFIG PORT`.

Every node fits, all score alike, and `bind` is one post to pods/binding by the same client as ours. Exits 0 when asked
to end.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from aiohttp import web

from partage.kube import load_config
from partage.kube.poster import Poster
from partage.scheduler.bind import BindOrder
from partage.scheduler.protocol import BindAnswer, FilterAnswer, HostPriority, encode, read_bind


class Names(msgspec.Struct, rename="pascal"):
    """The one part of a question that is read."""

    node_names: list[str]


def application(poster: Poster) -> web.Application:
    """Return the three verbs."""
    read = msgspec.json.Decoder(Names).decode

    async def filter_(request: web.Request) -> web.Response:
        names = read(await request.read()).node_names
        return web.Response(body=encode(FilterAnswer(node_names=names)), content_type="application/json")

    async def prioritize(request: web.Request) -> web.Response:
        names = read(await request.read()).node_names
        scores = [HostPriority(name, 0) for name in names]
        return web.Response(body=encode(scores), content_type="application/json")

    async def bind(request: web.Request) -> web.Response:
        args = read_bind(await request.read())
        order = BindOrder(args.uid, args.namespace, args.name, args.node)
        answer = await poster.post(order.path, order.body())
        body = encode(BindAnswer("" if answer.is_done else str(answer)))
        return web.Response(body=body, content_type="application/json")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/filter", filter_)
    app.router.add_post("/prioritize", prioritize)
    app.router.add_post("/bind", bind)
    return app


async def serve(kubeconfig: str, port: int) -> None:
    """Answer until killed."""
    async with Poster(load_config(kubeconfig)) as poster:
        runner = web.AppRunner(application(poster), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
