"""We test these aspects of auditing: use beyond the books is found and charged once, with a tolerance that coarse
figures need; honest tenants are left alone, also while no arbiter answers; who launches without turns pays."""

from __future__ import annotations

import pytest

from partage.run.audit import LOST_NS, SECOND_NS, WINDOW_NS, Books, Look
from partage.run.handover import HandOver, user_root
from partage.shm import read_turns

from .conftest import TurnWord
from .test_k07_compute import MS, Worker

S = SECOND_NS
PERIOD = WINDOW_NS // S


class Tenant:
    """Plays looks, a second apart: what NVML sees, what is charged and claimed in it."""

    def __init__(self) -> None:
        self.books = Books()
        self.at = self.charged = self.claimed = 0

    def second(self, percent: int, charged: int, claimed: int = 0, *, answered: bool = True) -> int:
        """Return what was found, in percent of a second; `charged` and `claimed` are percent too."""
        self.at += S
        self.charged += charged * S // 100
        self.claimed += claimed * S // 100
        return self.books.add(Look(self.at, percent, self.charged, self.claimed, answered)) * 100 // S

    def found(self, seconds: int, *arguments: int, **keywords: bool) -> list[int]:
        return [found for _ in range(seconds) if (found := self.second(*arguments, **keywords))]


def test_use_that_was_charged_is_no_finding():
    assert Tenant().found(30, 30, 30, 30) == []


def test_use_without_a_charge_is_found_but_for_the_tolerance():
    tenant = Tenant()
    assert tenant.found(2 + PERIOD, 100, 0) == [90 * PERIOD]


def test_ten_points_are_nobodys_and_more_are_found():
    assert Tenant().found(2 + 4 * PERIOD, 10, 0) == []
    assert sum(Tenant().found(2 + 4 * PERIOD, 20, 0)) == 4 * PERIOD * 10


def test_a_figure_of_the_second_before_is_held_against_the_books_of_that_second():
    tenant = Tenant()
    for charged, seen in [(100, 0), (0, 100)] * 10:
        assert tenant.second(seen, charged) == 0


def test_what_was_found_is_no_excuse_for_the_next_window():
    """The arbiter's charge of the finding is taken out of the books, else a liar would pay for every other window."""
    tenant = Tenant()
    (first,) = tenant.found(2 + PERIOD, 100, 0)
    tenant.second(100, first)
    assert tenant.found(PERIOD - 1, 100, 0) == [90 * PERIOD]


def test_while_no_arbiter_answers_claims_are_the_books():
    assert Tenant().found(20, 30, 0, 30, answered=False) == []
    assert Tenant().found(20, 30, 0, 30) != [], "an arbiter that answers has charged what it believed"
    assert Tenant().found(20, 30, 0, 0, answered=False) != []


@pytest.mark.parametrize("change", ["another arbiter", "a long sleep"])
def test_what_cannot_be_compared_is_not(change):
    tenant = Tenant()
    tenant.found(1 + PERIOD, 100, 0)
    if change == "another arbiter":
        tenant.charged = -S
    else:
        tenant.at += LOST_NS
    assert tenant.found(1 + PERIOD, 100, 0) == []


def test_a_tenant_that_takes_no_turns_is_charged_and_its_neighbour_is_not(machine):
    """The liar replaces the library's view of its policy, so it launches without asking and claims nothing."""
    liar = Worker(machine, "plain", MS, "--cores", "20%", narrated=True)
    (first,) = machine.hand_overs()
    honest = Worker(machine, "plain", MS, "--cores", "20%")
    (second,) = set(machine.hand_overs()) - {first}
    root = user_root()
    liar.ask("lie")
    honest.tell("go")
    liar.tell("go")
    books = HandOver(root / first)
    liar.program.until(lambda: books.policy().devices[0].audit_ns > S)
    TurnWord(honest.hand_over.path / "turns").until(lambda: read_turns(books.path / "turns").turns[0].charged_ns > S)
    assert HandOver(root / second).policy().devices[0].audit_ns == 0
