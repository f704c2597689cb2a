"""Many requests at once, each with as little work here as can be: whoever measures shares its processors with this.

`send_all` is used by `Site` and by benches; `Api.request` takes a millisecond of processor time where this takes a
quarter. What can go wrong: the server refuses one (RefusedError; those after it may have been sent).
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.cluster.api import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.api import Api, Json

WRITERS = 8  # connections
TIMEOUT_S = 60.0


def send_all(api: Api, requests: Sequence[tuple[str, str, Json]], writers: int = WRITERS) -> None:
    """Send requests (method, path, body) over a few connections, roughly in their order."""
    waiting = iter(requests)  # a thread takes the next one under the interpreter's lock
    with ThreadPoolExecutor(writers) as pool:
        for one in [pool.submit(_send, api, waiting) for _ in range(min(writers, len(requests)))]:
            one.result()


def _send(api: Api, waiting: Iterator[tuple[str, str, Json]]) -> None:
    server = urlsplit(api.server)
    connection = http.client.HTTPSConnection(server.netloc, context=api.tls, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api.token}"} if api.token else {})
    try:
        for method, path, body in waiting:
            connection.request(method, path, json.dumps(body), headers)
            with connection.getresponse() as answer:
                text = answer.read()
            if answer.status >= 400:
                raise RefusedError(f"{method} {path}", answer.status, text.decode(errors="replace"))
    finally:
        connection.close()
