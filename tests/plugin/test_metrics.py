"""We test these aspects of metrics: names as promtool wants them; a text that Prometheus' own parser reads back as it
was meant; a value that is not known has no series; the same figures under HAMi's names, in its units; what is read from
real ledgers; health pages with reasons."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from partage._version import __version__
from partage.devices.backend import CardUse
from partage.logs import configure_logs
from partage.model import DeviceError
from partage.run.handover import HandOver
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage.text_format import CONTENT_TYPE
from partage_plugin.figures import CardFigures, ContainerFigures, Figures
from partage_plugin.http import HttpServer
from partage_plugin.metrics import MetricsPage
from partage_plugin.monitor.reader import Held, Reader
from partage_plugin.monitor.sampler import EVERY_S, FORGOTTEN_S, STALE_S, Sampler
from partage_plugin.monitor.whereabouts import hand_overs_of
from partage_plugin.web import Answers, Pages
from tests.kube.support import FakeClock, until
from tests.shm.conftest import Tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from prometheus_client.metrics_core import Metric

GI = 1 << 30
CARD = CardFigures(
    "GPU-a", 0, "NVIDIA H100", "nvidia", "shim", 80 * GI, 72 * GI, 10, used=5 * GI, busy=250, memory_busy=125
)
APP = ContainerFigures(
    namespace="team",
    pod="train-0",
    container="app",
    device_uuid="GPU-a",
    ordinal=0,
    hand_over="0" * 32,
    limit=8 * GI,
    cores=300,
    ceiling=600,
    share_class="burst",
    priority=1,
    enforcement="shim",
    is_open=True,
    used=3 * GI,
    overhead=GI // 2,
    kinds={"context": GI, "allocated": 2 * GI - GI // 2},
    got=333,
    charged_ns=2_500_000_000,
    waited_ns=1_000_000,
    waits=7,
    launches=100,
    refusals=2,
    processes=1,
    idle_s=1.5,
    hooked=True,
)
FIGURES = Figures((CARD,), (APP,), {"ledger": 3})
OWN = {"node": "n1", "namespace": "team", "pod": "train-0", "container": "app", "device_uuid": "GPU-a"}


def text_of(figures: Figures = FIGURES, *, hami_names: bool = True) -> str:
    return MetricsPage("n1", hami_names=hami_names).text(figures)


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read the text as Prometheus does; a series that is there twice fails."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    return values(text)[name, frozenset(labels.items())]


def test_ours_are_in_base_units() -> None:
    text = text_of()
    for name, expected in {
        "memory_used_bytes": 3 * GI,
        "memory_limit_bytes": 8 * GI,
        "memory_overhead_bytes": GI / 2,
        "compute_ratio": 0.333,
        "compute_seconds_total": 2.5,
        "cores_guaranteed_ratio": 0.3,
        "cores_ceiling_ratio": 0.6,
        "wait_seconds_total": 0.001,
        "waits_total": 7,
        "launches_total": 100,
        "refusals_total": 2,
        "processes": 1,
        "idle_seconds": 1.5,
        "hooked": 1,
        "open": 1,
    }.items():
        assert value(text, f"partage_container_{name}", **OWN) == expected, name
    assert value(text, "partage_container_memory_kind_bytes", **OWN, kind="context") == GI
    assert (
        value(text, "partage_container_info", **OWN, **{"class": "burst", "priority": "1", "enforcement": "shim"}) == 1
    )
    card = {"node": "n1", "device_uuid": "GPU-a"}
    for name, expected in {
        "memory_bytes": 80 * GI,
        "memory_allocatable_bytes": 72 * GI,
        "memory_used_bytes": 5 * GI,
        "memory_promised_bytes": 8 * GI,
        "cores_promised_ratio": 0.3,
        "shares": 1,
        "seats": 10,
        "healthy": 1,
        "utilization_ratio": 0.25,
    }.items():
        assert value(text, f"partage_device_{name}", **card) == expected, name
    assert value(text, "partage_build_info", version=__version__) == 1
    assert value(text, "partage_query_failures_total", query="ledger") == 3


def test_hamis_names_show_the_same_in_percent() -> None:
    text = text_of()
    new = {
        "zone": "vGPU",
        "namespace": "team",
        "pod": "train-0",
        "container": "app",
        "vdevice_index": "0",
        "device_uuid": "GPU-a",
    }
    old = {
        "zone": "vGPU",
        "podnamespace": "team",
        "podname": "train-0",
        "ctrname": "app",
        "vdeviceid": "0",
        "deviceuuid": "GPU-a",
    }
    for name, before, expected in (
        ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes", 3 * GI),
        ("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes", 8 * GI),
        ("hami_container_device_memory_bytes", "Device_memory_desc_of_container", 3 * GI),
        ("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container", 33.3),
        ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container", 1.5),
    ):
        assert value(text, name, **new) == expected
        assert value(text, before, **old) == expected
    for kind, expected in (("context", GI), ("module", GI / 2), ("buffer", 1.5 * GI)):
        assert value(text, f"hami_vgpu_memory_{kind}_bytes", **new) == expected
    assert value(text, "hami_vmemory_allocated", **new) == 8 * 1024  # MiB
    host = {"zone": "vGPU", "node": "n1", "device_index": "0", "device_uuid": "GPU-a", "device_type": "NVIDIA H100"}
    assert value(text, "hami_host_gpu_memory_used_bytes", **host) == 5 * GI
    assert value(text, "hami_host_gpu_utilization_ratio", **host) == 25
    del host["node"]
    assert value(text, "hami_host_gpu_memory_controller_utilization_ratio", **host) == 12.5
    assert value(text, "HostCoreUtilization", zone="vGPU", deviceidx="0", deviceuuid="GPU-a") == 25


def test_hamis_names_can_be_switched_off() -> None:
    names = {name for name, _ in values(text_of(hami_names=False))}
    assert names
    assert all(name.startswith("partage_") for name in names)


def test_what_is_not_known_has_no_series() -> None:
    closed = replace(APP, used=None, got=None, idle_s=None, kinds={}, hooked=None, charged_ns=None)
    found = values(text_of(Figures((replace(CARD, used=None, busy=None, memory_busy=None),), (closed,))))
    names = {name for name, _ in found}
    assert (
        not {
            "partage_container_memory_used_bytes",
            "partage_container_compute_ratio",
            "partage_container_idle_seconds",
            "partage_container_hooked",
            "partage_device_memory_used_bytes",
            "hami_vgpu_memory_used_bytes",
            "hami_host_gpu_utilization_ratio",
            "partage_query_failures_total",
        }
        & names
    )
    assert {"partage_container_memory_limit_bytes", "partage_device_memory_bytes", "partage_container_info"} <= names


def test_an_ended_container_has_no_series() -> None:
    assert not any("container" in name and "hami" not in name for name, _ in values(text_of(Figures((CARD,), ()))))


def test_two_hand_overs_of_one_container_are_one_series() -> None:
    """A series that is told twice makes Prometheus drop the scrape."""
    old = replace(APP, is_open=False, hand_over="1" * 32, limit=GI)
    for pair in ((old, APP), (APP, old)):
        assert value(text_of(Figures((CARD,), pair)), "partage_container_memory_limit_bytes", **OWN) == 8 * GI
    second = replace(APP, device_uuid="GPU-b", ordinal=1)
    assert len({key for key in values(text_of(Figures((), (APP, second)))) if key[0] == "partage_container_open"}) == 2


def test_odd_text_stays_inside_its_label() -> None:
    odd = 'a"b\\c\nd{}=,'
    text = text_of(Figures((replace(CARD, is_healthy=False, reason=odd),), ()))
    found = next(labels for name, labels in values(text) if name == "partage_device_info")
    assert dict(found)["reason"] == odd


def test_labels_are_kept_only_of_what_is_there() -> None:
    """Scrapes one after the other: the same text for the same figures, new labels for what is new, none for the old."""
    page = MetricsPage("n1")
    first = page.text(FIGURES)
    assert page.text(FIGURES) == first
    other = replace(APP, pod="train-1", ordinal=1)
    found = values(page.text(Figures((CARD,), (other,))))
    assert {dict(labels).get("pod") for name, labels in found if name == "partage_container_open"} == {"train-1"}
    assert page.text(FIGURES) == first
    assert len(page._labels) == 1


def test_numbers_are_told_whole() -> None:
    """Beyond what a double holds, fractions, and nothing at all."""
    odd = replace(APP, waits=(1 << 53) + 1, charged_ns=1, idle_s=0.0)
    text = text_of(Figures((CARD,), (odd,)))
    assert re.search(r"^partage_container_waits_total\{.*\} 9007199254740993$", text, re.MULTILINE)
    assert value(text, "partage_container_compute_seconds_total", **OWN) == 1e-9
    assert value(text, "partage_container_idle_seconds", **OWN) == 0


@pytest.mark.parametrize(
    "family", list(text_string_to_metric_families(text_of(hami_names=False))), ids=lambda family: family.name
)
def test_names_are_as_promtool_wants_them(family: Metric) -> None:
    """The rules of `promtool check metrics`."""
    name, kind = family.name, family.type
    text = family.documentation
    full = family.samples[0].name if family.samples else name
    assert re.fullmatch(r"partage_[a-z][a-z_]*[a-z]", full)
    assert text.endswith(".")
    assert re.match(r"[A-Z1]", text)
    assert (kind == "counter") == full.endswith("_total")
    assert not re.search(r"(gauge|counter|metric)", name)
    assert not re.search(r"_(milli|micro|nano)?(ms|ns|us|kb|mb|mib|gib|percent|permille|minutes|hours)(_|$)", name)
    for word in ("count", "sum", "bucket"):
        assert not full.endswith(f"_{word}")
    if "memory" in name:
        assert re.search(r"_bytes$", name)
    for sample in family.samples:
        assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in sample.labels)


# ---- reading ---------------------------------------------------------------------------------------------------------


def hand_over(root: Path, name: str = "a" * 32) -> HandOver:
    path = root / name
    path.mkdir()
    create_ledger(path / "ledger", ["GPU-a"])
    create_turns(path / "turns", 1)
    device = PolicyDevice("GPU-a", 8 * GI, 80 * GI, cores=300, ceiling=300, overhead=1000)
    PolicyFile.create(path / "policy", Policy(devices=(device,), share_class="fixed")).close()
    return HandOver(path)


def test_figures_of_a_hand_over_from_its_start(tmp_path: Path) -> None:
    entry = hand_over(tmp_path)
    reader = Reader(lambda: [Held(entry, "team", "train-0", "app")], lambda: [CARD])
    figures = reader.read()
    assert figures.cards == (CARD,)
    (found,) = figures.containers
    assert (found.namespace, found.pod, found.container, found.ordinal) == ("team", "train-0", "app", 0)
    assert (found.limit, found.used, found.overhead, found.processes) == (8 * GI, 1000, 1000, 0)
    assert (found.share_class, found.enforcement, found.hooked) == ("fixed", "shim", None)
    assert found.idle_s is None


def test_the_drivers_own_figures_of_cards(tmp_path: Path) -> None:
    """Use of the card as the driver says it; one that does not answer has no such series, and a driver that hangs costs
    nothing else."""
    other = replace(CARD, uuid="GPU-b", index=1)
    bare = [replace(one, used=None, busy=None, memory_busy=None) for one in (CARD, other)]
    use = {"GPU-a": CardUse(3 * GI, 410, 70)}
    entry = hand_over(tmp_path)
    reader = Reader(lambda: [Held(entry, "team", "train-0", "app")], lambda: bare, use=lambda: use)
    first, second = reader.read().cards
    assert (first.used, first.busy, first.memory_busy) == (3 * GI, 410, 70)
    assert (second.used, second.busy, second.memory_busy) == (None, None, None)

    def hangs() -> dict[str, CardUse]:
        raise DeviceError("NVML", "does not answer", "an answer", "none")

    figures = Reader(lambda: [Held(entry, "team", "train-0", "app")], lambda: bare, use=hangs).read()
    assert (figures.cards[0].used, figures.containers[0].limit) == (None, 8 * GI)
    assert figures.failures == {"use": 1}


def test_a_process_without_a_slot_is_seen_the_second_time(tmp_path: Path) -> None:
    """In its container's series alone: one whose processes all have the library says 1, one without any has none."""
    hooked, bypassed, idle = (hand_over(tmp_path, letter * 32) for letter in "abc")
    slots = Tenant(hooked.ledger_path)
    slots.take(0, pid=5).host_pid = 500
    use = {"GPU-a": CardUse(processes={500: 1, 600: None, 700: 1})}
    mounts = {600: bypassed.name, 700: "f" * 32}  # the latter is nobody's that we know
    held = [Held(entry, "team", entry.name[0], "app") for entry in (hooked, bypassed, idle)]
    reader = Reader(
        lambda: held, lambda: [CARD], use=lambda: use, whose=lambda pids: {mounts[pid] for pid in pids if pid in mounts}
    )
    assert [found.hooked for found in reader.read().containers] == [True, None, None]
    assert [found.hooked for found in reader.read().containers] == [True, False, None]
    use["GPU-a"] = CardUse(processes={500: 1})
    assert [found.hooked for found in reader.read().containers] == [True, None, None]
    slots.close()


