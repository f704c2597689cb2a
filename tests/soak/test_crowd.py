"""We test these aspects (C066): 300 processes of 50 containers that start together all get their first memory, none
waits for another container, and no file is shared between containers; so do a thousand that share one limit of the
environment and one ledger that nobody made for them. How long it took is printed, not judged."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import full

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Stage, Tenant

CONTAINERS = 50
EACH = 6
MIB = 1 << 20


def open_files(pid: int) -> set[Path]:
    """Every file that a process has open or mapped."""
    mapped = {line.split(None, 5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " /" in line}
    opened = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return {Path(name) for name in mapped | opened if name.startswith("/")}


@pytest.mark.timeout(600)
def test_three_hundred_processes_start_together(stage: Stage) -> None:
    shares = [stage.share(f"container-{number}", 64 * MIB) for number in range(CONTAINERS)]
    tenants = [(entry, stage.tenant(entry)) for entry in shares for _ in range(EACH)]
    for _, tenant in tenants:
        tenant.tell("init")
    answers = [tenant.answer() for _, tenant in tenants]
    assert all(answer and answer[0] == 0 for answer in answers), answers
    for entry, tenant in tenants:
        foreign = {
            path
            for path in open_files(tenant.process.pid)
            if path.is_relative_to(stage.directory) and not path.is_relative_to(entry.path)
        }
        assert not foreign, f"process of {entry.name} has open {foreign}"
        kept = [path for path in open_files(tenant.process.pid) if path.is_relative_to(entry.path)]
        assert kept, f"process of {entry.name} does not use its own hand-over"
    assert [entry.ledger().used(stage.uuid) for entry in shares] == [EACH * 2 * MIB] * CONTAINERS
    assert {tenant.end() for _, tenant in tenants} == {0}
    report(f"{len(tenants)} processes of {CONTAINERS} containers", answers)


def report(who: str, answers: list[list[int] | None]) -> None:
    times = sorted(answer[1] for answer in answers if answer)
    p95, most = times[int(len(times) * 0.95)] / 1e9, times[-1] / 1e9
    print(f"{who}: first memory after {p95:.2f} s (p95), {most:.2f} s (last)")


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Two pipes a process: more than the usual limit of a thousand."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_processes_start_together_alone(stage: Stage) -> None:
    inside = stage.inside(None, CUDA_DEVICE_MEMORY_LIMIT="64g", PARTAGE_CONTEXT_MEMORY="0")
    tenants: list[Tenant] = [stage.tenant_in(inside) for _ in range(1000 if full() else 100)]
    for tenant in tenants:
        tenant.tell("init")
    answers = [tenant.answer() for tenant in tenants]
    assert all(answer and answer[0] == 0 for answer in answers), answers
    error, free, total = tenants[0].ask("info")
    assert (error, total - free) == (0, len(tenants) * 2 * MIB)
    assert {tenant.end() for tenant in tenants} == {0}
    report(f"{len(tenants)} processes under one limit of the environment", answers)
