"""A small API server in this process, for speed: objects of any kind, lists by pages, watches, any fault on demand.

What it says is what the real one says (status objects, resourceVersions, bookmarks, 410); tests/cluster runs the same
client against the real one.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Object = dict[str, Any]


@dataclass
class Fault:
    """What the next request that matches gets instead of an answer: a status, or (0) its connection cut.

    One that is `held` is answered as ever, once that is set.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    after: bool = False  # the request is done first: what a lost answer looks like
    matches: Callable[[web.Request], bool] = lambda _: True
    held: asyncio.Event | None = None


def status_of(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


class ApiServer:
    """Pods under /api/v1, anything else under /apis; `script` puts lines into the open watches as they are."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, Object] = {}  # by path
        self.history: list[tuple[int, str, Object]] = []
        self.oldest = 0  # watches from before get 410
        self.term = 0  # grants of earlier ones are refused, as deploy/policies/terms.yaml does
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.tokens: list[str] = []
        self.refused_tokens: set[str] = set()
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self.kinds: dict[asyncio.Queue[bytes | None], str] = {}  # of what a watch is
        self.watching = asyncio.Condition()
        self.opened: list[str] = []  # the versions from which watches were opened
        self.url = ""

    # ---- what tests do -----------------------------------------------------------------------------------------------

    def put_pod(self, name: str, uid: str, *, node: str = "n1", **more: Any) -> Object:
        """Add a pod, or change it, and tell the watches."""
        path = f"/api/v1/namespaces/default/pods/{name}"
        pod: Object = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default", "uid": uid, **more},
            "spec": {"nodeName": node, "containers": []},
        }
        return self.put(path, pod)

    def put(self, path: str, obj: Object) -> Object:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self._stamp(obj)
        self.objects[path] = obj
        self._happened(kind, obj)
        return obj

    def delete(self, path: str, *, told: bool = True) -> Object:
        """Remove an object; not `told`: as if the watch missed it."""
        obj: Object = json.loads(json.dumps(self.objects.pop(path)))
        self._stamp(obj)
        if told:
            self._happened("DELETED", obj)
        return obj

    def say(self, kind: str, obj: Object) -> None:
        """Send one line to all open watches of the object's kind, whatever it is."""
        line = json.dumps({"type": kind, "object": obj}, ensure_ascii=False).encode() + b"\n"
        for queue in self.watches:
            if _plural(obj) in {"", self.kinds[queue]}:
                queue.put_nowait(line)

    def script(self, line: bytes | None) -> None:
        """Send bytes to all open watches; None ends them."""
        for queue in self.watches:
            queue.put_nowait(line)

    async def wait_watches(self, count: int) -> None:
        """Return once so many watches have been opened, closed ones included."""
        async with self.watching:
            await self.watching.wait_for(lambda: len(self.opened) >= count)

    def count(self, method: str) -> int:
        return sum(1 for sent, _, _ in self.requests if sent == method)

    def config(self, token_file: str | None = None) -> SingleConfig:
        found = KubeConfig.from_server(self.url).get()
        assert found is not None
        return found._replace(user=User(token_file=token_file))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiServer]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        server = TestServer(app)
        await server.start_server()
        self.url = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            self.script(None)
            await server.close()

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _stamp(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _happened(self, kind: str, obj: Object) -> None:
        self.history.append((self.version, kind, json.loads(json.dumps(obj))))
        self.say(kind, obj)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") == "true"
        is_list = request.method == "GET" and not is_watch and request.path not in self.objects
        method = "WATCH" if is_watch else "LIST" if is_list else request.method
        self.requests.append((method, request.path, dict(request.query)))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.tokens.append(token)
        if token in self.refused_tokens:
            return web.json_response(status_of(401, "Unauthorized", "token has expired"), status=401)
        body = await request.json() if request.can_read_body else None
        fault = next((fault for fault in self.faults if fault.matches(request)), None)
        if fault is not None:
            self.faults.remove(fault)
            if fault.held is None:
                if fault.after:
                    self._answer(method, request, body)
                return self._fail(request, fault)
            await fault.held.wait()
        if method == "WATCH":
            return await self._watch(request)
        return self._answer(method, request, body)

    def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault.body is not None:
            return web.Response(status=fault.status, text=fault.body, headers=fault.headers)
        status = status_of(fault.status, "Fault", "asked for by the test")
        return web.json_response(status, status=fault.status, headers=fault.headers)

    def _answer(self, method: str, request: web.Request, body: Any) -> web.StreamResponse:
        match method:
            case "LIST":
                return self._list(request)
            case "GET":
                return web.json_response(self.objects[request.path])
            case "POST":
                return self._create(request, body)
            case "PATCH" | "PUT" | "DELETE":
                return self._change(method, request, body)
        raise AssertionError(method)

    def _create(self, request: web.Request, body: Any) -> web.StreamResponse:
        self.bodies.append(body)
        if request.path.endswith("/binding"):
            return self._bind(request.path.removesuffix("/binding"), body)
        path = f"{request.path}/{body['metadata'].get('name', '')}"
        if path in self.objects:
            return web.json_response(status_of(409, "AlreadyExists", f"{path} already exists"), status=409)
        body["metadata"].setdefault("uid", f"uid-{self.version}")
        return web.json_response(self.put(path, body), status=201)

    def _bind(self, path: str, body: Any) -> web.StreamResponse:
        """Bind a pod as the real one does: by its UID, once, with the Binding's annotations merged into it."""
        grant = json.loads(body["metadata"].get("annotations", {}).get("partage.io/grant", "{}"))
        if grant.get("term", self.term) < self.term:
            return web.json_response(status_of(403, "Forbidden", "denied by 'partage-terms'"), status=403)
        if path not in self.objects:
            return web.json_response(status_of(404, "NotFound", f"{path} not found"), status=404)
        pod = json.loads(json.dumps(self.objects[path]))
        if body["metadata"].get("uid") not in {None, pod["metadata"]["uid"]}:
            return web.json_response(status_of(409, "Conflict", "the UID in the precondition differs"), status=409)
        if pod["spec"].get("nodeName"):
            message = f"pod {pod['metadata']['name']} is already assigned to node {pod['spec']['nodeName']}"
            return web.json_response(status_of(409, "Conflict", message), status=409)
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | body["metadata"]["annotations"]
        self.put(path, pod)
        return web.json_response({"kind": "Status", "status": "Success", "code": 201}, status=201)

    def _change(self, method: str, request: web.Request, body: Any) -> web.StreamResponse:
        path = request.path.removesuffix("/status")
        if path not in self.objects:
            return web.json_response(status_of(404, "NotFound", f"{path} not found"), status=404)
        self.bodies.append(body)
        if method == "DELETE":
            return web.json_response(self.delete(path))
        uid = (body.get("metadata") or {}).get("uid")
        if uid is not None and uid != self.objects[path]["metadata"]["uid"]:
            return web.json_response(status_of(409, "Conflict", "the UID in the precondition differs"), status=409)
        changed = _merged(self.objects[path], body) if method == "PATCH" else body
        return web.json_response(self.put(path, changed))

    def _selected(self, request: web.Request) -> list[Object]:
        wanted = dict(pair.split("=") for pair in request.query.get("fieldSelector", "").split(",") if pair)
        node = wanted.get("spec.nodeName")
        kind = request.path.rsplit("/", 1)[-1]
        found = [obj for path, obj in sorted(self.objects.items()) if path.rsplit("/", 2)[-2] == kind]
        return [obj for obj in found if node is None or obj["spec"].get("nodeName") == node]

    def _list(self, request: web.Request) -> web.StreamResponse:
        found = self._selected(request)
        if not found and not request.path.endswith("s"):
            return web.json_response(status_of(404, "NotFound", f"{request.path} not found"), status=404)
        begin, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "500"))
        meta: Object = {"resourceVersion": str(self.version)}
        if begin + limit < len(found):
            meta["continue"] = str(begin + limit)
        return web.json_response({"kind": "List", "metadata": meta, "items": found[begin : begin + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        begin = int(request.query["resourceVersion"])
        if begin < self.oldest:
            return web.json_response(status_of(410, "Expired", "too old resource version"), status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b"\n")  # the head goes out with the first byte
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, kind, obj in self.history:
            if version > begin and _plural(obj) == request.path.rsplit("/", 1)[-1]:
                queue.put_nowait(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
        async with self.watching:
            self.kinds[queue] = request.path.rsplit("/", 1)[-1]
            self.watches.append(queue)
            self.opened.append(request.query["resourceVersion"])
            self.watching.notify_all()
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        except ConnectionError:
            pass
        finally:
            self.watches.remove(queue)
        return response


def _plural(obj: Object) -> str:
    """Return the word for it in paths; empty for a status, which any watch may get."""
    kind = str(obj.get("kind", "")).lower()
    return f"{kind}s" if kind not in {"", "status"} else ""


def _merged(obj: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
