"""What bench/shares.py concludes from what it saw, and that its loads do as they are told; no time is judged here."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from cells import GAP, PLAIN, SMOKE, SMOKE_NONE, Cell, Tenant, matrix
from scenes import SCENES, Plan, Seen, Window
from shares import Bench, Book, Row, counted, jain, judge, line_of, row_of
from tenants import BenchError, Container, Look, Stage, System, shares_between

BUILD = Path(os.environ.get("PARTAGE_BUILD", Path(__file__).resolve().parents[2] / "build"))
NONE = System("none")
PLAN = Plan(0.0, 1.0)


def row(cell: Cell, *got: float, of_none: float | None = None) -> Row:
    found = row_of(cell, NONE, PLAN, Seen(list(got), [{} for _ in got]), [tenant.share for tenant in cell.tenants])
    found.of_none = of_none
    judge(cell, found, 1.0)
    return found


THIRDS = Cell("30-70", (Tenant(PLAIN, 30), Tenant(PLAIN, 70)))


def test_shares_within_two_points_are_kept() -> None:
    assert row(THIRDS, 28.1, 69.0, of_none=0.98).missed == []


def test_what_existing_systems_make_of_30_70_is_missed() -> None:
    missed = row(THIRDS, 46.0, 54.0, of_none=1.0).missed
    assert [words.split(":")[0] for words in missed[:2]] == ["tenant 0", "tenant 1"]
    assert missed[2].startswith("Jain")


def test_a_card_that_is_not_used_is_missed() -> None:
    assert row(THIRDS, 28.5, 68.5, of_none=0.96).missed == ["aggregate 96.0 %, at least 97 %"]


def test_a_lone_limited_tenant_that_gets_everything_is_missed() -> None:
    assert row(Cell("alone-50", (Tenant(PLAIN, 50),), aggregate=None), 99.0).missed


def test_a_process_that_could_not_go_on_is_missed() -> None:
    seen = Seen([30.0, 70.0], [{"errors": 1}, {"errors": 0}])
    assert row_of(THIRDS, NONE, PLAN, seen, [30.0, 70.0]).missed == ["tenant 0: 1 processes could not go on"]


def test_a_short_cell_is_not_judged_where_other_work_had_the_processors() -> None:
    missed, disturbed = (row(THIRDS, 46.0, 54.0, of_none=1.0) for _ in range(2))
    disturbed.others = 80.0
    assert line_of(missed).splitlines()[0].endswith("missed")
    assert line_of(disturbed).splitlines()[0].endswith("busy machine")
    assert counted([missed, disturbed], smoke=True) == [missed]
    assert counted([missed, disturbed], smoke=False) == [missed, disturbed]


class Known(Bench):
    """A bench that knows what programs get without shares, by how many they are: what each gets, and what is lost."""

    def __init__(self, *bare: tuple[list[float], float]) -> None:
        super().__init__(BUILD, Book(None, BUILD), PLAN)
        self.known = {len(got): (got, lost) for got, lost in bare}

    def bare(self, cell: Cell) -> Row:
        got, lost = self.known[len(cell.tenants)]
        return Row(cell.name, "none", 1.0, got, got, handed_over=lost)


def test_a_share_is_asked_of_what_the_engine_leaves_where_the_programs_make_it_change_contexts() -> None:
    bench = Known(([97.5], 2.5), ([48.75, 48.75], 2.5))
    tenants = (Tenant(PLAIN, 30, 8), Tenant(PLAIN, 70, 8))
    assert bench.asked(Cell("30-70/8", tenants, handed_over=True)) == pytest.approx([29.25, 68.25])
    assert bench.asked(Cell("30-70", tenants)) == [30.0, 70.0]


def test_what_tenants_get_behind_a_new_arbiter_is_held_to_what_was_asked_and_not_to_their_shares() -> None:
    seen = Seen([28.0, 70.0], [{}, {}])
    seen.windows.append(Window("above its share", [28.0, 70.0], 2.0, only_above=True))
    seen.windows.append(Window("error after", [27.7, 67.0], 2.0))
    assert row_of(THIRDS, NONE, PLAN, seen, [29.3, 67.9]).missed == ["tenant 1 above its share 2.10, at most 2"]
    killed = next(cell for cell in matrix() if cell.name == "arbiter-killed-30-70/8")
    bench = Known(([97.5], 2.5), ([48.75, 48.75], 2.5))
    assert bench.asked(killed) == pytest.approx([29.25, 68.25])


def test_of_a_program_that_pauses_no_more_is_asked_than_it_gets_beside_its_like() -> None:
    bench = Known(([47.0], 0.0), ([44.0, 44.0], 4.6))
    asked = bench.asked(Cell("30-70/gap", (Tenant(GAP, 30), Tenant(GAP, 70)), handed_over=True))
    assert asked == pytest.approx([30 * 88 / 92.6, 44.0])


def test_the_pair_gets_44_or_a_point_less_than_the_machine_gives_without_a_shim() -> None:
    pair = Cell("pair", (Tenant(GAP, 50), Tenant(GAP, 50)), beside_none=True, aggregate=None)
    for least, kept, missed in ((44.0, 44.1, 43.8), (42.5, 42.6, 42.4)):
        none = least + 1.0
        for got, words in ((kept, []), (missed, [f"got {missed}, never below {least}"])):
            found = row_of(pair, NONE, PLAN, Seen([got, got], [{}, {}]), [none, none])
            judge(pair, found, 1.0)
            assert found.missed == words


def test_jain_is_one_for_equal_parts_and_one_nth_for_one_winner() -> None:
    assert jain([0.5, 0.5, 0.5]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_cells_have_names_of_their_own_and_known_scenes() -> None:
    cells = matrix()
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.scene for cell in cells} == set(SCENES)
    assert {*SMOKE, SMOKE_NONE} <= {cell.name for cell in cells}


def test_a_row_of_another_build_or_a_shorter_run_is_measured_again(tmp_path: Path) -> None:
    build, file = tmp_path / "build", tmp_path / "rows"
    (build / "sim").mkdir(parents=True)
    library = build / "sim" / "libcuda.so.1"
    library.write_bytes(b"one")
    Book(file, build).add(row(THIRDS, 30.0, 70.0), NONE)
    assert Book(file, build).find("30-70", NONE, 1.0)
    assert Book(file, build).find("30-70", NONE, 60.0) is None
    assert Book(file, build).find("30-70", System("ours"), 1.0) is None
    library.write_bytes(b"two")
    assert Book(file, build).find("30-70", NONE, 1.0) is None


# ---- the loads, on a simulated machine of their own ------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    assert (BUILD / "bench" / "loads").exists(), "bench/loads was not built: make build"
    cell = Cell("test", request.param)
    return Stage(cell, NONE, BUILD, tmp_path)


def worked(stage: Stage, number: int) -> dict[str, int]:
    """Return a report of a tenant once its device has done something for it."""
    before = stage.look().busy[number]
    while stage.look().busy[number] == before:
        pass
    return stage.containers[number].report()


TWO = Tenant(PLAIN, None, processes=2)
KINDS = [
    Tenant(replace(PLAIN, kind=kind, kernel_ns=10_000, count=count), None, devices=devices)
    for kind, count, devices in (("stream", 1, "0"), ("burst", 3, "0"), ("graph", 5, "0"), ("collective", 2, "0,1"))
]


@pytest.mark.parametrize("stage", [(tenant,) for tenant in KINDS], indirect=True)
def test_a_load_works_only_between_go_and_pause(stage: Stage) -> None:
    with stage:
        assert stage.look().busy == (0,)
        stage.say("go")
        worked(stage, 0)
        stage.pause()
        done, steps = stage.look().busy, stage.containers[0].report()["steps"]
        assert steps > 0
        assert stage.containers[0].report()["steps"] == steps
        assert stage.look().busy == done
        stage.say("mark")
        assert stage.containers[0].report()["steps"] == 0


@pytest.mark.parametrize("stage", [(TWO,)], indirect=True)
def test_the_others_go_on_when_a_process_is_killed(stage: Stage) -> None:
    with stage:
        stage.say("go")
        worked(stage, 0)
        os.kill(stage.containers[0].pids[0], signal.SIGKILL)
        stage.slots[0].pop(0)
        assert worked(stage, 0)["errors"] == 0
        stage.pause()


def test_a_program_that_does_not_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    container = Container([str(BUILD / "bench" / "loads"), "juggle", "1", "1"], {})
    with pytest.raises(BenchError, match="KIND: stream, burst, graph, collective"):
        container.meet()
    container.close()


def test_shares_are_busy_time_over_wall_time() -> None:
    assert shares_between(Look(1000, (10, 20)), Look(2000, (310, 720))) == [30.0, 70.0]
