"""We test these aspects of the audit: others work while it counts, what changes meanwhile is no difference, and what
the books lost is found wherever it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from partage.scheduler.audit import AT_ONCE, audit
from partage.scheduler.views import WatchedNode, WatchedPod
from tests.cluster.scheduling import node
from tests.scheduler.extending import Desk

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from partage.scheduler.audit import Difference

NODES = 3 * AT_ONCE


class Cluster:
    """A watch that is told by hand, as its informers are, and the books that it tells."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.watch, self.books = self.desk.watch, self.desk.books
        self.version = 0
        for number in range(NODES):
            self.put_node(f"n{number:03}")

    def put_node(self, name: str) -> None:
        made = node(name, 2)
        made["metadata"] |= {"uid": name, "resourceVersion": self._next()}
        self.watch.nodes._tell(self.watch.nodes._store.put(msgspec.convert(made, WatchedNode)))

    def put_pod(self, name: str, on: str) -> None:
        made = self.desk.pod(name, cards=1)
        made["metadata"]["resourceVersion"] = self._next()
        made["spec"]["nodeName"] = on
        self.watch.pods._tell(self.watch.pods._store.put(msgspec.convert(made, WatchedPod)))

    def drop_pod(self, name: str) -> None:
        pod = self.watch.pod(f"uid-{name}")
        assert pod is not None
        self.watch.pods._tell(self.watch.pods._store.remove(pod))

    def drop_node(self, name: str) -> None:
        there = self.watch.nodes.named("", name)
        assert there is not None
        self.watch.nodes._tell(self.watch.nodes._store.remove(there))

    def audited(self, meanwhile: Callable[[int], None] = lambda _: None) -> tuple[list[Difference], int]:
        """Audit, with somebody else at work in each pause; return what was found and how many pauses there were."""

        async def play() -> tuple[list[Difference], int]:
            task, pauses = asyncio.ensure_future(audit(self.books, self.watch)), 0
            while True:
                await asyncio.sleep(0)
                if task.done():
                    return task.result(), pauses
                meanwhile(pauses)
                pauses += 1

        return asyncio.run(play())

    def _next(self) -> str:
        self.version += 1
        return str(self.version)


def test_others_work_while_it_counts() -> None:
    found, pauses = Cluster().audited()
    assert found == []
    assert pauses >= NODES // AT_ONCE


def test_what_changes_meanwhile_is_no_difference() -> None:
    cluster = Cluster()
    last = f"n{NODES - 1:03}"
    for number in range(20):
        cluster.put_pod(f"old-{number}", last)

    def change(pause: int) -> None:
        cluster.put_pod(f"new-{pause}", last)
        cluster.put_pod(f"early-{pause}", "n000")
        cluster.drop_pod(f"old-{pause}")
        cluster.drop_node(f"n{NODES - 2 - pause:03}")
        cluster.put_node(f"later-{pause}")

    found, pauses = cluster.audited(change)
    assert found == []
    assert pauses >= NODES // AT_ONCE
    assert len(cluster.books.nodes[last].pods) == 20


def test_what_the_books_lost_is_found_wherever_it_is() -> None:
    cluster = Cluster()
    for name, on in (("a", "n000"), ("b", f"n{NODES - 1:03}"), ("c", "n100"), ("d", "n100"), ("e", "gone")):
        cluster.put_pod(name, on)
    for name in ("a", "b", "d", "e"):
        cluster.books.drop_pod(f"uid-{name}")
    cluster.books.drop_node("n200")
    found, _ = cluster.audited()
    assert [one.node for one in found] == ["gone", "n000", "n100", "n200", f"n{NODES - 1:03}"]


def test_what_the_books_lose_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    last = f"n{NODES - 1:03}"
    monkeypatch.setattr(cluster.books, "set_pod", lambda _: None)
    found, _ = cluster.audited(lambda pause: cluster.put_pod(f"lost-{pause}", last))
    assert [one.node for one in found] == [last]
