"""The cells of bench/shares.py: which tenants stand on the card, with which shares and loads, and what they must get.

A *cell* is one row of the table: tenants that begin together, a *scene* (what happens while they run, see scenes.py)
and bounds. Shares are in percent of the card's time. `matrix()` is the whole table in its order, `SMOKE` what a change
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

US: Final = 1_000
MS: Final = 1_000_000


@dataclass(frozen=True)
class Load:
    """What one process does: arguments of bench/loads; times in ns."""

    name: str
    kind: str
    kernel_ns: int
    gap_ns: int = 0
    count: int = 1

    def arguments(self, processes: int, loops: int = 0) -> list[str]:
        """Return the command line of bench/loads; `loops` of a kernel on a real device, 0: simulated."""
        numbers = (processes, self.kernel_ns, self.gap_ns, self.count, loops)
        return [self.kind, *map(str, numbers)]


@dataclass(frozen=True)
class Tenant:
    """One container. `cores` in percent (None: it asked for none); `due`: percent that it must get, None: its cores."""

    load: Load
    cores: float | None
    processes: int = 1
    share_class: str | None = None
    priority: str = "P1"
    due: float | None = None
    devices: str = "0"

    @property
    def share(self) -> float:
        """Percent of the card that it must get if it asks for all of it."""
        return self.cores or 0.0 if self.due is None else self.due


@dataclass(frozen=True)
class Cell:
    """One row. `points`: how far got may be from asked; `aggregate`: part of the card's use without a shim."""

    name: str
    tenants: tuple[Tenant, ...]
    scene: str = "steady"
    points: float = 2.0
    jain: float | None = 0.99
    aggregate: float | None = 0.97
    beside_none: bool = False  # each must get what it gets without a shim, instead of its share
    handed_over: bool = False  # the programs themselves make the card go from context to context: see shares.py

    def baseline(self) -> Cell:
        """Return the same programs without shares: what the card does by itself."""
        tenants = tuple(replace(t, cores=None, share_class=None, priority="P1", due=None) for t in self.tenants)
        loads = [f"{tenant.load.name}/{tenant.processes}" for tenant in tenants]
        same = len(set(loads)) == 1
        return Cell(f"none/{len(loads)}x{loads[0]}" if same else f"none/{'+'.join(loads)}", tenants)

    def alone(self) -> list[Cell]:
        """Return each tenant's program on a card of its own."""
        loads = {(t.load, t.processes, t.devices) for t in self.tenants}
        return [alone_of(Tenant(load, None, count, devices=devices)) for load, count, devices in loads]


def alone_of(tenant: Tenant) -> Cell:
    """Return the cell in which a tenant's program has the card for itself."""
    bare = Tenant(tenant.load, None, tenant.processes, devices=tenant.devices)
    return Cell(f"none/1x{tenant.load.name}/{tenant.processes}", (bare,))


TINY = Load("20us", "stream", 20 * US)
PLAIN = Load("1ms", "stream", MS)
LONG = Load("80ms", "stream", 80 * MS)
GRAPH = Load("graph", "graph", 25 * US, count=40)
GAP = Load("gap", "burst", MS, gap_ns=MS)  # 1 ms on the card, 1 ms on the host
PAIR = Load("1ms+1ms", "burst", MS, gap_ns=MS)
BURSTS = Load("bursts", "burst", MS, gap_ns=20 * MS, count=20)
URGENT = Load("urgent", "burst", 100 * US, gap_ns=7 * MS)
MEET = Load("collective", "collective", 200 * US, count=3)

LOADS: Final = (TINY, PLAIN, LONG, GRAPH, GAP)
SPLITS: Final = {
    "10-90": (10.0, 90.0),
    "30-70": (30.0, 70.0),
    "50-50": (50.0, 50.0),
    "4x25": (25.0,) * 4,
    "8x12.5": (12.5,) * 8,
    "alone-10": (10.0,),
    "alone-30": (30.0,),
    "alone-50": (50.0,),
    "alone-80": (80.0,),
}


