"""Exit codes of every command, in one table that `partage --help` prints and scripts may rely on."""

from __future__ import annotations

import enum

from partage.model import (
    AskError,
    DeviceError,
    LaunchError,
    LedgerError,
    NotFoundError,
    PartageError,
    PolicyError,
    ShareRefused,
    UsageError,
)


class ExitCode(enum.IntEnum):
    """What a command's end means; the comment beside each value is its line in the table."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NO_DRIVER = 4
    NOT_FOUND = 5
    DAMAGED = 6
    WARNED = 7
    DEFECT = 70
    NOT_STARTED = 125
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done; `run`: the program ended with 0",
    ExitCode.FAILED: "`doctor` found a fault, `demo` missed a promise, the system refused something",
    ExitCode.USAGE: "wrong option or value",
    ExitCode.REFUSED: "the share cannot be promised",
    ExitCode.NO_DRIVER: "no real or simulated driver answers",
    ExitCode.NOT_FOUND: "nothing of that name",
    ExitCode.DAMAGED: "a policy or ledger cannot be used",
    ExitCode.WARNED: "`doctor` found warnings and no fault",
    ExitCode.DEFECT: "a defect of partage",
    ExitCode.NOT_STARTED: "`run`: the program could not be started with the library in it",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}

_OF_ERROR: dict[type[PartageError], ExitCode] = {
    AskError: ExitCode.USAGE,
    UsageError: ExitCode.USAGE,
    ShareRefused: ExitCode.REFUSED,
    DeviceError: ExitCode.NO_DRIVER,
    NotFoundError: ExitCode.NOT_FOUND,
    PolicyError: ExitCode.DAMAGED,
    LedgerError: ExitCode.DAMAGED,
    LaunchError: ExitCode.NOT_STARTED,
}


def of_error(error: PartageError) -> ExitCode:
    """Return the exit code for an error of ours."""
    return next((code for kind, code in _OF_ERROR.items() if isinstance(error, kind)), ExitCode.FAILED)


def table() -> str:
    """Return the table as text for the help page."""
    lines = [f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join(["Exit codes:", *lines, "  n    `run`: the program's own code; 128 + s where signal s ended it"])
