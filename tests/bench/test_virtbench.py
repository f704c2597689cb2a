"""The table of bench/virtbench.py comes out of recorded rows, and its verdicts are theirs; nothing is measured here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import virtbench
from calls import CALLS
from cells import alone_of, matrix
from scenes import Plan
from shares import Bench, Book, Row
from tenants import BenchError, Look
from virtbench import NONE, OURS, Calls, Metric, Shares, line_of, memory, response, settled_ms, summary, table

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
FULL = {"bytes": 8 << 30, "code": 2, "free": 0}
FIGURES = {
    "idle-8x12.5": {"idle: arbiter, % of a core": 0.01, "idle: tenants, % of a core": 0.02},
    "priority-P0-beside-P2": {"P95 of the wait, ms": 1.2},
    "killed-in-its-turn": {"neighbour's longest pause after a kill, ms": 40.0},
}
IDS = [
    *("OH-001", "OH-002", "OH-003", "OH-004", "OH-004p", "OH-005", "OH-005p", "OH-006", "OH-007", "OH-008"),
    *("IS-001", "IS-002", "IS-003", "IS-003t", "IS-006", "IS-008", "IS-008u", "IS-009", "IS-010", "IS-004", "IS-007"),
    *("OH-009", "OH-009t", "OH-010", "SCHED-004", "LLM-004", "LLM-004w"),
]


def film(mine: float, seconds: int = 4) -> tuple[list[Look], int]:
    """Looks every 50 ms at two tenants of which the first gets `mine` percent, and a change before all of them."""
    times = [number * SECOND // 20 for number in range(1, 20 * seconds)]
    return [Look(at, (int(at * mine / 100), int(at * (100 - mine) / 100))) for at in times], 0


def recorded(op: str, ours: float = 30.0, verdict: str = "ok") -> dict[str, object]:
    """A row as bench/calls.py --json writes it."""
    return {"op": op, "verdict": verdict, "costs": {"ours": {"ns": ours}, "none": {"ns": 10.0}}}


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    """Rows of bench/calls.py: all of them, each with 30 ns, 10 without."""
    file = tmp_path / "calls.json"
    file.write_text(json.dumps([recorded(op) for op in [call.op for call in CALLS] + ["first", "parallel-8"]]))
    return Calls(file)


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shares:
    """A book in which every cell has got what it asked for, and half of it 50/50 without anything that holds it."""
    book = Book(None, tmp_path)
    for cell in matrix():
        asked = [tenant.share for tenant in cell.tenants]
        even = [100.0 / len(asked)] * len(asked)
        steps = [2.0] * len(asked)
        row = Row(cell.name, "ours", 60.0, asked, asked, 1.0, 0.98, steps, steps, figures=FIGURES.get(cell.name, {}))
        book.add(row, OURS)
        for bare in [cell.baseline(), *map(alone_of, cell.tenants)]:
            got = even if bare == cell.baseline() else [100.0]
            book.add(Row(bare.name, "none", 60.0, got, got, p50_ms=steps, p99_ms=steps), NONE)
    bench = Bench(tmp_path, book, Plan(0.0, 1.0))

    def never(*_: object) -> None:
        raise AssertionError("a recorded row was measured")

    monkeypatch.setattr(bench, "play", never)
    return Shares(bench)


def rows(calls: Calls, shares: Shares) -> dict[str, Metric]:
    return {metric.id: metric for metric in table(calls, shares, lambda: FULL, lambda: film(60.0))}


def test_the_whole_table_comes_out_of_recorded_rows(calls: Calls, shares: Shares) -> None:
    found = rows(calls, shares)
    assert list(found) == IDS
    assert not [metric.id for metric in found.values() if metric.ours is None or metric.failed(clock=True)]
    assert (found["OH-008"].ours, found["OH-008"].none, found["OH-008"].unit) == (30.0, 10.0, "ns")
    assert (found["IS-001"].ours, found["IS-003"].ours, found["IS-006"].ours, found["IS-008u"].ours) == (
        100,
        100,
        100,
        1,
    )
    assert found["IS-008u"].none == pytest.approx(0.6098, abs=1e-4)
    assert found["IS-010"].ours == 40.0
    assert found["OH-010"].ours == pytest.approx(2.0)
    assert found["SCHED-004"].ours == 1.2
    assert all(metric.measures in line_of(metric) for metric in found.values())


def test_a_verdict_is_that_of_the_row_it_is_from(calls: Calls, shares: Shares) -> None:
    calls.rows["launch-turn"] = recorded("launch-turn", 60.0, "missed: instructions")
    calls.rows["info"] = recorded("info", 90.0, "missed: time")
    del calls.rows["proc"]
    shares.row("alone-30/1ms/1").missed = ["tenant 0: got 99.0, asked 30.0"]
    shares.row("idle-8x12.5").missed = ["arbiter % of a core 2.15, at most 2"]  # while they ran: not these rows' matter
    found = rows(calls, shares)
    long = [name for name, metric in found.items() if metric.failed(clock=True)]
    assert long == ["OH-005", "OH-005p", "OH-008", "IS-003"]
    assert [name for name, metric in found.items() if metric.failed(clock=False)] == ["OH-005p", "OH-008", "IS-003"]
    assert line_of(found["IS-003"]).splitlines()[1].strip() == "missed: tenant 0: got 99.0, asked 30.0"
    assert "4 missed (OH-005, OH-005p, OH-008, IS-003)" in summary(list(found.values()), clock=True, in_force=True)
    assert summary([], clock=True, in_force=False).endswith("NOT in force: the run is VOID")


@pytest.mark.parametrize("wrong", [{"code": 999}, {"bytes": (8 << 30) + 1}, {"free": 2 << 20}])
def test_a_limit_that_is_passed_or_not_reached_is_missed(wrong: dict[str, int]) -> None:
    assert not memory(FULL).failed(clock=True)
    assert memory(FULL | wrong).failed(clock=True)


def test_a_changed_share_has_settled_where_a_whole_second_is_right() -> None:
    busy = [0, 0, SECOND * 6 // 10, SECOND * 12 // 10]
    looks = [Look(number * SECOND, (mine, number * SECOND - mine)) for number, mine in enumerate(busy)]
    assert settled_ms(looks, 0, (60.0, 40.0)) == 1000.0
    assert settled_ms(looks[:2], 0, (60.0, 40.0)) is None


def test_a_change_that_comes_late_or_never_is_missed() -> None:
    assert response(*film(30.0))[0].verdict.startswith("missed: never")
    looks, _ = film(60.0)
    late = [replace(look, at=look.at + SECOND) for look in looks]
    assert response(late, 0)[0].verdict == "missed: 500 ms are promised"
    assert response(late, 0, wide=2.5)[0].verdict == "ok"


def test_a_file_of_calls_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match=r"no such file; bench/calls\.py --json writes it"):
        virtbench.calls_of(tmp_path / "none.json", tmp_path)
    monkeypatch.setattr(sys, "argv", ["virtbench", "--calls", str(tmp_path / "none.json"), "--build", str(tmp_path)])
    assert virtbench.main() == 2
