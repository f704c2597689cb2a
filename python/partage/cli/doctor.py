"""`partage doctor`: what of this machine works, and for each fault its remedy.

The checks stand in `partage.cli.checks`; each yields findings. Nothing is changed, no machine is made, and a driver
that hangs costs a bounded time, since it is asked in a process of its own. The exit code follows the worst finding.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click
import msgspec

from partage.cli.checks import arbiters, driver, library, places, shares, simulated, variables
from partage.cli.checks.finding import Finding, Severity, finding
from partage.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODES: Final = {Severity.WARNING: ExitCode.WARNED, Severity.FAULT: ExitCode.FAILED}


def examine(seconds: float) -> Iterator[Finding]:
    """Yield the findings of all checks; each look at the driver may take so many seconds."""
    yield from guarded("system", places.check_system())
    yield from guarded("places", places.check_places())
    yield from guarded("library", library.check_library())
    yield from guarded("preloads", library.check_preloads())
    seen = driver.look(seconds)
    yield from guarded("driver", driver.check_driver(seen, seconds))
    yield from guarded("devices", driver.check_devices(seen))
    yield from guarded("loader", driver.check_loader(seconds))
    yield from guarded("simulated machine", simulated.check_machine(seen))
    yield from guarded("own share", shares.check_own())
    yield from guarded("running shares", shares.check_running(seen))
    yield from guarded("turns", arbiters.check_arbiter())
    yield from guarded("variables", variables.check_variables(seen))


def guarded(name: str, check: Iterator[Finding]) -> Iterator[Finding]:
    """Yield what a check finds; that the system refuses something is a finding too, and the other checks go on."""
    try:
        yield from check
    except OSError as error:
        yield finding("check-failed", f"check of {name}", f"{error.filename or 'system'}: {error.strerror or error}")


def lines_of(found: Finding) -> str:
    """Return a finding as text: one line, and a second one with the next step where there is one."""
    said = [f"{found.severity.mark:<6}{found.object}: {found.value}"]
    if found.limit and found.severity > Severity.NOTE:
        said[0] += f"; expected: {found.limit}"
    if found.severity > Severity.OK:
        said[0] += f" [{found.id}]"
    if found.step:
        said.append(f"      -> {found.step}")
    return "\n".join(said)


def as_json(findings: list[Finding]) -> str:
    """Return all findings as one JSON object."""
    worst = max((found.severity for found in findings), default=Severity.OK)
    listed = [asdict(found) | {"severity": found.severity.name.lower()} for found in findings]
    return msgspec.json.encode({"v": 1, "worst": worst.name.lower(), "findings": listed}).decode()


@click.command(short_help="Check this machine; name each fault's remedy.")
@click.option("--json", "in_json", is_flag=True, help="All findings as one JSON object.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=600),
    default=10.0,
    show_default=True,
    help="Seconds that the driver may take to answer.",
)
def doctor(in_json: bool, timeout: float) -> int:
    """Check this machine; print each finding with its remedy.

    Works beside a share and inside of one, needs no rights, changes nothing. Exit code 1 where there is a fault,
    7 where there are warnings and no fault.
    """
    findings: list[Finding] = []
    for found in examine(timeout):
        findings.append(found)
        if not in_json:
            click.echo(lines_of(found))
    if in_json:
        click.echo(as_json(findings))
    else:
        click.echo(", ".join(count(findings, kind, word) for kind, word in _WORDS))
    return _CODES.get(max(found.severity for found in findings), ExitCode.OK)


_WORDS: Final = ((Severity.FAULT, "fault"), (Severity.WARNING, "warning"), (Severity.NOTE, "note"))


def count(findings: list[Finding], severity: Severity, word: str) -> str:
    """Return how many findings are of this severity, in words."""
    number = sum(found.severity is severity for found in findings)
    return f"{number} {word}{'' if number == 1 else 's'}"
