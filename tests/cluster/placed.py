"""Waiting for our scheduler and its pods, and proving its books: for tests with a `Site`.

Pods are waited for by watch, schedulers by what they log. What can go wrong: what is waited for does not come; the
error has the logs of everything.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from partage.model import names
from partage.model.units import GI
from tests.cluster.api import PATIENCE_S, NotReachedError
from tests.cluster.changes import Changes, deadline, left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.apiproxy import Rule
    from tests.cluster.scheduling import Replica, Site

Json = dict[str, Any]


def until(holds: Callable[[], bool], what: str, site: Site, seconds: float = PATIENCE_S) -> None:
    """Look whenever our schedulers log something until something is so of them."""
    end = deadline(seconds)
    with Changes([replica.ours.log for replica in site.replicas]) as changes:
        while not holds():
            assert left(end) > 0, f"not {what} within {seconds:g} s\n{site.cluster.logs()}"
            changes.wait(left(end))


def until_pods(site: Site, hold: Callable[[list[Json]], bool], what: str) -> list[Json]:
    """Watch the pods until something is so of them."""
    try:
        return site.cluster.api.wait_all("pods", hold, "default", what=what, seconds=PATIENCE_S)
    except NotReachedError as error:
        raise AssertionError(f"{error}\n{site.cluster.logs()}") from error


def happened(rule: Rule, what: str, site: Site) -> None:
    """Wait until a rule was followed."""
    assert rule.happened.wait(PATIENCE_S), f"not {what} within {PATIENCE_S:g} s\n{site.cluster.logs()}"


def started(site: Site, replica: Replica) -> Replica:
    replica.start()
    until(replica.ready, f"{replica.name} ready", site)
    return replica


def bound_of(pods: list[Json]) -> list[Json]:
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def wait_bound(site: Site, count: int) -> list[Json]:
    return bound_of(until_pods(site, lambda pods: len(bound_of(pods)) >= count, f"{count} pods bound"))


def promised(pods: list[Json]) -> dict[str, tuple[int, int, int]]:
    """Return card -> bytes, permille and pods that grants promise, each checked against its own pod."""
    found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for pod in pods:
        grant = json.loads(pod["metadata"]["annotations"][names.GRANT])
        assert (grant["uid"], grant["node"]) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
        for share in grant["containers"]["app"]["shares"]:
            memory, cores, seats = found[share["uuid"]]
            found[share["uuid"]] = (memory + share["memory"], cores + share["cores"], seats + 1)
    return dict(found)


def check_books(site: Site, *replicas: Replica) -> None:
    """The leader's books, whoever leads, are what the pods add up to; no card is promised beyond what it has."""
    counted = promised(site.bound())
    assert all(memory <= 80 * GI and cores <= 1000 and seats <= 10 for memory, cores, seats in counted.values())
    memory = {card: memory for card, (memory, _, _) in counted.items()}

    def agrees(replica: Replica) -> bool:
        series = replica.figures()
        kept = {
            name.split('device_uuid="')[1].split('"')[0]: int(value)
            for name, value in series.items()
            if name.startswith("partage_scheduler_device_memory_promised_bytes") and value
        }
        open_ = {series.get(f"partage_scheduler_{name}") for name in ("reservations", "binds_unknown")}
        return open_ == {0} and kept == memory

    replicas[0].ours.until(  # which nobody announces
        lambda: any(replica.ready() and agrees(replica) for replica in replicas),
        seconds=PATIENCE_S,
        what="in agreement with the API server",
    )


def term_of(pod: Json) -> int:
    return int(json.loads(pod["metadata"]["annotations"][names.GRANT])["term"])
