"""We test these aspects of reading pods that are alike: each is its own pod with the same shape, what differs is read
anew, what asks for nothing is remembered as such, and what has no meaning names its own pod each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from partage.devices.ask import read_ask
from partage.devices.requests import AskOptions
from partage.model import AskError
from partage.model.pod import PodView
from partage.scheduler import reader
from partage.scheduler.reader import Reader
from tests.cluster.scheduling import share_pod


def view(name: str, **more: Any) -> PodView:
    pod = share_pod(name, **more)
    pod["metadata"] |= {"uid": f"uid-{name}", "namespace": "team"}
    return msgspec.convert(pod, PodView)


def test_each_is_its_own_pod_with_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Reader(AskOptions())
    first = known.read(view("a", priority=7))
    monkeypatch.setattr(reader, "read_ask", None)
    second = known.read(view("b", priority=7))
    monkeypatch.undo()
    assert first is not None
    assert second is not None
    assert second.shape is first.shape
    assert second == read_ask(view("b", priority=7))


@pytest.mark.parametrize(
    "other",
    [
        {"memory": 9000},
        {"annotations": {"nvidia.com/use-gputype": "A100"}},
        {"priority": 7},
        {"schedulerName": "other"},
        {"initContainers": [{"name": "first"}]},
    ],
    ids=str,
)
def test_what_differs_is_read_anew(other: dict[str, Any]) -> None:
    known = Reader(AskOptions())
    known.read(view("a"))
    assert known.read(view("a", **other)) == read_ask(view("a", **other)) != read_ask(view("a"))


def test_what_asks_for_nothing_and_what_has_no_meaning() -> None:
    known = Reader(AskOptions())
    for name in ("a", "b"):
        assert known.read(view(name, containers=[{"name": "app"}])) is None
        with pytest.raises(AskError, match=f"pod team/{name}"):
            known.read(view(name, memory=-1))


def test_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "KNOWN_MAX", 3)
    known = Reader(AskOptions())
    for memory in (1000, 2000, 3000, 4000, 1000):
        assert known.read(view("a", memory=memory)) == read_ask(view("a", memory=memory))
