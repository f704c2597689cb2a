"""We test these aspects of `partage top --node`: shares have the names of their pods and containers; without an agent,
or with one that answers nonsense, the table is there all the same and says why."""

from __future__ import annotations

import io
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from partage.cli.look import ShareRow, View
from partage.cli.owners import owners_of, with_owners
from partage.cli.top import render, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

ROW = ShareRow("a" * 32, "GPU-1", None, 1 << 30, 300, "fixed", 1, "shim", "open")
ANSWER = b'{"%s":{"container":"app","namespace":"team","pod":"train-0"}}' % (b"a" * 32)


def text_of(shown: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(shown)
    return console.export_text()


@contextmanager
def agent(body: bytes, status: int = 200) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/hand-overs" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_shares_are_named_by_pod_and_container() -> None:
    with agent(ANSWER) as url:
        view = with_owners(View((), (ROW, replace(ROW, name="b" * 32))), url)
    assert [row.owner for row in view.shares] == ["team/train-0/app", ""]
    shown = text_of(render(view, 200))
    assert "team/train-0/app" in shown
    assert "a" * 32 not in shown
    assert "b" * 32 in shown
    assert '"owner":"team/train-0/app"' in to_json(view)
    assert view.notes == ()


@pytest.mark.parametrize(
    ("body", "status"), [(b"<html>", 200), (b"[]", 200), (b'{"a":{"pod":1}}', 200), (b"", 503), (b"\xff", 200)]
)
def test_an_agent_that_answers_nonsense_is_a_note(body: bytes, status: int) -> None:
    with agent(body, status) as url:
        owners, note = owners_of(url)
    assert owners == {}
    assert "/hand-overs: " in note
    assert "see whether the agent runs on this node" in note


def test_an_agent_may_be_named_without_a_scheme() -> None:
    with agent(ANSWER) as url:
        owners, note = owners_of(url.removeprefix("http://"))
    assert (list(owners.values()), note) == (["team/train-0/app"], "")


def test_no_agent_is_a_note_below_the_table() -> None:
    view = with_owners(View((), (ROW,)), "http://127.0.0.1:1")
    assert "a" * 32 in text_of(render(view, 200))
    assert "shares are shown by hand-over name" in view.notes[0]
    assert "urlopen" not in view.notes[0]
    assert "name where it answers with --agent" in view.notes[0]
