"""The `partage` command: finds subcommands, turns errors into one line and an exit code.

Subcommands are imported when they are used, so that `partage run` starts fast. Every error of ours is printed as
`partage: object: value; limit; next step` on stderr; anything else is a defect and shows its traceback.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Final

import click
import structlog

from partage._version import __version__
from partage.cli import exit_codes
from partage.model import PartageError

# Command -> module below partage.cli; each has a click command of that name with underscores.
COMMANDS: Final = {
    "run": "run",
    "top": "top",
    "resize": "resize",
    "demo": "demo",
    "doctor": "doctor",
    "sim": "sim",
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
    except click.Abort:
        return exit_codes.ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PartageError as error:
        click.echo(f"partage: {error}", err=True)
        return exit_codes.of_error(error)
    return result if isinstance(result, int) else exit_codes.ExitCode.OK
