"""We test this aspect: an API server that is slow, refuses, fails or hangs up, for every kind of request, while we lead
and while we take over: nothing is lost, nothing is done twice, and people are told in the end.

What becomes of a bind without an answer is in test_extender_bind.py; watches that are gone in tests/kube.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from partage.model import names
from partage.scheduler.bind import TRIES
from partage.scheduler.leader import Term
from tests.kube.api_server import Fault
from tests.kube.support import until
from tests.scheduler.test_extender_server import Scene, question, scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

MEMORY = "limits.nvidia.com/gpumem"
PODS, EVENTS, QUOTA = "/api/v1/namespaces/default/pods", "/namespaces/default/events", "/resourcequotas/q"
TIMES = 7  # more often than a client tries one request

#: What the scheduler sends, by the end of its path.
READS: Final = ("/api/v1/pods", "/api/v1/nodes", "/api/v1/resourcequotas")
WRITES: Final = {"PATCH": ("/pods/big/status", "/resourcequotas/q/status"), "POST": (EVENTS, "/pods/p/binding")}
KINDS: Final = {"slow": -1, "429": 429, "500": 500, "cut": 0, "410": 410}


def matching(method: str, end: str) -> Callable[[web.Request], bool]:
    """Say yes to lists and watches of these objects, or to the one write."""
    return lambda request: bool(request.method == method and request.path.endswith(end))


def faults_of(status: int, hold: asyncio.Event) -> list[Fault]:
    """Return what becomes of every kind of request; a bind fails less often than the extender tries it."""
    if status < 0:
        held = [("GET", end) for end in READS] + [(method, end) for method, ends in WRITES.items() for end in ends]
        return [Fault(0, matches=matching(method, end), held=hold) for method, end in held]
    faults = [Fault(status, matches=matching("GET", end)) for end in READS for _ in range(TIMES)]
    if status != 410:  # of watches alone
        faults += [Fault(status, matches=matching("PATCH", end)) for end in WRITES["PATCH"] for _ in range(TIMES)]
        faults += [Fault(status, matches=matching("POST", WRITES["POST"][1])) for _ in range(TRIES - 1)]
        faults.append(Fault(status, matches=matching("POST", EVENTS)))
    return faults


def objects(at: Scene) -> None:
    """Put a node of one card, a quota, a pod that does not fit, and one that does."""
    at.add_node("n1", cards=1)
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default", "uid": "uid-q"}}
    at.api.put("/api/v1/namespaces/default/resourcequotas/q", quota | {"spec": {"hard": {MEMORY: "1000k"}}})
    at.add_pod("big", memory=500_000)
    at.add_pod("p", memory=50_000)


def placed(at: Scene) -> dict[str, Any] | None:
    """Return the condition of the pod that does not fit."""
    status = at.api.objects[f"{PODS}/big"].get("status", {})
    return next((one for one in status.get("conditions", ()) if one["type"] == names.CONDITION_PLACED), None)


def used(at: Scene) -> Any:
    return at.api.objects["/api/v1/namespaces/default/resourcequotas/q"].get("status", {}).get("used", {}).get(MEMORY)


async def ask_until(at: Scene, verb: str, is_said: Callable[[Any], bool], **body: Any) -> Any:
    """Ask as kube-scheduler does: again, where there is no answer yet."""
    while not is_said(said := (await at.ask(verb, **body))[1]):  # noqa: ASYNC110 -- so does kube-scheduler
        await asyncio.sleep(0)
    return said


async def place(at: Scene) -> None:
    """Ask for both pods."""
    pods = at.api.objects
    big = question(pods[f"{PODS}/big"], "n1")
    assert (await ask_until(at, "filter", lambda said: "Error" not in said, **big))["NodeNames"] == []
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}

    async def once() -> bool:
        await at.ask("filter", **question(pods[f"{PODS}/p"], "n1"))
        return not (await at.ask("bind", **bind))[1]

    while not await once():  # noqa: ASYNC110 -- so does kube-scheduler
        await asyncio.sleep(0)


@pytest.mark.parametrize("when", ["leading", "taking-over"])
@pytest.mark.parametrize("kind", [*KINDS])
def test_k18_c116_requests_that_fail_for_a_while(kind: str, when: str) -> None:
    async def play() -> None:
        async with scene() as at:
            objects(at)
            hold = asyncio.Event()
            faults = faults_of(KINDS[kind], hold)
            if when == "leading":
                await at.lead(1)
                at.api.oldest = at.api.version + 1  # watches are gone, and what was missed is listed
                at.api.faults.extend(faults)
                at.api.script(None)
            else:
                at.api.faults.extend(faults)
                at.api.term = 1
                at.leader.news.put_nowait(Term(1))
            working = asyncio.ensure_future(place(at))
            await until(lambda: len(at.api.faults) < len(faults))
            at.api.oldest = 0
            hold.set()
            await working
            reign = at.service.reign
            assert reign is not None
            await until(lambda: "uid-p" in reign.books.pods and reign.books.pods["uid-p"].node)
            assert await reign.audit() == []
            await until(lambda: placed(at))
            await until(lambda: used(at) == "550000")
            await until(lambda: not at.api.faults)  # every kind of request was made, and made again

    asyncio.run(play())
