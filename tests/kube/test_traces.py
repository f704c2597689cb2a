"""We test these aspects of what agents left on nodes: it is taken off, also while the API server goes on for a moment
with a policy that was just removed; where the policy stays, the message says what to do first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from partage.kube import traces
from partage.kube.traces import Traces, forget
from partage.model import KubeError
from tests.kube.api_server import ApiServer, Fault, status_of
from tests.kube.support import FakeClock, client_of, scenario

if TYPE_CHECKING:
    from aiohttp import web

NODE = "/api/v1/nodes/n1"
DEVICES = "partage.io/devices"
FOUND = Traces("n1", (DEVICES,), ())
DENIED = "ValidatingAdmissionPolicy 'partage-devices' with binding 'partage-devices' denied request"


def refused(server: ApiServer, times: int, why: str) -> None:
    def is_patch(request: web.Request) -> bool:
        return request.method == "PATCH"

    said = json.dumps(status_of(403, "Forbidden", f'nodes "n1" is forbidden: {why}'))
    server.faults += [Fault(403, body=said, matches=is_patch) for _ in range(times)]
    server.put(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "annotations": {DEVICES: "x"}}})


def test_a_policy_that_was_just_removed_is_waited_out() -> None:
    async def play(server: ApiServer) -> None:
        refused(server, 3, DENIED)
        clock = FakeClock(jumps=True)
        async with client_of(server, clock) as client:
            assert await forget(client, FOUND, sleep=clock.sleep)
        assert clock.slept == [traces.AGAIN_S] * 3
        assert DEVICES not in server.objects[NODE]["metadata"].get("annotations", {})

    scenario(play)


@pytest.mark.parametrize(
    ("why", "step", "waits"),
    [
        pytest.param(DENIED, "take the release off first", traces.GONE_S, id="the-policy-stays"),
        pytest.param('User "a" cannot patch resource "nodes"', "have a role give that user the right", 0.0, id="right"),
    ],
)
def test_what_stays_refused_is_said(why: str, step: str, waits: float) -> None:
    async def play(server: ApiServer) -> None:
        refused(server, 100, why)
        clock = FakeClock(jumps=True)
        async with client_of(server, clock) as client:
            with pytest.raises(KubeError, match=step):
                await forget(client, FOUND, sleep=clock.sleep)
        assert sum(clock.slept) == waits
        assert DEVICES in server.objects[NODE]["metadata"]["annotations"]

    scenario(play)
