"""What bench/node.py puts around the agent: an API server and a program that holds device memory.

The API server is as small as the agent needs it (pods of one node by list and watch, patches and events counted); the
agent is the real program, over real HTTP. Kubelet's part is played by tests/plugin/kubelet.py, over real sockets.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from pathlib import Path

NODE = "bench"
HOLDER = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 28)) == 0
print("held", flush=True)
sys.stdin.read()
"""


class ApiServer:
    """Pods and one node. `writes`: what was patched and created, by what it was."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.node: dict[str, Any] = {"metadata": {"name": NODE, "uid": NODE, "annotations": {}, "labels": {}}}
        self._version = 1
        self._watchers: list[asyncio.Queue[dict[str, Any]]] = []
        self._runner: web.AppRunner | None = None

    async def start(self, directory: Path) -> Path:
        """Serve on a free port; return a kubeconfig for it."""
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._list)
        app.router.add_get("/api/v1/nodes/{name}", self._get_node)
        app.router.add_patch("/api/v1/nodes/{name}", self._patch_node)
        app.router.add_route("*", "/{rest:.*}", self._write)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        path = directory / "kubeconfig"
        # A cluster names its own authority: without one the agent would load all of the system's, as it never does.
        server = {"server": f"http://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        cluster = {"name": "c", "cluster": server}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": "none"}}]
        whole = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
        return path

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    def put(self, pod: dict[str, Any]) -> None:
        """Add or change a pod."""
        uid = pod["metadata"]["uid"]
        kind = "MODIFIED" if uid in self.pods else "ADDED"
        self.pods[uid] = self._stamped(pod)
        self._tell(kind, pod)

    def delete(self, uid: str) -> None:
        """Remove a pod."""
        self._tell("DELETED", self._stamped(self.pods.pop(uid)))

    def _stamped(self, pod: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        return pod

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        for queue in self._watchers:
            queue.put_nowait({"type": kind, "object": pod})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") not in {"true", "1"}:
            meta = {"resourceVersion": str(self._version)}
            return web.json_response(
                {"apiVersion": "v1", "kind": "PodList", "metadata": meta, "items": list(self.pods.values())}
            )
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._watchers.append(queue)
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        try:
            while True:
                await stream.write(json.dumps(await queue.get()).encode() + b"\n")
        except ConnectionError:
            return stream
        finally:
            self._watchers.remove(queue)

    async def _get_node(self, _: web.Request) -> web.Response:
        return web.json_response({"apiVersion": "v1", "kind": "Node", **self.node})

    async def _patch_node(self, request: web.Request) -> web.Response:
        self.writes.append("node")
        changes = (await request.json())["metadata"]
        for kind in ("annotations", "labels"):
            self.node["metadata"][kind] |= changes.get(kind) or {}
        return await self._get_node(request)

    async def _write(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self.writes.append(f"{request.method} {request.path.rsplit('/', 1)[-1]}")
        return web.json_response({"apiVersion": "v1", "kind": "Pod", **body})


def pod_object(uid: str, grant: str, resource: str) -> dict[str, Any]:
    """Return a pod with one container that asks for one share, as the API has it."""
    limits = {"limits": {resource: "1"}}
    metadata = {"name": uid, "namespace": "default", "uid": uid, "annotations": {"partage.io/grant": grant}}
    spec = {"nodeName": NODE, "containers": [{"name": "app", "resources": limits}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Running"},
    }