def test_whose_a_process_is_by_its_mounts(tmp_path: Path) -> None:
    for pid, where in ((1, "/run/partage/" + "a" * 32), (2, "/"), (3, "/run/partage/" + "b" * 33)):
        (tmp_path / str(pid)).mkdir()
        text = f"22 1 0:20 {where} /run/partage ro - tmpfs tmpfs rw\n"
        (tmp_path / str(pid) / "mountinfo").write_text(text)
    assert hand_overs_of([1, 2, 3, 4], tmp_path) == {"a" * 32}


def test_what_cannot_be_read_costs_its_own_series(tmp_path: Path) -> None:
    good, garbage, gone = (hand_over(tmp_path, letter * 32) for letter in "abc")
    garbage.ledger_path.write_bytes(b"\xff" * 4096)
    gone.policy_path.unlink()

    def cards() -> list[CardFigures]:
        raise DeviceError("NVML", "unknown error", "an answer", "none")

    held = [Held(entry, "team", entry.name[0], "app") for entry in (good, garbage, gone)]
    figures = Reader(lambda: held, cards).read()
    assert [(found.pod, found.used) for found in figures.containers] == [("a", 1000), ("b", None)]
    assert figures.containers[1].limit == 8 * GI
    assert figures.cards == ()
    assert figures.failures == {"ledger": 1, "policy": 1, "cards": 1}
    text = text_of(figures)
    assert value(text, "partage_query_failures_total", query="cards") == 1


