"""The status of quotas: at most one write a second each, ours alone, tried again where it fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ResourceQuota, ResourceQuotaStatus

from partage.model import KubeError
from partage.model.units import MI
from partage.scheduler.quota.book import QuotaBook, QuotaPod
from partage.scheduler.quota.limits import read_limit
from partage.scheduler.quota.scope import Traits
from partage.scheduler.quota.status import StatusWriter
from tests.kube.support import FakeClock, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEMORY = "limits.nvidia.com/gpumem"
Used = dict[str, str]


def quota(name: str = "q", **used: str) -> ResourceQuota:
    """An object as the API has it; `used` by the last word of the key."""
    spec = {"hard": {MEMORY: "30k", "pods": "3"}}
    found = {f"limits.nvidia.com/{key}": value for key, value in used.items()}
    whole = {"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"used": {"pods": "1", **found}}}
    return cast("ResourceQuota", ResourceQuota.from_dict(whole))


class Api:
    """Takes patches of the status, and refuses those that it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.objects: dict[str, ResourceQuota] = {}
        self.writes: list[tuple[float, str, Used]] = []
        self.refusals: list[int] = []

    def see(self, namespace: str, name: str) -> ResourceQuota | None:
        assert namespace == "ns"
        return self.objects.get(name)

    async def patch(self, resource: type, name: str, body: dict[str, Any], *, namespace: str) -> None:
        assert (resource, namespace) == (ResourceQuotaStatus, "ns")
        self.writes.append((self.clock.now() - 1000, name, body["status"]["used"]))
        if self.refusals:
            raise KubeError("quota", "no", "yes", "wait", status=self.refusals.pop())
        used = self.objects[name].status
        assert used is not None
        assert used.used is not None
        used.used.update(body["status"]["used"])

    @property
    def told(self) -> list[tuple[float, Used]]:
        return [(at, used) for at, _, used in self.writes]


def play(script: Callable[[QuotaBook, Api, FakeClock, StatusWriter], Awaitable[None]], *, leads: bool = True) -> Api:
    clock = FakeClock()
    api, book = Api(clock), QuotaBook()
    api.objects["q"] = quota()

    async def whole() -> None:
        writer = StatusWriter(api, book, clock, seen=api.see, writes=lambda: leads)  # type: ignore[arg-type]
        book.set_quota(read_limit(api.objects["q"]))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(writer.run())
            await script(book, api, clock, writer)
            running.cancel()

    asyncio.run(whole())
    return api


def pod(uid: str, mib: int) -> QuotaPod:
    return QuotaPod(uid, "ns", uid, Traits(), ((MEMORY, mib * MI),), placed=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_burst_is_two_writes_and_the_last_says_all() -> None:
    async def script(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        await until(lambda: api.writes)
        for number in range(100):
            book.set_pod(pod(str(number), 100))
            await settle()
        assert len(api.writes) == 1, "within the second nothing more is written"
        await until(lambda: clock.sleeping)
        clock.advance(1)
        await until(lambda: len(api.writes) == 2)
        clock.advance(5)
        await settle()

    assert play(script).told == [(0.0, {MEMORY: "0"}), (1.0, {MEMORY: "10000"})]


def test_what_is_so_already_is_not_written_and_other_keys_are_left_alone() -> None:
    async def script(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        api.objects["q"] = quota(gpumem="10k")
        book.set_pod(pod("a", 10000))
        writer.look_again("ns", "q")
        await settle()

    assert play(script).writes == []


def test_a_refused_write_is_tried_again() -> None:
    async def script(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        api.refusals = [500]
        await until(lambda: len(api.writes) == 1 and clock.sleeping)
        clock.advance(1)
        await until(lambda: len(api.writes) == 2)

    assert [used for _, used in play(script).told] == [{MEMORY: "0"}] * 2


def test_a_quota_that_is_gone_and_a_follower_write_nothing() -> None:
    async def gone(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        api.objects.clear()
        await settle()

    async def follower(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        await settle()

    assert play(gone).writes == []
    assert play(follower, leads=False).writes == []


def test_a_status_that_somebody_emptied_is_written_anew() -> None:
    async def script(book: QuotaBook, api: Api, clock: FakeClock, writer: StatusWriter) -> None:
        await until(lambda: api.writes)
        api.objects["q"] = quota()
        writer.look_again("ns", "q")
        await until(lambda: clock.sleeping)
        clock.advance(1)
        await until(lambda: len(api.writes) == 2)

    play(script)


def test_what_the_object_says_wrongly_allows_nothing_and_is_told() -> None:
    wrong = ResourceQuota(metadata=ObjectMeta(name="q", namespace="ns"))
    assert read_limit(wrong).hard == {}
    whole = {"metadata": {"name": "q"}, "spec": {"hard": {MEMORY: "lots", "limits.nvidia.com/gpu-mem": "1"}}}
    limit = read_limit(cast("ResourceQuota", ResourceQuota.from_dict(whole)))
    assert limit.hard == {MEMORY: 0}
    assert [problem.split(":")[0] for problem in limit.problems] == [
        "key limits.nvidia.com/gpu-mem", f"{MEMORY} 'lots'",
    ]  # fmt: skip
