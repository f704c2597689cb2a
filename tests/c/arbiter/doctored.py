"""Each property of the arbiter's core can fail: a doctored copy of it, with one fault planted, is found by its test.

Called by ctest as ``doctored.py COMPILER SOURCE_DIR WORK_DIR``. A copy is made by replacing one piece of text, which
must be there exactly once; then the test that should notice is built from it with the simulated machine, and must fail.
Where a replaced text has changed in the sources, this fails too: plant the fault anew.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """One planted fault: in `file`, `old` becomes `new`; `test` with `arguments` must notice."""

    name: str
    file: str
    old: str
    new: str
    test: str
    arguments: tuple[str, ...] = ()


FAULTS = (
    Fault(
        "a tenant is skipped",
        "choice.c",
        "if (!a->share.gated || a == d->holder",
        "if (i == 1 || !a->share.gated || a == d->holder",
        "test_arb_properties",
        ("30",),
    ),
    Fault(
        "half of the use is charged",
        "charge.c",
        "flight * time / sum : flight);",
        "flight * time / sum : flight / 2);",
        "test_arb_properties",
        ("30",),
    ),
    Fault(
        "debt is forgiven",
        "bucket.c",
        "const int64_t floor = -(int64_t)(ARB_DEBT * 1000);",
        "const int64_t floor = 0;",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "a turn opens before the one before has drained",
        "turn.c",
        "(a->draining || a->turn.open))\n\t\t\treturn false;",
        "a->turn.open)\n\t\t\treturn false;",
        "test_arb_properties",
        ("30",),
    ),
    Fault(
        "no guard",
        "turn.c",
        "now - a->closed_at >= arb_guard(arb, a)",
        "now - a->closed_at >= 100 * ARB_GUARD",
        "test_arb_liars",
        ("1",),
    ),
    Fault(
        "an audit is forgotten",
        "arbiter.c",
        "a->owed = arb_least(a->owed + busy, 6 * ARB_STEP);",
        "",
        "test_arb_liars",
        ("1",),
    ),
    Fault(
        "no revocation",
        "turn.c",
        "if (next && next->share.priority < h->share.priority",
        "if (0 && next && next->share.priority < h->share.priority",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "a pause is not lent",
        "lend.c",
        "arb_rivals(h) > 0 && arb_pausing(h, now));",
        "false);",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "surplus without virtual time",
        "bucket.c",
        "a->vtime += ns * 1000 / a->share.weight;",
        "a->vtime += a->share.weight;",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "devices are given one by one",
        "arbiter_core.h",
        "return (t->gang & (t->gang - 1)) != 0;",
        "return t->gang == 0;",
        "test_arb_collective",
        ("60",),
    ),
    Fault(
        "garbage is believed",
        "credence.c",
        "if (is_absurd(a, c, now)) {",
        "if (is_absurd(a, c, now) && !a->met) {",
        "test_arb_liars",
    ),
    Fault(
        "one process's end is its tenant's pause",
        "arbiter.c",
        "if ((!c->busy || c->busy_since >= c->idle_since) &&",
        "if (",
        "test_arb_processes",
    ),
    Fault(
        "one process's end is its tenant's",
        "charge.c",
        "if (!a->flying || a->from > begin || (c->busy && c->busy_since >= c->idle_since))",
        "if (!a->flying || a->from > begin || c->busy)",
        "test_arb_processes",
    ),
    Fault(
        "who was away waits for a turn of its neighbour",
        "arbiter_core.h",
        "(1 * ARB_MS) /* the same where",
        "(5 * ARB_MS) /* the same where",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "the neighbour of one that is away has much in flight",
        "decide.c",
        "awaits_better(a, now) ? ARB_AWAY_US : 0;",
        "0;",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "who pauses rings for those who could not use it",
        "decide.c",
        "!a->turn.open && a->right == ARB_RIGHT_NONE;",
        "false;",
        "test_arb_shares",
        ("20",),
    ),
    Fault(
        "shares do not change",
        "bucket.c",
        "\t*s = *share;",
        "\tif (before)\n\t\treturn;\n\t*s = *share;",
        "test_arb_change",
    ),
)

CORE = ("arbiter", "bucket", "charge", "choice", "turn", "lend", "decide", "credence")


def plant(fault: Fault, sources: Path, copy: Path) -> None:
    """Copies the core to `copy` with the fault planted."""
    copy.mkdir(parents=True, exist_ok=True)
    for path in (*(sources / f"{name}.c" for name in CORE), sources / "arbiter.h", sources / "arbiter_core.h"):
        text = path.read_text()
        if path.name == fault.file:
            if text.count(fault.old) != 1:
                raise SystemExit(f"{fault.name}: {fault.old!r} is {text.count(fault.old)} times in {path}, once needed")
            text = text.replace(fault.old, fault.new)
        (copy / path.name).write_text(text)


def build(fault: Fault, compiler: str, root: Path, copy: Path) -> Path:
    """Builds the test that should notice from the copy."""
    here = root / "tests/c/arbiter"
    program = copy / fault.test
    sources = [str(copy / f"{name}.c") for name in CORE]
    sources += [str(here / f"{name}.c") for name in (fault.test, "sim", "sim_device", "sim_gate")]
    includes = [f"-I{path}" for path in (copy, here, root / "tests/c", root / "hook/include")]
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-w", *includes, *sources, "-lm", "-o", str(program)], check=True, timeout=300
    )
    return program


def fails(program: Path, arguments: tuple[str, ...]) -> str:
    """What the test says where it fails; empty: it passes."""
    try:
        result = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "it never ends"
    return (result.stderr.strip() or f"exit status {result.returncode}") if result.returncode else ""


def main() -> None:
    """Plants each fault; exit 1 where one goes unnoticed, or where a test fails without one."""
    compiler, root, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    unnoticed = []
    for test, arguments in sorted({(fault.test, fault.arguments) for fault in FAULTS}):
        sound = Fault("nothing", "", "", "", test)
        plant(sound, root / "hook/arbiter", work / "sound")
        said = fails(build(sound, compiler, root, work / "sound"), arguments)
        if said:
            raise SystemExit(f"{test} {' '.join(arguments)} fails without any fault: {said}")
    for number, fault in enumerate(FAULTS):
        copy = work / f"doctored-{number}"
        plant(fault, root / "hook/arbiter", copy)
        said = fails(build(fault, compiler, root, copy), fault.arguments)
        print(f"{'noticed' if said else 'UNNOTICED'}: {fault.name}: {said}", flush=True)
        if not said:
            unnoticed.append(fault.name)
    if unnoticed:
        raise SystemExit(f"not noticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()