def _matrix() -> list[Cell]:
    return [
        Cell(
            f"{split}/{load.name}/{processes}",
            tuple(Tenant(load, share, processes) for share in shares),
            aggregate=0.97 if len(shares) > 1 else None,
            # Two of one kernel and one pause would have to alternate without a moment between: nothing can do that.
            beside_none=(split, load.name, processes) == ("50-50", "gap", 1),
            handed_over=processes > 1 or load.gap_ns > 0,
        )
        for processes in (1, 8)
        for load in LOADS
        for split, shares in SPLITS.items()
    ]


def _classes(processes: int) -> list[Cell]:
    """Shares of all classes beside each other; what is due follows from the rules, not from the cores alone."""

    def beside(name: str, *tenants: Tenant, points: float = 2.0) -> Cell:
        several = tuple(replace(t, processes=processes) for t in tenants)
        return Cell(f"{name}/{processes}", several, points=points, handed_over=processes > 1)

    def burst(cores: float, due: float) -> Tenant:
        return Tenant(PLAIN, cores, share_class="burst", due=due)

    return [
        beside("fixed-30-beside-none", Tenant(PLAIN, 30), Tenant(PLAIN, None, due=70)),
        beside("burst-30-50", burst(30, 37.5), burst(50, 62.5), points=3.0),
        beside("burst-30-alone", burst(30, 100)),
        beside("fixed-50-beside-best", Tenant(PLAIN, 50), Tenant(PLAIN, None, share_class="best-effort", due=50)),
        beside("fixed-30-burst-30", Tenant(PLAIN, 30), burst(30, 70)),
    ]


def _others() -> list[Cell]:
    half = Tenant(PLAIN, 50)
    thirds = (Tenant(PLAIN, 30), Tenant(PLAIN, 70))
    urgent = Tenant(URGENT, 30, priority="P0", share_class="burst", due=30)
    behind = Tenant(PLAIN, 30, priority="P2", share_class="burst", due=100)
    return [
        Cell("mixed-30-80ms-70-1ms", (Tenant(LONG, 30), Tenant(PLAIN, 70))),
        Cell("mixed-30-20us-70-bursts", (Tenant(TINY, 30), Tenant(BURSTS, 70))),
        Cell("pair-50-50/1ms+1ms", (Tenant(PAIR, 50),) * 2, beside_none=True, aggregate=0.90),
        Cell("priority-P0-beside-P2", (urgent, behind), scene="wait", jain=None, points=100, aggregate=None),
        Cell("step-30-70-to-60-40", thirds, scene="step"),
        Cell("idle-8x12.5", tuple(Tenant(PLAIN, 12.5) for _ in range(8)), scene="idle"),
        Cell(
            "killed-in-its-turn",
            (replace(half, processes=8), half),
            scene="kill",
            points=100,
            jain=None,
            aggregate=None,
        ),
        Cell("stopped-in-its-turn", (half, half), scene="stop", points=100, jain=None, aggregate=None),
        Cell("arbiter-killed-30-70", thirds, scene="arbiter", points=100, jain=None, aggregate=None),
        Cell(
            "arbiter-killed-30-70/8",
            tuple(replace(t, processes=8) for t in thirds),
            scene="arbiter",
            points=100,
            jain=None,
            aggregate=None,
            handed_over=True,
        ),
        Cell(
            "collective-beside-two",
            (Tenant(MEET, 40, devices="0,1"), Tenant(PLAIN, 60), Tenant(PLAIN, 60, devices="1")),
            scene="collective",
            points=100,
            jain=None,
            aggregate=None,
        ),
    ]


def matrix() -> list[Cell]:
    """Return all cells in the order of the table."""
    return [*_matrix(), *_classes(1), *_classes(8), *_others()]


#: Twelve cells of twelve seconds; the first without a shim, where 30/70 must come out as about 50/50.
SMOKE_NONE: Final = "30-70/1ms/1"
SMOKE: Final = (
    "30-70/1ms/1",
    "10-90/20us/1",
    "50-50/graph/1",
    "4x25/gap/1",
    "8x12.5/1ms/1",
    "30-70/80ms/1",
    "alone-30/20us/1",
    "30-70/1ms/8",
    "burst-30-50/1",
    "fixed-50-beside-best/1",
    "step-30-70-to-60-40",
)
