"""A small client of the API server: get, list, create, patch, delete, watch, and waiting by watch.

Tests use it as any user could use curl: JSON in, JSON out, no model of the objects. Resources are named as kubectl
names them: `pods`, `deployments.apps`. What can go wrong: the server refuses, which is a `RefusedError` with its
message; a wait ends without its condition, which is a `NotReachedError` with the object as it was last seen.
"""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Json = dict[str, Any]
Objects = list[Json]
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
LISTED: Final = "LISTED"  # of our own, beside the server's ADDED, MODIFIED, DELETED
APPLY: Final = "application/apply-patch+yaml"
PATIENCE_S: Final = 120.0  # ends a hang: what is waited for takes a few seconds, and a busy machine ten times that


class RefusedError(Exception):
    """The API server answered with an error; `code` is HTTP's, `reason` Kubernetes' word for it."""

    def __init__(self, what: str, code: int, text: str) -> None:
        try:
            status = json.loads(text)
        except ValueError:
            status = {}
        self.code = code
        self.reason = str(status.get("reason", ""))
        self.message = str(status.get("message", text))
        super().__init__(f"{what}: {code} {self.reason}: {self.message}")


class NotReachedError(AssertionError):
    """A condition did not come true in time."""


@dataclass
class Api:
    """The API server as one user sees it: by `certificate` and key files, or by `token`."""

    server: str
    authority: Path
    certificate: tuple[Path, Path] | None = None
    token: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    others: list[Api] = field(default_factory=list)

    def __post_init__(self) -> None:
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.certificate:
            context.load_cert_chain(*map(str, self.certificate))
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.tls = context
        self.http = httpx.Client(
            base_url=self.server, verify=context, headers=headers, timeout=PATIENCE_S, trust_env=False
        )

    def with_token(self, token: str) -> Api:
        """Return the same server as the owner of a token sees it."""
        other = Api(self.server, self.authority, token=token, versions=self.versions)
        self.others.append(other)
        return other

    def close(self) -> None:
        """Close the connections of this client and of those made from it."""
        for client in (self, *self.others):
            client.http.close()

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, *, body: Any = None, kind: str = "application/json", **query: Any
    ) -> Json:
        """Send one request and return the answer; RefusedError where the server says no."""
        content = None if body is None else json.dumps(body)
        answer = self.http.request(method, path, content=content, params=query, headers={"Content-Type": kind})
        if answer.is_error:
            raise RefusedError(f"{method} {path}", answer.status_code, answer.text)
        return dict(answer.json()) if answer.content else {}

    def path(self, resource: str, name: str | None = None, namespace: str | None = None, sub: str | None = None) -> str:
        """Return the path of a resource; the version of a group is the one that the server prefers."""
        plural, _, group = resource.partition(".")
        if group and group not in self.versions:
            self.versions[group] = self.request("GET", f"/apis/{group}")["preferredVersion"]["groupVersion"]
        parts = ["/apis", self.versions[group]] if group else ["/api/v1"]
        parts += ["namespaces", namespace] if namespace else []
        return "/".join([*parts, plural, *filter(None, (name, sub))])

    def get(self, resource: str, name: str, namespace: str | None = None) -> Json:
        """Return one object."""
        return self.request("GET", self.path(resource, name, namespace))

    def find(self, resource: str, name: str, namespace: str | None = None) -> Json | None:
        """Return one object, or None where there is none."""
        try:
            return self.get(resource, name, namespace)
        except RefusedError as error:
            if error.code != 404:
                raise
            return None

    def list(self, resource: str, namespace: str | None = None, **query: Any) -> list[Json]:
        """Return the objects of a resource; `query` takes labelSelector and fieldSelector."""
        return list(self.request("GET", self.path(resource, None, namespace), **query)["items"])

    def create(self, resource: str, body: Json, namespace: str | None = None, **query: Any) -> Json:
        """Create an object and return it as stored."""
        return self.request("POST", self.path(resource, None, namespace), body=body, **query)

    def post(self, resource: str, name: str, sub: str, body: Json, namespace: str | None = None) -> Json:
        """Create a subresource, such as `binding`, `eviction`, `token`."""
        return self.request("POST", self.path(resource, name, namespace, sub), body=body)

    def patch(
        self, resource: str, name: str, body: Json, namespace: str | None = None, *, sub: str | None = None
    ) -> Json:
        """Merge `body` into an object, or into its subresource (`status`)."""
        return self.request("PATCH", self.path(resource, name, namespace, sub), body=body, kind=MERGE)

    def apply(self, resource: str, body: Json, namespace: str | None = None, *, manager: str = "tests") -> Json:
        """Apply an object server-side, as `kubectl apply --server-side --force-conflicts` does."""
        path = self.path(resource, body["metadata"]["name"], namespace)
        return self.request("PATCH", path, body=body, kind=APPLY, fieldManager=manager, force="true")

    def delete(self, resource: str, name: str, namespace: str | None = None, *, grace: int | None = None) -> None:
        """Delete an object; one that is gone is no error. `grace` in seconds, None: the object's own."""
        query: Json = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self.request("DELETE", self.path(resource, name, namespace), **query)
        except RefusedError as error:
            if error.code != 404:
                raise

    def text(self, path: str, **query: Any) -> str:
        """Return an answer that is no JSON: a log, metrics, health."""
        answer = self.http.get(path, params=query)
        if answer.is_error:
            raise RefusedError(f"GET {path}", answer.status_code, answer.text)
        return answer.text

    def ready(self) -> bool:
        """Say whether /readyz answers ok."""
        try:
            return self.http.get("/readyz", timeout=5).is_success
        except httpx.HTTPError:
            return False

    # ---- watching --------------------------------------------------------------------------------------------------

    def watch(self, resource: str, namespace: str | None = None, *, seconds: float, **query: Any) -> Iterator[Json]:
        """Yield ADDED, MODIFIED, DELETED events of a list and what happens to it, for some time.

        What is there already comes first, as ADDED. Where the server ends the watch (timeout, 410) it is begun again,
        so an object may be seen twice.
        """
        events = self._observe(self.path(resource, None, namespace), seconds, query)
        return (event for event in events if event["type"] != LISTED)

    def _observe(self, path: str, seconds: float, query: Json) -> Iterator[Json]:
        """Do what `watch` says, with a LISTED after each list, so that the absence of an object is seen."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            listed = self.request("GET", path, **query)
            for item in listed["items"]:
                yield {"type": "ADDED", "object": item}
            yield {"type": LISTED, "object": listed}
            since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"], **query}
            try:
                yield from self._stream(path, since, left)
            except httpx.TransportError:
                continue  # the time is over, or the server went away: look again

    def _stream(self, path: str, query: Json, left: float) -> Iterator[Json]:
        query = {**query, "timeoutSeconds": max(1, int(left))}
        with self.http.stream("GET", path, params=query, timeout=httpx.Timeout(PATIENCE_S, read=left)) as answer:
            if answer.is_error:
                raise RefusedError(f"GET {path}", answer.status_code, answer.read().decode())
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event

    def wait(
        self,
        resource: str,
        name: str,
        reached: Callable[[Json], bool],
        namespace: str | None = None,
        *,
        what: str,
        seconds: float = PATIENCE_S,
    ) -> Json:
        """Watch one object until `reached` says yes of it, and return it; NotReachedError with what it was last."""
        last: Json | None = None
        for event in self.watch(resource, namespace, seconds=seconds, fieldSelector=f"metadata.name={name}"):
            last = None if event["type"] == "DELETED" else dict(event["object"])
            if last is not None and reached(last):
                return last
        seen = "it does not exist" if last is None else json.dumps(last.get("status", last), indent=1)
        raise NotReachedError(f"{resource} {namespace or ''}/{name} was not {what} within {seconds:g} s; last: {seen}")

    def wait_all(
        self,
        resource: str,
        reached: Callable[[Objects], bool],
        namespace: str | None = None,
        *,
        what: str,
        seconds: float = PATIENCE_S,
    ) -> Objects:
        """Watch all objects of a list until `reached` says yes of them, and return them."""
        found: dict[str, Json] = {}
        is_listed = False
        for event in self._observe(self.path(resource, None, namespace), seconds, {}):
            if event["type"] == LISTED:
                found = {item["metadata"]["uid"]: item for item in event["object"]["items"]}
                is_listed = True
            elif event["type"] == "DELETED":
                found.pop(event["object"]["metadata"]["uid"], None)
            else:
                found[event["object"]["metadata"]["uid"]] = event["object"]
            if is_listed and reached(list(found.values())):
                return list(found.values())
        raise NotReachedError(f"{resource} of {namespace or 'all namespaces'}: not {what} within {seconds:g} s")

    def wait_gone(self, resource: str, name: str, namespace: str | None = None, *, seconds: float = PATIENCE_S) -> None:
        """Watch until there is no object of that name."""
        path = self.path(resource, None, namespace)
        for event in self._observe(path, seconds, {"fieldSelector": f"metadata.name={name}"}):
            if event["type"] == "DELETED" or (event["type"] == LISTED and not event["object"]["items"]):
                return
        raise NotReachedError(f"{resource} {namespace or ''}/{name} was still there after {seconds:g} s")