def test_counters_outlive_what_cannot_be_read(tmp_path: Path) -> None:
    """A spoilt ledger has none of them, its successor without a device the same as before, and so after a moment in
    which the policy could not be read: a counter that falls is taken for a new start, with all of it used again."""
    entry = hand_over(tmp_path)
    reader = Reader(lambda: [Held(entry, "team", "train-0", "app")], lambda: [CARD])

    def refusals() -> int | None:
        return next((found.refusals for found in reader.read().containers), None)

    slots = Tenant(entry.ledger_path)
    slots.take(0, pid=5).device[0].refused = 7
    assert refusals() == 7
    aside = entry.policy_path.rename(entry.path / "aside")
    slots.ledger.slot[0].device[0].refused = 9
    assert refusals() is None
    aside.rename(entry.policy_path)
    assert refusals() == 9
    slots.ledger.slot[0].state = 0  # it has ended
    assert refusals() == 9
    slots.close()
    entry.ledger_path.write_bytes(b"spoilt")
    assert refusals() is None
    entry.ledger_path.unlink()
    create_ledger(entry.ledger_path, [])
    assert refusals() == 9


# ---- over HTTP -------------------------------------------------------------------------------------------------------


class Fixed:
    async def latest(self) -> Figures:
        return FIGURES


@asynccontextmanager
async def served(answers: Answers) -> AsyncIterator[str]:
    server, listening = HttpServer(Pages(answers).page), asyncio.Event()
    running = asyncio.create_task(server.run("127.0.0.1", 0, listening.set))
    await listening.wait()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_pages() -> None:
    reasons: list[str] = []

    async def play() -> None:
        answers = Answers("n1", Fixed(), not_alive=list, not_ready=lambda: reasons)
        async with served(answers) as url, ClientSession(url) as client:
            scraped = await client.get("/metrics?x=y")
            assert scraped.headers["Content-Type"] == CONTENT_TYPE
            text = await scraped.text()
            assert value(text, "partage_container_memory_used_bytes", **OWN) == 3 * GI
            own = {name for name, _ in values(text) if name.startswith("process_")}
            assert {f"process_{name}" for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds")} <= own
            assert abs(value(text, "process_start_time_seconds") - time.time()) < 86400 * 365
            assert value(text, "process_resident_memory_bytes") > 1 << 20
            owners = await (await client.get("/hand-overs")).json()
            assert owners == {"0" * 32: {"namespace": "team", "pod": "train-0", "container": "app"}}
            for page in ("/healthz", "/readyz"):
                answer = await client.get(page)
                assert (answer.status, await answer.text()) == (200, "ok\n")
            reasons.extend(["kubelet: not registered yet", "pods: not listed yet"])
            answer = await client.get("/readyz")
            assert (answer.status, await answer.text()) == (503, "kubelet: not registered yet\npods: not listed yet\n")
            assert (await client.get("/healthz")).status == 200
            assert (await client.post("/metrics", data=b"x")).status == 405
            assert (await client.get("/")).status == 404

    asyncio.run(play())


def test_figures_are_read_while_somebody_asks() -> None:
    async def play() -> None:
        clock, reads = FakeClock(), []

        def read() -> Figures:
            reads.append(clock.now())
            if len(reads) == 2:
                raise RuntimeError("a defect")
            return Figures(at_ns=len(reads))

        sampler = Sampler(read, clock)
        running = asyncio.create_task(sampler.run())
        together = await asyncio.gather(*(sampler.latest() for _ in range(5)))
        assert {figures.at_ns for figures in together} == {1}
        assert len(reads) == 1  # five questions, one reading
        await until(lambda: clock.sleeping)
        clock.advance(EVERY_S)
        await until(lambda: len(reads) == 2 and clock.sleeping)
        assert (await sampler.latest()).at_ns == 1  # the reading failed: the one before still stands
        clock.advance(EVERY_S)
        await until(lambda: len(reads) == 3 and clock.sleeping)
        assert (await sampler.latest()).at_ns == 3
        clock.advance(FORGOTTEN_S + 1)  # nobody asks: no more readings
        await until(lambda: not clock.sleeping)
        clock.advance(STALE_S)
        assert len(reads) == 3
        assert (await sampler.latest()).at_ns == 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


def test_figures_follow_what_runs() -> None:
    """A container has its figures from its start, and none after its end: also between two readings."""

    async def play() -> None:
        clock, reads, present = FakeClock(), [], {"a"}

        def read() -> Figures:
            reads.append(frozenset(present))
            return Figures(at_ns=len(reads))

        sampler = Sampler(read, clock, present=lambda: frozenset(present))
        assert [(await sampler.latest()).at_ns for _ in range(2)] == [1, 1]
        present.add("b")
        assert [(await sampler.latest()).at_ns for _ in range(2)] == [2, 2]
        present.remove("a")
        assert [(await sampler.latest()).at_ns for _ in range(2)] == [3, 3]
        assert reads == [{"a"}, {"a", "b"}, {"b"}]

    asyncio.run(play())


def test_log_lines_are_json_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.handlers, root.level)
    try:
        configure_logs("info")
        log = structlog.get_logger("partage.test")
        log.info("granted", pod="team/a", api_token="abc", path=Path("/run"))  # noqa: S106
        log.debug("not shown")
        logging.getLogger("foreign").warning("told by %s", "others")
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("failed")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        root.handlers, level = before
        root.setLevel(level)
        structlog.reset_defaults()
    assert [line["event"] for line in lines] == ["granted", "told by others", "failed"]
    assert (
        lines[0].items()
        >= {"level": "info", "logger": "partage.test", "pod": "team/a", "api_token": "...", "path": "/run"}.items()
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", lines[0]["time"])
    assert "ValueError: broken" in lines[2]["exception"]
