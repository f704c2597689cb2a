"""We test these aspects: a share whose processes come and go by the hundred, some of them killed with memory in their
hands, gives every one its memory and has all of it back at the end; with a watcher (`partage run`) and without one."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partage.run.handover import HandOver
from tests.narration import Narration

from .conftest import TENANT, WATCHDOG_S, Stage, Tenant, full

MIB = 1 << 20
AT_ONCE = 8
ENDS = {
    "frees and ends": ("drop\n", 0),
    "ends with memory in hand": ("", 0),
    "is killed with memory in hand": ("die\n", -9),
}


def count() -> int:
    return 1000 if full() else 100


def live_and_die(environment: dict[str, str], end: str) -> str | None:
    """Run one short process; what was wrong with it, or None."""
    commands, code = ENDS[end]
    done = subprocess.run(
        [TENANT],
        input=f"init\nalloc {3 * MIB}\n{commands}",
        env=environment,
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    answers = done.stdout.split("\n")
    if done.returncode != code or answers[0].split()[0] != "0" or answers[1] != "0":
        return f"{end}: exit code {done.returncode}, answers {answers}, {done.stderr}"
    return None


def crowd(environment: dict[str, str]) -> None:
    """Run them all, eight at once."""
    ends = random.Random(1).choices(list(ENDS), k=count())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        faults = [fault for fault in pool.map(lambda end: live_and_die(environment, end), ends) if fault]
    assert not faults, f"{len(faults)} of {count()}, the first: {faults[0]}"


@pytest.mark.timeout(1800)
def test_watched_share(stage: Stage) -> None:
    run = (sys.executable, "-m", "partage", "-vv", "run", "--memory", "64Mi", "--")
    watcher = Narration()
    holder = Tenant(stage.environment, *run, stderr=watcher.write_end)
    watcher.begin()
    stage.tenants.append(holder)
    assert holder.ask("init")[0] == 0
    (policy,) = Path(stage.environment["XDG_RUNTIME_DIR"]).rglob("policy")
    entry = HandOver(policy.parent)
    crowd(stage.inside(entry))
    watcher.until(lambda: len(entry.ledger().slots) == 1)
    ledger = entry.ledger()
    assert ledger.used(stage.uuid) == stage.real_use(ledger.slots[0].host_pid) == 2 * MIB
    assert ledger.reclaimed >= ends_by_kill()
    assert holder.ask("drop") == [0]
    assert holder.ask(f"alloc {64 * MIB}") == [0], "the share is not whole again"
    assert holder.end() == 0


def ends_by_kill() -> int:
    return random.Random(1).choices(list(ENDS), k=count()).count("is killed with memory in hand")


@pytest.mark.timeout(1800)
def test_share_that_nobody_watches(stage: Stage) -> None:
    entry = stage.share("unwatched", 64 * MIB)
    crowd(stage.inside(entry))
    last = stage.tenant(entry)
    assert last.ask("init")[0] == 0
    assert last.ask("drop") == [0]
    assert last.ask(f"alloc {64 * MIB}") == [0], "what the dead held is missing"
    assert last.ask("alloc 1") == [2]
    assert last.end() == 0


@pytest.mark.timeout(1800)
def test_limit_by_environment_alone(stage: Stage) -> None:
    # Nobody tells the library what a context takes here, so each process is charged its estimate for one.
    inside = stage.inside(None, CUDA_DEVICE_MEMORY_LIMIT="32g")

    def alone() -> list[int]:
        tenant = Tenant(inside)
        stage.tenants.append(tenant)
        assert tenant.ask("init")[0] == 0
        seen = tenant.ask("info")
        assert tenant.end() == 0
        return seen

    first = alone()
    assert first[:1] + first[2:] == [0, 32 << 30]
    crowd(inside)
    assert alone() == first, "what the dead held is missing"
    left = [path for path in Path(stage.environment["XDG_RUNTIME_DIR"]).rglob("*") if path.is_file()]
    assert len(left) <= 1, f"ledgers left behind: {left}"
