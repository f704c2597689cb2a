"""The `partage` command: finds subcommands, turns errors into one line and an exit code.

Subcommands are imported when they are used, so that `partage run` starts fast. Every error is one line on stderr,
`partage: object: value; limit; next step`; a defect of ours says so, and shows its traceback with -v.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import sys
from typing import Final

import click
import structlog

from partage._version import __version__
from partage.cli import exit_codes
from partage.cli.exit_codes import ExitCode
from partage.model import PartageError

# Command -> module below partage.cli; each has a click command of that name with underscores.
COMMANDS: Final = {
    "run": "run",
    "top": "top",
    "resize": "resize",
    "demo": "demo",
    "doctor": "doctor",
    "scheduler": "programs",
    "sim": "sim",
    "webhook": "programs",
    "explain": "explain",
    "simulate": "simulate",
    "chart": "chart",
    "forget": "forget",
    "completion": "completion",
}


class _Group(click.Group):
    """Loads a subcommand's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"partage.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 -- a defect of COMMANDS, not of the user
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write("\n" + exit_codes.table() + "\n")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="partage")
@click.option("-v", "--verbose", count=True, help="Say on stderr what is done; twice: also why.")
def cli(verbose: int) -> None:
    """Share accelerators: give any program a part of a device's memory and time."""
    set_up_logging(verbose)


def set_up_logging(verbose: int) -> None:
    """Log to stderr: warnings, with one -v also what is done, with two also why."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="partage", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        return _failed(error)
    return result if isinstance(result, int) else ExitCode.OK


def _failed(error: Exception) -> int:
    """Say in one line what went wrong; return the exit code."""
    match error:
        case click.Abort():
            return ExitCode.INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            error.show()  # the help page itself
            return error.exit_code
        case click.ClickException():
            return _end(_usage(error), error.exit_code)
        case PartageError():
            return _end(f"partage: {error}", exit_codes.of_error(error))
        case OSError():
            return _system_error(error)
    structlog.get_logger("partage").info("defect", exc_info=error)
    found = f"partage: defect: {type(error).__name__}: {error}"
    return _end(f"{found}; this should not happen; please report what `partage -v ...` says", ExitCode.DEFECT)


def _end(words: str, code: int) -> int:
    with contextlib.suppress(OSError):  # stderr may be full or closed: the exit code says it too
        click.echo(words, err=True)
    return code


def _usage(error: click.ClickException) -> str:
    """Return click's complaint as one line that ends with the next step."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "partage"
    return f"{path}: {error.format_message().rstrip('.')}; see `{path} --help`"


def _system_error(error: OSError) -> int:
    """Say what the system refused; that nobody reads the output any more, click ends quietly itself."""
    if error.errno in {errno.ENOSPC, errno.EBADF}:
        with contextlib.suppress(OSError):  # what is still buffered has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    subject = error.filename or "output"
    return _end(f"partage: {subject}: {error.strerror}; the system refused it; correct that", ExitCode.FAILED)
