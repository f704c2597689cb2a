"""We test these aspects of the names that come back from kube-scheduler: the very list is known again, any other text
is read, and what is no question is refused as ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partage.model import UsageError
from partage.scheduler.echo import Echo
from partage.scheduler.protocol import FilterAnswer

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}


def question(names: Any, pod: Any = POD) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def test_the_names_of_the_answer_are_known_again() -> None:
    echo, names = Echo(), ["n1", "n2"]
    echo.write(FilterAnswer(node_names=names, failed_and_unresolvable_nodes={"n3": "full"}))
    args = echo.read(question(["n1", "n2"]))
    assert args.node_names is names
    assert args.pod.metadata.uid == "u"


@pytest.mark.parametrize("names", [["n2", "n1"], ["n1"], ["n1", "n2", "n3"], []])
def test_other_names_are_read(names: list[str]) -> None:
    echo = Echo()
    echo.write(FilterAnswer(node_names=["n1", "n2"]))
    assert echo.read(question(names)).node_names == names


def test_names_with_brackets_are_nobodys() -> None:
    echo, names = Echo(), ["n]1", "n2"]
    echo.write(FilterAnswer(node_names=names))
    assert echo.read(question(names)).node_names == names
    assert echo.read(question(["n]1"])).node_names == ["n]1"]


def test_what_is_no_question_is_refused() -> None:
    echo = Echo()
    echo.write(FilterAnswer(node_names=["n1"]))
    for body in (b"{", question(["n1"], {}), question(["n1"], 7), question([1]), question(None)):
        with pytest.raises(UsageError):
            echo.read(body)
